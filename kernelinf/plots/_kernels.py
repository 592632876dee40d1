"""What a Gram matrix looks like, and its spectrum."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from .._arrays import to_numpy
from .._checks import as_array, is_number
from .._gram import Gram
from .._inspection import inspect
from ._axes import GREY, check_kind, checked_axes, line_style, matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_ROWS = 1000  # pixels of a matrix that is drawn; larger ones are thinned


def gram_matrix(gram: Gram, y: npt.ArrayLike | None = None, *, ax: "Axes | None" = None) -> "Axes":
    """Plot a Gram matrix, its points in the order of their classes if there are labels.

    Of full blocks the mean over the outputs' own kernels is shown. Of more than 1,000 points only
    some, evenly spaced; the title says so.

    Parameters
    ----------
    gram
        The Gram matrix.
    y
        Class labels (n,): points are sorted by them, and lines part the classes.
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
        `y` does not have one label a point.
    """
    check_kind(gram, Gram, "gram")
    labels = None if y is None else labels_of(y, gram.n, "y")
    order = np.arange(gram.n) if labels is None else np.argsort(labels, kind="stable")
    shown = order[:: -(-gram.n // MOST_ROWS)]
    values = to_numpy(gram.rows(shown).matrix)
    if values.ndim == 4:
        values = np.einsum("icjc->ij", values) / values.shape[1]
    ax = checked_axes(ax)
    image = ax.imshow(values[:, shown], cmap="cividis", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="kernel")
    if labels is not None:
        class_lines(ax, labels[shown], "x", color="white")
        class_lines(ax, labels[shown], "y", color="white")
    thinned = "" if len(shown) == gram.n else f"{len(shown):,} of {gram.n:,} points"
    ax.set(title=thinned, xlabel="training point", ylabel="training point")
    return ax


def spectrum(
    grams: Gram | Mapping[str, Gram], *, reg: float | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Plot the eigenvalues of Gram matrices, the largest first, on logarithmic axes.

    Parameters
    ----------
    grams
        A Gram matrix in memory, or several by name.
    reg
        The coefficient of a mean risk: a line marks its ridge, reg n, and the legend says how many
        directions it leaves free, the effective dimension.
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
        `reg` is not positive, or a spectrum is not computed: the matrix is too large, or not in
        memory.
    """
    named: Mapping[str, Gram] = grams if isinstance(grams, Mapping) else {"": grams}
    for gram in named.values():
        check_kind(gram, Gram, "grams")
    if not named:
        raise ValueError("`grams` is empty; pass at least one Gram matrix")
    if reg is not None and not (is_number(reg) and reg > 0):
        raise ValueError(f"`reg` is {reg!r}; pass a positive number, or None")
    inspections = {name: inspect(gram) for name, gram in named.items()}
    for name, found in inspections.items():
        if found.smallest is None:
            which = f" {name!r}" if name else ""
            raise ValueError(f"`grams`{which} has no spectrum: it is too large, or not in memory")
    ax = checked_axes(ax)
    for i, (name, found) in enumerate(inspections.items()):
        values = found.eigenvalues[::-1]
        positive = values > 0
        free = "" if reg is None else f"effective dimension {found.effective_dimension(reg):.3g}"
        legend = ": ".join(part for part in (name, free) if part)
        ranks = np.arange(1, len(values) + 1)
        ax.plot(ranks[positive], values[positive], label=legend or None, **line_style(i))
    if reg is not None:
        for n in sorted({gram.n for gram in named.values()}):
            ax.axhline(reg * n, color=GREY, linewidth=0.8, label=f"ridge {reg * n:.3g}")
    ax.set(xscale="log", yscale="log", xlabel="rank", ylabel="eigenvalue")
    if reg is not None or any(named):
        ax.legend(fontsize="small")
    return ax


def labels_of(y: npt.ArrayLike, n: int, name: str) -> npt.NDArray[Any]:
    """Return one label a point, (n,), or say what is wrong with the argument."""
    labels = as_array(y, name)
    if labels.shape != (n,):
        raise ValueError(f"`{name}` has shape {labels.shape}; pass one label a point, ({n},)")
    return labels


def class_lines(
    ax: "Axes", labels: npt.NDArray[Any], axis: Literal["x", "y"], color: str = GREY
) -> None:
    """Part sorted classes by lines, and put their names on an axis instead of numbers."""
    names, starts, counts = np.unique(labels, return_index=True, return_counts=True)
    along = ax.axvline if axis == "x" else ax.axhline
    for start in starts[1:]:
        along(start - 0.5, color=color, linewidth=0.8)
    ticks = {
        f"{axis}ticks": starts + (counts - 1) / 2,
        f"{axis}ticklabels": [str(c) for c in names],
    }
    ax.set(**ticks)
    ax.tick_params(axis=axis, length=0)


def symmetric(values: npt.NDArray[np.float64]) -> Any:
    """Return a colour scale that is white at zero and ends at the largest size."""
    largest = float(np.abs(values).max()) or 1.0
    return matplotlib("colors").Normalize(-largest, largest)
