"""Kernels side by side."""

import itertools
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._checks import is_one_of
from .._comparison import Agreement, Comparison
from ._axes import COLOURS, GREY, LINES, MARKERS, check_kind, checked_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Panel = Literal["accuracy", "spectrum", "agreement"]
DARK = 0.45  # size of a correlation whose field takes white text


def comparison(
    comparison: Comparison,
    *,
    of: Panel = "accuracy",
    on: Literal["test", "own"] = "test",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot kernels side by side.

    Parameters
    ----------
    comparison
        From `kernelinf.compare`.
    of
        "accuracy": the share of test points that each kernel gets right, and of training points
        that were left out; of real targets the mean losses. "spectrum": the eigenvalues of each
        kernel matrix over their mean; a mark is where they fall below the ridge. "agreement":
        Spearman's correlation, between any two kernels, of the effects of leaving each training
        point out.
    on
        For the agreement: effects on the mean "test" loss, or on the point's "own".
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    ValueError
        `of` or `on` is none of those, or the spectra are not known.
    """
    check_kind(comparison, Comparison, "comparison")
    if not is_one_of(of, ("accuracy", "spectrum", "agreement")):
        raise ValueError(f"`of` is {of!r}; pass 'accuracy', 'spectrum' or 'agreement'")
    if of == "agreement":
        agreement = comparison.agreement(on, k=1)  # before there is a figure: it may be refused
        return _agreement_map(checked_axes(ax), agreement)
    if of == "spectrum" and all(len(e.eigenvalues) == 1 for e in comparison.entries):
        raise ValueError("`comparison` has no spectra: the matrices are too large")
    ax = checked_axes(ax)
    return _accuracies(ax, comparison) if of == "accuracy" else _spectra(ax, comparison)


def _accuracies(ax: "Axes", comparison: Comparison) -> "Axes":
    """Draw one line a kernel, the first at the top, with a mark for each of the two numbers."""
    classes = comparison.entries[0].test_accuracy is not None
    what, factor = ("accuracy", 100) if classes else ("loss", 1)
    heights, rows = np.arange(len(comparison.entries)), comparison.rows()
    series = [[factor * row[f"{kind}_{what}"] for row in rows] for kind in ("loo", "test")]
    ax.hlines(heights, *np.sort(series, axis=0)[[0, 1]], color=GREY, linewidth=0.8, zorder=1)
    names = "left out of training", "test"
    for (marker, colour), values, name in zip(MARKERS, series, names, strict=False):
        ax.scatter(values, heights, marker=marker, fc="none", ec=colour, label=name, zorder=2)
    ax.set_yticks(heights, list(map(str, comparison.names)))
    ax.set(ylim=(len(heights) - 0.5, -0.5))
    ax.set_xlabel("classified rightly (%)" if classes else f"mean {comparison.loss} loss")
    ax.grid(axis="y", color=GREY, linewidth=0.3)
    ax.legend(fontsize="small", title="points", title_fontsize="small")
    return ax


def _spectra(ax: "Axes", comparison: Comparison) -> "Axes":
    styles = zip(itertools.cycle(COLOURS), itertools.cycle(LINES), strict=False)
    known = [entry for entry in comparison.entries if len(entry.eigenvalues) > 1]
    for entry, (colour, line) in zip(known, styles, strict=False):
        falling = entry.eigenvalues[::-1]
        positive = falling[falling > len(falling) * np.finfo(float).eps * falling[0]]
        scaled, ridge = positive / falling.mean(), entry.reg * len(entry.own_effects)
        ax.plot(
            1 + np.arange(len(scaled)), scaled, color=colour, linestyle=line, label=str(entry.name)
        )
        above = int((positive > ridge).sum())
        if above:
            ax.plot(above, scaled[above - 1], marker="o", markersize=5, color=colour)
    ax.set(xscale="log", yscale="log")
    ax.set(xlabel="rank of the eigenvalue", ylabel="eigenvalue over their mean")
    style: dict[str, Any] = {"fontsize": "x-small", "title_fontsize": "x-small"}
    ax.legend(title="marks: the last above the ridge", labelspacing=0.2, **style)
    return ax


def _agreement_map(ax: "Axes", agreement: Agreement) -> "Axes":
    values, names = agreement.spearman, list(map(str, agreement.names))
    numbers = np.arange(len(names))
    image = ax.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    for (row, column), value in np.ndenumerate(values):
        text = "-" if np.isnan(value) else f"{value:.2f}"
        colour = "white" if abs(value) > DARK else "black"
        ax.text(column, row, text, ha="center", va="center", color=colour, fontsize="x-small")
    ax.set_xticks(numbers, names, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(numbers, names)
    subject = "mean test loss" if agreement.on == "test" else "own loss"
    label = f"Spearman's correlation of each point's\neffect on the {subject} when left out"
    ax.figure.colorbar(image, ax=ax, shrink=0.8).set_label(label, fontsize="small")
    return ax
