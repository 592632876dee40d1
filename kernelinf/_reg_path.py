"""Choosing the regularisation: leave-one-out and generalized cross-validation over many ridges.

For the squared loss one eigendecomposition K = V diag(l) V^T serves every ridge,

    (K + rho I)^-1 = V diag(1 / (l + rho)) V^T,

where a Cholesky factor would serve one. Other losses are trained at each, from the largest to the
smallest: in the logarithm of the ridge the coefficients move smoothly, so that the last two
trainings point to the next.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._arrays import Array, in_float64, namespace, real, to_numpy
from ._checks import check_flags, is_one_of
from ._gram import Gram
from ._leave_one_out import leave_one_out
from ._losses import Loss, accuracy, named
from ._newton import EPS
from ._problem import Problem, RegScale
from ._scores import library
from ._single import columns_at_once, floored
from ._text import HtmlTable
from ._training import Model, Newton, Offset, fit, model_of, posed

Criterion = Literal["loo", "gcv"]

EQUAL = 1e-9  # losses that differ by less, relatively, differ by rounding
EXPONENTS = np.arange(-12, 1) / 2  # of the default grid: 1e-6 to 1, two a decade


@dataclass(frozen=True, eq=False)
class RegPath(HtmlTable):
    """Cross-validation over a path of regularisations. Made by `kernelinf.reg_path`.

    Its string is a table of the path.

    Attributes
    ----------
    regs
        The coefficients `reg`, (m,), in the order given.
    loo_losses
        Mean loss of the training points, each left out in turn, (m,).
    loo_accuracies
        Share of them that are classified rightly then, (m,); None for real targets.
    gcv
        Generalized cross-validation, (m,), in the unit of the loss; None but for the squared loss.
    degrees_of_freedom
        Effective degrees of freedom of all outputs together, (m,): the trace of the derivative of
        the n d fitted outputs in what they are fitted to, from n d (or n (d - 1) for the
        cross-entropy) without a ridge to 0.
    training_losses
        Mean loss at the training points, (m,).
    by
        What `best` goes by: "loo" or "gcv".
    exact
        Whether the leave-one-out losses are those of retraining, up to rounding: so for the squared
        loss. Otherwise they are those of one Newton step.
    """

    regs: Array
    loo_losses: Array
    loo_accuracies: Array | None
    gcv: Array | None
    degrees_of_freedom: Array
    training_losses: Array
    by: Criterion
    exact: bool
    _refit: Callable[..., Model]

    @property
    def best(self) -> float:
        """The `reg` of the least leave-one-out loss, or GCV; the largest if there are several."""
        return float(self.regs[self._best])

    def fit(self) -> Model:
        """Return the model of `kernelinf.fit` at the best `reg`."""
        return self._refit(reg=self.best)

    def to_dataframe(self) -> Any:
        """Return a `pandas.DataFrame` with a row a `reg` and a column a quantity.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        pandas = library("pandas", "to_dataframe")
        return pandas.DataFrame(self._columns(), index=pandas.Index(self.regs, name="reg"))

    @property
    def _best(self) -> int:
        """Where the best is."""
        losses = self.loo_losses if self.gcv is None or self.by == "loo" else self.gcv
        equal = losses <= (1 + EQUAL) * losses.min()
        return int(np.where(equal, self.regs, 0.0).argmax())

    def _columns(self) -> dict[str, Array]:
        columns = {
            "loo_loss": self.loo_losses,
            "loo_accuracy": self.loo_accuracies,
            "gcv": self.gcv,
            "degrees_of_freedom": self.degrees_of_freedom,
            "training_loss": self.training_losses,
        }
        return {name: values for name, values in columns.items() if values is not None}

    def __repr__(self) -> str:
        kind = "exact" if self.exact else "estimated"
        text = f"{len(self.regs)} regs, {kind}: best reg {self.best:.3g} by {self.by}"
        text += f", leave-one-out loss {self.loo_losses[self._best]:.3g}"
        if self.loo_accuracies is not None:
            text += f", accuracy {self.loo_accuracies[self._best]:.1%}"
        return f"RegPath({text})"

    def __str__(self) -> str:
        columns = {"reg": self.regs, **self._columns()}
        lines = ["  ".join(f"{name.replace('_', ' '):>12}" for name in columns)]
        for row in zip(*columns.values(), strict=True):
            cells = zip(columns, row, strict=True)
            lines.append("  ".join(f"{v:{max(12, len(name))}.4g}" for name, v in cells))
        lines[1 + self._best] += "  best"
        return "\n".join(lines)


@in_float64
def reg_path(
    gram: Gram,
    y: npt.ArrayLike,
    *,
    loss: str = "squared",
    regs: npt.ArrayLike | None = None,
    by: Criterion = "loo",
    offset: Offset | None = None,
    reg_scale: RegScale = "mean",
    progress: bool = False,
) -> RegPath:
    """Cross-validate a range of regularisations, and choose the best.

    Squared loss: one eigendecomposition (about ten Cholesky factorisations), then 2 n^2 (d + 1)
    operations for each `reg`; memory for four more matrices of n^2. The leave-one-out losses are
    exact. Other losses: `fit`, `leave_one_out` and another factorisation at each, and the
    leave-one-out losses are those of one Newton step, an estimate that is best where the ridge is
    not small.

    Parameters
    ----------
    gram
        Gram matrix of the n training points, from `kernelinf.gram`.
    y, loss, offset, reg_scale
        As for `fit`, but for the default of the loss.
    regs
        Coefficients to try, (m,), positive, in any order. By default 13, two a decade, from 1e-6 to
        1 times the power of ten next to the kernel's mean diagonal (to n times that under "sum").
    by
        "loo": the leave-one-out loss. "gcv": generalized cross-validation (Golub, Heath & Wahba
        1979; half of it, so that it estimates the loss as the other does), for the squared loss
        alone.
    progress
        Show a progress bar.

    Returns
    -------
    RegPath

    Raises
    ------
    ValueError
        `regs` are not positive numbers; `by` is "gcv" but the loss is not squared; there is a
        single point; and what `fit` refuses.
    FloatingPointError
        A ridge is lost in rounding beside the kernel.

    Warns
    -----
    UserWarning
        The best of several is the smallest or the largest: the optimum may lie beyond.
    ConvergenceWarning
        Training or a solve stopped short of its tolerance.
    """
    _check_criterion(by, named(loss))
    check_flags(progress=progress)
    grid = None if regs is None else checked_regs(regs)
    problem, classes, _ = posed(gram, y, loss, reg=1.0, offset=offset, reg_scale=reg_scale)
    if gram.n == 1:
        raise ValueError("`gram` has a single training point; leaving it out leaves none")
    grid = _default_regs(problem) if grid is None else grid
    rows = _squared if problem.loss.quadratic else _trained
    downwards = np.argsort(-grid, kind="stable")
    bar = tqdm(rows(problem, classes, grid[downwards]), "Path", len(grid), disable=not progress)
    found = list(bar)
    found = [found[i] for i in np.argsort(downwards)]
    loo_loss, loo_accuracy, gcv, used, training = map(_column, zip(*found, strict=True))
    path = RegPath(
        grid,
        loo_loss,
        loo_accuracy,
        gcv,
        used,
        training,
        by,
        problem.loss.quadratic,
        functools.partial(fit, gram, y, loss=loss, offset=offset, reg_scale=reg_scale),
    )
    _check_ends(path)
    return path


class _Row(NamedTuple):
    """What `RegPath` holds of one ridge; None where it is undefined."""

    loo_loss: float
    loo_accuracy: float | None
    gcv: float | None
    degrees_of_freedom: float
    training_loss: float


def _column(values: tuple[Any, ...]) -> Any:
    if values[0] is None:
        return None
    column = np.array(values)
    if not np.isfinite(column).all():
        raise FloatingPointError("losses are NaN or infinite; scale the kernel or the targets down")
    return column


def checked_regs(regs: npt.ArrayLike, name: str = "regs") -> Array:
    """Return coefficients to try, (m,), or say what is wrong with them."""
    grid = to_numpy(real(regs, name)).copy()
    if grid.ndim != 1 or not len(grid):
        raise ValueError(f"`{name}` has shape {grid.shape}; pass the coefficients to try, (m,)")
    bad = grid[~(np.isfinite(grid) & (grid > 0))]
    if len(bad):
        raise ValueError(f"`{name}` holds {bad[0]}; pass positive numbers")
    return grid


def _check_criterion(by: str, loss: Loss) -> None:
    if not is_one_of(by, ("loo", "gcv")):
        raise ValueError(f"`by` is {by!r}; pass 'loo' or 'gcv'")
    if by == "gcv" and not loss.quadratic:
        raise ValueError(
            f"`by` is 'gcv' but the loss is {loss.name!r}; generalized cross-validation takes the "
            "squared loss, pass 'loo'"
        )


def _default_regs(problem: Problem) -> Array:
    """Return a grid of round numbers around the kernel's size, as the ridge sees it."""
    size = float(problem.gram.diagonal.mean()) * problem.gram.n * problem.scale
    return 10.0 ** (EXPONENTS + (round(math.log10(size)) if size > 0 else 0))


def _check_ends(path: RegPath) -> None:
    ends = path.regs.min(), path.regs.max()
    if path.best in ends and ends[0] < ends[1]:
        end = "smallest" if path.best == ends[0] else "largest"
        warnings.warn(
            f"the best reg, {path.best:.3g}, is the {end} of `regs`: the optimum may lie beyond",
            UserWarning,
            stacklevel=4,
        )


