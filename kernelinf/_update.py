"""What an edit of the training set changes: predicted in one step, or found out by retraining."""

import abc
import functools
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array, count, dot, in_float64, like, namespace, to_numpy
from ._gram import Cross
from ._newton import TOLERANCE, Solution
from ._problem import Problem
from ._training import (
    ConvergenceWarning,
    History,
    Model,
    Newton,
    check_tolerance,
    rounding,
)

LossChange = Literal["plug_in", "first_order", "regularised"]

ROUGHLY = 0.1  # relative residual of a step that only starts an iteration
SLICE_FROM = 0.15  # forgotten share from which a copy of the retained Gram pays (measured)


@dataclass(frozen=True, eq=False)
class Effect:
    """Change at test points: after the edit minus before.

    After a removal, a positive change of a loss means that the removed points were helpful.

    Attributes
    ----------
    outputs
        Change of the outputs, (t, d).
    losses
        Change of the loss of each test point, (t,), in the loss's units (nats for the
        cross-entropy); None without test labels.
    """

    outputs: Array
    losses: Array | None = None

    def __repr__(self) -> str:
        size = np.abs(self.outputs).mean()
        text = f"Effect on {len(self.outputs)} points: mean |output change| {size:.3g}"
        if self.losses is not None:
            text += f", mean loss change {self.losses.mean():+.3g}"
        return text


@dataclass(frozen=True, eq=False)
class Update:
    """A model after an edit of its training set. Made by `kernelinf.remove` and `perturb`.

    Attributes
    ----------
    before
        The model that was edited. Added points stand in it at the end, with weight zero.
    method
        How the update was computed.
    model
        The model after the edit: it predicts, and can be edited again. Removed points keep their
        place, with weight zero, so that indices stay what they were.
    residual
        Relative residual of the linear system that was solved; 0 for `Retrain`.
    """

    before: Model
    method: "Method"
    model: Model
    residual: float = 0.0

    def __repr__(self) -> str:
        sizes = f"{self.before.problem.points} -> {self.model.problem.points} points"
        return f"Update({sizes}, {self.method}: gradient norm {self.gradient_norm:.1e})"

    @property
    def forget(self) -> npt.NDArray[np.intp]:
        """Indices of the points that the edit removed, (m,), ascending."""
        before, after = (to_numpy(m.problem.weights) for m in (self.before, self.model))
        return np.flatnonzero((before > 0) & (after == 0))

    @functools.cached_property
    def delta_alpha(self) -> Array:
        """Change of the dual coefficients, (n, d).

        Rows of removed points are minus their coefficients, except for `FirstOrder`, which
        extrapolates along a path on which they only begin to fall.
        """
        return self.model.alpha - self.before.alpha

    @property
    def gradient_norm(self) -> float:
        """Norm, in parameter space, of the gradient of the edited risk.

        Zero for exact retraining: how far the estimate is from it, known without retraining.
        """
        return self.model.gradient_norm

    @property
    def converged(self) -> bool:
        """Whether the solve, or the retraining, reached its tolerance."""
        return self.model.converged

    @in_float64
    def effect(
        self,
        x_test: npt.ArrayLike | Cross,
        y_test: npt.ArrayLike | None = None,
        *,
        loss_change: LossChange = "plug_in",
        offset: npt.ArrayLike | None = None,
    ) -> Effect:
        """Return the change at test points: after the edit minus before.

        Parameters
        ----------
        x_test
            Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram
            is precomputed (with a column for every added point, too).
        y_test
            Their labels, (t,) or (t, d); None leaves the losses out.
        loss_change
            "plug_in": loss(f + df) - loss(f). "first_order": its derivative in the outputs times
            df. "regularised": first order plus reg alpha^T K d_alpha, the change of the risk's
            regulariser (Sun & Valaee 2026, Eq. 9).
        offset
            Initial outputs at the test points, when the model has them as an array.

        Returns
        -------
        Effect

        Raises
        ------
        ValueError
            Shapes do not fit, or a test label is of a class that training did not have.
        """
        if loss_change not in ("plug_in", "first_order", "regularised"):
            raise ValueError(
                f"`loss_change` is {loss_change!r}; pass 'plug_in', 'first_order' or 'regularised'"
            )
        before = self.before
        targets = None if y_test is None else before.test_targets(y_test, count(x_test))
        cross = before.gram.cross(x_test)
        delta = like(self.delta_alpha, cross.matrix)
        change = cross @ delta
        if targets is None:
            return Effect(to_numpy(change))
        outputs = before.test_outputs(x_test, cross, offset)
        loss = before.problem.loss
        if loss_change == "plug_in":
            losses = loss.value(outputs + change, targets) - loss.value(outputs, targets)
        else:
            losses = (loss.gradient(outputs, targets) * change).sum(axis=1)
        if loss_change == "regularised":
            losses = losses + before.problem.reg * dot(
                before._outputs - before.problem.offset, delta
            )
        return Effect(to_numpy(change), to_numpy(losses))


