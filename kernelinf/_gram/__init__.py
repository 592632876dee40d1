"""The Gram matrix: planned, evaluated block by block, kept in memory, on disk or nowhere."""

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh

from .._arrays import in_float64
from .._checks import is_whole
from .._kernels import Kernel, check_inputs
from ._cross import Cross as Cross
from ._disk import Store, block_of
from ._evaluation import DTYPES, ROUNDED, evaluated
from ._fingerprint import difference as difference
from ._matrix import Gram as Gram
from ._matrix import Plan as Plan
from ._matrix import matching as matching
from ._mesh import checked_mesh, evaluated_on, where
from ._mesh import make_mesh as make_mesh
from ._storage import Dense as Dense
from ._storage import Recomputed
from ._tiles import Tiles

BLOCK_SIZE = 512  # rows; larger blocks fall out of cache, smaller ones pay for each call
NOWHERE = "none"

Dtype = Literal["float64", "float32"]


@in_float64
def gram(
    kernel: Kernel | npt.ArrayLike,
    x: npt.ArrayLike | None = None,
    *,
    block_size: int | None = None,
    progress: bool = False,
    store: str | os.PathLike[str] | None = None,
    dtype: Dtype = "float64",
    mesh: Mesh | None = None,
) -> Gram:
    """Plan the Gram matrix of a kernel on training points, or wrap a precomputed one.

    Parameters
    ----------
    kernel
        A kernel (`from_stax`, `linear`, `rbf`); or a matrix: Sigma (n, n), or full blocks
        (n, d, n, d), symmetric and positive semidefinite. Not copied: leave it as it is.
    x
        Training points (n, ...), for a kernel. NumPy or JAX, any real dtype.
    block_size
        Rows of a block, from 1 to n; need not divide n. Peak memory is the matrix plus a few
        blocks.
    progress
        Show a progress bar during evaluation.
    store
        Where the matrix is kept. None: in memory. A folder: on disk, written block by block; if
        there is one in it already, it is checked against these points and this kernel, and
        evaluation goes on where it stopped. "none": nowhere; the kernel is evaluated again in
        every product, which suits kernels that cost little.
    dtype
        "float64", or "float32" for half of the memory: the rounded numbers are the kernel then,
        and products with them are as exact as in float64. Rounding may make a matrix indefinite:
        keep `reg` n above 1e-6 times its largest eigenvalue.

    mesh
        Devices to split the rows among, from `make_mesh`; their number divides that of the points.

    Returns
    -------
    Gram
        Evaluated when first used; `gram.plan` says beforehand what that takes.

    Raises
    ------
    TypeError
        `kernel` is neither a kernel nor a matrix.
    ValueError
        Points are not finite, or uint8 images, or the network gives no kernel of them; the matrix
        is not symmetric or not positive semidefinite (the message has the eigenvalue); `store` is
        of another matrix.
    """
    if isinstance(kernel, Kernel):
        if x is None:
            raise ValueError("`x` is missing; pass the training points: ki.gram(kernel, x)")
        points = check_inputs(x, "x")
        kernel.check_shape(points.shape[1:])
        _check_block_size(block_size)
        if dtype not in DTYPES:
            raise ValueError(f"`dtype` is {dtype!r}; pass 'float64' or 'float32'")
        folder = None if store in (None, NOWHERE) else _folder(store)
        known = None if folder is None or block_size is not None else block_of(folder)
        tiles = Tiles(kernel, points, min(block_size or known or BLOCK_SIZE, len(points)))
        if mesh is not None:
            return _on_mesh(tiles, mesh, store, dtype)
        if store != NOWHERE:
            return _planned(tiles, folder, dtype, progress)
        if dtype != "float64":
            raise ValueError('`dtype` is "float32", but with store="none" no number is stored')
        return Gram(tiles.n, kernel.outputs, lambda: Recomputed(tiles), tiles, 0, Recomputed.name)
    if callable(kernel) or isinstance(kernel, tuple):
        raise TypeError(
            f"`kernel` is a {type(kernel).__name__}; pass a kernel such as "
            "ki.from_stax(network), ki.linear(), ki.rbf(1.0), or a matrix"
        )
    if kernel is None or isinstance(kernel, str):
        raise TypeError(f"`kernel` is {kernel!r}; pass a kernel such as ki.rbf(1.0), or a matrix")
    others = {"x": x, "block_size": block_size, "store": store, "mesh": mesh}
    given = [name for name, value in others.items() if value is not None]
    given += ["dtype"] if dtype != "float64" else []
    if given:
        raise ValueError(f"`{given[0]}` was given with a precomputed matrix; pass the matrix alone")
    return Gram.given(kernel)


def _planned(tiles: Tiles, folder: Path | None, dtype: Dtype, progress: bool) -> Gram:
    n, outputs, entry = tiles.n, tiles.kernel.outputs, np.dtype(DTYPES[dtype]).itemsize
    if folder is not None:
        store = Store(folder, tiles, dtype)
        store.check()
        return Gram(n, outputs, lambda: store.completed(progress), tiles, entry, store.name)
    where = Dense.name if dtype == "float64" else ROUNDED
    return Gram(n, outputs, lambda: evaluated(tiles, dtype, progress), tiles, entry, where)


def _on_mesh(tiles: Tiles, mesh: Any, store: Any, dtype: Dtype) -> Gram:
    if store is not None or dtype != "float64":
        other = "store" if store is not None else "dtype"
        raise ValueError(f"`{other}` and `mesh` were given; a matrix on a mesh takes neither")
    devices = checked_mesh(mesh, tiles.n)
    outputs, place = tiles.kernel.outputs, where(devices)
    return Gram(tiles.n, outputs, lambda: evaluated_on(devices, tiles), tiles, 8, place)


def _folder(store: Any) -> Path:
    try:
        folder = Path(store)
    except TypeError:
        raise TypeError(
            f'`store` is a {type(store).__name__}; pass a folder, "none" or None'
        ) from None
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`store`, {str(folder)!r}, is a file; pass a folder")
    return folder


def _check_block_size(block_size: int | None) -> None:
    if block_size is not None and not (is_whole(block_size) and block_size > 0):
        raise ValueError(f"`block_size` is {block_size!r}; pass a positive number of rows")
