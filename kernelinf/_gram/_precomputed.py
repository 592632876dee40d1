"""Checks on a kernel matrix that a user computed."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from .._arrays import Array, finite, local, namespace, to_numpy
from .._checks import as_array, check_unmasked


def checked_matrix(given: Any) -> Array:
    check_unmasked(given, "kernel")
    matrix = local(given)
    if not hasattr(matrix, "dtype"):
        matrix = as_array(matrix, "kernel")
    if matrix.dtype.kind not in "iuf":
        raise TypeError(f"`kernel` has dtype {matrix.dtype}; pass a kernel or a real matrix")
    _check_square(matrix.shape)
    rounding = float(np.finfo(matrix.dtype if matrix.dtype.kind == "f" else np.float64).eps)
    matrix = namespace(matrix).asarray(matrix, dtype=np.float64)
    if not finite(matrix):
        raise ValueError("`kernel` (a precomputed matrix) holds NaN or infinite values")
    values = _symmetrised(square(matrix), rounding)
    _check_positive(to_numpy(values), rounding)
    return values.reshape(matrix.shape)


def _check_square(shape: tuple[int, ...]) -> None:
    square = len(shape) == 2 and shape[0] == shape[1]
    blocks = len(shape) == 4 and shape[:2] == shape[2:]
    if not (square or blocks) or 0 in shape:
        raise ValueError(
            f"`kernel` has shape {shape}; a precomputed matrix is (n, n) or (n, d, n, d)"
        )


def _symmetrised(square: Array, rounding: float) -> Array:
    xp = namespace(square)
    difference, largest = float(xp.abs(square - square.T).max()), float(xp.abs(square).max())
    if difference == 0:
        return square
    if difference > 100 * rounding * largest:
        raise ValueError(
            f"`kernel` (a precomputed matrix) is not symmetric: entries differ by up to "
            f"{difference:.3g}; pass (matrix + matrix.T) / 2 if that is rounding"
        )
    return (square + square.T) / 2


def _check_positive(square: npt.NDArray[np.float64], rounding: float) -> None:
    # A Cholesky factor of the slightly shifted matrix exists exactly when no eigenvalue is
    # more negative than rounding can make it, at an eighth of the cost of the eigenvalues.
    slack = 10 * rounding * np.trace(square) + np.finfo(np.float64).tiny
    try:
        scipy.linalg.cholesky(
            square + slack * np.eye(len(square)), overwrite_a=True, check_finite=False
        )
    except scipy.linalg.LinAlgError:
        lowest = scipy.linalg.eigvalsh(square, subset_by_index=[0, 0])[0]
        raise ValueError(
            "`kernel` (a precomputed matrix) is not positive semidefinite: its smallest eigenvalue "
            f"is {lowest:.3g}; evaluate the kernel in float64, or add {-lowest:.3g} to its diagonal"
        ) from None


def square(matrix: Array) -> Array:
    """Return full blocks (n, d, n, d) as a square matrix; leave one alone."""
    side = math.prod(matrix.shape[: matrix.ndim // 2])
    return matrix.reshape(side, side)