@dataclass(frozen=True, eq=False)
class Solved:
    """Coefficients after an edit, (n, d), the solve's relative residual, and if that will do."""

    alpha: Array
    residual: float
    converged: bool


class Method(abc.ABC):
    """A way of computing a model after an edit of its training set."""

    @abc.abstractmethod
    def solve(self, model: Model, problem: Problem) -> "Solved":
        """Compute the coefficients for the edited problem."""


@dataclass(frozen=True)
class FirstOrder(Method):
    """The derivative of the optimum along the path from the old risk to the edited one, times one.

    On the path the weights fall or rise and new labels take over from old ones in proportion. For
    a removal that is upweighting (Sun & Valaee 2026, Eqs. 1 to 3), with the Hessian of all the
    data: (rho I + W K) d_alpha = g_F + m reg alpha, the last term from the ridge of a mean risk,
    which falls with the weights.
    """

    def solve(self, model: Model, problem: Problem) -> "Solved":
        """Compute the coefficients for the edited problem."""
        alpha, outputs = model._alpha, model._outputs
        b = model.problem.residual(alpha, outputs) - problem.residual(alpha, outputs)
        solution = model.problem.system(outputs).solve(b)
        return _checked(model.problem, alpha + solution.x, solution)


@dataclass(frozen=True)
class NewtonStep(Method):
    """One Newton step of the edited risk, from the model's own coefficients.

    For a removal, Sun & Valaee 2026, Eqs. 5 and 12, with the kernel cancelled from both sides.
    Exact for the squared loss. It keeps the residual rho alpha + g of a model that is not trained
    to the end.
    """

    def solve(self, model: Model, problem: Problem) -> "Solved":
        """Compute the coefficients for the edited problem."""
        if _slices(problem):
            return _sliced_step(problem, model)
        return _masked_step(problem, model)


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

    def solve(self, model: Model, problem: Problem) -> "Solved":
        """Compute the coefficients for the edited problem."""
        rows = _retained(problem)
        part = problem.take(rows)
        start = 0 * part.targets
        if not problem.loss.quadratic:
            step, _ = _retained_step(problem, model, part, rows, tolerance=ROUGHLY)
            start = _better(part, step, start)
        trained = Newton(self.tol).train(part, start, progress=False)
        return Solved(_scatter(trained.alpha, rows, problem.gram.n), 0.0, trained.converged)


def update(model: Model, problem: Problem, method: Method | None) -> Update:
    """Bring a model to an edited problem on the same points.

    Raises
    ------
    TypeError
        `method` is none of the methods.

    Warns
    -----
    ConvergenceWarning
        The solve or the retraining stopped short of its tolerance.
    """
    method = NewtonStep() if method is None else method
    if not isinstance(method, Method):
        raise TypeError(
            f"`method` is {method!r}; pass ki.NewtonStep(), ki.FirstOrder() or ki.Retrain()"
        )
    solved = method.solve(model, problem)
    return Update(model, method, _model_after(model, problem, solved), solved.residual)


