"""How many wrong labels a ranking finds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..evaluation import Detection
from ._axes import GREY, check_kind, checked_axes, line_style

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
