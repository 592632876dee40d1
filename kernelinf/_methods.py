"""Ways of computing a model after an edit of its training set: estimated, or found by retraining.

A method solves one edit, or many removals together, which share their products with the Gram matrix
or one factorisation.
"""

import abc
import contextlib
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, like, namespace, to_numpy
from ._checks import check_flags, is_number, is_one_of
from ._factorization import cost
from ._groups import Groups
from ._newton import EXPECTED_ITERATIONS, MAX_FACTOR_BYTES, TOLERANCE, Solution, System
from ._problem import Problem
from ._stack import Stack, spread, train
from ._threads import in_threads
from ._training import (
    KernelGradientDescent,
    Model,
    Newton,
    check_count,
    check_tolerance,
    rounding,
)

Points = npt.NDArray[np.intp]
Form = Literal["masked", "sliced", "grouped"]

ROUGHLY = 0.1  # relative residual of a step that only starts an iteration
SLICE_FROM = 0.15  # forgotten share from which a copy of the retained Gram pays (measured)
SLICE_STACK_FROM = 0.6  # the same for many removals, whose masked forms share their products


@dataclass(frozen=True, eq=False)
class Solved:
    """Coefficients after an edit and how they were found.

    Attributes
    ----------
    alpha
        (n, d), or (n, d, s) for s removals.
    residuals
        Relative residual of the linear system, (s,).
    converged
        Whether it will do, (s,).
    """

    alpha: Array
    residuals: Array
    converged: Any


Batch = Callable[[Stack, Sequence[Points]], Solved]


class Method(abc.ABC):
    """A way of computing a model after an edit of its training set."""

    @abc.abstractmethod
    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one edited problem."""

    @abc.abstractmethod
    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Prepare for these removals, and return what solves some of them as a stack."""


@dataclass(frozen=True)
class FirstOrder(Method):
    """The derivative of the optimum along the path from the old risk to the edited one, times one.

    On the path the weights fall or rise and new labels take over from old ones in proportion. For
    a removal that is upweighting (Sun & Valaee 2026, Eqs. 1 to 3), with the Hessian of all the
    data: (rho I + W K) d_alpha = g_F + m reg alpha, the last term from the ridge of a mean risk,
    which falls with the weights.
    """

    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one edited problem."""
        system = model.problem.system(model._outputs)
        return _single(_first_order(model, system, _stack_of(problem)))

    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Prepare for these removals, and return what solves some of them as a stack."""
        system = _prepared(model, len(sets))
        return lambda stack, _: _first_order(model, system, stack)


@dataclass(frozen=True)
class SecondOrder(Method):
    """The first two terms of the Newton step, expanded in what the edit changes of the system.

    With T the inverse of the system before and D the system before minus that after, the step is
    T b + T D T b + ..., of which `FirstOrder` is the first term: for a group F of a risk of summed
    losses, T (I + W_F K T) g_F (Basu, You & Feizi 2020). It costs one more solve with the
    same system, and improves on the first order when the group is small.
    """

    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one edited problem."""
        system = model.problem.system(model._outputs)
        return _single(_second_order(model, system, _stack_of(problem)))

    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Prepare for these removals, and return what solves some of them as a stack."""
        system = _prepared(model, 2 * len(sets))
        return lambda stack, _: _second_order(model, system, stack)


