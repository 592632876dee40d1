"""How few training points a prediction hangs on, found by retraining without them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._arrays import Array, in_float64
from .._checks import check_flags
from .._gram import Cross
from .._influence import influence
from .._test_points import check_model
from .._training import Model
from ._draws import Points, check_count, present_points
from ._ranking import Ranking, orders_of
from ._retraining import Tests, held_out, margins

LARGEST_SHARE = 0.5  # of the points, removed before a search gives up


@dataclass(frozen=True, eq=False)
class Brittleness:
    """How few of its top-ranked training points change each test point's predicted class.

    Attributes
    ----------
    counts
        The smallest number found whose removal changes the prediction, (t,); `most` + 1 where
        `most` of them do not.
    labels
        Predicted class of each test point before any removal, (t,).
    sizes, margins
        The path of each test point, t arrays: numbers of points that were removed, from 0, and the
        retrained margin of the predicted class, negative where the prediction has changed.
    orders
        Training points in the order of removal, a row for each test point.
    most
        Points removed at most.
    gradient_norm
        Largest norm, in parameter space, of the gradient of a retrained risk.
    """

    counts: npt.NDArray[np.intp]
    labels: npt.NDArray[Any]
    sizes: tuple[npt.NDArray[np.intp], ...]
    margins: tuple[Array, ...]
    orders: Points
    most: int
    gradient_norm: float

    def __repr__(self) -> str:
        flipped = self.counts[self.counts <= self.most]
        text = f"{len(flipped)} of {len(self.counts)} predictions change within {self.most} points"
        if len(flipped):
            text += f": {flipped.min()} at least, {np.median(flipped):g} in the median of them"
        return f"Brittleness({text})"


@in_float64
def brittleness(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    *,
    ranking: Ranking | None = None,
    most: int | None = None,
    exhaustive: bool = False,
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> Brittleness:
    """Find, by retraining, how few top-ranked points change the prediction of each test point.

    The data support of a prediction (Ilyas et al. 2022), searched as by Singla et al.
    (2023): removals of 1, 2, 4, ... of the points that are ranked first for the test point, and
    bisection once the prediction has changed. All test points are searched at once.

    The number found changes the prediction, and one point fewer does not. Margins need not fall
    with every point, so that a number between those tried may change it too: `exhaustive` tries
    every number. Either way another ranking may find fewer points.

    Parameters
    ----------
    model
        A trained model with classes.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    ranking
        An `InfluenceMatrix` (t, n) of losses or margins, the most helpful points removed first;
        real scores (t, n), the largest first; or orders, integer indices (t, m). By default the
        first-order influence on the margin of the predicted class.
    most
        Points to remove at most; by default half of them, or as far as the ranking goes.
    exhaustive
        Retrain for every number of points from one, not by bisection.
    offset
        Initial outputs at the test points, when the model has them as an array.
    progress
        Show a progress bar.

    Returns
    -------
    Brittleness

    Raises
    ------
    TypeError
        `model` is no model.
    ValueError
        The model has no classes, the ranking does not fit, `most` is out of range, or shapes do not
        fit.

    Warns
    -----
    ConvergenceWarning
        A retraining stopped short of its tolerance.
    """
    check_model(model)
    check_flags(exhaustive=exhaustive, progress=progress)
    if model.classes is None:
        raise ValueError("`model` was trained on real targets; pass one that predicts classes")
    tests = held_out(model, x_test, None, "outputs", offset)
    labels, targets = _predictions(model, tests.outputs)
    if ranking is None:
        ranking = influence(model, tests.cross, labels, of="margin", offset=tests.offset)
    orders = orders_of(model, ranking, len(tests))
    most = _checked_most(most, orders.shape[1], len(present_points(model)))
    search = _Search(tests, targets, orders, most, exhaustive)
    with tqdm(total=len(tests), desc="Brittleness", unit="point", disable=not progress) as bar:
        search.run(bar)
    return Brittleness(
        search.high,
        labels,
        tuple(np.array(sorted(path)) for path in search.paths),
        tuple(np.array([path[size] for size in sorted(path)]) for path in search.paths),
        orders,
        most,
        search.gradient_norm,
    )


def _predictions(model: Model, outputs: Array) -> tuple[npt.NDArray[Any], Array]:
    """Return the predicted class of each row of outputs, and the targets that stand for it."""
    assert model.classes is not None
    if outputs.shape[1] == 1:
        positive = outputs[:, 0] >= 0
        return model.classes[positive.astype(int)], np.where(positive, 1.0, -1.0)[:, None]
    columns = outputs.argmax(axis=1)
    return model.classes[columns], np.eye(outputs.shape[1])[columns]


def _checked_most(most: int | None, ordered: int, n: int) -> int:
    largest = min(ordered, n - 1)
    if most is None:
        return min(largest, max(1, round(LARGEST_SHARE * n)))
    check_count(most, "most", most=largest)
    return int(most)


class _Search:
    """A bracket for each test point: `low` points do not change its prediction, `high` do."""

    def __init__(
        self, tests: Tests, targets: Array, orders: Points, most: int, exhaustive: bool
    ) -> None:
        self.tests, self.targets, self.orders = tests, targets, orders
        self.most, self.exhaustive = most, exhaustive
        self.low = np.zeros(len(tests), dtype=np.intp)
        self.high = np.full(len(tests), most + 1)
        start = margins(tests.outputs, targets)
        self.paths = [{0: float(margin)} for margin in start]
        self.gradient_norm = 0.0

    def run(self, bar: tqdm) -> None:
        """Retrain until every bracket is closed."""
        while len(rows := np.flatnonzero(self.high - self.low > 1)):
            self._attempt(rows, self._sizes()[rows])
            bar.update(int((self.high - self.low == 1)[rows].sum()))

    def _sizes(self) -> npt.NDArray[np.intp]:
        """Return the number of points to remove next for each test point."""
        further = self.low + 1 if self.exhaustive else np.maximum(1, 2 * self.low)
        between = (self.low + self.high) // 2
        return np.where(self.high > self.most, np.minimum(further, self.most), between)

    def _attempt(self, rows: Points, sizes: npt.NDArray[np.intp]) -> None:
        forget = [self.orders[row, :size] for row, size in zip(rows, sizes, strict=True)]
        found = self.tests.retrained_at(rows, forget)
        after = margins(self.tests.outputs[rows] + found.changes, self.targets[rows])
        for row, size, margin in zip(rows, sizes, after, strict=True):
            self.paths[row][int(size)] = float(margin)
        self.low[rows] = np.where(after < 0, self.low[rows], sizes)
        self.high[rows] = np.where(after < 0, sizes, self.high[rows])
        self.gradient_norm = max(self.gradient_norm, float(found.gradient_norms.max()))
