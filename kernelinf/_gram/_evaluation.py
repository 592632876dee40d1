"""Evaluate a kernel matrix in memory, block by block."""

from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._arrays import Array, in_float64
from ._memory import check_memory
from ._storage import Dense, Panelled, Storage
from ._tiles import Tiles

ROUNDED = "in memory, in float32"  # where a matrix is, in words

DTYPES: dict[str, type[np.floating[Any]]] = {"float64": np.float64, "float32": np.float32}


@in_float64
def evaluated(tiles: Tiles, dtype: str, progress: bool) -> Storage:
    """Evaluate all blocks; symmetric bit for bit.

    Raises
    ------
    MemoryError
        The matrix does not fit.
    FloatingPointError
        The kernel is NaN or infinite in a block.
    """
    kind, side = DTYPES[dtype], tiles.side
    check_memory(np.dtype(kind).itemsize * side**2, side)
    matrix = np.empty((side, side), kind)
    for i, j in tqdm(tiles.pairs(), desc="Gram", unit="block", disable=not progress):
        put(matrix, tiles, (i, j), tiles.block(i, j))
    if dtype == "float32":
        return Panelled(matrix, ROUNDED)
    return Dense(place(matrix))


def put(matrix: npt.NDArray[Any], tiles: Tiles, block: tuple[int, int], values: Any) -> None:
    """Write a block and its mirror image.

    Raises
    ------
    FloatingPointError
        Values are beyond float32.
    """
    down, across = (tiles.span(i) for i in block)
    if matrix.dtype == np.float32 and np.abs(values).max() > np.finfo(np.float32).max:
        raise FloatingPointError(
            f"kernel values up to {np.abs(values).max():.1e} are beyond float32; pass "
            'dtype="float64", or scale the kernel down'
        )
    matrix[down, across] = values
    matrix[across, down] = values.T


def place(matrix: npt.NDArray[np.float64]) -> Array:
    """Put a host matrix where products with it run: a CPU's BLAS beats XLA's, so it stays."""
    return matrix if jax.default_backend() == "cpu" else jax.device_put(matrix)
