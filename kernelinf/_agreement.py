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
    return _correlations(*(scipy.stats.rankdata(values, axis=0) for values in (a, b)))


def rank_correlations_without(a: Array, b: Array) -> Array:
    """Return what `rank_correlations` are without each row in turn, (s, t)."""
    ranks = [scipy.stats.rankdata(values, axis=0) for values in (a, b)]
    rows = range(len(a))
    return np.array([_correlations(*(_ranks_without(r, row) for r in ranks)) for row in rows])


def _ranks_without(ranks: Array, row: int) -> Array:
    """Return the ranks in each column when one row is gone: those above it fall by one."""
    own = ranks[row]
    return np.delete(ranks - (ranks > own) - 0.5 * (ranks == own), row, axis=0)


def _correlations(x: Array, y: Array) -> Array:
    """Return Pearson's correlation of each column, (t,); zero if one is constant."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    size = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
    return np.divide((x * y).sum(axis=0), size, out=np.zeros(len(size)), where=size > 0)
