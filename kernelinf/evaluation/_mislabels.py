"""Labels to doubt: a ranking of the training points, and how many wrong labels it would find."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from .._arrays import Array, in_float64, to_numpy
from .._checks import is_one_of
from .._influence import self_influence
from .._leave_one_out import LeaveOneOut, leave_one_out
from .._perturbation import point_indices
from .._test_points import check_model, margin_slope, one_hot
from .._training import Model
from .._update import Method

By = Literal["loo_loss", "loo_margin", "self_influence", "loss"]


@dataclass(frozen=True, eq=False)
class Detection:
    """How well a ranking of labels finds those that are wrong.

    Attributes
    ----------
    hits
        Whether each label is wrong, the most suspect first, (m,).
    auc
        Area under the ROC curve: the chance that a wrong label is ranked above a right one, ties
        counting half.
    """

    hits: npt.NDArray[np.bool]
    auc: float

    @property
    def inspected(self) -> Array:
        """Share of the points looked at, (m + 1,), from none to all."""
        return np.arange(len(self.hits) + 1) / len(self.hits)

    @property
    def found(self) -> Array:
        """Share of the wrong labels among them, (m + 1,): the detection curve."""
        return np.concatenate([[0], np.cumsum(self.hits)]) / np.count_nonzero(self.hits)

    def precision(self, k: int) -> float:
        """Return the share of wrong labels among the k most suspect.

        Raises
        ------
        ValueError
            `k` is not in 1..m.
        """
        if not isinstance(k, int | np.integer) or not 1 <= k <= len(self.hits):
            raise ValueError(f"`k` is {k!r}; pass a number from 1 to {len(self.hits)}")
        return float(self.hits[:k].mean())

    def __repr__(self) -> str:
        wrong, m = int(np.count_nonzero(self.hits)), len(self.hits)
        precision = f"precision {self.precision(wrong):.1%} at {wrong}"
        return f"Detection({wrong} of {m} labels wrong: AUC {self.auc:.4f}, {precision})"


@dataclass(frozen=True, eq=False)
class SuspectLabels:
    """Training points by how suspect their label is. Made by `kernelinf.evaluation.suspect_labels`.

    Attributes
    ----------
    points
        Indices of the training points, the most suspect first, (m,).
    scores
        Their scores, (m,), falling.
    labels
        The labels that they have, (m,).
    suggested
        The class that the model trained without the point gives it, (m,).
    by
        What the scores are.
    """

    points: npt.NDArray[np.intp]
    scores: Array
    labels: npt.NDArray[Any]
    suggested: npt.NDArray[Any]
    by: By
    _n: int

    def detection(self, wrong: npt.ArrayLike) -> Detection:
        """Compare the ranking with the labels known to be wrong.

        Parameters
        ----------
        wrong
            Mask of the training points (n,), or their indices. Points that were removed from the
            model do not count.

        Raises
        ------
        ValueError
            All labels are wrong, or none; indices repeat or are out of range.
        """
        mask = np.zeros(self._n, dtype=bool)
        mask[point_indices(wrong, self._n, "wrong")] = True
        hits = mask[self.points]
        found, m = int(np.count_nonzero(hits)), len(hits)
        if found in (0, m):
            raise ValueError(f"`wrong` has {found} of {m} points; pass some, but not all")
        ranks = scipy.stats.rankdata(self.scores)[hits].sum()
        auc = (ranks - found * (found + 1) / 2) / (found * (m - found))  # Mann and Whitney's U
        return Detection(hits, float(auc))

    def __repr__(self) -> str:
        doubted = np.count_nonzero(self.labels != self.suggested)
        first = f"point {self.points[0]}, {self.labels[0]} or rather {self.suggested[0]}"
        return (
            f"SuspectLabels({len(self.points)} points by {self.by}, {doubted} with another label "
            f"suggested; first {first})"
        )


@in_float64
def suspect_labels(
    model: Model, *, by: By = "loo_loss", method: Method | None = None
) -> SuspectLabels:
    """Rank the training points by how suspect their label is, and suggest labels for them.

    A point whose label is wrong is one that the others contradict. The model without the point
    says what they make of it: its loss there is large, and its class is the label suggested
    (`leave_one_out`: exact for the squared loss, one Newton step for the others).

    Parameters
    ----------
    model
        A trained model with classes.
    by
        "loo_loss": the loss at the point without it. "loo_margin": minus the margin there, the
        output of its class less the largest of the others. "self_influence": how much the point
        lowers its own loss (Koh & Liang 2017); under a heavy ridge that says more about the size of
        k(x, x) than about the label. "loss": the training loss, the baseline.
    method
        `FirstOrder()` (the default) or `NewtonStep()`, for `by="self_influence"`.

    Returns
    -------
    SuspectLabels

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    ValueError
        `by` is none of these, or `method` goes with another; the model has no classes, one label a
        point; it has a single point.

    Warns
    -----
    ConvergenceWarning
        A solve stopped short of its tolerance.
    """
    check_model(model)
    _check_by(by, method)
    targets = to_numpy(model.problem.targets)
    _check_classes(model, targets)
    left_out = leave_one_out(model)
    points = left_out.points
    scores = _scores(model, left_out, by, method)
    order = np.argsort(-scores, kind="stable")
    return SuspectLabels(
        points[order],
        scores[order],
        _named(targets[points[order]], model),
        _named(left_out.outputs[order], model),
        by,
        model.gram.n,
    )


def _check_by(by: str, method: Method | None) -> None:
    known = ("loo_loss", "loo_margin", "self_influence", "loss")
    if not is_one_of(by, known):
        raise ValueError(f"`by` is {by!r}; pass one of {', '.join(map(repr, known))}")
    if method is not None and by != "self_influence":
        raise ValueError(f"`method` is {method!r} but `by` is {by!r}; it goes with self_influence")


def _check_classes(model: Model, targets: Array) -> None:
    single = targets.shape[1] == 1 or one_hot(targets)
    if model.classes is None or not single:
        raise ValueError("`model` was not trained on one class label a point: none to doubt")


def _scores(model: Model, left_out: LeaveOneOut, by: By, method: Method | None) -> Array:
    """Return how suspect each point is that the model still has, (m,)."""
    if by == "loo_loss":
        return left_out.losses
    if by == "self_influence":
        return self_influence(model, method=method)[left_out.points]
    targets = to_numpy(model.problem.targets)[left_out.points]
    if by == "loo_margin":
        return -(margin_slope(left_out.outputs, targets) * left_out.outputs).sum(axis=1)
    return model.problem.loss.value(model.outputs[left_out.points], targets)


def _named(outputs: Array, model: Model) -> npt.NDArray[Any]:
    """Return the class of the largest output, or of the sign of a single one, (m,)."""
    assert model.classes is not None
    one = outputs.shape[1] == 1
    return model.classes[(outputs[:, 0] > 0).astype(int) if one else outputs.argmax(axis=1)]
