"""What all figures share: matplotlib, loaded when the first one is drawn; colours; axes."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, apart from each other for every kind of colour vision; markers for print.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#767676"
COLOURS = (BLUE, VERMILION, GREEN, "#CC79A7", "#E69F00", "#56B4E9", "black")
LINES = ("-", "--", ":", "-.")  # in print, where colours are grey
MARKERS = (("o", BLUE), ("^", VERMILION), ("s", GREEN), ("D", "#CC79A7"))


def matplotlib(module: str) -> Any:
    """Return a module of matplotlib."""
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "kernelinf[plot]"') from error


def new_axes(size: tuple[float, float] | None = None) -> "Axes":
    """Return the axes of a new figure."""
    return matplotlib("pyplot").subplots(figsize=size, layout="constrained")[1]


def checked_axes(ax: Any, size: tuple[float, float] | None = None) -> "Axes":
    """Return the axes given, or new ones."""
    if ax is None:
        return new_axes(size)
    check_kind(ax, matplotlib("axes").Axes, "ax")
    return ax


def line_style(i: int) -> dict[str, Any]:
    """Return what tells the i-th line from the others, in colour and in print."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": LINES[i % len(LINES)]}


def check_kind(thing: Any, kind: type, name: str) -> None:
    """Refuse what is of another type."""
    if not isinstance(thing, kind):
        raise TypeError(f"`{name}` is a {type(thing).__name__}; pass a {kind.__name__}")


def check_text(unit: Any) -> None:
    """Refuse a unit that is no text."""
    if not isinstance(unit, str):
        raise TypeError(f"`unit` is {unit!r}; pass a string, such as 'nats'")
