"""How well predicted numbers agree with the true ones."""

from typing import Any

import numpy as np
import scipy  # loads its parts when they are first used

from ._arrays import Array


def relative_error(predicted: Any, truth: Any) -> float:
    """Return ||predicted - truth|| / ||truth||; where both are zero that is 0, and inf over 0."""
    off, size = np.linalg.norm(np.subtract(predicted, truth)), np.linalg.norm(truth)
    if size == 0:
        return 0.0 if off == 0 else float("inf")
    return float(off / size)


def correlation(a: Array, b: Array, *, ranks: bool = False) -> float | None:
    """Return Pearson's correlation, or with `ranks` Spearman's; None if undefined."""
    if ranks:
        a, b = scipy.stats.rankdata(a), scipy.stats.rankdata(b)
    if min(np.ptp(a), np.ptp(b)) == 0:
        return None
    with np.errstate(all="ignore"):  # values so small that their squares vanish
        r = np.corrcoef(a, b)[0, 1]
    return float(r) if np.isfinite(r) else None


def rank_correlations(a: Array, b: Array) -> Array:
    """Return Spearman's correlation of each column of (s, t) arrays, (t,); zero if one is constant.

    A column without an order predicts none.
    """
    x, y = (scipy.stats.rankdata(values, axis=0) for values in (a, b))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    size = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    return np.divide((x * y).sum(axis=0), size, out=np.zeros(len(size)), where=size > 0)
