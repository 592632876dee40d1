"""What an edit of the training set changes: predicted in one step, or found out by retraining."""

import functools
import os
import warnings
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from ._archive import Archive
from ._arrays import Array, as_stack, count, dot, finite, in_float64, like, real, to_numpy
from ._checks import is_one_of
from ._gram import Cross, Gram, matching
from ._methods import Method, NewtonStep
from ._problem import Problem
from ._training import ConvergenceWarning, History, Model

LossChange = Literal["plug_in", "first_order", "regularised"]


@dataclass(frozen=True, eq=False)
class Effect:
    """Change at test points: after the edit minus before.

    After a removal, a positive change of a loss means that the removed points were helpful.

    Attributes
    ----------
    outputs
        Change of the outputs, (t, d); or (s, t, d), of s removals.
    losses
        Change of the loss of each test point, (t,) or (s, t), in the loss's units (nats for the
        cross-entropy); None without test labels.
    """

    outputs: Array
    losses: Array | None = None

    def __repr__(self) -> str:
        size, *many, t = np.abs(self.outputs).mean(), *self.outputs.shape[:-1]
        of = f" of {many[0]} removals" if many else ""
        text = f"Effect{of} on {t} points: mean |output change| {size:.3g}"
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
    method: Method
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
    def output_bound(
        self, x_test: npt.ArrayLike, *, diagonal: npt.ArrayLike | None = None
    ) -> npt.NDArray[np.float64]:
        """Bound how far outputs are from those of exact retraining, at any test point.

        The edited risk is strongly convex with modulus reg in parameter space, so its optimum is at
        most the gradient norm over reg away, and outputs sqrt(k(x, x)) times that. No retraining,
        no noise, and whatever the method: sqrt(k(x, x)) (gradient norm + rounding) / reg.

        Parameters
        ----------
        x_test
            Test points (t, ...). For a precomputed Gram anything of their number.
        diagonal
            k(x, x) of the test points, (t,), or (t, d, d) for full blocks; needed exactly for a
            precomputed Gram.

        Returns
        -------
        (t,) error bars of the Euclidean distance over the d outputs. With full blocks of a kernel
        the trace of k(x, x) takes the place of its largest eigenvalue.

        Raises
        ------
        ValueError
            `diagonal` is missing, was given beside a kernel, or has the wrong shape.
        """
        problem = self.model.problem
        squares = _squared_norms(problem.gram, x_test, diagonal)
        left = self.gradient_norm + problem.rounding_norm(self.model._alpha)
        return to_numpy(squares**0.5 * left / problem.reg)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the update, with the models before and after, as `Model.save` does.

        Parameters
        ----------
        path
            A name that ends in .npz. A file of that name is replaced.

        Raises
        ------
        ValueError
            The name does not end so, or its folder does not exist.
        """
        before, after = self.before, self.model
        about = {
            "kind": "update",
            "gram": before.gram.fingerprint(),
            "model": before._about(),
            "after model": after._about(),
            "method": type(self.method).__name__,
            "settings": asdict(self.method),  # type: ignore[call-overload]
            "residual": self.residual,
        }
        Archive(about, before._arrays() | after._arrays("after ")).write(path)

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
        observed = observe(self.before, x_test, y_test, loss_change=loss_change, offset=offset)
        outputs, losses = observed.changes(as_stack(self.delta_alpha))
        return Effect(outputs[:, :, 0], None if losses is None else losses[:, 0])


def removes_alone(update: Update) -> bool:
    """Tell whether an edit removed points and left the others their labels and weights."""
    before, after = update.before.problem, update.model.problem
    kept = before.without(update.forget)
    same = after.targets is before.targets or bool((after.targets == before.targets).all())
    return same and len(update.forget) > 0 and bool((after.weights == kept.weights).all())


def _squared_norms(
    gram: Gram, x_test: npt.ArrayLike, diagonal: npt.ArrayLike | None
) -> npt.NDArray[np.float64]:
    """Return the squared operator norm of each test point's features, or a bound on it, (t,)."""
    if gram.kernel is not None and gram.x is not None:
        if isinstance(x_test, Cross):
            raise TypeError("`x_test` is a Cross; pass the points, k(x, x) is taken at them")
        if diagonal is not None:
            raise ValueError("`diagonal` was given, but the kernel is known; leave it out")
        values = np.asarray(gram.kernel.diagonal(matching(x_test, gram.x, "x_test")))
        return values.reshape(len(values), -1).sum(axis=1)
    if diagonal is None:
        raise ValueError(
            "`diagonal` is missing; this Gram is precomputed, so pass k(x, x) of the test points"
        )
    values, d = to_numpy(real(diagonal, "diagonal")), gram.outputs
    t = count(x_test, "x_test")
    shape = (t,) if d is None else (t, d, d)
    if values.shape != shape:
        raise ValueError(f"`diagonal` has shape {values.shape}; pass k(x, x) of `x_test`, {shape}")
    if not np.isfinite(values).all() or (d is None and (values < 0).any()):
        raise ValueError("`diagonal` has a negative or infinite value, or NaN; pass k(x, x)")
    return values if d is None else np.asarray(np.linalg.eigvalsh(values)[:, -1], np.float64)


