"""The course of training, and of a path of regularisations."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from .._checks import is_one_of
from .._reg_path import RegPath
from .._training import History, Model
from ._axes import BLUE, GREY, VERMILION, check_kind, checked_axes, line_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Course = Literal["gradient_norm", "risk"]


def history(
    trained: Model | Mapping[str, Model],
    *,
    of: Course = "gradient_norm",
    ax: "Axes | None" = None,
) -> "Axes":
    """Plot the course of training against its cost, products with the Gram matrix.

    Parameters
    ----------
    trained
        A model, or several by name.
    of
        "gradient_norm", in parameter space, or the regularised "risk", on logarithmic axes. The
        risk is shown over the lowest that any of the models reached, which is itself at zero and
        not on the axis.
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
        What is plotted is no model.
    ValueError
        `of` is neither, or no model was given.
    """
    models = trained if isinstance(trained, Mapping) else {"": trained}
    for model in models.values():
        check_kind(model, Model, "trained")
    if not models:
        raise ValueError("`trained` is empty; pass at least one model")
    if not is_one_of(of, ("gradient_norm", "risk")):
        raise ValueError(f"`of` is {of!r}; pass 'gradient_norm' or 'risk'")
    ax = checked_axes(ax)
    lowest = min(float(model.history.risk.min()) for model in models.values())
    for i, (name, model) in enumerate(models.items()):
        course: History = model.history
        values = course.gradient_norm if of == "gradient_norm" else course.risk - lowest
        marker = "o" if len(course) <= 30 else None
        ax.plot(
            course.products + 1, values, label=name, marker=marker, markersize=3, **line_style(i)
        )
    what = "norm of the risk's gradient" if of == "gradient_norm" else "risk above the lowest"
    ax.set(
        xscale="log", yscale="log", xlabel="products with the Gram matrix, plus one", ylabel=what
    )
    if len(models) > 1:
        ax.legend(fontsize="small")
    return ax


def reg_path(path: RegPath, *, ax: "Axes | None" = None) -> "Axes":
    """Plot the losses of a path of regularisations, and mark the best.

    Parameters
    ----------
    path
        From `kernelinf.reg_path`.
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
        `path` is no path.
    """
    check_kind(path, RegPath, "path")
    ax = checked_axes(ax)
    order = path.regs.argsort()
    regs = path.regs[order]
    how = "exact" if path.exact else "one Newton step"
    ax.plot(regs, path.loo_losses[order], "o-", color=BLUE, label=f"left out ({how})")
    ax.plot(regs, path.training_losses[order], "^--", color=VERMILION, label="in training")
    if path.gcv is not None:
        ax.plot(regs, path.gcv[order], ":", color="black", label="generalized cross-validation")
    best = f"best by {path.by}: {path.best:.3g}"
    if path.loo_accuracies is not None:
        right = path.loo_accuracies[path.regs == path.best][0]
        best += f", {right:.1%} right when left out"
    ax.axvline(path.best, color=GREY, linewidth=0.8, label=best)
    ax.set(xscale="log", xlabel="reg", ylabel="mean loss of the training points")
    ax.legend(fontsize="small")
    return ax
