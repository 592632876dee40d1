"""Removing training points."""

import numpy as np
import numpy.typing as npt

from ._arrays import Array, in_float64, to_numpy
from ._methods import Method
from ._perturbation import point_indices
from ._training import Model
from ._update import Update, update


@in_float64
def remove(model: Model, forget: npt.ArrayLike, *, method: Method | None = None) -> Update:
    """Compute a model without some of its training points.

    Parameters
    ----------
    model
        The trained model.
    forget
        The points to remove: their indices (m,), or a boolean mask (n,).
    method
        `NewtonStep()` (the default: one dual Newton step), `FirstOrder()` (the derivative),
        `Retrain()` (the truth), or one of `kernelinf.unlearning`.

    Returns
    -------
    Update

    Raises
    ------
    ValueError
        Indices repeat, are out of range, are already removed, or are all points or none.

    Warns
    -----
    ConvergenceWarning
        The solve or the retraining stopped short of its tolerance.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    indices = forget_indices(forget, to_numpy(model.problem.weights))
    return update(model, model.problem.without(indices), method)


def forget_indices(forget: npt.ArrayLike, weights: Array) -> npt.NDArray[np.intp]:
    """Check a forget set and return its indices, ascending."""
    indices = np.sort(present_indices(forget, weights, "forget"))
    if len(indices) == np.count_nonzero(weights):
        raise ValueError("`forget` is the whole training set; keep at least one point")
    return indices


def present_indices(points: npt.ArrayLike, weights: Array, name: str) -> npt.NDArray[np.intp]:
    """Check a choice of points that the model still has; return their indices in that order."""
    indices = point_indices(points, len(weights), name)
    gone = np.sort(indices[weights[indices] == 0])
    if len(gone):
        raise ValueError(f"`{name}` holds points that were removed before: {gone[:5].tolist()}")
    return indices
