"""Orders in which training points are removed."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, real, to_numpy
from .._checks import as_array, check_unmasked
from .._removal import present_indices
from .._scores import InfluenceMatrix
from .._training import Model
from ._draws import Points, present_points

Ranking = InfluenceMatrix | npt.ArrayLike


def order_of(model: Model, ranking: Ranking) -> Points:
    """Return the points in the order of removal: given, or from scores, the largest first.

    Raises
    ------
    ValueError
        Scores are of outputs, do not fit the points or hold NaN; or an order repeats points.
    """
    if isinstance(ranking, InfluenceMatrix):
        scores = _helpfulness(ranking)
        return _sorted(model, scores.sum(axis=0) if scores.ndim == 2 else scores)
    check_unmasked(ranking, "ranking")
    values = as_array(ranking, "ranking")
    if values.dtype.kind in "iu":
        return present_indices(values, to_numpy(model.problem.weights), "ranking")
    return _sorted(model, to_numpy(real(values, "ranking")))


def orders_of(model: Model, ranking: Ranking, t: int) -> Points:
    """Return such an order for each of t test points, (t, m).

    Raises
    ------
    ValueError
        Scores or orders have other than t rows, and what `order_of` refuses.
    """
    table = isinstance(ranking, InfluenceMatrix)
    values: Any = _helpfulness(ranking) if isinstance(ranking, InfluenceMatrix) else ranking
    rows = as_array(values, "ranking")
    if rows.ndim != 2 or len(rows) != t:
        kind = "scores" if table else "an array"
        raise ValueError(
            f"`ranking` is {kind} of shape {rows.shape}; pass a row for each of the {t} test points"
        )
    return np.array([order_of(model, row) for row in rows])


def _helpfulness(scores: InfluenceMatrix) -> Array:
    """Return scores whose largest belong to the points that help most."""
    if scores.of == "outputs":
        raise ValueError("`ranking` has scores of the outputs; pass those of 'loss' or 'margin'")
    return -scores.values if scores.of == "margin" else scores.values


def _sorted(model: Model, scores: Array) -> Points:
    if scores.shape != (model.gram.n,):
        raise ValueError(
            f"`ranking` has scores of shape {scores.shape} for {model.gram.n} training points"
        )
    if not np.isfinite(scores).all():
        raise ValueError("`ranking` holds NaN or infinite scores")
    points = present_points(model)
    return points[np.argsort(-scores[points], kind="stable")]
