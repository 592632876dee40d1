"""Influence of every training point on every test point, on itself, and on a whole test set."""

import functools
import warnings
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array, finite, in_float64, namespace, to_numpy
from ._checks import check_flags, is_one_of, is_whole
from ._gram import Cross
from ._methods import Method
from ._scores import InfluenceMatrix, Of, Representer, Top, check_top, ranked
from ._single import Removals, columns_at_once, removals
from ._test_points import TestPoints, check_model, one_hot, progress_bar, test_points
from ._training import ConvergenceWarning, Model, rounding

Normalise = Literal["relatif"]


@in_float64
def influence(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None = None,
    *,
    of: Of = "loss",
    method: Method | None = None,
    total: bool = False,
    normalise: Normalise | None = None,
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> InfluenceMatrix:
    """Score every training point's influence on every test point.

    Column i of row t predicts the change of test point t's loss (or outputs, or margin) when
    training point i alone is removed, after minus before: c_t . df_t, c_t the derivative of the
    quantity in the outputs at t, and df_t the change of the outputs by `method`. One stacked solve
    serves all test points, (rho I + K W) u_t = K_Xt c_t (Koh & Liang 2017, in dual form).

    Peak memory is the scores, 8 t n bytes (d times that for outputs), and about twelve stacks
    (n, d, s) of 16 MB, or of one column (n, d, 1) where that is more; and where the system is
    factorised (for `NewtonStep` always, for `FirstOrder` where that is cheaper and takes under
    4 GB) 8 (d + 3) n^2 bytes for the cross-entropy, 16 n^2 for one output or the squared loss, and
    24 (d n)^2 for full blocks. `top_influence` holds nothing that grows as t n.

    Parameters
    ----------
    model
        A trained model.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    y_test
        Their labels; not needed for `of="outputs"`.
    of
        "loss": scores (t, n). "outputs": scores (t, d, n). "margin": scores (t, n) of the output of
        the true class minus the largest of the others at present; y f for the logistic loss.
    method
        `FirstOrder()` (the default): the derivative as the weight of the point falls from one;
        scores add up over points. `NewtonStep()`: corrected for the point's own leverage, the
        outputs move by one Newton step without the point, which for the squared loss is
        retraining. It costs about d n^3 more operations for the cross-entropy.
    total
        Score the sum over the test points instead: (n,), or (d, n), with a single right-hand side
        (d of them for outputs), and never all of the kernel between test and training points.
    normalise
        "relatif": divide each column by how far the parameters move without the point,
        sqrt(d_i^T K d_i) for the change d_i of alpha: theta-relative influence (Barshan et al.
        2020), the largest change that a unit move of the parameters brings about. Zero for points
        without which they do not move, up to rounding. Costs n further right-hand sides.
    offset
        Initial outputs at the test points, when the model has them as an array.
    progress
        Show a progress bar.

    Returns
    -------
    InfluenceMatrix

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    ValueError
        `y_test` is missing or does not fit, shapes do not fit, or the model or the labels have no
        classes for a margin.
    FloatingPointError
        Scores are NaN or infinite.

    Warns
    -----
    ConvergenceWarning
        The system could not be solved to the precision of float64.
    """
    if not is_one_of(normalise, (None, "relatif")):
        raise ValueError(f"`normalise` is {normalise!r}; pass 'relatif' or None")
    check_flags(total=total, progress=progress)
    tests = test_points(model, x_test, y_test, of=of, offset=offset)
    columns = tests.quantities * (1 if total else len(tests))
    parts = removals(model, method, columns + (model.gram.n if normalise else 0))
    gather = _total_scores if total else _all_scores
    scores, residual = gather(parts, tests, progress)
    if normalise is not None:
        norms, missed = _norms(parts)
        _check_finite(norms)
        scores = np.divide(scores, norms, out=np.zeros_like(scores), where=norms > 0)
        residual = max(residual, missed)
    _check(model, scores, residual)
    dims = ("output", "train") if of == "outputs" else ("train",)
    if of != "outputs":
        scores = scores[..., 0, :]
    return InfluenceMatrix(scores, dims if total else ("test", *dims), of, *_labels(model))


@in_float64
def top_influence(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None = None,
    k: int = 10,
    *,
    of: Literal["loss", "margin"] = "loss",
    method: Method | None = None,
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> Top:
    """Find the most influential training points of each test point without the whole matrix.

    The same as `influence(...).top(k)`, test points in blocks: no array of t n numbers is held
    unless `x_test` is one. Peak memory is the result, 32 t k bytes, a block of the kernel of 16 MB
    (or of 64 test points), about twelve stacks (n, d, s) of 16 MB, and the factorisation where
    `influence` has one.

    Parameters
    ----------
    model, x_test, y_test, method, offset, progress
        As for `influence`.
    k
        Points to either side, from 1 to n.
    of
        "loss" or "margin".

    Returns
    -------
    Top

    Raises
    ------
    ValueError
        `k` is out of range, and what `influence` refuses.

    Warns
    -----
    ConvergenceWarning
        The system could not be solved to the precision of float64.
    """
    check_model(model)
    check_top(k, model.gram.n)
    check_flags(progress=progress)
    if not is_one_of(of, ("loss", "margin")):
        raise ValueError(f"`of` is {of!r}; pass 'loss' or 'margin', whose signs help or harm")
    tests = test_points(model, x_test, y_test, of=of, offset=offset)
    parts = removals(model, method, len(tests))
    tops, worst = [], 0.0
    for _, scores, residual in _blocks(parts, tests, progress):
        _check_finite(scores)
        tops.append(ranked(scores[:, 0], k, of))
        worst = max(worst, residual)
    _check_residual(model, worst)
    return Top(*(np.concatenate([getattr(top, f.name) for top in tops]) for f in fields(Top)))


@in_float64
def self_influence(model: Model, *, method: Method | None = None) -> Array:
    """Score every training point's influence on its own loss.

    The change of the loss at training point i when it is removed: the diagonal of
    `influence(model, x_train, y_train)`, from the d x d blocks of the system alone. Large for
    points that the model fits only because it has them: rare ones, and mislabelled ones.

    Memory is the factorisation, 8 (d + 3) n^2 bytes for the cross-entropy (16 n^2 for one output or
    the squared loss, 24 (d n)^2 for full blocks) and a few arrays of 16 MB; about 4 d n^3
    operations, 5 d n^3 for `NewtonStep`.

    Parameters
    ----------
    model
        A trained model.
    method
        `FirstOrder()` (the default) or `NewtonStep()`, as for `influence`: either is the derivative
        of the loss times the predicted change of the point's own outputs.

    Returns
    -------
    (n,) in the unit of the loss, after the removal minus before; zero for removed points.

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    FloatingPointError
        Scores are NaN or infinite.

    Warns
    -----
    ConvergenceWarning
        The system could not be solved to the precision of float64.
    """
    check_model(model)
    gradient = model.problem.loss.gradient(model._outputs, model.problem.targets)
    scores, worst = np.zeros(model.gram.n), 0.0
    for part in removals(model, method, model.gram.n):
        changes, residual = part.own_changes()
        scores += to_numpy((gradient * changes).sum(axis=1))
        worst = max(worst, residual)
    _check(model, scores, worst)
    return scores


@in_float64
def representer(
    model: Model, x_test: npt.ArrayLike | Cross, *, output: int | None = None
) -> Representer:
    """Split the outputs at test points into what each training point adds to them.

    f(x_t) - f0(x_t) = sum_i k(x_t, x_i) alpha_i, where alpha_i = -g_i / rho once the model is
    trained (Yeh et al. 2018, with the kernel in place of the last layer's features). Nothing is
    solved. A share is not an influence: without the point the other coefficients change too.

    Parameters
    ----------
    model
        A trained model.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed. The values take 8 t d n bytes, 8 t n for one output: pass many test points a
        block at a time.
    output
        The one output, from 0 to d - 1, to split; None for all.

    Returns
    -------
    Representer

    Raises
    ------
    ValueError
        `output` is out of range, or shapes do not fit.
    """
    check_model(model)
    d = model.problem.targets.shape[1]
    if output is not None and not (is_whole(output) and 0 <= output < d):
        raise ValueError(f"`output` is {output!r}; pass a number from 0 to {d - 1}, or None")
    cross, alpha = model.gram.cross(x_test), model._alpha
    chosen = slice(None) if output is None else slice(output, output + 1)
    if cross.matrix.ndim == 2:
        values = cross.matrix[:, None, :] * alpha.T[chosen]
    else:
        values = namespace(alpha).einsum("tanb,nb->tan", cross.matrix[:, chosen], alpha)
    if not finite(values):
        raise FloatingPointError("shares of the outputs are NaN or infinite; scale the kernel down")
    dims: tuple[str, ...] = ("test", "output", "train")
    if output is not None:
        values, dims = values[:, 0], ("test", "train")
    return Representer(to_numpy(values), dims, "outputs", *_labels(model))


def _blocks(
    parts: list[Removals], tests: TestPoints, progress: bool
) -> Iterator[tuple[slice, Array, float]]:
    """Yield the rows, the scores (s, q, n) and the residual of one block of test points a time."""
    q = tests.quantities
    step = max(1, columns_at_once(parts[0].push.shape) // q)
    with progress_bar(len(tests), progress) as bar:
        for first, cross, directions in tests.tiles():
            for start in range(0, len(cross), step):
                rows = slice(start, start + step)
                scores, residual = _scores(parts, _pulled(cross.rows(rows), directions[rows]))
                s = len(scores) // q
                yield slice(first + start, first + start + s), scores.reshape(s, q, -1), residual
                bar.update(s)


def _pulled(cross: Cross, directions: Array) -> Array:
    """Return the stack K_Xt c_t, (n, d, t q)."""
    t, q, _ = directions.shape
    b = namespace(directions).stack(
        [cross.pull_back(directions[:, j]) for j in range(q)],
        axis=3,
    )
    return b.reshape(*b.shape[:2], t * q)


def _scores(parts: list[Removals], b: Array) -> tuple[Array, float]:
    """Score the stack b (n, d, s): (s, n), and the residual of the worst solve."""
    scores, residuals = zip(*(part.scores(b) for part in parts), strict=True)
    return functools.reduce(np.add, map(to_numpy, scores)), max(residuals)


def _all_scores(parts: list[Removals], tests: TestPoints, progress: bool) -> tuple[Array, float]:
    scores = np.empty((len(tests), tests.quantities, tests.model.gram.n))
    worst = 0.0
    for rows, block, residual in _blocks(parts, tests, progress):
        scores[rows] = block
        worst = max(worst, residual)
    return scores, worst


def _total_scores(parts: list[Removals], tests: TestPoints, progress: bool) -> tuple[Array, float]:
    return _scores(parts, tests.total(progress))


def _norms(parts: list[Removals]) -> tuple[Array, float]:
    """Return how far the parameters move without each point, (n,), and the residual."""
    norms, residuals = zip(*(part.norms() for part in parts), strict=True)
    return functools.reduce(np.add, map(to_numpy, norms)), max(residuals)


def _labels(model: Model) -> tuple[Any, Any]:
    """Return the class labels of the training points and of the outputs, where there are any."""
    targets, classes = to_numpy(model.problem.targets), model.classes
    if classes is None:
        return None, None
    if targets.shape[1] == 1:
        return classes[(targets[:, 0] > 0).astype(int)], None
    return classes[targets.argmax(axis=1)] if one_hot(targets) else None, classes


def _check(model: Model, scores: Array, residual: float) -> None:
    _check_finite(scores)
    _check_residual(model, residual, stacklevel=5)


def _check_finite(scores: Array) -> None:
    if not finite(scores):
        raise FloatingPointError("scores are NaN or infinite; raise the model's `reg`")


def _check_residual(model: Model, residual: float, stacklevel: int = 4) -> None:
    if residual > rounding(model.problem):
        warnings.warn(
            f"the system was solved to a relative residual of {residual:.1e} only; "
            f"{model.problem.advice()}",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )
