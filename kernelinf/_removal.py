"""What removing training points changes: predicted in one step, or found out by retraining."""

import abc
import functools
import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array, dot, in_float64, like, namespace, to_numpy
from ._gram import Cross
from ._newton import Solution
from ._problem import Problem
from ._training import (
    ConvergenceWarning,
    History,
    Model,
    Newton,
    rounding,
)

LossChange = Literal["plug_in", "first_order", "regularised"]

SLICE_FROM = 0.15  # forgotten share from which a copy of the retained Gram pays (measured)


@dataclass(frozen=True, eq=False)
class Effect:
    """Change at test points: after the removal minus before.

    A positive change of a loss means that the removed points were helpful.

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
class Removal:
    """A model without its forget set. Made by `kernelinf.remove`.

    Attributes
    ----------
    before
        The model that the points were removed from.
    forget
        Indices of the removed points, (m,), ascending.
    method
        How the removal was computed.
    model
        The model after the removal: it predicts, and can be removed from again. Indices keep
        counting all n points of the Gram.
    residual
        Relative residual of the linear system that was solved; 0 for `Retrain`.
    """

    before: Model
    forget: npt.NDArray[np.intp]
    method: "Method"
    model: Model
    residual: float = 0.0

    def __repr__(self) -> str:
        size = f"{len(self.forget)} of {self.before.problem.points} points"
        norm = f"{self.gradient_norm:.1e}"
        return f"Removal({size}, {self.method}: gradient norm without them {norm})"

    @functools.cached_property
    def delta_alpha(self) -> Array:
        """Change of the dual coefficients, (n, d).

        Rows of the forget set are minus their coefficients, except for `FirstOrder`, which
        extrapolates along a path on which they only begin to fall.
        """
        return self.model.alpha - self.before.alpha

    @property
    def gradient_norm(self) -> float:
        """Norm, in parameter space, of the gradient of the risk without the forget set.

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
        """Return the change at test points: after the removal minus before.

        Parameters
        ----------
        x_test
            Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram
            is precomputed.
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
        cross = before.gram.cross(x_test)
        delta = like(self.delta_alpha, cross.matrix)
        change = cross @ delta
        if y_test is None:
            return Effect(to_numpy(change))
        targets = before.test_targets(y_test, len(cross))
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
    """Coefficients after a removal, (n, d), the solve's relative residual, and if that will do."""

    alpha: Array
    residual: float
    converged: bool


class Method(abc.ABC):
    """A way of computing the model without its forget set."""

    @abc.abstractmethod
    def solve(self, model: Model, forget: npt.NDArray[np.intp]) -> "Solved":
        """Compute the new coefficients."""


@dataclass(frozen=True)
class FirstOrder(Method):
    """The derivative of the optimum as the forget set's weights fall from one, times one.

    Sun & Valaee 2026, Eqs. 1 to 3, with the Hessian of all the data: (rho I + W K) d_alpha =
    g_F + m reg alpha, the last term from the ridge of a mean risk, which falls with the weights.
    """

    def solve(self, model: Model, forget: npt.NDArray[np.intp]) -> "Solved":
        """Compute the new coefficients."""
        problem = model.problem
        retained = problem.without(forget)
        gradient = problem.loss.gradient(model._outputs, problem.targets)
        lost = (problem.weights - retained.weights)[:, None]
        b = lost * gradient + (problem.rho - retained.rho) * model._alpha
        solution = problem.system(model._outputs).solve(b)
        return _checked(problem, model._alpha + solution.x, solution)


@dataclass(frozen=True)
class NewtonStep(Method):
    """One Newton step of the risk without the forget set, from the model's own coefficients.

    Sun & Valaee 2026, Eqs. 5 and 12, with the kernel cancelled from both sides. Exact for the
    squared loss. It keeps the residual rho alpha + g of a model that is not trained to the end.
    """

    def solve(self, model: Model, forget: npt.NDArray[np.intp]) -> "Solved":
        """Compute the new coefficients."""
        problem = model.problem.without(forget)
        if _slices(problem):
            return _sliced_step(problem, model)
        return _masked_step(problem, model)


@dataclass(frozen=True)
class Retrain(Method):
    """Exact retraining on the retained set, by Newton's method to a gradient norm of `tol`."""

    tol: float = 1e-11

    def solve(self, model: Model, forget: npt.NDArray[np.intp]) -> "Solved":
        """Compute the new coefficients."""
        problem = model.problem.without(forget)
        rows = _retained(problem)
        part = problem.take(rows)
        start = namespace(model._alpha).take(model._alpha, rows, axis=0)
        trained = Newton(self.tol).train(part, start, progress=False)
        return Solved(_scatter(trained.alpha, rows, problem.gram.n), 0.0, trained.converged)