def _squared(problem: Problem, classes: Any, regs: Array) -> Iterator[_Row]:
    """Yield what one eigendecomposition says of each ridge."""
    n, targets = problem.gram.n, to_numpy(problem.targets)
    all_points, without_one = (n, n - 1) if problem.reg_scale == "mean" else (1, 1)
    spectrum = _spectrum(problem)
    if spectrum.hides(regs.min() * without_one):
        raise FloatingPointError(
            f"`regs` goes down to {regs.min():.3g}, a ridge that is lost in rounding beside the "
            "kernel; pass larger ones"
        )
    for reg in regs.tolist():
        outputs = to_numpy(spectrum.left_out(reg * without_one))
        left_out = float(problem.loss.value(outputs, targets).mean())
        right = None if classes is None else accuracy(outputs, targets)
        yield _Row(left_out, right, *spectrum.fitted(reg * all_points))


@dataclass(frozen=True, eq=False)
class _Spectrum:
    """The squared loss in the eigenbasis of K, at any ridge.

    Attributes
    ----------
    problem
        Targets y and offset f0; its own ridge does not matter.
    values, vectors
        l (side,) and V (side, side) of K = V diag(l) V^T; side is n, or n d for full blocks.
    columns
        V^T (y - f0), (side, q); q outputs share an eigenvalue.
    """

    problem: Problem
    values: Array
    vectors: Array
    columns: Array

    def hides(self, rho: float) -> bool:
        """Tell whether rounding of the eigenvalues may be as large as the least, with its ridge."""
        rounding = 8 * EPS * float(self.values.sum())
        return float(self.values.min()) + rho <= rounding

    def fitted(self, rho: float) -> tuple[float, float, float]:
        """Return GCV, the degrees of freedom and the mean loss of the fit to all points.

        With residuals (I - H) (y - f0), H = K (K + rho I)^-1, GCV is the mean loss over the square
        of the mean of the diagonal of I - H.
        """
        kept = rho / (self.values + rho)
        residual = kept[:, None] * self.columns
        loss = 0.5 * float((residual * residual).sum()) / self.problem.gram.n
        used = self.columns.shape[1] * float((self.values / (self.values + rho)).sum())
        return loss / float(kept.mean()) ** 2, used, loss

    def left_out(self, rho: float) -> Array:
        """Return each point's outputs without it, y_i - (G_ii)^-1 (G (y - f0))_i, (n, d).

        G = (K + rho I)^-1, as for `leave_one_out`.
        """
        problem, xp = self.problem, namespace(self.vectors)
        inverse = 1 / (self.values + rho)
        rows = self.vectors.reshape(problem.gram.n, -1, len(inverse))
        blocks = (rows * inverse) @ xp.permute_dims(rows, (0, 2, 1))
        solved = self.vectors @ (inverse[:, None] * self.columns)
        error = xp.linalg.solve(blocks, solved.reshape(*blocks.shape[:2], -1))
        return problem.targets - error.reshape(problem.targets.shape)


def _spectrum(problem: Problem) -> _Spectrum:
    square = problem.gram.square()
    xp = namespace(square)
    values, vectors = xp.linalg.eigh(square)
    columns = (problem.targets - problem.offset).reshape(len(square), -1)
    return _Spectrum(problem, xp.maximum(values, 0.0), vectors, vectors.T @ columns)


def _trained(problem: Problem, classes: Any, regs: Array) -> Iterator[_Row]:
    """Yield what training and leaving points out by a Newton step say of each ridge."""
    path: list[tuple[float, Array]] = []
    for reg in regs.tolist():
        here = replace(problem, reg=reg)
        try:
            trained = Newton().train(here, _start(path, here), progress=False)
            model = model_of(here, trained, classes, None, stacklevel=6)
            left_out, used = leave_one_out(model), _degrees_of_freedom(model)
        except FloatingPointError as error:
            raise FloatingPointError(f"at {reg:.3g}, one of `regs`: {error}") from None
        path.append((math.log(reg), trained.alpha))
        training = float(here.loss.value(trained.outputs, here.targets).mean())
        yield _Row(float(left_out.losses.mean()), left_out.accuracy, None, used, training)


def _start(path: list[tuple[float, Array]], problem: Problem) -> Array:
    """Return where the last two coefficients of the path point, no further than they are apart."""
    if len(path) < 2:
        return path[-1][1] if path else 0 * problem.targets
    (before, alpha_before), (last, alpha_last) = path[-2:]
    if before == last:
        return alpha_last
    length = min(1.0, (math.log(problem.reg) - last) / (last - before))
    return alpha_last + length * (alpha_last - alpha_before)


def _degrees_of_freedom(model: Model) -> float:
    """Return tr(W S), S = K (rho I + W K)^-1, from the blocks of I - W S."""
    problem = model.problem
    system = problem.system(model._outputs)
    system = replace(system, root=floored(system.root), direct=True)
    n, size = problem.gram.n, columns_at_once(problem.targets.shape)
    used = 0.0
    for start in range(0, n, size):
        slack = system.slack(slice(start, min(start + size, n)))
        used += float((namespace(slack).eye(slack.shape[1]) - slack).trace(axis1=1, axis2=2).sum())
    return used
