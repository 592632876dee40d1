"""Every point's output and loss under the model trained without it.

With the squared loss one Cholesky factor gives them all exactly. For other losses the Newton step
without point i is the model's own linear system with one block changed: with S = K (rho I + W K)^-1
at the retained ridge, r = rho alpha + g and W the Hessians at the model's outputs,

    f_-i(x_i) - f_i = (I - S_ii W_i)^-1 (S_ii g_i - (S r)_i),

so that one factorisation serves every point (a block form of the approximate cross-validation of
Opper & Winther 2000, and Rad & Maleki 2020). Further steps, to exactness, are solved for many
left-out points at once, as one stack of systems that differ in their Hessians.
"""

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._arrays import Array, as_stack, finite, in_float64, like, namespace, to_numpy
from ._checks import check_flags, is_whole
from ._factorization import solve_blocks, solve_with_blocks
from ._losses import HessianRoot, accuracy
from ._newton import System
from ._problem import Problem
from ._removal import present_indices
from ._stack import Stack
from ._training import ConvergenceWarning, Model, rounding

Points = npt.NDArray[np.intp]

STACK_BYTES = 16e6  # size of one stack (n, d, s); about a dozen are alive at once
REFINED = 1e-8  # relative accuracy of a further step's solve: the next one squares its error


@dataclass(frozen=True, eq=False)
class LeaveOneOut:
    """Outputs and losses at points that were left out. Made by `kernelinf.leave_one_out`.

    Attributes
    ----------
    outputs
        Row j: the output at training point `points[j]` of the model trained without it, (m, d).
    losses
        Its loss there, (m,).
    points
        Indices of the points, (m,).
    exact
        Whether the outputs are those of retraining, up to rounding: so for the squared loss.
    accuracy
        Share of the points that are classified rightly when left out; None for real targets.
    gradient_norms
        Norm, in parameter space, of the gradient of the risk without each point, (m,): how far the
        refined outputs are from retraining. None unless refined.
    """

    outputs: Array
    losses: Array
    points: Points
    exact: bool
    accuracy: float | None = None
    gradient_norms: Array | None = None

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "estimated"
        text = f"{len(self.points)} points, {kind}: mean loss {self.losses.mean():.3g}"
        if self.accuracy is not None:
            text += f", accuracy {self.accuracy:.1%}"
        if self.gradient_norms is not None:
            text += f", gradient norms up to {self.gradient_norms.max():.1e}"
        return f"LeaveOneOut({text})"