@dataclass(frozen=True, repr=False)
class NewtonStep(Method):
    """One Newton step of the edited risk, from the model's own coefficients.

    For a removal, Sun & Valaee 2026, Eqs. 5 and 12, with the kernel cancelled from both sides.
    Exact for the squared loss, also from a model that is not trained to the end.

    Attributes
    ----------
    form
        How to solve it. "masked": on all points, with weight zero on the forget set; "sliced": on a
        copy of the retained part of the Gram matrix; "grouped": from a factorisation of the whole
        system, which many small forget sets share. All give the same; None takes the cheapest by
        the sizes.
    residual_correction
        Keep the residual rho alpha + g that a model has which was stopped early. False assumes that
        it was trained to the end and follows the gradient of the edit alone, as Guo et al. 2020
        (Eq. 3) and Koh & Liang 2017 do: what training left undone stays so, and removed points keep
        their share of the residual as a coefficient.
    calibration_steps
        Steps of gradient descent on the edited risk after the Newton step, at the largest rate that
        is stable for a quadratic risk: the remedy that makes up for a naive step without its
        residual, at the price of products with the kernel.
    calibration_fraction
        Share of the points, in (0, 1], that the descent sees, drawn once. Their weights are raised
        to the total of all.
    calibration_seed
        Seed of that draw.
    """

    form: Form | None = None
    residual_correction: bool = field(default=True, kw_only=True)
    calibration_steps: int = field(default=0, kw_only=True)
    calibration_fraction: float = field(default=1.0, kw_only=True)
    calibration_seed: int = field(default=0, kw_only=True)

    def __repr__(self) -> str:
        chosen = [
            f"{option.name}={getattr(self, option.name)!r}"
            for option in fields(self)
            if getattr(self, option.name) != option.default
        ]
        return f"NewtonStep({', '.join(chosen)})"

    def __post_init__(self) -> None:
        if not is_one_of(self.form, (None, "masked", "sliced", "grouped")):
            raise ValueError(f"`form` is {self.form!r}; pass 'masked', 'sliced', 'grouped' or None")
        check_flags(residual_correction=self.residual_correction)
        check_count(self.calibration_steps, "calibration_steps")
        check_count(self.calibration_seed, "calibration_seed")
        share = self.calibration_fraction
        if not (is_number(share) and 0 < share <= 1):
            raise ValueError(f"`calibration_fraction` is {share!r}; pass a number in (0, 1]")

    @property
    def plain(self) -> bool:
        """Whether this is the Newton step itself, its residual kept and nothing after it."""
        return self.residual_correction and not self.calibration_steps

    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one edited problem."""
        return self._calibrated(problem, self._step(model, problem))

    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Prepare for these removals, and return what solves some of them as a stack."""
        steps = self._steps(model, sets)

        def solve(stack: Stack, members: Sequence[Points]) -> Solved:
            solved = steps(stack, members)
            if not self.calibration_steps:
                return solved
            alpha = to_numpy(solved.alpha)
            parts = [
                self._calibrated(
                    model.problem.without(group),
                    Solved(
                        like(alpha[:, :, column], model._alpha),
                        solved.residuals[column : column + 1],
                        solved.converged[column : column + 1],
                    ),
                )
                for column, group in enumerate(members)
            ]
            return _joined([replace(part, alpha=as_stack(part.alpha)) for part in parts])

        return solve

    def _step(self, model: Model, problem: Problem) -> Solved:
        origin = _Origin(model, self.residual_correction)
        if self.form == "grouped":
            before, after = (to_numpy(p.weights) for p in (model.problem, problem))
            removed = (after == 0) & (before > 0)
            shared = _Shared(origin, like(np.where(removed, before, after), problem.weights))
            return _single(shared(_stack_of(problem), [np.flatnonzero(removed)]))
        sliced = self.form == "sliced" or (self.form is None and _slices(problem))
        return _sliced_step(problem, origin) if sliced else _masked_step(problem, origin)

    def _steps(self, model: Model, sets: Sequence[Points]) -> Batch:
        origin = _Origin(model, self.residual_correction)
        shared = _Shared(origin, model.problem.weights)

        def solve(stack: Stack, members: Sequence[Points]) -> Solved:
            largest = max(map(len, members))
            shares = self.form is None and _shares(model.problem, sets, largest)
            if self.form == "grouped":
                return shared(stack, members)
            if shares:
                with contextlib.suppress(FloatingPointError):  # rounding may spoil what is shared
                    solved = shared(stack, members)
                    if solved.converged.all():
                        return solved
            if self.form == "masked" or (self.form is None and _stacks(stack)):
                return _by_columns(lambda part: _masked_steps(origin, part), stack)
            return _one_by_one(lambda part: _sliced_step(part, origin), model, members)

        return solve

    def _calibrated(self, problem: Problem, solved: Solved) -> Solved:
        """Descend on the edited risk, or on a sample of its points, from a Newton step (n, d)."""
        if not self.calibration_steps:
            return solved
        sample = _sample(problem, self.calibration_fraction, self.calibration_seed)
        descent = KernelGradientDescent(self.calibration_steps)
        return replace(solved, alpha=descent.train(sample, solved.alpha, progress=False).alpha)


