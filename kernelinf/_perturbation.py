"""Any edit of the training set: new labels, new weights, new points."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array, count, in_float64, like, namespace, real, to_numpy
from ._checks import as_array, check_unmasked
from ._methods import Method
from ._training import Model
from ._update import Update, update

Pair = tuple[Any, npt.ArrayLike]


@in_float64
def perturb(
    model: Model,
    *,
    relabel: Pair | None = None,
    reweight: Pair | None = None,
    add: Pair | None = None,
    offset: npt.ArrayLike | None = None,
    method: Method | None = None,
) -> Update:
    """Compute a model as if some training labels, weights or points had been others.

    All edits given are made at once, in one step. Removal is the weight zero: `kernelinf.remove`.

    Parameters
    ----------
    model
        The trained model.
    relabel
        Indices (m,), or a mask (n,), and the new labels of those points, (m,) or (m, d).
    reweight
        Indices (m,), or a mask (n,), and the new weights of their losses: non-negative, one for all
        or (m,). Every point has weight one at first; with reg_scale "mean" the losses' sum is
        divided by the total weight. Zero removes a point, and a weight for a removed point brings
        it back.
    add
        New points (a, ...) and their labels; they become points n to n + a - 1, with weight one.
        For a precomputed Gram the points are given by their rows of the larger matrix, (a, n + a).
    offset
        Initial outputs at the added points, when the model has them as an array.
    method
        `NewtonStep()` (the default: one dual Newton step, exact for the squared loss),
        `FirstOrder()` (the derivative along the way from the old risk to the new), or `Retrain()`
        (the truth).

    Returns
    -------
    Update
        The record that `kernelinf.remove` returns. Once points were added, a precomputed cross
        kernel needs their columns too.

    Raises
    ------
    ValueError
        No edit is given, indices repeat or are out of range, labels are of a class that training
        did not have, weights are negative or all zero, or shapes do not fit.

    Warns
    -----
    ConvergenceWarning
        The solve or the retraining stopped short of its tolerance.
    """
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
    if relabel is None and reweight is None and add is None:
        raise ValueError("nothing to change: pass `relabel`, `reweight` or `add`")
    targets, weights = model.problem.targets, model.problem.weights
    if relabel is not None:
        targets = _relabelled(model, relabel)
    if reweight is not None:
        weights = _reweighted(model, reweight)
    if add is not None:
        model, added = extended(model, *_pair(add, "add"), offset)
        xp = namespace(targets)
        targets = xp.concatenate([targets, added])
        weights = xp.concatenate([weights, like(np.ones(len(added)), weights)])
    if not bool((weights > 0).any()):
        raise ValueError("`reweight` leaves no point with a weight; keep at least one")
    return update(model, replace(model.problem, targets=targets, weights=weights), method)


def point_indices(points: npt.ArrayLike, n: int, name: str) -> npt.NDArray[np.intp]:
    """Check indices of training points, or a mask, and return the indices in the order given.

    Raises
    ------
    ValueError
        Indices are empty, repeat or are out of range, or a mask has the wrong length.
    """
    check_unmasked(points, name)
    given = np.atleast_1d(as_array(points, name))
    if given.ndim != 1:
        raise ValueError(
            f"`{name}` has shape {given.shape}; pass indices (m,) or a boolean mask ({n},)"
        )
    if given.dtype == bool:
        if len(given) != n:
            raise ValueError(
                f"`{name}` is a mask of length {len(given)} but there are {n} training points"
            )
        given = np.flatnonzero(given)
    if given.size == 0:
        raise ValueError(f"`{name}` is empty; pass at least one training point")
    if given.dtype.kind not in "iu":
        raise ValueError(
            f"`{name}` has dtype {given.dtype}; pass integer indices or a boolean mask"
        )
    if given.min() < 0 or given.max() >= n:
        bad = given[(given < 0) | (given >= n)][0]
        raise ValueError(f"`{name}` holds {bad}; pass indices from 0 to {n - 1}")
    repeats = len(given) - len(np.unique(given))
    if repeats:
        raise ValueError(f"`{name}` repeats {repeats} indices; pass each point once")
    return given.astype(np.intp)


def _relabelled(model: Model, relabel: Pair) -> Array:
    points, labels = _pair(relabel, "relabel")
    indices = point_indices(points, model.gram.n, "relabel")
    targets = to_numpy(model.problem.targets).copy()
    targets[indices] = to_numpy(model.test_targets(labels, len(indices), "relabel"))
    return like(targets, model.problem.targets)


def _reweighted(model: Model, reweight: Pair) -> Array:
    points, given = _pair(reweight, "reweight")
    indices = point_indices(points, model.gram.n, "reweight")
    values = to_numpy(real(given, "reweight"))
    if values.shape not in ((), indices.shape):
        raise ValueError(
            f"`reweight` has weights of shape {values.shape} for {len(indices)} points; pass one, "
            f"or ({len(indices)},)"
        )
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise ValueError("`reweight` has a negative or infinite weight, or NaN; pass zero or more")
    weights = to_numpy(model.problem.weights).copy()
    weights[indices] = values
    return like(weights, model.problem.weights)


def extended(
    model: Model,
    x_new: Any,
    labels: npt.ArrayLike,
    offset: npt.ArrayLike | None,
    *,
    names: tuple[str, str] = ("add", "add"),
) -> tuple[Model, Array]:
    """Return the same model on more points, the added ones with weight zero, and their targets.

    Errors call the points and the labels by these names.
    """
    of_points, of_labels = names
    a, problem = count(x_new, of_points), model.problem
    targets = model.test_targets(labels, a, of_labels)
    xp = namespace(targets)
    initial = model.test_offset(x_new, a, offset)
    gram = model.gram.extend(x_new, of_points)
    alpha = xp.concatenate([model._alpha, 0 * targets])
    problem = replace(
        problem,
        gram=gram,
        targets=xp.concatenate([problem.targets, targets]),
        offset=xp.concatenate([problem.offset, initial]),
        weights=xp.concatenate([problem.weights, like(np.zeros(a), targets)]),
    )
    outputs = problem.outputs(alpha)
    return replace(model, problem=problem, _alpha=alpha, _outputs=outputs), targets


def _pair(edit: Any, name: str) -> Pair:
    if not isinstance(edit, tuple | list) or len(edit) != 2:
        raise ValueError(f"`{name}` is {type(edit).__name__}; pass a pair, (points, values)")
    return edit[0], edit[1]