@in_float64
def leave_one_out(
    model: Model,
    *,
    refine: int = 0,
    points: npt.ArrayLike | None = None,
    progress: bool = False,
) -> LeaveOneOut:
    """Predict each training point by the model trained without it, for all points at once.

    Exact for the squared loss (n^3 operations in all, whatever the points). Otherwise one Newton
    step from the model's own coefficients, the `remove(model, [i])` of every point, from one
    factorisation if there are points enough to repay it; then `refine` further steps.

    Parameters
    ----------
    model
        A trained model. It need not be trained to the end: the step keeps the residual.
    refine
        Newton steps after the first, each with a line search. Two reach retraining on ordinary
        problems; `gradient_norms` of the result tells. Of no use to the squared loss.
    points
        Which points: indices (m,), in the order wanted, or a boolean mask (n,). None takes every
        point that the model still has, so not those that were removed from it.
    progress
        Show a progress bar.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    TypeError
        `model` is no model.
    ValueError
        Indices repeat, are out of range or already removed; `refine` is no whole number from zero;
        the model has a single point.

    Warns
    -----
    ConvergenceWarning
        A solve stopped short of its tolerance.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    if not is_whole(refine) or refine < 0:
        raise ValueError(f"`refine` is {refine!r}; pass a number of Newton steps, zero or more")
    check_flags(progress=progress)
    problem = model.problem
    indices = _chosen(points, to_numpy(problem.weights))
    if problem.loss.quadratic:
        found = _Found(_exact(problem, indices))
    else:
        with tqdm(total=len(indices), desc="Leave-one-out", disable=not progress) as bar:
            found = _estimated(model, indices, int(refine), bar)
    targets = to_numpy(problem.targets)[indices]
    right = None if model.classes is None else accuracy(found.outputs, targets)
    losses = problem.loss.value(found.outputs, targets)
    norms, exact = found.gradient_norms, problem.loss.quadratic
    if not finite(found.outputs, losses, *([] if norms is None else [norms])):
        raise FloatingPointError("outputs or losses are NaN or infinite; raise the model's `reg`")
    return LeaveOneOut(found.outputs, losses, indices, exact, right, norms)


def _chosen(points: npt.ArrayLike | None, weights: Array) -> Points:
    present = np.flatnonzero(weights)
    if len(present) == 1:
        raise ValueError("`model` has a single training point; leaving it out leaves none")
    return present if points is None else present_indices(points, weights, "points")


@dataclass(frozen=True, eq=False)
class _Found:
    """Outputs (m, d) at the left-out points, and gradient norms (m,) if they were refined."""

    outputs: Array
    gradient_norms: Array | None = None


def _by_ridge(problem: Problem, points: Points) -> Iterator[tuple[Problem, Points]]:
    """Yield the problem at the ridge that leaving a point out leaves, and where it applies.

    Points of one weight share their ridge, so with equal weights there is one. The second item
    counts positions in `points`.
    """
    if problem.reg_scale == "sum":
        yield problem, np.arange(len(points))
        return
    left = problem.total - to_numpy(problem.weights)[points]
    for total in np.unique(left):
        ridge = problem.reg * float(total)
        yield replace(problem, reg=ridge, reg_scale="sum"), np.flatnonzero(left == total)


def _exact(problem: Problem, points: Points) -> Array:
    """Return the outputs for the squared loss, (m, d)."""
    outputs = np.empty((len(points), problem.targets.shape[1]))
    for shared, members in _by_ridge(problem, points):
        outputs[members] = _closed_form(shared, points[members])
    return outputs


def _closed_form(problem: Problem, points: Points) -> Array:
    """Return y_i - (G_ii)^-1 (G (y - f0))_i, G = (K + rho V^-1)^-1, V the weights: (m, d).

    Without V and for one output a point it is Rasmussen & Williams 2006, Eq. 5.12.
    """
    rows = np.flatnonzero(to_numpy(problem.weights))
    if len(rows) < problem.gram.n:
        problem = problem.take(rows)
    square, k = problem.gram.square(), problem.gram.outputs or 1
    xp = namespace(square)
    ridge = xp.repeat(problem.rho / problem.weights, k)
    columns = (problem.targets - problem.offset).reshape(len(square), -1)
    solved, blocks = solve_with_blocks(square, ridge, columns, k)
    error = solve_blocks(blocks, solved.reshape(len(rows), k, -1))
    outputs = problem.targets - error.reshape(problem.targets.shape)
    return to_numpy(outputs)[np.searchsorted(rows, points)]


def _estimated(model: Model, points: Points, refine: int, bar: tqdm) -> _Found:
    """Take the Newton steps of a loss that is not quadratic."""
    outputs = np.empty((len(points), model.problem.targets.shape[1]))
    norms = np.empty(len(points))
    for problem, members in _by_ridge(model.problem, points):
        left_out = points[members]
        system = problem.system(model._outputs).prepared(len(members))
        steps = _FirstSteps(problem, model, system, left_out) if system.factorised else None
        if steps is not None and not refine:
            outputs[members] = to_numpy(model._outputs[left_out] + steps.change)
            bar.update(len(members))
            continue
        for rows in _blocks(problem, len(members)):
            stack = _without(problem, left_out[rows])
            step = _first(stack, model) if steps is None else steps.stacked(rows)
            found = _walked(stack, left_out[rows], model, step, refine)
            outputs[members[rows]] = found.outputs
            if found.gradient_norms is not None:
                norms[members[rows]] = found.gradient_norms * model.problem.reg / problem.rho
            bar.update(len(found.outputs))
    return _Found(outputs, norms if refine else None)


def _blocks(problem: Problem, m: int) -> list[slice]:
    """Cut m points into stacks of bounded size."""
    n, d = problem.targets.shape
    size = max(1, int(STACK_BYTES / (8 * n * d)))
    return [slice(start, start + size) for start in range(0, m, size)]


@dataclass(frozen=True, eq=False)
class _Step:
    """Steps of the coefficients, and K times them, (n, d, s)."""

    alpha: Array
    outputs: Array


@dataclass(frozen=True, eq=False)
class _FirstSteps:
    """The Newton step without each of some points, from one factorised system of all points.

    Attributes
    ----------
    problem
        All points, at the ridge without one.
    model
        Where the steps start.
    system
        The Newton system of `problem` there, factorised.
    points
        (m,).
    """

    problem: Problem
    model: Model
    system: System
    points: Points

    @property
    def change(self) -> Array:
        """Change of the output at each left-out point, (m, d)."""
        return self._solved[0]

    def stacked(self, rows: slice) -> _Step:
        """Return the whole steps of some of the points.

        Removing point i adds g_i + W_i (f_-i(x_i) - f_i) to its right-hand side.
        """
        pull = self._solved[1][rows]
        place = like(np.arange(self.problem.gram.n)[:, None] == self.points[rows], self.residual)
        b = place[:, None, :] * pull.T - self.residual[:, :, None]
        step, _ = self.system.correction(b, self.problem.gram @ b, 0.0)
        return _Step(step, self.problem.gram @ step)

    @functools.cached_property
    def residual(self) -> Array:
        """Rho alpha + g with all points, (n, d)."""
        return self.problem.residual(self.model._alpha, self.model._outputs)

    @functools.cached_property
    def _solved(self) -> tuple[Array, Array]:
        """The changes, and what they add to the right-hand sides: (m, d) each."""
        drift = self.system.solve(self.residual)
        _check(drift.residual, self.problem)
        response = self.system.response(self.points)
        m, k, _ = response.shape
        xp = namespace(response)
        curvature = _hessians(self.system.root, self.points, k)
        gradient = self._gradient.reshape(m, k, -1)
        b = response @ gradient - drift.product[self.points].reshape(m, k, -1)
        change = solve_blocks(xp.eye(k) - response @ curvature, b)
        return change.reshape(m, -1), (gradient + curvature @ change).reshape(m, -1)

    @property
    def _gradient(self) -> Array:
        """Weighted gradients of the points' own losses, (m, d)."""
        problem = self.problem
        gradient = problem.loss.gradient(self.model._outputs, problem.targets)
        return (problem.weights[:, None] * gradient)[self.points]


