"""How a model fares as more and more of its training points are removed, in a given order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .._arrays import Array, in_float64
from .._checks import check_flags
from .._gram import Cross
from .._methods import Method, Retrain
from .._training import Model
from .._update import checked_method
from ._draws import Points, check_count, present_points
from ._ranking import Ranking, order_of
from ._retraining import correct, held_out, name_of

STEPS = 10
LARGEST_SHARE = 0.5  # of the points, removed in the last step


@dataclass(frozen=True, eq=False)
class RemovalCurve:
    """A model without the first k points of an order, for growing k.

    Attributes
    ----------
    sizes
        How many points are gone, (k,), ascending.
    order
        The points in the order of removal; the first of them are gone.
    losses
        Loss of each test point after each removal, (k, t).
    accuracy
        Share of the test points that are classified rightly, (k,); None for real targets.
    method
        How the models were computed.
    gradient_norms
        Norm, in parameter space, of the gradient of each risk, (k,): zero for retraining.
    """

    sizes: npt.NDArray[np.intp]
    order: Points
    losses: Array
    accuracy: Array | None
    method: Method
    gradient_norms: Array

    def __repr__(self) -> str:
        loss = self.losses.mean(axis=1)
        text = f"{self.sizes[0]} to {self.sizes[-1]} points removed, {name_of(self.method)}: "
        text += f"mean loss {loss[0]:.3g} to {loss[-1]:.3g}"
        if self.accuracy is not None:
            text += f", accuracy {self.accuracy[0]:.1%} to {self.accuracy[-1]:.1%}"
        return f"RemovalCurve({text})"


@in_float64
def removal_curve(
    model: Model,
    ranking: Ranking,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike,
    *,
    sizes: Sequence[int] | None = None,
    method: Method | None = None,
    offset: npt.ArrayLike | None = None,
    progress: bool = False,
) -> RemovalCurve:
    """Remove the first k points of an order, for growing k, and retrain each time.

    An order that finds the points the model needs makes the test loss rise faster than a random
    one.

    Parameters
    ----------
    model
        A trained model.
    ranking
        Real scores (n,), the point of the largest removed first, such as those of
        `self_influence`; an `InfluenceMatrix` of losses or margins, summed over its test points,
        the most helpful first; or an order itself, integer indices (m,), such as a random
        permutation for comparison.
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed.
    y_test
        Their labels.
    sizes
        How many points to remove, ascending, from 0; by default eleven from 0 to half of
        the points, or as far as the order goes.
    method
        `Retrain()` (the default), or an estimate.
    offset
        Initial outputs at the test points, when the model has them as an array.
    progress
        Show a progress bar.

    Returns
    -------
    RemovalCurve

    Raises
    ------
    TypeError
        `model` or `method` is of the wrong kind.
    ValueError
        The ranking does not fit the points, `sizes` do not ascend or leave no point, or labels or
        shapes do not fit.

    Warns
    -----
    ConvergenceWarning
        A solve or a retraining stopped short of its tolerance.
    """
    check_flags(progress=progress)
    tests = held_out(model, x_test, y_test, "loss", offset)
    order = order_of(model, ranking)
    counts = _checked_sizes(sizes, len(order), len(present_points(model)))
    method = checked_method(Retrain() if method is None else method)
    found = tests.without([order[:k] for k in counts if k], method, progress)
    changes, norms = found.changes, found.gradient_norms
    if counts[0] == 0:
        changes = np.concatenate([np.zeros((1, *tests.outputs.shape)), changes])
        norms = np.concatenate([[model.gradient_norm], norms])
    outputs = tests.outputs + changes
    right = correct(outputs, tests.targets).mean(axis=1) if model.classes is not None else None
    return RemovalCurve(counts, order, tests.quantity("loss", outputs), right, method, norms)


def _checked_sizes(sizes: Sequence[int] | None, ordered: int, n: int) -> npt.NDArray[np.intp]:
    most = min(ordered, n - 1)
    if sizes is None:
        largest = min(most, round(LARGEST_SHARE * n))
        return np.unique(np.round(np.linspace(0, largest, STEPS + 1)).astype(np.intp))
    if not isinstance(sizes, Sequence | np.ndarray) or getattr(sizes, "shape", None) == ():
        raise TypeError(f"`sizes` is {sizes!r}; pass ascending numbers of points")
    for size in sizes:
        check_count(size, "sizes", least=0, most=most)
    counts = np.array(sizes, dtype=np.intp)
    if not counts.any() or (np.diff(counts) <= 0).any():
        raise ValueError(f"`sizes` is {list(sizes)}; pass ascending numbers, one of them positive")
    return counts