@dataclass(frozen=True)
class Retrain(Method):
    """Exact retraining on the edited training set, by Newton's method to a gradient norm `tol`.

    It starts from a rough Newton step, which halves the work: the model's own coefficients, without
    those of the forget set, are a worse start than zero. The squared loss starts from zero, and so
    does any other when the step, at a very small `reg`, overshoots so far that zero is better.
    """

    tol: float = 1e-11

    def __post_init__(self) -> None:
        check_tolerance(self.tol)

    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one edited problem."""
        rows = _retained(problem)
        part = problem.take(rows)
        start = 0 * part.targets
        if not problem.loss.quadratic:
            step, _ = _retained_step(problem, _Origin(model), part, rows, tolerance=ROUGHLY)
            start = _better(part, step, start)
        trained = Newton(self.tol).train(part, start, progress=False)
        alpha = _scatter(trained.alpha, rows, problem.gram.n)
        return Solved(alpha, np.zeros(1), np.array([trained.converged]))

    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Prepare for these removals, and return what solves some of them as a stack."""

        def solve(stack: Stack, members: Sequence[Points]) -> Solved:
            if not _stacks(stack):
                return _one_by_one(lambda part: self.solve(model, part), model, members)
            return _by_columns(lambda part: self._trained(model, part), stack)

        return solve

    def _trained(self, model: Model, stack: Stack) -> Solved:
        trained = train(stack, model._alpha, model._outputs, self.tol)
        # exact for removed rows, whatever the tolerance
        alpha = namespace(trained.alpha).where(stack.weights[:, None] > 0, trained.alpha, 0.0)
        return Solved(alpha, np.zeros(len(trained.converged)), trained.converged)


@dataclass(frozen=True, eq=False)
class _Origin:
    """Where a Newton step starts from.

    Attributes
    ----------
    corrected
        Whether the step takes off the residual that the model has itself.
    """

    model: Model
    corrected: bool = True

    def pull(self, problem: Problem) -> Array:
        """Return the right-hand side of the step on an edited problem, (n, d)."""
        return self._residual - problem.residual(self.model._alpha, self.model._outputs)

    def pulls(self, stack: Stack) -> Array:
        """Return that of many edited problems, (n, d, s)."""
        alpha, outputs = as_stack(self.model._alpha), as_stack(self.model._outputs)
        return as_stack(self._residual) - stack.residual(alpha, outputs)

    def shift(self, problem: Problem) -> Array | None:
        """Return how the initial outputs differ from the model's, (n, d); None if they do not."""
        before = self.model.problem.offset
        return None if problem.offset is before else problem.offset - before

    def arrive(self, step: Array, kept: Any) -> Array:
        """Return the coefficients after a step, (n, d, ...).

        A corrected step takes those of removed points to zero: exactly so, whatever the solver's
        tolerance.
        """
        alpha = self.model._alpha if step.ndim == 2 else as_stack(self.model._alpha)
        after = alpha + step
        return namespace(after).where(kept, after, 0.0) if self.corrected else after

    @functools.cached_property
    def _residual(self) -> Array:
        """The residual that is taken for zero, (n, d)."""
        model = self.model
        if self.corrected:
            return 0 * model._alpha
        return model.problem.residual(model._alpha, model._outputs)


def _sample(problem: Problem, fraction: float, seed: int) -> Problem:
    """Return the problem on a share of its points alone, weighted up to the total of all."""
    rows = _retained(problem)
    size = max(1, round(fraction * len(rows)))
    chosen = np.random.default_rng(seed).choice(rows, size, replace=False)
    weights = np.zeros(problem.gram.n)
    weights[chosen] = to_numpy(problem.weights)[chosen]
    return replace(
        problem, weights=like(weights * (problem.total / weights.sum()), problem.weights)
    )


def _stack_of(problem: Problem) -> Stack:
    return Stack(problem, problem.weights[:, None])


def _single(solved: Solved) -> Solved:
    return replace(solved, alpha=solved.alpha[:, :, 0])


def _checked(alpha: Array, solution: Solution, problem: Problem) -> Solved:
    residuals = to_numpy(solution.residuals)
    return Solved(alpha, residuals, residuals <= rounding(problem))


def _prepared(model: Model, columns: int) -> System:
    return model.problem.system(model._outputs).prepared(columns)