def _hessians(root: HessianRoot, points: Points, k: int) -> Array:
    """Return W of some points, (m, k, k)."""
    direction = None if root.direction is None else root.direction[points]
    part = HessianRoot(root.scale[points], direction)
    unit = namespace(root.scale).eye(k) + 0 * part.scale
    return part.apply(part.apply_transposed(unit))


def _without(problem: Problem, points: Points) -> Stack:
    """Return the problems that each lack one point."""
    kept = np.arange(problem.gram.n)[:, None] != points
    return Stack(problem, problem.weights[:, None] * like(kept, problem.weights))


def _first(stack: Stack, model: Model) -> _Step:
    """Return the Newton steps from the model, solved like a single removal."""
    alpha, outputs = as_stack(model._alpha), as_stack(model._outputs)
    solution = stack.system(outputs).solve(-stack.residual(alpha, outputs))
    _check(solution.residual, stack.problem)
    return _Step(solution.x, solution.product)


def _walked(stack: Stack, points: Points, model: Model, step: _Step, refine: int) -> _Found:
    """Return the outputs at the left-out points after `refine` steps more."""
    at = stack.place(model._alpha, model._outputs)
    if not refine:
        return _Found(_own(at.outputs + step.outputs, points))
    for remaining in range(refine, -1, -1):
        at = stack.moved(at, step.alpha, step.outputs)
        if remaining:
            solution = stack.system(at.outputs).solve(-at.residual, REFINED)
            step = _Step(solution.x, solution.product)
    return _Found(_own(at.outputs, points), to_numpy(stack.gradient_norms(at.residual)))


def _own(outputs: Array, points: Points) -> Array:
    """Return each problem's outputs at its left-out point, (s, d)."""
    return to_numpy(outputs)[points, :, np.arange(len(points))]


def _check(residual: float, problem: Problem) -> None:
    if residual > rounding(problem):
        warnings.warn(
            f"the system was solved to a relative residual of {residual:.1e} only; "
            f"{problem.advice()}",
            ConvergenceWarning,
            stacklevel=2,
        )
