"""How numbers and labels are written in tables and figures."""

import html
from collections.abc import Callable
from typing import Any

import numpy as np

from . import _agreement
from ._agreement import relative_error
from ._arrays import Array

EXACT = "exact"
ROUNDING = 1e-8  # a relative error below this is called exact
MOST_SHOWN = 3  # targets of one point


class HtmlTable:
    """Shows a result with a `to_dataframe` as a table in notebooks; as text without pandas."""

    def to_dataframe(self) -> Any:
        """Return the table as a `pandas.DataFrame`."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        try:
            frame = self.to_dataframe()
        except ImportError:
            return f"<pre>{html.escape(str(self))}</pre>"
        named = frame.index.name is not None
        table = frame.to_html(index=named, border=0, float_format="{:.4g}".format)
        notes = [repr(self).split("\n", 1)[0], getattr(self, "recommendation", "")]
        above, below = (f"<p>{html.escape(note)}</p>" if note else "" for note in notes)
        return above + table + below


def decimals(*values: Array, digits: int = 3) -> int:
    """Return how many decimals show that many digits of the largest value."""
    largest = max(np.abs(part).max() for part in values)
    return int(np.clip(digits - 1 - np.floor(np.log10(largest)), 0, 12)) if largest > 0 else 0


def error(predicted: Any, truth: Any) -> str:
    """Return the relative error ||predicted - truth|| / ||truth|| in percent, "-" if undefined."""
    return percent(relative_error(predicted, truth)) if np.any(truth) else "-"


def percent(share: float) -> str:
    """Return a relative error in percent."""
    if share < ROUNDING:
        return EXACT
    return "<0.1 %" if share < 5e-4 else f"{100 * share:.{1 if share < 10 else 0}f} %"


def correlation(a: Array, b: Array, *, ranks: bool = False) -> str:
    """Return Pearson's correlation, or with `ranks` Spearman's; "-" if undefined."""
    r = _agreement.correlation(a, b, ranks=ranks)
    return "-" if r is None else f"{r:.4f}"


def label(target: Any) -> str:
    """Return a label, or the real target or targets, of one point."""
    if np.ndim(target) == 0:
        return f"{target:.3g}" if isinstance(target, np.floating) else str(target)
    shown = ", ".join(f"{value:.3g}" for value in target[:MOST_SHOWN])
    return shown + ", ..." * (len(target) > MOST_SHOWN)


def or_blank(value: float | None, text: Callable[[float], str]) -> str:
    """Return a number as text, or nothing where it is undefined."""
    return "" if value is None else text(value)


def aligned(rows: list[list[str]], texts: int) -> list[str]:
    """Return a line for each row of cells; the first `texts` columns are text, at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < texts else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