@dataclass(frozen=True, eq=False)
class Observed:
    """Test points whose changes are asked for; without targets only those of the outputs."""

    before: Model
    cross: Cross
    loss_change: LossChange
    targets: Array | None = None  # (t, d)
    outputs: Array | None = None  # before the edit, (t, d)

    def changes(self, delta: Array) -> tuple[Array, Array | None]:
        """Return the changes of outputs (t, d, s) and losses (t, s) by those of alpha (n, d, s)."""
        delta = like(delta, self.cross.matrix)
        change = self.cross @ delta
        if self.targets is None or self.outputs is None:
            return _checked(change), None
        problem = self.before.problem
        targets, outputs = as_stack(self.targets), as_stack(self.outputs)
        if self.loss_change == "plug_in":
            losses = problem.loss.value(outputs + change, targets)
            losses = losses - problem.loss.value(outputs, targets)
        else:
            losses = (problem.loss.gradient(outputs, targets) * change).sum(axis=1)
        if self.loss_change == "regularised":
            learned = as_stack(self.before._outputs - problem.offset)
            losses = losses + problem.reg * dot(learned, delta)
        return _checked(change), _checked(losses)


def _checked(changes: Array) -> Array:
    if not finite(changes):
        raise FloatingPointError(
            "changes at `x_test` are NaN or infinite: scale the kernel down, or raise `reg`"
        )
    return to_numpy(changes)


def observe(
    before: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None,
    *,
    loss_change: LossChange,
    offset: npt.ArrayLike | None,
) -> Observed:
    """Check test points and labels, and evaluate the kernel there."""
    if not is_one_of(loss_change, ("plug_in", "first_order", "regularised")):
        raise ValueError(
            f"`loss_change` is {loss_change!r}; pass 'plug_in', 'first_order' or 'regularised'"
        )
    targets = None if y_test is None else before.test_targets(y_test, count(x_test, "x_test"))
    cross = before.gram.cross(x_test)
    if targets is None:
        return Observed(before, cross, loss_change)
    outputs = before.test_outputs(x_test, cross, offset)
    return Observed(before, cross, loss_change, targets, outputs)


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
    method = checked_method(method)
    solved = method.solve(model, problem)
    residual, converged = float(solved.residuals[0]), bool(solved.converged[0])
    after = model_after(model, problem, solved.alpha, converged)
    if not converged:
        warnings.warn(
            f"the edited model was not solved to its tolerance: gradient norm "
            f"{after.gradient_norm:.1e}, relative residual of the linear system {residual:.1e}; "
            f"{problem.advice()}",
            ConvergenceWarning,
            stacklevel=4,
        )
    return Update(model, method, after, residual)


def checked_method(method: Method | None) -> Method:
    """Return the method, `NewtonStep` by default, or refuse what is none."""
    if method is None:
        return NewtonStep()
    if not isinstance(method, Method):
        raise TypeError(
            f"`method` is {method!r}; pass ki.NewtonStep(), ki.FirstOrder(), ki.SecondOrder() or "
            "ki.Retrain()"
        )
    return method


def model_after(model: Model, problem: Problem, alpha: Array, converged: bool) -> Model:
    """Return the model of an edited problem that has these coefficients, (n, d)."""
    outputs = problem.outputs(alpha)
    norm = problem.gradient_norm(problem.residual(alpha, outputs))
    history = History(*(np.array([v]) for v in (problem.risk(alpha, outputs), norm, 0)))
    if not finite(alpha - model._alpha, outputs, history.risk, history.gradient_norm):
        raise FloatingPointError(
            "the edited model has NaN or infinite coefficients or outputs; raise `reg`, or lower "
            "the `step_size` of a method that takes steps"
        )
    return Model(problem, alpha, outputs, norm, converged, history, model.classes, model.offset)