@in_float64
def remove(model: Model, forget: npt.ArrayLike, *, method: Method | None = None) -> Removal:
    """Compute a model without some of its training points.

    Parameters
    ----------
    model
        The trained model.
    forget
        The points to remove: their indices (m,), or a boolean mask (n,).
    method
        `NewtonStep()` (the default: one dual Newton step), `FirstOrder()` (the derivative), or
        `Retrain()` (the truth).

    Returns
    -------
    Removal

    Raises
    ------
    ValueError
        Indices repeat, are out of range, are already removed, or are all points or none.

    Warns
    -----
    ConvergenceWarning
        The solve or the retraining stopped short of its tolerance.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    method = NewtonStep() if method is None else method
    if not isinstance(method, Method):
        raise TypeError(
            f"`method` is {method!r}; pass ki.NewtonStep(), ki.FirstOrder() or ki.Retrain()"
        )
    indices = forget_indices(forget, to_numpy(model.problem.weights))
    solved = method.solve(model, indices)
    return Removal(model, indices, method, _model_after(model, indices, solved), solved.residual)


def forget_indices(forget: npt.ArrayLike, weights: Array) -> npt.NDArray[np.intp]:
    """Check a forget set and return its indices, ascending."""
    indices = np.sort(point_indices(forget, weights, "forget"))
    if len(indices) == np.count_nonzero(weights):
        raise ValueError("`forget` is the whole training set; keep at least one point")
    return indices


def point_indices(points: npt.ArrayLike, weights: Array, name: str) -> npt.NDArray[np.intp]:
    """Check a choice of training points, the argument `name`; return its indices as ordered."""
    n = len(weights)
    given = np.asarray(points)
    if given.ndim == 0:
        given = given[None]
    if given.ndim != 1:
        raise ValueError(
            f"`{name}` has shape {given.shape}; pass indices (m,) or a boolean mask ({n},)"
        )
    if given.dtype == bool:
        if len(given) != n:
            raise ValueError(
                f"`{name}` is a mask of length {len(given)} but there are {n} training points"
            )
        given = np.flatnonzero(given)
    if given.size == 0:
        raise ValueError(f"`{name}` is empty; pass at least one training point")
    if given.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` has dtype {given.dtype}; pass integer indices or a boolean mask"
        )
    if given.min() < 0 or given.max() >= n:
        bad = given[(given < 0) | (given >= n)][0]
        raise ValueError(f"`{name}` holds {bad}; pass indices from 0 to {n - 1}")
    indices = given.astype(np.intp)
    repeats = len(indices) - len(np.unique(indices))
    if repeats:
        raise ValueError(f"`{name}` repeats {repeats} indices; pass each point once")
    gone = np.sort(indices[weights[indices] == 0])
    if len(gone):
        raise ValueError(f"`{name}` holds points that were removed before: {gone[:5].tolist()}")
    return indices


def _model_after(model: Model, forget: npt.NDArray[np.intp], solved: Solved) -> Model:
    problem, alpha = model.problem.without(forget), solved.alpha
    outputs = problem.outputs(alpha)
    norm = problem.gradient_norm(problem.residual(alpha, outputs))
    if not solved.converged:
        warnings.warn(
            f"the model without the forget set was solved to a relative residual of "
            f"{solved.residual:.1e} and a gradient norm of {norm:.1e} only; raise `reg`",
            ConvergenceWarning,
            stacklevel=4,
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
    """Solve on the retained rows; the removed coefficients are a known shift of the outputs."""
    xp = namespace(model._alpha)
    rows = _retained(problem)
    part = problem.take(rows)
    alpha, outputs = (xp.take(a, rows, axis=0) for a in (model._alpha, model._outputs))
    removed = xp.where((problem.weights > 0)[:, None], 0.0, model._alpha)
    shift = -xp.take(problem.gram @ removed, rows, axis=0)
    root = part.loss.root(outputs, part.weights)
    moved = root.apply(root.apply_transposed(shift[:, :, None]))[:, :, 0]
    solution = part.system(outputs).solve(-(part.residual(alpha, outputs) + moved))
    return _checked(problem, _scatter(alpha + solution.x, rows, problem.gram.n), solution)


def _scatter(values: Array, rows: npt.NDArray[np.intp], n: int) -> Array:
    """Put the rows of the retained points back among zeros, (n, d)."""
    full = np.zeros((n, values.shape[1]))
    full[rows] = to_numpy(values)
    return like(full, values)
