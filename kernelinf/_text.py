"""How numbers and labels are written in tables and figures."""

from typing import Any

import numpy as np
import scipy  # loads its parts when they are first used

from ._arrays import Array

EXACT = "exact"
ROUNDING = 1e-8  # a relative error below this is called exact
MOST_SHOWN = 3  # targets of one point


def decimals(*values: Array, digits: int = 3) -> int:
    """Return how many decimals show that many digits of the largest value."""
    largest = max(np.abs(part).max() for part in values)
    return int(np.clip(digits - 1 - np.floor(np.log10(largest)), 0, 12)) if largest > 0 else 0


def error(predicted: Any, truth: Any) -> str:
    """Return the relative error ||predicted - truth|| / ||truth|| in percent, "-" if undefined."""
    size = np.linalg.norm(truth)
    if size == 0:
        return "-"
    share = np.linalg.norm(np.subtract(predicted, truth)) / size
    if share < ROUNDING:
        return EXACT
    return "<0.1 %" if share < 5e-4 else f"{100 * share:.{1 if share < 10 else 0}f} %"


def correlation(a: Array, b: Array, *, ranks: bool = False) -> str:
    """Return Pearson's correlation, or with `ranks` Spearman's; "-" if undefined."""
    if ranks:
        a, b = scipy.stats.rankdata(a), scipy.stats.rankdata(b)
    if min(np.ptp(a), np.ptp(b)) == 0:
        return "-"
    with np.errstate(all="ignore"):  # values so small that their squares vanish
        r = np.corrcoef(a, b)[0, 1]
    return f"{r:.4f}" if np.isfinite(r) else "-"


def label(target: Any) -> str:
    """Return a label, or the real target or targets, of one point."""
    if np.ndim(target) == 0:
        return f"{target:.3g}" if isinstance(target, np.floating) else str(target)
    shown = ", ".join(f"{value:.3g}" for value in target[:MOST_SHOWN])
    return shown + ", ..." * (len(target) > MOST_SHOWN)