def _model_after(model: Model, problem: Problem, solved: Solved) -> Model:
    alpha = solved.alpha
    outputs = problem.outputs(alpha)
    norm = problem.gradient_norm(problem.residual(alpha, outputs))
    if not np.isfinite(norm):
        raise FloatingPointError("the edited model has NaN or infinite coefficients; raise `reg`")
    if not solved.converged:
        warnings.warn(
            f"the edited model was not solved to its tolerance: gradient norm {norm:.1e}, relative "
            f"residual of the linear system {solved.residual:.1e}; raise `reg`",
            ConvergenceWarning,
            stacklevel=5,
        )
    row = [np.array([value]) for value in (problem.risk(alpha, outputs), norm, 0)]
    history = History(*row)
    return Model(
        problem, alpha, outputs, norm, solved.converged, history, model.classes, model.offset
    )


def _checked(problem: Problem, alpha: Array, solution: Solution) -> Solved:
    return Solved(alpha, solution.residual, solution.residual <= rounding(problem))


def _retained(problem: Problem) -> npt.NDArray[np.intp]:
    return np.flatnonzero(to_numpy(problem.weights))


def _slices(problem: Problem) -> bool:
    """Decide whether to copy the retained rows and columns or to keep the others masked.

    A factorisation of the retained part alone is always cheaper. An iteration on it costs
    (n_r / n)^2 as much, which repays the copy from a seventh of the points on.
    """
    forgotten = 1 - len(_retained(problem)) / problem.gram.n
    return problem.loss.quadratic or forgotten >= SLICE_FROM


def _masked_step(problem: Problem, model: Model) -> Solved:
    """Solve on all n rows with weight zero on the forget set: their row reads d_alpha = -alpha."""
    b = -problem.residual(model._alpha, model._outputs)
    solution = problem.system(model._outputs).solve(b)
    # exact for removed rows, whatever the solver's tolerance
    kept = (problem.weights > 0)[:, None]
    return _checked(problem, namespace(b).where(kept, model._alpha + solution.x, 0.0), solution)


def _sliced_step(problem: Problem, model: Model) -> Solved:
    """Solve on a copy of the retained rows."""
    rows = _retained(problem)
    alpha, solution = _retained_step(problem, model, problem.take(rows), rows)
    return _checked(problem, _scatter(alpha, rows, problem.gram.n), solution)


def _retained_step(
    problem: Problem,
    model: Model,
    part: Problem,
    rows: npt.NDArray[np.intp],
    tolerance: float = TOLERANCE,
) -> tuple[Array, Solution]:
    """Return the coefficients of the retained points, (r, d), after a Newton step.

    The coefficients of removed points are a known shift of the outputs.
    """
    xp = namespace(model._alpha)
    alpha, outputs = (xp.take(a, rows, axis=0) for a in (model._alpha, model._outputs))
    removed = xp.where((problem.weights > 0)[:, None], 0.0, model._alpha)
    shift = -xp.take(problem.gram @ removed, rows, axis=0)
    root = part.loss.root(outputs, part.weights)
    moved = root.apply(root.apply_transposed(shift[:, :, None]))[:, :, 0]
    b = -(part.residual(alpha, outputs) + moved)
    solution = part.system(outputs).solve(b, tolerance)
    return alpha + solution.x, solution


def _better(problem: Problem, alpha: Array, other: Array) -> Array:
    """Return the coefficients of the lower risk; a risk that is no number counts as higher."""
    risks = [problem.risk(a, problem.outputs(a)) for a in (alpha, other)]
    return alpha if risks[0] <= risks[1] else other


def _scatter(values: Array, rows: npt.NDArray[np.intp], n: int) -> Array:
    """Put the rows of the retained points back among zeros, (n, d)."""
    full = np.zeros((n, values.shape[1]))
    full[rows] = to_numpy(values)
    return like(full, values)
