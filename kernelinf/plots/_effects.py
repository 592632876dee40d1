"""Predicted against retrained changes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .._checks import is_one_of
from .._text import EXACT, correlation, error
from .._update import Effect
from ._axes import GREY, MARKERS, check_kind, check_text, checked_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Of = Literal["losses", "outputs"]


def effect(
    predicted: Effect | Mapping[str, Effect],
    retrained: Effect,
    *,
    of: Of = "losses",
    unit: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot predicted against retrained changes, one mark a test point.

    Marks on the dashed line are predicted exactly. Changes are after the removal minus before: a
    positive change of a loss means that the removed points were helpful.

    Parameters
    ----------
    predicted
        An estimated effect, or several by name. The legend has the relative error of each,
        ||predicted - retrained|| / ||retrained|| over all marks, and Pearson's correlation r.
    retrained
        The effect of retraining, on the same test points.
    of
        "losses", or "outputs": then one mark for each output of each test point.
    unit
        Of the axis labels, such as "nats" for the losses of a cross-entropy.
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
        The losses are missing: the effects were computed without test labels; or the effects are
        of different test points.
    """
    if not is_one_of(of, ("losses", "outputs")):
        raise ValueError(f"`of` is {of!r}; pass 'losses' or 'outputs'")
    estimates = predicted if isinstance(predicted, Mapping) else {"predicted": predicted}
    if len(estimates) > len(MARKERS):
        raise ValueError(f"`predicted` has {len(estimates)} estimates; pass {len(MARKERS)} at most")
    if not estimates:
        raise ValueError("`predicted` is empty; pass at least one effect")
    check_text(unit)
    truth = _changes(retrained, of, "retrained")
    changes = {name: _changes(values, of, "predicted") for name, values in estimates.items()}
    for name, values in changes.items():
        if values.shape != truth.shape:
            raise ValueError(
                f"`predicted` ({name}) has {len(values)} changes but `retrained` has {len(truth)}"
            )
    ax = checked_axes(ax)
    _cross_hairs(ax, np.concatenate([truth, *changes.values()]))
    for (name, values), (marker, colour) in zip(changes.items(), MARKERS, strict=False):
        off, r = error(values, truth), correlation(values, truth)
        legend = f"{name}: exact" if off == EXACT else f"{name}: error {off}, r {r}"
        style: dict[str, Any] = {"s": 20, "linewidths": 0.8, "alpha": 0.75}
        ax.scatter(truth, values, marker=marker, fc="none", ec=colour, label=legend, **style)
    what = "change of test loss" if of == "losses" else "change of test outputs"
    change = f"{what} on removal" + (f" ({unit})" if unit else "")
    ax.set(xlabel=f"{change}, retrained", ylabel=f"{change}, predicted")
    ax.legend(loc="upper left", fontsize="small", handletextpad=0.2, borderaxespad=0.3)
    return ax


def _changes(effect: Effect, of: Of, name: str) -> npt.NDArray[np.float64]:
    check_kind(effect, Effect, name)
    if of == "outputs":
        return effect.outputs.ravel()
    if effect.losses is None:
        raise ValueError("the effect has no losses; pass test labels to `Update.effect`")
    return effect.losses


def _cross_hairs(ax: "Axes", values: npt.NDArray[np.float64]) -> None:
    """Set square limits around the values; draw the zero lines and the identity line."""
    low, high = min(values.min(), 0.0), max(values.max(), 0.0)
    margin = 0.06 * (high - low) or 1.0
    limits = low - margin, high + margin
    ax.set(xlim=limits, ylim=limits, aspect="equal")
    ax.locator_params(nbins=6)
    ax.axhline(0, color=GREY, linewidth=0.6)
    ax.axvline(0, color=GREY, linewidth=0.6)
    ax.axline(
        (0, 0), slope=1, color=GREY, linestyle="--", linewidth=1, label="predicted = retrained"
    )
