"""A kernel matrix in blocks of rows on many devices: each evaluates, keeps and multiplies its own.

Only vectors travel: every device has all of what is multiplied, and gathers what the others found.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from .._arrays import Array, in_float64, replicated
from .._checks import is_whole
from ._storage import Rows, Storage
from ._tiles import Tiles

AXIS = "points"
ROWS, EVERYWHERE = PartitionSpec(AXIS, None), PartitionSpec()


def make_mesh(points: int | None = None) -> Mesh:
    """Arrange devices for `kernelinf.gram(..., mesh=...)`: all that this program sees, in a row.

    Parameters
    ----------
    points
        The number of training points, to take as many devices as divide it.

    Returns
    -------
    jax.sharding.Mesh
        With one axis, "points"; after `jax.distributed.initialize`, of the devices of all.

    Raises
    ------
    ValueError
        `points` is not a positive number.
    """
    devices = jax.devices()
    if points is not None and not (is_whole(points) and points > 0):
        raise ValueError(f"`points` is {points!r}; pass the number of training points")
    count = len(devices) if points is None else _most(len(devices), points)
    return Mesh(np.array(devices[:count]), (AXIS,), axis_types=(AxisType.Auto,))


@dataclass(frozen=True, eq=False)
class Sharded(Storage):
    """A square JAX array with its rows split among the devices of a mesh.

    Vectors are JAX arrays that every device has.
    """

    array: jax.Array
    mesh: Mesh

    @property
    def name(self) -> str:  # type: ignore[override]
        """Where it is, in words."""
        return where(self.mesh)

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the matrix."""
        return len(self.array)

    @in_float64
    def left(self, rows: Array) -> Array:
        """Return rows @ matrix."""
        return product(self.mesh)(self.array, rows)

    @in_float64
    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        return _picked(self.mesh)(self.array, np.asarray(chosen))

    @in_float64
    def diagonal(self) -> Array:
        """Return the diagonal."""
        return _diagonal(self.mesh)(self.array)

    @in_float64
    def norm(self) -> float:
        """Return the Frobenius norm."""
        largest = float(self.diagonal().max())
        return largest * math.sqrt(float(_squares(self.mesh)(self.array, largest or 1.0)))

    @in_float64
    def place(self, values: npt.ArrayLike) -> Array:
        """Put values in float64 on every device."""
        return replicated(values, NamedSharding(self.mesh, EVERYWHERE))


def where(mesh: Mesh) -> str:
    """Say where the matrix is."""
    return f"in blocks of rows on {mesh.size} devices"


def checked_mesh(mesh: Any, points: int) -> Mesh:
    """Refuse a mesh that the points cannot be split among.

    Raises
    ------
    TypeError
        It is no mesh.
    ValueError
        It has another axis or several, or does not divide the points.
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"`mesh` is a {type(mesh).__name__}; pass ki.make_mesh()")
    if mesh.axis_names != (AXIS,):
        raise ValueError(f"`mesh` has the axes {mesh.axis_names}; pass ki.make_mesh(), with one")
    if points % mesh.size:
        most = _most(mesh.size, points)
        raise ValueError(
            f"`mesh` has {mesh.size} devices, which do not divide {points} points; pass "
            f"ki.make_mesh({points}), which takes {most}, or {points - points % mesh.size} points"
        )
    return mesh


@in_float64
def evaluated_on(mesh: Mesh, tiles: Tiles) -> Sharded:
    """Evaluate every device's rows on it, a block at a time.

    Raises
    ------
    FloatingPointError
        The kernel is NaN or infinite in some rows.
    """
    x = replicated(tiles.x, NamedSharding(mesh, EVERYWHERE))
    array = _evaluation(mesh, tiles)(x)
    bad = np.flatnonzero(~np.asarray(_finite(mesh)(array)))
    if len(bad):
        raise FloatingPointError(
            f"the kernel is NaN or infinite in row {bad[0]} and {len(bad) - 1} others; scale the "
            "inputs, or lower w_std or the depth"
        )
    return Sharded(array, mesh)


def _evaluation(mesh: Mesh, tiles: Tiles) -> Callable[[jax.Array], jax.Array]:
    share, d = tiles.n // mesh.size, tiles.outputs
    down, across = _blocks(share, tiles.size), _blocks(tiles.n, tiles.size)

    def block(x: jax.Array, rows: jax.Array, columns: jax.Array) -> jax.Array:
        values = tiles.kernel.block(x[rows], x[columns])
        return values.reshape(len(rows) * d, len(columns) * d)

    def local(x: jax.Array) -> jax.Array:
        first = jax.lax.axis_index(AXIS) * share

        def one(rows: jax.Array) -> jax.Array:
            values = jax.lax.map(lambda columns: block(x, first + rows, columns), across)
            return jnp.swapaxes(values, 0, 1).reshape(len(rows) * d, -1)[:, : tiles.side]

        values = jax.lax.map(one, down)
        return values.reshape(-1, tiles.side)[: share * d]

    return _on(mesh, local, (EVERYWHERE,), ROWS)


def _blocks(n: int, limit: int) -> npt.NDArray[np.intp]:
    """Return the points of each block, one row a block; the last point fills the last one up."""
    count = math.ceil(n / limit)
    size = math.ceil(n / count)
    return np.minimum(np.arange(count * size), n - 1).reshape(count, size)


@functools.cache
def product(mesh: Mesh) -> Callable[..., Any]:
    """Return the program of rows @ matrix."""

    def local(block: jax.Array, rows: jax.Array) -> jax.Array:
        return _gathered(rows @ block.T)  # the matrix is symmetric: its columns are its rows

    return _on(mesh, local, (ROWS, EVERYWHERE), EVERYWHERE)


@functools.cache
def _picked(mesh: Mesh) -> Callable[..., Any]:
    def local(block: jax.Array, chosen: jax.Array) -> jax.Array:
        place = chosen - jax.lax.axis_index(AXIS) * len(block)
        mine = (place >= 0) & (place < len(block))
        rows = block[jnp.clip(place, 0, len(block) - 1)]
        return jax.lax.psum(jnp.where(mine[:, None], rows, 0.0), AXIS)

    return _on(mesh, local, (ROWS, EVERYWHERE), EVERYWHERE)


@functools.cache
def _diagonal(mesh: Mesh) -> Callable[..., Any]:
    def local(block: jax.Array) -> jax.Array:
        rows = jnp.arange(len(block))
        return _gathered(block[rows, jax.lax.axis_index(AXIS) * len(block) + rows])

    return _on(mesh, local, (ROWS,), EVERYWHERE)


@functools.cache
def _squares(mesh: Mesh) -> Callable[..., jax.Array]:
    def local(block: jax.Array, largest: jax.Array) -> jax.Array:
        return jax.lax.psum(((block / largest) ** 2).sum(), AXIS)

    return _on(mesh, local, (ROWS, EVERYWHERE), EVERYWHERE)


@functools.cache
def _finite(mesh: Mesh) -> Callable[..., jax.Array]:
    return _on(mesh, lambda block: _gathered(jnp.isfinite(block).all(axis=1)), (ROWS,), EVERYWHERE)


def _gathered(part: jax.Array) -> jax.Array:
    return jax.lax.all_gather(part, AXIS, axis=part.ndim - 1, tiled=True)


def _on(mesh: Mesh, local: Callable[..., Any], inputs: Any, outputs: Any) -> Callable[..., Any]:
    # what is gathered is the same everywhere, which the check does not know
    return jax.jit(
        jax.shard_map(local, mesh=mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
    )


def _most(devices: int, points: int) -> int:
    return max(count for count in range(1, devices + 1) if points % count == 0)