def _first_step(model: Model, system: System, stack: Stack) -> Solution:
    """Solve the model's own system for the change of the residual."""
    alpha, outputs = model._alpha, model._outputs
    before = as_stack(model.problem.residual(alpha, outputs))
    return system.solve(before - stack.residual(as_stack(alpha), as_stack(outputs)))


def _first_order(model: Model, system: System, stack: Stack) -> Solved:
    solution = _first_step(model, system, stack)
    return _checked(as_stack(model._alpha) + solution.x, solution, model.problem)


def _second_order(model: Model, system: System, stack: Stack) -> Solved:
    first = _first_step(model, system, stack)
    edited = stack.problem.loss.root(as_stack(model._outputs), stack.weights)
    moved = edited.apply(edited.apply_transposed(first.product))
    difference = (system.rho - stack.rho) * first.x + system.hessian(first.product) - moved
    second = system.solve(difference)
    alpha = as_stack(model._alpha) + first.x + second.x
    return _checked(alpha, max(first, second, key=lambda s: s.residual), model.problem)


@dataclass(frozen=True, eq=False)
class _Shared:
    """Newton steps of forget sets from factorisations of the whole system, one a ridge.

    Attributes
    ----------
    weights
        Of all points before any is removed, (n,).
    """

    origin: _Origin
    weights: Array
    factorised: dict[float, System] = field(default_factory=dict)

    def __call__(self, stack: Stack, members: Sequence[Points]) -> Solved:
        rho = to_numpy(stack.rho)
        parts = [(ridge, np.flatnonzero(rho == ridge)) for ridge in np.unique(rho)]
        n, d = stack.problem.targets.shape
        step, residuals = np.empty((n, d, len(members)), order="F"), np.empty(len(members))
        for ridge, columns in parts:
            sets = tuple(members[int(column)] for column in columns)
            solution = self._solve(float(ridge), stack.columns(columns), sets)
            step[:, :, columns] = to_numpy(solution.x)
            residuals[columns] = to_numpy(solution.residuals)
        alpha = self.origin.arrive(like(step, stack.weights), stack.weights[:, None] > 0)
        return Solved(alpha, residuals, residuals <= rounding(self.origin.model.problem))

    def _solve(self, ridge: float, stack: Stack, sets: tuple[Points, ...]) -> Solution:
        root = stack.problem.loss.root(as_stack(self.origin.model._outputs), stack.weights)
        system = Groups(stack.problem.gram, root, ridge, True, full=self._full(ridge), sets=sets)
        return system.solve(self.origin.pulls(stack))

    def _full(self, ridge: float) -> System:
        """Return the system of all points at a ridge; the last one is kept, factorised."""
        if ridge not in self.factorised:
            model, problem = self.origin.model, self.origin.model.problem
            root = problem.loss.root(model._outputs, self.weights)
            self.factorised.clear()
            self.factorised[ridge] = System(problem.gram, root, ridge, direct=True)
        return self.factorised[ridge]


def _shares(problem: Problem, sets: Sequence[Points], m: int) -> bool:
    """Decide whether a factorisation of the whole system is cheapest for groups of m points.

    Sets that leave the same ridge share one. The counts are of operations, weighed by the rates at
    which they were measured to run.
    """
    root = problem.loss.root(problem.offset, problem.weights)
    size, operations = cost(problem.gram, root)
    n, d = problem.targets.shape
    product = n * n * d if problem.gram.outputs is None else size
    side = m if root.direction is None and problem.gram.outputs is None else m * d
    own = 2 * n * side**2 + side**3 + 24 * product
    apart = 6 * (n - m) ** 3 if problem.loss.quadratic else 2 * EXPECTED_ITERATIONS * product
    shared = 3 * operations * _ridges(problem, sets) / len(sets)
    return problem.gram.whole and 16 * size <= MAX_FACTOR_BYTES and shared + own < apart


def _ridges(problem: Problem, sets: Sequence[Points]) -> int:
    """Count the different ridges that forget sets leave."""
    if problem.reg_scale == "sum":
        return 1
    weights = to_numpy(problem.weights)
    return len({float(weights[group].sum()) for group in sets})


def _stacks(stack: Stack) -> bool:
    """Decide whether to solve a stack masked rather than one by one on copies."""
    kept = to_numpy((stack.weights > 0).sum(axis=0))
    retained = float(kept.min()) / len(stack.weights)
    direct = stack.problem.loss.quadratic and stack.problem.gram.whole
    return not direct and 1 - retained < SLICE_STACK_FROM


