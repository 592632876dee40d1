"""Points as pictures: the influential ones, and the page of the demonstration."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._scores import InfluenceMatrix
from .._text import decimals, label
from .._update import Effect
from ..datasets import Dataset
from ._axes import BLUE, VERMILION, check_kind, check_text, checked_axes, matplotlib
from ._effects import effect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GAP = 0.6  # between groups of pictures, in picture widths
ROW = 1.55  # from one row of pictures to the next, with room for two lines of text
PAGE_WIDTH = 10.0  # inches
PANELS_A_ROW = 2


def influential(
    scores: InfluenceMatrix,
    data: Dataset,
    *,
    k: int = 4,
    unit: str = "",
    ax: "Axes | None" = None,
) -> "Axes":
    """Show test points with the training points that help and hurt each of them most.

    A row a test point: itself, the k most helpful training points, the k most harmful ones, each
    with its label and its score, the predicted change of the test point's loss if that one training
    point is removed. Images are shown as images, other points as strips of their features.

    Parameters
    ----------
    scores
        Influence on the loss, (t, n).
    data
        The n training points, and the t test points that the rows of `scores` are about.
    k
        Training points to either side.
    unit
        Of the scores, such as "nats" for a cross-entropy.
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
        `data` does not have the points that `scores` has; scores are of outputs; k is out of range.
    """
    check_kind(scores, InfluenceMatrix, "scores")
    check_kind(data, Dataset, "data")
    check_text(unit)
    top = scores.top(k)
    points = (len(data.x_test), len(data.x_train))
    if scores.values.shape != points:
        raise ValueError(f"`scores` has shape {scores.values.shape} but `data` {points} points")
    size = 1.1 * (1 + 2 * k + 2 * GAP), 0.5 + 1.1 * ROW * len(data.x_test)
    ax = checked_axes(ax, size)
    show = _Pictures(ax, data, decimals(top.helpful_scores, top.harmful_scores))
    starts = 1 + GAP, 1 + k + 2 * GAP
    groups = (top.helpful, top.helpful_scores, BLUE), (top.harmful, top.harmful_scores, VERMILION)
    for row in range(len(data.x_test)):
        show.test(row)
        for start, (indices, values, colour) in zip(starts, groups, strict=True):
            for column in range(k):
                show.train(row, start + column, indices[row, column], values[row, column], colour)
    width = starts[1] + k
    ax.set(xlim=(0, width), ylim=(ROW * len(data.x_test) - 0.05, -0.5), aspect="equal")
    ax.axis("off")
    loss = f"test loss ({unit})" if unit else "test loss"
    _heading(ax, 0.5, "test point", "black")
    _heading(ax, starts[0] + k / 2, f"help most: removing one raises the {loss} by", BLUE)
    _heading(ax, starts[1] + k / 2, f"hurt most: removing one lowers the {loss} by", VERMILION)
    return ax


def page(
    effects: Sequence[tuple[str, Mapping[str, Effect], Effect]],
    scores: InfluenceMatrix,
    data: Dataset,
    *,
    k: int = 4,
    unit: str = "",
) -> "Figure":
    """Draw one page: a panel of `effect` for every forget set, and `influential` beneath.

    Parameters
    ----------
    effects
        For every forget set: its title, estimated effects by name, and the effect of retraining.
    scores, data, k, unit
        As for `influential`.

    Returns
    -------
    matplotlib.figure.Figure
        Not attached to any window or backend: save it with its ``savefig``.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    check_kind(scores, InfluenceMatrix, "scores")
    check_kind(data, Dataset, "data")
    _check_panels(effects)
    rows = -(-len(effects) // PANELS_A_ROW)
    heights = [4.5 * rows, 0.2 + 1.4 * len(data.x_test)]
    figure = matplotlib("figure").Figure((PAGE_WIDTH, sum(heights)), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    above.suptitle(
        "One mark a test point: how its loss changes, after the removal minus before.\n"
        "Positive: the forgotten points were helpful to it.",
        fontsize="medium",
    )
    below.suptitle(
        "Test points, and the training points that move their loss most", fontsize="large"
    )
    for number, (title, predicted, retrained) in enumerate(effects, start=1):
        ax = above.add_subplot(rows, min(len(effects), PANELS_A_ROW), number)
        effect(predicted, retrained, unit=unit, ax=ax).set_title(title)
    influential(scores, data, k=k, unit=unit, ax=below.add_subplot())
    return figure


def _check_panels(effects: Any) -> None:
    listed = isinstance(effects, list | tuple)
    if not (listed and effects and all(isinstance(e, tuple) and len(e) == 3 for e in effects)):
        raise TypeError("`effects` is no list of (title, predicted, retrained), one a forget set")


def _heading(ax: "Axes", x: float, text: str, colour: str) -> None:
    ax.text(x, -0.12, text, ha="center", va="bottom", color=colour, fontsize="medium")


class _Pictures:
    """Draws points of a data set as unit squares of one axes, with text below."""

    def __init__(self, ax: "Axes", data: Dataset, decimals: int) -> None:
        self.ax, self.data, self.decimals = ax, data, decimals
        both = data.x_train, data.x_test
        self.low, self.high = min(x.min() for x in both), max(x.max() for x in both)

    def test(self, row: int) -> None:
        self._draw(self.data.x_test[row], row, 0.0, "black", label(self.data.y_test[row]))

    def train(self, row: int, column: float, index: int, score: float, colour: str) -> None:
        text = f"{label(self.data.y_train[index])}\n{score:+.{self.decimals}f}"
        self._draw(self.data.x_train[index], row, column, colour, text)

    def _draw(self, point: Any, row: int, column: float, colour: str, text: str) -> None:
        left, top = column + 0.04, ROW * row
        corners = (left, left + 0.92, top + 0.92, top)
        pixels = (_pixels(point) - self.low) / max(self.high - self.low, np.finfo(float).tiny)
        self.ax.imshow(
            pixels, extent=corners, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest"
        )
        x, y = [left, left + 0.92, left + 0.92, left], [top, top, top + 0.92, top + 0.92]
        self.ax.fill(x, y, fill=False, edgecolor=colour, linewidth=1.5)
        self.ax.text(
            left + 0.46, top + 0.97, text, ha="center", va="top", color=colour, fontsize="small"
        )


def _pixels(point: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a point as a picture: colour (h, w, 3), grey (h, w), or a strip (1, features)."""
    if point.ndim == 3 and point.shape[2] == 3:
        return point
    if point.ndim == 3:
        return point.mean(axis=2)
    return point if point.ndim == 2 else point.reshape(1, -1)
