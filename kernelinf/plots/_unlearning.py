"""Unlearning: gaps, attacks, and what removals leave of the gradient."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._certification import GradientBounds
from .._checks import is_number
from .._leverage import Gap, Leverage
from .._methods import Method
from .._text import EXACT
from ..evaluation import MembershipAttack
from ..unlearning import NoUnlearning
from ._axes import BLUE, GREEN, GREY, MARKERS, VERMILION, check_kind, checked_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROUNDING = 1e-9  # a gap below this is called exact


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
    check_kind(audit, Leverage, "audit")
    gaps, nothing = audit.gaps(methods), audit.gap(NoUnlearning())
    rows = np.arange(len(gaps))
    values = {name: [_mean_size(gap, name) for gap in gaps] for name in _where(nothing)}
    positive = [size for sizes in values.values() for size in sizes if size > ROUNDING]
    left = 0.5 * min(positive, default=1.0)
    ax = checked_axes(ax, (7.0, 1.2 + 0.36 * len(gaps)))
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
    check_kind(attack, MembershipAttack, "attack")
    ax = checked_axes(ax)
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
    ax = checked_axes(ax)
    removals = np.arange(1, len(given) + 1)
    lines = (
        ("worst_case", VERMILION, "-."),
        ("data_dependent", GREEN, "--"),
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


def _where(gap: Gap) -> list[str]:
    return ["forget set", "retained points"] + ["test points"] * (gap.test is not None)


def _mean_size(gap: Gap, where: str) -> float:
    """Return the root of the mean square of a gap's outputs."""
    parts = {"forget set": gap.forget, "retained points": gap.retained, "test points": gap.test}
    values = parts[where]
    assert values is not None
    return float(np.sqrt(np.mean(values**2)))
