"""What a ranking of points is good for: wrong labels found, and points removed in its order."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation import Detection, RemovalCurve
from ._axes import GREY, MARKERS, check_kind, check_text, checked_axes, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def detection(found: Detection | Mapping[str, Detection], *, ax: "Axes | None" = None) -> "Axes":
    """Plot the share of wrong labels found against the share of labels inspected.

    The most suspect labels are inspected first. Dashed: inspected at random. Dotted: every label
    inspected is wrong until all are found.

    Parameters
    ----------
    found
        From `SuspectLabels.detection`, or several of the same points, by name.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    TypeError
        What is plotted is no detection.
    """
    curves = found if isinstance(found, Mapping) else {"labels": found}
    for curve in curves.values():
        check_kind(curve, Detection, "found")
    if not curves:
        raise ValueError("`found` is empty; pass at least one detection")
    ax = checked_axes(ax)
    for i, (name, curve) in enumerate(curves.items()):
        legend = f"{name}: AUC {curve.auc:.3f}"
        ax.plot(100 * curve.inspected, 100 * curve.found, label=legend, **line_style(i))
    share = 100 * float(np.mean(next(iter(curves.values())).hits))
    ax.plot([0, share, 100], [0, 100, 100], ":", color=GREY, linewidth=1, label="at best")
    ax.plot([0, 100], [0, 100], "--", color=GREY, linewidth=1, label="at random")
    ax.set(xlim=(0, 100), ylim=(0, 102))
    ax.set(xlabel="labels inspected (%)", ylabel="wrong labels found (%)")
    ax.legend(loc="lower right", fontsize="small")
    return ax


def removal_curve(
    curves: RemovalCurve | Mapping[str, RemovalCurve], *, unit: str = "", ax: "Axes | None" = None
) -> "Axes":
    """Plot the mean test loss without the first points of a ranking, for more and more of them.

    Parameters
    ----------
    curves
        From `kernelinf.evaluation.removal_curve`, or several by name, such as rankings.
    unit
        Of the losses, such as "nats".
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    TypeError
        What is plotted is no removal curve.
    """
    named = curves if isinstance(curves, Mapping) else {"": curves}
    for curve in named.values():
        check_kind(curve, RemovalCurve, "curves")
    if not named:
        raise ValueError("`curves` is empty; pass at least one removal curve")
    check_text(unit)
    ax = checked_axes(ax)
    for i, (name, curve) in enumerate(named.items()):
        losses = curve.losses.mean(axis=1)
        ax.plot(curve.sizes, losses, label=name, marker=MARKERS[i % 4][0], **line_style(i))
    what = "mean test loss" + (f" ({unit})" if unit else "")
    ax.set(xlabel="training points removed, the first of the ranking first", ylabel=what)
    if any(named):
        ax.legend(fontsize="small")
    return ax
