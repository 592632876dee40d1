"""Memorisation: which labels a model knows only because it was trained on them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._arrays import Array, in_float64, to_numpy
from .._checks import check_flags, is_one_of
from .._leave_one_out import leave_one_out
from .._methods import Retrain
from .._test_points import check_model, one_hot
from .._training import Model
from ._draws import (
    Points,
    check_count,
    generator,
    outside,
    present_points,
    random_subsets,
    share_size,
)
from ._retraining import correct, losses, on_training_points

Of = Literal["accuracy", "probability"]

LEAST_MODELS = 2  # with and without a point, for a mean with a standard error


@dataclass(frozen=True, eq=False)
class Memorisation:
    """How much better each training label is known with its point than without it.

    Attributes
    ----------
    values
        `included` - `left_out`, (m,): near one for labels that are known only because they were
        trained on, near zero for those that the other points give away.
    included, left_out
        Share of the models with (without) the point that classify it rightly, or their mean
        probability of its label, (m,).
    points
        Indices of the points, (m,).
    of
        "accuracy" or "probability".
    gradient_norms
        Norm, in parameter space, of the gradient of the risk of each retrained model: one a point
        for leave-one-out, None where that is exact or not refined; one a subset otherwise.
    subsets
        Training points of each random subset, (s, k); None for leave-one-out.
    outcomes
        What each subset's model makes of each point, (s, m); None for leave-one-out.
    standard_errors
        Of the values, over the draw of the subsets, (m,); None for leave-one-out.
    """

    values: Array
    included: Array
    left_out: Array
    points: Points
    of: Of
    gradient_norms: Array | None
    subsets: Points | None = None
    outcomes: Array | None = None
    standard_errors: Array | None = None

    def __repr__(self) -> str:
        if self.subsets is None:
            source = "leave-one-out"
        else:
            source = f"{len(self.subsets)} subsets of {self.subsets.shape[1]} points"
        text = f"{len(self.values)} points, {self.of}, {source}: mean {self.values.mean():.3g}"
        return f"Memorisation({text}, {(self.values > 0.5).sum()} above 0.5)"


@in_float64
def memorisation(
    model: Model,
    *,
    subsets: int | None = None,
    fraction: float = 0.7,
    of: Of = "accuracy",
    refine: int = 2,
    seed: int = 0,
    progress: bool = False,
) -> Memorisation:
    """Measure how far each training label is memorised (Feldman & Zhang 2020).

    The probability that the point is classified rightly by a model trained on all points, minus the
    same without the point. Training is deterministic here, so for leave-one-out that is 1, 0 or -1;
    `of="probability"` takes the model's own probability of the label instead, which is graded.

    Parameters
    ----------
    model
        A trained model with classes.
    subsets
        None: leave-one-out, by `leave_one_out`. A number: retraining on that many random subsets,
        the mean over those that hold the point minus the mean over the others (their
        estimator, which measures memorisation in a training set of the subsets' size).
    fraction
        Share of the points that is in a subset; 0.7 as theirs.
    of
        "accuracy", or "probability" of the label, for the cross-entropy and the logistic loss.
    refine
        For leave-one-out, as for `leave_one_out`: Newton steps after the first; two reach
        retraining on ordinary problems, and `gradient_norms` tells. The squared loss needs none.
    seed
        Of the random draw of the subsets.
    progress
        Show a progress bar.

    Returns
    -------
    Memorisation

    Raises
    ------
    TypeError
        `model` is no model.
    ValueError
        The model has no classes, or none a point, or no probabilities; `subsets`, `fraction` or
        `refine` is out of range; or there are not two subsets with and two without
        each point.

    Warns
    -----
    ConvergenceWarning
        A solve or a retraining stopped short of its tolerance.
    """
    check_model(model)
    _check_labels(model, of)
    check_flags(progress=progress)
    points = present_points(model)
    if subsets is None:
        return _by_leaving_out(model, points, of, refine, progress)
    check_count(subsets, "subsets", least=2 * LEAST_MODELS)
    size = share_size(fraction, len(points))
    drawn = random_subsets(generator(seed), points, size, subsets)
    return _by_subsets(model, points, drawn, of, progress)


def _check_labels(model: Model, of: Of) -> None:
    loss = model.problem.loss.name
    if not is_one_of(of, ("accuracy", "probability")):
        raise ValueError(f"`of` is {of!r}; pass 'accuracy' or 'probability'")
    if model.classes is None:
        raise ValueError(
            "`model` was trained on real targets; memorisation is of classes, see "
            "ki.leave_one_out for the losses of left-out points"
        )
    if loss != "logistic" and not one_hot(to_numpy(model.problem.targets)):
        raise ValueError("`model` was trained on class probabilities; pass one with single labels")
    if of == "probability" and loss == "squared":
        raise ValueError("`of` is 'probability' but the squared loss has none; pass 'accuracy'")


def _outcomes(model: Model, outputs: Array, targets: Array, of: Of) -> Array:
    """Return 1 or 0 for right or wrong, or the probability of the label, (s, m)."""
    if of == "accuracy":
        return correct(outputs, targets).astype(np.float64)
    return np.exp(-losses(model.problem.loss, outputs, targets))


def _by_leaving_out(
    model: Model, points: Points, of: Of, refine: int, progress: bool
) -> Memorisation:
    found = leave_one_out(model, refine=refine, progress=progress)
    targets = to_numpy(model.problem.targets)[points]
    both = np.stack([model.outputs[points], found.outputs])
    included, left_out = _outcomes(model, both, targets, of)
    return Memorisation(included - left_out, included, left_out, points, of, found.gradient_norms)


def _by_subsets(
    model: Model, points: Points, subsets: Points, of: Of, progress: bool
) -> Memorisation:
    held = _held(model, subsets)[:, points]
    _check_balance(held, points)
    tests = on_training_points(model)
    outcomes, norms = np.empty(held.shape), []
    for rows, found in tests.removals(outside(points, subsets), Retrain(), progress):
        after = (tests.outputs + found.changes)[:, points]
        outcomes[rows] = _outcomes(model, after, tests.targets[points], of)
        norms.append(found.gradient_norms)
    (included, inner), (left_out, outer) = (_mean(outcomes, mask) for mask in (held, ~held))
    return Memorisation(
        included - left_out,
        included,
        left_out,
        points,
        of,
        np.concatenate(norms),
        subsets,
        outcomes,
        np.sqrt(inner + outer),
    )


def _held(model: Model, subsets: Points) -> npt.NDArray[np.bool]:
    """Tell which points each subset holds, (s, n)."""
    held = np.zeros((len(subsets), model.gram.n), dtype=bool)
    np.put_along_axis(held, subsets, True, axis=1)
    return held


def _check_balance(held: npt.NDArray[np.bool], points: Points) -> None:
    counts = held.sum(axis=0)
    missed = points[np.minimum(counts, len(held) - counts) < LEAST_MODELS]
    if len(missed):
        raise ValueError(
            f"`subsets` is {len(held)}: fewer than {LEAST_MODELS} of them hold, or fewer than "
            f"{LEAST_MODELS} lack, the points {missed[:5].tolist()}; pass a larger number"
        )


def _mean(outcomes: Array, mask: npt.NDArray[np.bool]) -> tuple[Array, Array]:
    """Return the mean over the rows of the mask in each column, and the variance of that mean."""
    count = mask.sum(axis=0)
    mean = np.where(mask, outcomes, 0.0).sum(axis=0) / count
    squares = np.where(mask, (outcomes - mean) ** 2, 0.0).sum(axis=0)
    return mean, squares / (count - 1) / count
