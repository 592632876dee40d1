"""Figures with matplotlib, which is loaded when the first one is drawn."""

import importlib
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ._certification import GradientBounds
from ._checks import is_number, is_one_of
from ._comparison import Agreement, Comparison
from ._leverage import Gap, Leverage
from ._methods import Method
from ._scores import InfluenceMatrix
from ._text import EXACT, correlation, decimals, error, label
from ._update import Effect
from .datasets import Dataset
from .evaluation import MembershipAttack
from .unlearning import NoUnlearning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Of = Literal["losses", "outputs"]
Panel = Literal["accuracy", "spectrum", "agreement"]

# Okabe and Ito's colours, apart from each other for every kind of colour vision; markers for print.
BLUE, VERMILION, GREY = "#0072B2", "#D55E00", "#767676"
COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "black")
LINES = ("-", "--", ":", "-.")  # in print, where colours are grey
DARK = 0.45  # size of a correlation whose field takes white text
MARKERS = (("o", BLUE), ("^", VERMILION), ("s", "#009E73"), ("D", "#CC79A7"))
GAP = 0.6  # between groups of pictures, in picture widths
ROW = 1.55  # from one row of pictures to the next, with room for two lines of text
PAGE_WIDTH = 10.0  # inches
PANELS_A_ROW = 2
ROUNDING = 1e-9  # a gap below this is called exact


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
    _check_text(unit)
    truth = _changes(retrained, of, "retrained")
    changes = {name: _changes(values, of, "predicted") for name, values in estimates.items()}
    for name, values in changes.items():
        if values.shape != truth.shape:
            raise ValueError(
                f"`predicted` ({name}) has {len(values)} changes but `retrained` has {len(truth)}"
            )
    ax = _checked_axes(ax)
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


def gradient_bounds(
    bounds: Sequence[GradientBounds], *, limit: float | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Plot what successive Newton steps leave of the gradient, summed up, below its bounds.

    The logarithmic figure of Guo et al. 2020: removals, one after another, against the sums of the
    exact norms, of the data-dependent and of the worst-case bounds.

    Parameters
    ----------
    bounds
        `kernelinf.gradient_bounds` of each removal, in their order.
    limit
        What the noise of a certificate covers, in the same unit: a line.
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
        There are no bounds.
    """
    given = list(bounds) if isinstance(bounds, Sequence) else []
    if not given or not all(isinstance(bound, GradientBounds) for bound in given):
        raise ValueError(f"`bounds` is {bounds!r}; pass a list of ki.gradient_bounds(removal)")
    if limit is not None and not (is_number(limit) and limit > 0):
        raise ValueError(f"`limit` is {limit!r}; pass a positive number, or None")
    ax = _checked_axes(ax)
    removals = np.arange(1, len(given) + 1)
    lines = (
        ("worst_case", VERMILION, "-."),
        ("data_dependent", "#009E73", "--"),
        ("exact", BLUE, "-"),
    )
    for name, colour, style in lines:
        total = np.cumsum([getattr(bound, name) for bound in given])
        ax.plot(removals, total, style, color=colour, label=name.replace("_", " "))
    if limit is not None:
        ax.axhline(limit, color=GREY, linewidth=1, label="covered by the noise")
    ax.set(yscale="log", xlabel="removals, one after another", ylabel="gradient left, summed up")
    ax.legend(fontsize="small")
    return ax


def membership(attack: MembershipAttack, *, ax: "Axes | None" = None) -> "Axes":
    """Plot what a membership attack finds before and after an unlearning, as ROC curves.

    On the dashed line members of the forget set cannot be told from points that no model saw; so it
    is, up to sampling, for the model that was retrained.

    Parameters
    ----------
    attack
        From `kernelinf.evaluation.membership_attack`.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    if not isinstance(attack, MembershipAttack):
        kind = type(attack).__name__
        raise TypeError(f"`attack` is a {kind}; pass the result of membership_attack")
    ax = _checked_axes(ax)
    curves = (
        ("before", attack.before, VERMILION, "-"),
        ("after", attack.after, BLUE, "-"),
        ("retrained", attack.retrained, GREY, "-."),
    )
    for name, scores, colour, style in curves:
        false, true = scores.roc()
        legend = f"{name}: AUC {scores.auc:.2f}"
        ax.plot(false, true, style, color=colour, label=legend, drawstyle="steps-post")
    ax.axline((0, 0), slope=1, color=GREY, linestyle="--", linewidth=1, label="chance")
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1.02),
        aspect="equal",
        xlabel="share of unseen points accused",
        ylabel="share of the forget set found",
    )
    ax.legend(loc="lower right", fontsize="small")
    return ax


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
    _check_kind(scores, InfluenceMatrix, "scores")
    _check_kind(data, Dataset, "data")
    _check_text(unit)
    top = scores.top(k)
    points = (len(data.x_test), len(data.x_train))
    if scores.values.shape != points:
        raise ValueError(f"`scores` has shape {scores.values.shape} but `data` {points} points")
    size = 1.1 * (1 + 2 * k + 2 * GAP), 0.5 + 1.1 * ROW * len(data.x_test)
    ax = _checked_axes(ax, size)
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
    if of not in ("accuracy", "spectrum", "agreement"):
        raise ValueError(f"`of` is {of!r}; pass 'accuracy', 'spectrum' or 'agreement'")
    if of == "agreement":
        agreement = comparison.agreement(on, k=1)  # before there is a figure: it may be refused
        return _agreement_map(_new_axes() if ax is None else ax, agreement)
    if of == "spectrum" and all(len(e.eigenvalues) == 1 for e in comparison.entries):
        raise ValueError("`comparison` has no spectra: the matrices are too large")
    ax = _new_axes() if ax is None else ax
    return _accuracies(ax, comparison) if of == "accuracy" else _spectra(ax, comparison)


