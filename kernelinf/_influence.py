"""Influence of every training point on every test point, to first order."""

import warnings
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._arrays import Array, count, in_float64, like, namespace, to_numpy
from ._gram import Cross
from ._newton import System
from ._training import ConvergenceWarning, Model, rounding

Of = Literal["loss", "outputs"]

STACK_BYTES = 16e6  # size of one stack (n, d, s) of right-hand sides; about eight are alive at once


@dataclass(frozen=True, eq=False)
class Top:
    """The most influential training points of each test point.

    Attributes
    ----------
    helpful, harmful
        Training indices, (t, k), the strongest first: points whose removal raises the test loss
        most, and lowers it most.
    helpful_scores, harmful_scores
        Their scores, (t, k).
    """

    helpful: npt.NDArray[np.intp]
    helpful_scores: Array
    harmful: npt.NDArray[np.intp]
    harmful_scores: Array


@dataclass(frozen=True, eq=False)
class InfluenceMatrix:
    """Predicted change at each test point (rows) if one training point (columns) is removed.

    Change is after the removal minus before: a positive score of a loss means that the training
    point helps. Scores add up to the first-order effect of removing several points.

    Attributes
    ----------
    values
        (t, n), or (t, d, n) for the outputs.
    dims
        Names of the axes: "test", ("output",) "train".
    of
        "loss" or "outputs".
    """

    values: Array
    dims: tuple[str, ...]
    of: Of

    def top(self, k: int) -> Top:
        """Return the k most helpful and the k most harmful training points of each test point.

        Raises
        ------
        ValueError
            The scores are of outputs, where a sign does not help or harm; k is not in 1..n.
        """
        if self.of != "loss":
            raise ValueError(
                "`top` ranks scores of the loss; these are of the outputs, rank `values` "
                "of the output you mean"
            )
        n = self.values.shape[1]
        if not 1 <= k <= n:
            raise ValueError(f"`k` is {k}; pass a number from 1 to {n}")
        order = np.argsort(self.values, axis=1, kind="stable")
        harmful, helpful = order[:, :k], order[:, ::-1][:, :k]
        pick = np.take_along_axis
        return Top(helpful, pick(self.values, helpful, 1), harmful, pick(self.values, harmful, 1))

    def __repr__(self) -> str:
        axes = ", ".join(
            f"{name}: {size}" for name, size in zip(self.dims, self.values.shape, strict=True)
        )
        low, high = self.values.min(), self.values.max()
        span = f"{low:+.2e} to {high:+.2e}"
        return f"InfluenceMatrix({axes}; change of the {self.of} on removal, {span})"


@in_float64
def influence(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None = None,
    *,
    of: Of = "loss",
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> InfluenceMatrix:
    """Score every training point's influence on every test point, to first order.

    Column i of row t is the derivative of test point t's loss (or outputs) as the weight of point i
    falls from one, which predicts the change if the point is removed. One stacked solve
    serves all test points: (rho I + K W) u_t = K_Xt c_t, score_ti = u_ti . g_i (+ reg u_t . alpha
    when reg goes with the mean).

    Parameters
    ----------
    model
        A trained model.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    y_test
        Their labels; needed for `of="loss"`.
    of
        "loss": scores (t, n). "outputs": scores (t, d, n).
    offset
        Initial outputs at the test points, when the model has them as an array.
    progress
        Show a progress bar.

    Returns
    -------
    InfluenceMatrix

    Raises
    ------
    ValueError
        `y_test` is missing or does not fit, or shapes do not fit.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    if of not in ("loss", "outputs"):
        raise ValueError(f"`of` is {of!r}; pass 'loss' or 'outputs'")
    if of == "loss" and y_test is None:
        raise ValueError("`y_test` is missing; scores of the loss need test labels")
    if y_test is not None:
        model.test_targets(y_test, count(x_test))  # refused before the kernel is evaluated
    cross = model.gram.cross(x_test)
    directions = _directions(model, x_test, cross, y_test, of=of, offset=offset)
    t, q, _ = directions.shape
    scores = np.empty((t, q, model.gram.n))
    block = _rows_at_once(model, q)
    system = model.problem.system(model._outputs).prepared(t * q)
    residual = 0.0
    with tqdm(total=t, desc="Influence", unit="point", disable=not progress) as bar:
        for start in range(0, t, block):
            rows = slice(start, start + block)
            scores[rows], missed = _scores(model, system, cross.rows(rows), directions[rows])
            residual = max(residual, missed)
            bar.update(len(scores[rows]))
    if not np.isfinite(scores).all():
        raise FloatingPointError("scores are NaN or infinite; raise the model's `reg`")
    if residual > rounding(model.problem):
        warnings.warn(
            f"the system was solved to a relative residual of {residual:.1e} only; raise `reg`",
            ConvergenceWarning,
            stacklevel=3,
        )
    if of == "loss":
        return InfluenceMatrix(scores[:, 0], ("test", "train"), of)
    return InfluenceMatrix(scores, ("test", "output", "train"), of)


def _directions(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    cross: Cross,
    y_test: npt.ArrayLike | None,
    *,
    of: Of,
    offset: npt.ArrayLike | None,
) -> Array:
    """Return c, (t, q, d): the derivatives of the q scored quantities in a test point's outputs."""
    t, d = len(cross), model.problem.targets.shape[1]
    if of == "outputs":
        return like(np.broadcast_to(np.eye(d), (t, d, d)), cross.matrix)
    assert y_test is not None
    targets = model.test_targets(y_test, t)
    outputs = model.test_outputs(x_test, cross, offset)
    return model.problem.loss.gradient(outputs, targets)[:, None, :]


def _scores(model: Model, system: System, cross: Cross, directions: Array) -> tuple[Array, float]:
    """Score a block of test points, (t, q, n), and return the residual of the solve."""
    problem, xp = model.problem, namespace(directions)
    t, q, _ = directions.shape
    b = xp.stack([cross.pull_back(directions[:, j]) for j in range(q)], axis=3)
    n, d = b.shape[:2]
    solution = system.solve_transposed(b.reshape(n, d, t * q))
    u = solution.x
    gradient = problem.loss.gradient(model._outputs, problem.targets) * problem.weights[:, None]
    scores = xp.einsum("nds,nd->sn", u, gradient)
    if problem.reg_scale == "mean":
        ridge = problem.reg * xp.einsum("nds,nd->s", u, model._alpha)
        scores = scores + ridge[:, None] * problem.weights
    return to_numpy(scores).reshape(t, q, n), solution.residual


def _rows_at_once(model: Model, q: int) -> int:
    n, d = model.problem.targets.shape
    return max(1, int(STACK_BYTES / (8 * n * d * q)))
