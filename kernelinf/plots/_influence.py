"""Influence of all training points on all test points, as a map."""

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._checks import check_flags
from .._scores import InfluenceMatrix
from ._axes import check_kind, check_text, checked_axes
from ._kernels import MOST_ROWS, class_lines, labels_of, symmetric

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def influence_map(
    scores: InfluenceMatrix,
    y_train: npt.ArrayLike,
    y_test: npt.ArrayLike,
    *,
    by_class: bool = False,
    unit: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot an influence matrix, both kinds of points in the order of their classes.

    Purple where removing the training point raises the test point's loss (it helps) or margin (it
    hurts), orange where it lowers it. Of more than 1,000 points on an axis only some are shown,
    evenly spaced; the title says so.

    Parameters
    ----------
    scores
        Of losses or margins, (t, n), from `kernelinf.influence`.
    y_train, y_test
        Class labels, (n,) and (t,).
    by_class
        Show the sum over the training points of a class, of the mean test point of a class.
    unit
        Of the colour bar, such as "nats".
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
        Scores are not (t, n), or labels do not fit.
    """
    check_kind(scores, InfluenceMatrix, "scores")
    check_flags(by_class=by_class)
    check_text(unit)
    values = np.asarray(scores.values)
    if values.ndim != 2:
        raise ValueError(f"`scores` has axes {scores.dims}; pass scores with axes (test, train)")
    t, n = values.shape
    tests, trains = labels_of(y_test, t, "y_test"), labels_of(y_train, n, "y_train")
    ax = checked_axes(ax)
    if by_class:
        values, tests, trains = _sums(values, tests, trains)
    rows, columns = (
        np.argsort(labels, kind="stable")[:: -(-len(labels) // MOST_ROWS)]
        for labels in (tests, trains)
    )
    shown = values[np.ix_(rows, columns)]
    image = ax.imshow(
        shown, cmap="PuOr", norm=symmetric(shown), aspect="auto", interpolation="nearest"
    )
    what = f"change of the {scores.of} on removal" + (f" ({unit})" if unit else "")
    if by_class:
        what = f"{what},\nsummed over the class, mean test point"
    full = values.shape == shown.shape
    thinned = "{:,} of {:,} test and {:,} of {:,} training points"
    parts = (shown.shape[0], values.shape[0], shown.shape[1], values.shape[1])
    ax.set_title("" if full else thinned.format(*parts), fontsize="medium")
    ax.figure.colorbar(image, ax=ax, label=what)
    class_lines(ax, trains[columns], "x")
    class_lines(ax, tests[rows], "y")
    ax.set(xlabel="training points, by class", ylabel="test points, by class")
    return ax


def _sums(
    values: npt.NDArray[np.float64], tests: npt.NDArray[Any], trains: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[Any], npt.NDArray[Any]]:
    """Sum over the training points of each class, and average over the test points of each."""
    of_tests, of_trains = np.unique(tests), np.unique(trains)
    rows = np.stack([values[tests == c].mean(axis=0) for c in of_tests])
    return np.stack([rows[:, trains == c].sum(axis=1) for c in of_trains], 1), of_tests, of_trains