def leverage(
    audit: Leverage, *, methods: Sequence[Method] | None = None, ax: "Axes | None" = None
) -> "Axes":
    """Plot how far each unlearning method is predicted to end from retraining.

    A row a method, the nearest at the top, and on it the gaps on the forget set, on the retained
    points and, if the audit has any, at the test points: the root of the mean square of outputs
    minus those of retraining, on a logarithmic axis. A method that is exact stands at its left
    end. Dashed lines are the gaps of leaving the model as it is.

    Parameters
    ----------
    audit
        From `kernelinf.leverage`.
    methods
        As for `Leverage.gaps`.
    ax
        Where to draw; None makes a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    if not isinstance(audit, Leverage):
        raise TypeError(f"`audit` is a {type(audit).__name__}; pass the result of ki.leverage")
    gaps, nothing = audit.gaps(methods), audit.gap(NoUnlearning())
    rows = np.arange(len(gaps))
    values = {name: [_mean_size(gap, name) for gap in gaps] for name in _where(nothing)}
    positive = [size for sizes in values.values() for size in sizes if size > ROUNDING]
    left = 0.5 * min(positive, default=1.0)
    ax = _checked_axes(ax, (7.0, 1.2 + 0.36 * len(gaps)))
    for (name, sizes), (marker, colour) in zip(values.items(), MARKERS, strict=False):
        exact = np.array(sizes) <= ROUNDING
        style: dict[str, Any] = {"marker": marker, "ec": colour, "s": 34, "linewidths": 1.2}
        drawn = np.where(exact, left, sizes)
        ax.scatter(drawn, rows, fc="none", label=name, **style)
        ax.axvline(max(_mean_size(nothing, name), left), color=colour, ls="--", lw=0.8, zorder=0)
    for row in rows:
        if all(sizes[row] <= ROUNDING for sizes in values.values()):
            ax.annotate(EXACT, (left, row), (10, 0), textcoords="offset points", va="center")
    ax.set(xscale="log", yticks=rows, yticklabels=[repr(gap.method) for gap in gaps])
    ax.set(ylim=(len(gaps) - 0.5, -0.5), xlabel="gap to retraining, root mean square of outputs")
    ax.grid(axis="y", color=GREY, alpha=0.25, linewidth=0.6)
    above: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 3}
    ax.legend(fontsize="small", frameon=False, handletextpad=0.1, columnspacing=1.2, **above)
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
    _check_kind(scores, InfluenceMatrix, "scores")
    _check_kind(data, Dataset, "data")
    _check_panels(effects)
    rows = -(-len(effects) // PANELS_A_ROW)
    heights = [4.5 * rows, 0.2 + 1.4 * len(data.x_test)]
    figure = _matplotlib("figure").Figure((PAGE_WIDTH, sum(heights)), layout="constrained")
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


def _where(gap: Gap) -> list[str]:
    return ["forget set", "retained points"] + ["test points"] * (gap.test is not None)


def _mean_size(gap: Gap, where: str) -> float:
    """Return the root of the mean square of a gap's outputs."""
    parts = {"forget set": gap.forget, "retained points": gap.retained, "test points": gap.test}
    values = parts[where]
    assert values is not None
    return float(np.sqrt(np.mean(values**2)))


def _matplotlib(module: str) -> Any:
    try:
        return importlib.import_module(f"matplotlib.{module}")
    except ImportError as error:
        raise ImportError('plots need matplotlib: pip install "kernelinf[plot]"') from error


def _new_axes(size: tuple[float, float] | None = None) -> "Axes":
    return _matplotlib("pyplot").subplots(figsize=size, layout="constrained")[1]


def _checked_axes(ax: Any, size: tuple[float, float] | None = None) -> "Axes":
    """Return the axes given, or new ones."""
    if ax is None:
        return _new_axes(size)
    _check_kind(ax, _matplotlib("axes").Axes, "ax")
    return ax


def _check_kind(thing: Any, kind: type, name: str) -> None:
    if not isinstance(thing, kind):
        raise TypeError(f"`{name}` is a {type(thing).__name__}; pass a {kind.__name__}")


def _check_text(unit: Any) -> None:
    if not isinstance(unit, str):
        raise TypeError(f"`unit` is {unit!r}; pass a string, such as 'nats'")


def _check_panels(effects: Any) -> None:
    listed = isinstance(effects, list | tuple)
    if not (listed and effects and all(isinstance(e, tuple) and len(e) == 3 for e in effects)):
        raise TypeError("`effects` is no list of (title, predicted, retrained), one a forget set")


def _changes(effect: Effect, of: Of, name: str) -> npt.NDArray[np.float64]:
    _check_kind(effect, Effect, name)
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
