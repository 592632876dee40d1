"""Shapley values of the training points of a nearest-neighbour classifier, in closed form."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, in_float64, to_numpy
from .._checks import as_array, check_flags, is_number, is_whole
from .._gram import Cross, Gram
from .._targets import encode, encode_test
from .._test_points import at_least_one, one_hot, progress_bar, tiles
from .._training import Model

DECIMALS = 12  # of squared distances, in units of the largest k(x, x)


@in_float64
def knn_shapley(
    gram: Gram | Model,
    y: npt.ArrayLike,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike,
    *,
    k: int = 5,
    per_test: bool = False,
    progress: bool = False,
) -> Array:
    """Value every training point by its Shapley share in a k-nearest-neighbour classifier.

    The utility of a set of training points at a test point is the share of its right labels among
    the k nearest, (1/k) sum_j [y_j = y_test], with fewer terms if the set is smaller. A point's
    Shapley value is what it adds to that, averaged over all orders in which the points may come:
    exact, by the recursion of Jia et al. (2019, "Efficient task-specific data valuation for nearest
    neighbor algorithms", Theorem 1). Distances are those of the kernel's feature space,
    sqrt(k(x, x) + k(x', x') - 2 k(x, x')), with k the trace of its block where it has blocks. Of
    points equally near (whose squared distances agree to 1e-12 of the largest k(x, x)) the one of
    the lower index goes first. Nothing is trained.

    t n log n operations besides the kernel's. Test points are taken in blocks, so that memory is
    about ten arrays of 16 MB; the Gram matrix itself is not evaluated.

    Parameters
    ----------
    gram
        Gram matrix of the n training points; or a model, for the one it was trained on. Points
        that were removed from the model are worth zero, and are nobody's neighbours.
    y
        Labels (n,), or one-hot (n, d).
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed. Their own k(x, x) is not needed.
    y_test
        Their labels.
    k
        Neighbours, 1 or more.
    per_test
        Return the values at every test point, 8 t n bytes, instead of their mean.
    progress
        Show a progress bar.

    Returns
    -------
    (n,) shares of the mean utility, which they add up to: positive for points that help. They are
    no changes on removal. (t, n) with `per_test`.

    Raises
    ------
    TypeError
        `gram` is neither a Gram matrix nor a model.
    ValueError
        Labels or shapes do not fit, or `k` is no whole number from 1.
    """
    matrix, present = _training_points(gram)
    if not (is_whole(k) and is_number(k) and k >= 1):
        raise ValueError(f"`k` is {k!r}; pass a number of neighbours, 1 or more")
    check_flags(per_test=per_test, progress=progress)
    x = at_least_one(x_test)
    labels, test_labels = _labels(y, y_test, matrix.n, len(x))
    lengths = _squared_lengths(matrix)
    size = float(lengths.max()) or 1.0
    values = np.zeros((len(x) if per_test else 1, matrix.n))
    with progress_bar(len(x), progress, "Shapley") as bar:
        for rows, _, cross in tiles(matrix, x):
            # rounded, so that equal distances tie however the kernel was evaluated
            distances = np.round((lengths - 2 * _traced(cross)) / size, DECIMALS)
            right = labels == test_labels[rows, None]
            found = _shapley(distances[:, present], right[:, present], float(k))
            if per_test:
                values[rows, present] = found
            else:
                values[0, present] += found.sum(axis=0) / len(x)
            bar.update(len(cross))
    return values if per_test else values[0]


def _training_points(given: Any) -> tuple[Gram, npt.NDArray[np.bool]]:
    """Return the Gram matrix and which of its points are present, (n,)."""
    if isinstance(given, Model):
        return given.gram, to_numpy(given.problem.weights) > 0
    if isinstance(given, Gram):
        return given, np.ones(given.n, dtype=bool)
    raise TypeError(
        f"`gram` is a {type(given).__name__}; pass ki.gram(kernel, x), or the result of ki.fit"
    )


def _labels(y: Any, y_test: Any, n: int, t: int) -> tuple[npt.NDArray[np.intp], ...]:
    """Return the classes of training and test points as numbers, (n,) and (t,)."""
    given = as_array(y, "y")
    if given.dtype.kind == "f" and given.ndim == 1:
        raise ValueError(
            "`y` holds real numbers; neighbours vote for classes: pass one label a point"
        )
    targets = encode(y, "cross_entropy", n)
    shape = (t, targets.values.shape[1])
    test_targets = encode_test(y_test, targets.classes, "cross_entropy", shape)
    for name, values in (("y", targets.values), ("y_test", test_targets)):
        if not one_hot(values):
            raise ValueError(f"`{name}` holds class probabilities; pass one label a point")
    return targets.values.argmax(axis=1), test_targets.argmax(axis=1)


def _squared_lengths(gram: Gram) -> Array:
    """Return k(x_i, x_i), (n,), without the Gram matrix where there are points to take it from."""
    if gram.kernel is not None and gram.x is not None:
        return gram.kernel.diagonal(gram.x).reshape(gram.n, -1).sum(axis=1)
    return to_numpy(gram.diagonal).sum(axis=1)


def _traced(cross: Cross) -> Array:
    """Return the kernel of all outputs together, (t, n)."""
    matrix = to_numpy(cross.matrix)
    return matrix if matrix.ndim == 2 else np.einsum("tana->tn", matrix)


def _shapley(distances: Array, right: npt.NDArray[np.bool], k: float) -> Array:
    """Return the values (t, n) by the recursion from the farthest point to the nearest.

    The farthest has [right] min(k, n) / (n k); a point at rank i has that of the next one plus
    ([right] - [next is right]) min(k, i) / (i k).
    """
    n = distances.shape[1]
    order = np.argsort(distances, axis=1, kind="stable")
    ranked = np.take_along_axis(right, order, axis=1).astype(np.float64)
    weights = np.minimum(k, np.arange(1, n + 1)) / (np.arange(1, n + 1) * k)
    terms = ranked * weights
    terms[:, :-1] -= ranked[:, 1:] * weights[:-1]
    values = np.empty_like(distances)
    np.put_along_axis(values, order, terms[:, ::-1].cumsum(axis=1)[:, ::-1], axis=1)
    return values
