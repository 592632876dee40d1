"""The linear datamodeling score: how well an estimate ranks retrained models."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from .._agreement import rank_correlations, rank_correlations_without
from .._arrays import Array, in_float64
from .._checks import check_flags, is_one_of
from .._gram import Cross
from .._influence import influence
from .._methods import FirstOrder, Method, NewtonStep, Retrain
from .._scores import InfluenceMatrix
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
from ._retraining import File, Tests, held_out, name_of

Of = Literal["loss", "margin"]


@dataclass(frozen=True, eq=False)
class DatamodelingScore:
    """How well the ranks of retrained models are predicted. Made by `kernelinf.evaluation.lds`.

    Attributes
    ----------
    scores
        Spearman's correlation over the subsets at each test point, (t,).
    standard_error
        Of `mean`, over the draw of the subsets, by the jackknife.
    predicted, retrained
        The loss or margin at each test point (columns) of the model trained on each subset (rows)
        alone, (s, t).
    subsets
        Training points of each subset, (s, m).
    of
        "loss" or "margin".
    method
        What predicted: a method, or scores that were added up.
    gradient_norms
        Norm, in parameter space, of the gradient of each subset's risk after retraining, (s,).
    """

    scores: Array
    standard_error: float
    predicted: Array
    retrained: Array
    subsets: Points
    of: Of
    method: Method | InfluenceMatrix
    gradient_norms: Array

    @property
    def mean(self) -> float:
        """The score: the mean over the test points."""
        return float(self.scores.mean())

    def __repr__(self) -> str:
        sizes = f"{len(self.subsets)} subsets of {self.subsets.shape[1]} points"
        method = name_of(self.method) if isinstance(self.method, Method) else "scores added up"
        value = f"{self.mean:.4f} +- {self.standard_error:.4f}"
        return f"DatamodelingScore({value}, {method}; {sizes}, {len(self.scores)} test points)"


@in_float64
def lds(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike,
    *,
    method: Method | InfluenceMatrix | None = None,
    subsets: int | DatamodelingScore = 100,
    fraction: float = 0.5,
    of: Of = "loss",
    offset: npt.ArrayLike | None = None,
    seed: int = 0,
    out: File = None,
    progress: bool = False,
) -> DatamodelingScore:
    """Score an estimate by the linear datamodeling score (LDS; Park et al. 2023, section 2).

    Models are retrained on random subsets of the training points, and their losses (or margins) at
    a test point are compared with those that the estimate predicts: Spearman's correlation over
    the subsets, for each test point. One is a perfect order.

    Parameters
    ----------
    model
        A trained model.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    y_test
        Their labels.
    method
        `NewtonStep()` (the default), or any method but `FirstOrder`: the removal of all points
        outside a subset at once, and the loss or margin of the outputs that it predicts.
        `FirstOrder()`, or an `InfluenceMatrix` (t, n) of losses or margins as `of` has it: the
        scores of the points outside the subset, added up, as attribution methods are scored in the
        literature.
    subsets
        How many; or an earlier result of the same model and test points, whose subsets and
        retrained models are used again.
    fraction
        Share of the points that is in a subset.
    of
        "loss", or "margin": the output of the true class minus the largest other one (Ilyas et al.
        2022), y f for the logistic loss.
    offset
        Initial outputs at the test points, when the model has them as an array.
    seed
        Of the random draw of the subsets.
    out
        A file to keep the retrained models in, as for `remove_many`: with the same subsets an
        interrupted run goes on where it was.
    progress
        Show a progress bar.

    Returns
    -------
    DatamodelingScore

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    ValueError
        `subsets` or `fraction` is out of range, labels or shapes do not fit, or no subset changes
        what is asked of a test point, so that there is nothing to rank.

    Warns
    -----
    ConvergenceWarning
        A solve or a retraining stopped short of its tolerance.
    """
    if not is_one_of(of, ("loss", "margin")):
        raise ValueError(f"`of` is {of!r}; pass 'loss' or 'margin'")
    check_flags(progress=progress)
    tests = held_out(model, x_test, y_test, of, offset)
    method = NewtonStep() if method is None else method
    _check_method(method, tests, of)
    if isinstance(subsets, DatamodelingScore):
        truth = _Truth(subsets.subsets, subsets.retrained, subsets.gradient_norms)
        _check_earlier(subsets, tests, of)
    else:
        drawn = _drawn(model, subsets, fraction, seed)
        truth = _retrained(tests, drawn, of, out, progress)
    if isinstance(method, FirstOrder):
        scores = influence(model, tests.cross, y_test, of=of, offset=tests.offset)
        predicted = _summed(tests, truth.subsets, scores, of)
    elif isinstance(method, InfluenceMatrix):
        predicted = _summed(tests, truth.subsets, method, of)
    else:
        predicted = _solved(tests, truth.subsets, method, of, progress)
    return DatamodelingScore(
        rank_correlations(predicted, truth.quantity),
        _jackknife(predicted, truth.quantity),
        predicted,
        truth.quantity,
        truth.subsets,
        of,
        method,
        truth.gradient_norms,
    )


@dataclass(frozen=True, eq=False)
class _Truth:
    """Subsets (s, m), the quantity (s, t) that retraining on each gives, gradient norms (s,)."""

    subsets: Points
    quantity: Array
    gradient_norms: Array


def _check_method(method: Method | InfluenceMatrix, tests: Tests, of: Of) -> None:
    if isinstance(method, Method):
        return
    if not isinstance(method, InfluenceMatrix):
        raise TypeError(
            f"`method` is {method!r}; pass a method such as ki.NewtonStep(), or the result of "
            "ki.influence"
        )
    shape = len(tests), tests.model.gram.n
    if method.of != of or method.values.shape != shape:
        raise ValueError(
            f"`method` has scores {method.values.shape} of the {method.of}; pass scores {shape} of "
            f"the {of}"
        )


def _check_earlier(earlier: DatamodelingScore, tests: Tests, of: Of) -> None:
    present, t = present_points(tests.model), len(earlier.scores)
    if earlier.of != of or t != len(tests) or not np.isin(earlier.subsets, present).all():
        raise ValueError(
            f"`subsets` is an earlier result of the {earlier.of} at {t} test points, of another "
            "model or other test points; pass a number of subsets"
        )


def _drawn(model: Model, subsets: int, fraction: float, seed: int) -> Points:
    check_count(subsets, "subsets", least=3)
    points = present_points(model)
    size = share_size(fraction, len(points))
    return random_subsets(generator(seed), points, size, subsets)


def _outside(tests: Tests, subsets: Points) -> list[Points]:
    return outside(present_points(tests.model), subsets)


def _retrained(tests: Tests, subsets: Points, of: Of, out: File, progress: bool) -> _Truth:
    found = tests.without(_outside(tests, subsets), Retrain(), progress, out)
    quantity = tests.quantity(of, tests.outputs + found.changes)
    still = np.flatnonzero(np.ptp(quantity, axis=0) == 0)
    if len(still):
        raise ValueError(
            f"`x_test` has points whose {of} is the same whatever the subset: "
            f"{still[:5].tolist()}; leave them out"
        )
    return _Truth(subsets, quantity, found.gradient_norms)


def _summed(tests: Tests, subsets: Points, scores: InfluenceMatrix, of: Of) -> Array:
    """Return what scores that add up expect of each subset, (s, t)."""
    sums = [scores.values[:, gone].sum(axis=1) for gone in _outside(tests, subsets)]
    return tests.quantity(of, tests.outputs[None]) + np.array(sums)


def _solved(tests: Tests, subsets: Points, method: Method, of: Of, progress: bool) -> Array:
    """Return what a method expects of each subset, (s, t)."""
    changes = tests.without(_outside(tests, subsets), method, progress).changes
    return tests.quantity(of, tests.outputs + changes)


def _jackknife(predicted: Array, retrained: Array) -> float:
    """Return the standard error of the mean score from leaving out each subset in turn."""
    means = rank_correlations_without(predicted, retrained).mean(axis=1)
    return float(np.sqrt((len(means) - 1) * np.var(means)))