def _one_by_one(
    solve: Callable[[Problem], Solved], model: Model, members: Sequence[Points]
) -> Solved:
    solved = [solve(model.problem.without(group)) for group in members]
    return _joined([replace(part, alpha=as_stack(part.alpha)) for part in solved])


def _by_columns(solve: Callable[[Stack], Solved], stack: Stack) -> Solved:
    """Solve a stack, its columns in threads where they are NumPy arrays."""
    if namespace(stack.weights) is not np:
        return solve(stack)
    stack.prepare()
    parts = in_threads(lambda columns: solve(stack.columns(columns)), stack.weights.shape[1])
    return _joined(parts)


def _joined(solved: Sequence[Solved]) -> Solved:
    """Return parts of a stack as one."""
    return Solved(
        namespace(solved[0].alpha).concatenate([part.alpha for part in solved], axis=2),
        np.concatenate([part.residuals for part in solved]),
        np.concatenate([part.converged for part in solved]),
    )


def _masked_steps(origin: _Origin, stack: Stack) -> Solved:
    """Solve on all n rows with weight zero on the forget sets."""
    outputs = spread(origin.model._outputs, stack.weights.shape[1])
    solution = stack.system(outputs).solve(origin.pulls(stack))
    after = origin.arrive(solution.x, stack.weights[:, None] > 0)
    return _checked(after, solution, origin.model.problem)


def _retained(problem: Problem) -> Points:
    return np.flatnonzero(to_numpy(problem.weights))


def _slices(problem: Problem) -> bool:
    """Decide whether to copy the retained rows and columns or to keep the others masked.

    A factorisation of the retained part alone is always cheaper. An iteration on it costs
    (n_r / n)^2 as much, which repays the copy from a seventh of the points on.
    """
    forgotten = 1 - len(_retained(problem)) / problem.gram.n
    return problem.loss.quadratic or forgotten >= SLICE_FROM


def _masked_step(problem: Problem, origin: _Origin) -> Solved:
    """Solve on all n rows with weight zero on the forget set."""
    system = problem.system(origin.model._outputs)
    solution = system.solve(origin.pull(problem), shift=origin.shift(problem))
    alpha = origin.arrive(solution.x, (problem.weights > 0)[:, None])
    return _checked(alpha, solution, problem)


def _sliced_step(problem: Problem, origin: _Origin) -> Solved:
    """Solve on a copy of the retained rows."""
    rows = _retained(problem)
    alpha, solution = _retained_step(problem, origin, problem.take(rows), rows)
    after = _scatter(alpha, rows, problem.gram.n)
    if not origin.corrected:
        moved = origin.model._alpha + origin.pull(problem) / problem.rho
        after = namespace(after).where((problem.weights > 0)[:, None], after, moved)
    return _checked(after, solution, problem)


def _retained_step(
    problem: Problem, origin: _Origin, part: Problem, rows: Points, tolerance: float = TOLERANCE
) -> tuple[Array, Solution]:
    """Return the coefficients of the retained points, (r, d), after a Newton step.

    Those of removed points go their own way, rho x = b, which is a known shift of the outputs.
    """
    model, xp = origin.model, namespace(origin.model._alpha)
    pull = origin.pull(problem)
    moved = xp.where((problem.weights > 0)[:, None], 0.0, pull / problem.rho)
    shift, initial = problem.gram @ moved, origin.shift(problem)
    shift = shift if initial is None else shift + initial
    alpha, outputs, b, shift = (
        xp.take(a, rows, axis=0) for a in (model._alpha, model._outputs, pull, shift)
    )
    solution = part.system(outputs).solve(b, tolerance, shift)
    return alpha + solution.x, solution


def _better(problem: Problem, alpha: Array, other: Array) -> Array:
    """Return the coefficients of the lower risk; a risk that is no number counts as higher."""
    risks = [problem.risk(a, problem.outputs(a)) for a in (alpha, other)]
    return alpha if risks[0] <= risks[1] else other


def _scatter(values: Array, rows: Points, n: int) -> Array:
    """Put the rows of the retained points back among zeros, (n, d)."""
    full = np.zeros((n, values.shape[1]))
    full[rows] = to_numpy(values)
    return like(full, values)
