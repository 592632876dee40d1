"""Where a kernel matrix is, and what can be done with it there.

A matrix is a square one, symmetric, with `side` rows: n, or n d for full blocks. Rows stand on its
left, since BLAS takes half the time with the skinny factor there.
"""

import abc
import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, in_float64, like, namespace, to_numpy
from ._memory import check_memory
from ._tiles import Tiles

PANEL_BYTES = 32e6  # of rows that are in float64 at a time

Rows = npt.NDArray[np.intp]


class Storage(abc.ABC):
    """A symmetric matrix that can be multiplied."""

    side: int
    whole = False  # whether it is one array in memory, so that factorising it is an option
    rounded = False  # whether it is in float32
    name: str  # where it is, in words

    @abc.abstractmethod
    def left(self, rows: Array) -> Array:
        """Return rows @ matrix, (k, side), for rows (k, side)."""

    @abc.abstractmethod
    def rows(self, chosen: Rows) -> Array:
        """Return some rows of the matrix, (m, side)."""

    @abc.abstractmethod
    def diagonal(self) -> Array:
        """Return the diagonal, (side,)."""

    @abc.abstractmethod
    def norm(self) -> float:
        """Return the Frobenius norm, or a bound on it."""

    def matrix(self) -> Array:
        """Return all of it as one array.

        Raises
        ------
        ValueError
            It is not one array.
        """
        raise ValueError(
            f"this needs the Gram matrix as one array, but it is {self.name}; evaluate it in "
            "memory or on disk: ki.gram(kernel, x), or ki.gram(kernel, x, store=FOLDER)"
        )

    def part(self, chosen: Rows) -> "Storage":
        """Return the matrix of some rows and the same columns."""
        return Part(self, chosen)

    def single(self) -> "tuple[Storage, float] | None":
        """Return the matrix over a number, multiplied in float32, and that number.

        None where float32 would be no faster.
        """
        return None

    def place(self, values: npt.ArrayLike) -> Array:
        """Put values in float64 where products with the matrix run."""
        return np.asarray(values, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class Dense(Storage):
    """One array in memory: NumPy on a CPU, JAX on an accelerator."""

    array: Array
    whole = True
    name = "in memory"

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the matrix."""
        return len(self.array)

    def left(self, rows: Array) -> Array:
        """Return rows @ matrix."""
        return rows @ self.array

    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        return self.array[chosen]

    def diagonal(self) -> Array:
        """Return the diagonal."""
        return namespace(self.array).diagonal(self.array)

    def norm(self) -> float:
        """Return the Frobenius norm."""
        return _norm(self.array)

    def matrix(self) -> Array:
        """Return the array."""
        return self.array

    def part(self, chosen: Rows) -> "Dense":
        """Return a copy of the rows and columns."""
        xp = namespace(self.array)
        return type(self)(xp.take(xp.take(self.array, chosen, axis=0), chosen, axis=1))

    def single(self) -> "tuple[Storage, float] | None":
        """Return a copy in float32 of the matrix over its largest entry."""
        largest = float(self.diagonal().max()) or 1.0
        xp = namespace(self.array)
        return Dense(xp.asarray(self.array / largest, dtype=xp.float32)), largest

    def place(self, values: npt.ArrayLike) -> Array:
        """Put values where the array is."""
        return like(values, self.array)


@dataclass(frozen=True, eq=False)
class Panelled(Storage):
    """A NumPy array of which a few rows are worked on at a time: a file, or one in float32.

    Products have the precision of what is multiplied: numbers stored in float32 are converted as
    they are read, and stand for the same numbers in float64.
    """

    array: npt.NDArray[Any]
    name: str

    @property
    def rounded(self) -> bool:  # type: ignore[override]
        """Whether it is in float32."""
        return bool(self.array.dtype == np.float32)

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the matrix."""
        return len(self.array)

    def left(self, rows: Array) -> Array:
        """Return rows @ matrix, in the precision of the rows."""
        product = np.empty(rows.shape, rows.dtype)
        for span in panels(self.array):
            product[:, span] = rows @ self.array[span].astype(rows.dtype, copy=False).T
            forget(self.array)
        return product

    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        return self.array[chosen].astype(np.float64)

    def diagonal(self) -> Array:
        """Return the diagonal."""
        return np.diagonal(self.array).astype(np.float64)

    def norm(self) -> float:
        """Return the Frobenius norm."""
        return _norm(self.array)

    def matrix(self) -> Array:
        """Return all of it in float64: the file itself, or a copy in memory."""
        if self.array.dtype != np.float64:
            check_memory(8 * self.side**2, self.side)
        return self.array.astype(np.float64, copy=False)

    def single(self) -> "tuple[Storage, float] | None":
        """Return it as it is, where it is in float32."""
        return (self, 1.0) if self.rounded else None


@dataclass(frozen=True, eq=False)
class Part(Storage):
    """Some rows and columns of a matrix that stays where it is: products are those of all of it."""

    of: Storage
    chosen: Rows

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the part."""
        return len(self.chosen)

    @property
    def name(self) -> str:  # type: ignore[override]
        """Where it is."""
        return self.of.name

    @property
    def rounded(self) -> bool:  # type: ignore[override]
        """Whether it is in float32."""
        return self.of.rounded

    def left(self, rows: Array) -> Array:
        """Return rows @ matrix."""
        return self._picked(self.of.left(self._spread(rows)))

    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        return self._picked(self.of.rows(self.chosen[chosen]))

    def diagonal(self) -> Array:
        """Return the diagonal."""
        return self.of.diagonal()[self.chosen]

    def norm(self) -> float:
        """Return the norm of the whole, which is not less."""
        return self.of.norm()

    def matrix(self) -> Array:
        """Return a copy of the part."""
        check_memory(8 * self.side**2, self.side)
        return self.rows(np.arange(self.side))

    def part(self, chosen: Rows) -> "Part":
        """Return a part of the part."""
        return Part(self.of, self.chosen[chosen])

    def single(self) -> "tuple[Storage, float] | None":
        """Return the same part of the whole in float32."""
        single = self.of.single()
        return None if single is None else (Part(single[0], self.chosen), single[1])

    def place(self, values: npt.ArrayLike) -> Array:
        """Put values where the whole is."""
        return self.of.place(values)

    def _picked(self, rows: Array) -> Array:
        return namespace(rows).take(rows, self.chosen, axis=1)

    def _spread(self, rows: Array) -> Array:
        # taken from rows with a zero at their end: a scatter that every array library has
        xp = namespace(rows)
        source = np.full(self.of.side, self.side)
        source[self.chosen] = np.arange(self.side)
        return xp.take(xp.concatenate([rows, 0 * rows[:, :1]], axis=1), source, axis=1)


@dataclass(frozen=True, eq=False)
class Bordered(Storage):
    """A matrix with more points at its end: those stay in memory, the others where they are.

    Attributes
    ----------
    of
        The matrix of all points but the a last.
    border
        The rows of those, (a, side).
    """

    of: Storage
    border: Array

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the larger matrix."""
        return int(self.border.shape[1])

    @property
    def name(self) -> str:  # type: ignore[override]
        """Where it is."""
        return self.of.name

    def left(self, rows: Array) -> Array:
        """Return rows @ matrix."""
        xp, old = namespace(rows), self.of.side
        known, added = rows[:, :old], rows[:, old:]
        above = self.of.left(known) + added @ self.border[:, :old]
        return xp.concatenate([above, rows @ self.border.T], axis=1)

    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        old = self.of.side
        border, known = to_numpy(self.border), np.asarray(chosen) < old
        values = np.empty((len(known), self.side))
        values[known, :old] = to_numpy(self.of.rows(chosen[known]))
        values[known, old:] = border[:, chosen[known]].T
        values[~known] = border[chosen[~known] - old]
        return self.place(values)

    def diagonal(self) -> Array:
        """Return the diagonal."""
        xp, old = namespace(self.border), self.of.side
        return xp.concatenate([self.of.diagonal(), xp.diagonal(self.border[:, old:])])

    def norm(self) -> float:
        """Return a bound on the norm."""
        return math.hypot(self.of.norm(), 2**0.5 * _norm(self.border))

    def place(self, values: npt.ArrayLike) -> Array:
        """Put values where the others are."""
        return self.of.place(values)


@dataclass(frozen=True, eq=False)
class Recomputed(Storage):
    """A kernel that is evaluated again in every product: no memory but that of a few blocks."""

    tiles: Tiles
    name = "recomputed in every product"

    @property
    def side(self) -> int:  # type: ignore[override]
        """Rows of the matrix."""
        return self.tiles.side

    @in_float64
    def left(self, rows: Array) -> Array:
        """Return rows @ matrix; of two mirror images one is evaluated."""
        product = np.zeros(rows.shape)
        for i, j in self.tiles.pairs():
            block, down, across = self.tiles.block(i, j), self.tiles.span(i), self.tiles.span(j)
            product[:, across] += rows[:, down] @ block
            if i != j:
                product[:, down] += rows[:, across] @ block.T
        return product

    @in_float64
    def rows(self, chosen: Rows) -> Array:
        """Return some rows."""
        d = self.tiles.outputs
        points, inverse = np.unique(np.asarray(chosen) // d, return_inverse=True)
        values = self.tiles.rows(self.tiles.x[points])
        return values[d * inverse + np.asarray(chosen) % d]

    @in_float64
    def diagonal(self) -> Array:
        """Return the diagonal."""
        return self.tiles.diagonal()

    @in_float64
    def norm(self) -> float:
        """Return the Frobenius norm."""
        sizes = (
            (_norm(self.tiles.block(i, j)), 1 if i == j else 2**0.5) for i, j in self.tiles.pairs()
        )
        return math.hypot(*(size * often for size, often in sizes))

    def part(self, chosen: Rows) -> Storage:
        """Return the kernel of some of the points."""
        points = np.asarray(chosen)[:: self.tiles.outputs] // self.tiles.outputs
        x, limit = self.tiles.x[points], min(self.tiles.limit, len(points))
        return Recomputed(Tiles(self.tiles.kernel, x, limit))


def panels(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Yield slices of rows that take `PANEL_BYTES` in float64."""
    height = max(1, int(PANEL_BYTES / (8 * len(matrix))))
    return (slice(start, start + height) for start in range(0, len(matrix), height))


def forget(array: npt.NDArray[Any]) -> None:
    """Give back the memory that a file was read into; the system keeps it cached while it can."""
    mapped = getattr(array, "_mmap", None)
    if mapped is not None and hasattr(mapped, "madvise"):
        mapped.madvise(mmap.MADV_DONTNEED)


def _norm(matrix: Array) -> float:
    """Return the Frobenius norm, whatever the size of the entries."""
    xp = namespace(matrix)
    largest = max((float(xp.abs(matrix[span]).max()) for span in panels(matrix)), default=0.0)
    if largest == 0:
        return 0.0
    parts = (matrix[span] / largest for span in panels(matrix))  # no second matrix
    return largest * math.sqrt(sum(float((part * part).sum(dtype=np.float64)) for part in parts))
