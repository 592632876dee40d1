"""The Gram matrix as the rest of the library sees it: K = Sigma (x) I or full blocks, anywhere."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import Array, finite, in_float64, namespace, real, to_numpy
from .._kernels import Kernel, check_inputs
from .._low_rank import RANK, LowRank, pivoted_cholesky
from ._cross import Cross
from ._evaluation import place
from ._fingerprint import of_storage, of_tiles
from ._memory import available_memory, gigabytes
from ._precomputed import checked_matrix, square
from ._storage import Bordered, Dense, Recomputed, Storage
from ._tiles import Points, Tiles


@dataclass(frozen=True)
class Plan:
    """What evaluating a Gram matrix takes.

    Attributes
    ----------
    entries
        Numbers of the matrix: n^2, or (n d)^2 for full blocks.
    bytes
        What the finished matrix takes where it is kept: 8 bytes an entry, 4 in float32, 0 where
        none is kept.
    block_size
        Rows and columns of one block, in points.
    blocks
        Blocks evaluated; the mirror image of an off-diagonal block is copied.
    seconds
        Estimated time, from a timed sample on this machine, after compilation.
    storage
        Where it is kept, in words.
    """

    entries: int
    bytes: int
    block_size: int
    blocks: int
    seconds: float
    storage: str = Dense.name

    def __str__(self) -> str:
        text = (
            f"{self.entries:,} entries, {gigabytes(self.bytes)} {self.storage}, "
            f"{self.blocks} blocks of {self.block_size} rows, about {duration(self.seconds)}"
        )
        available = available_memory()
        if self.storage.startswith(Dense.name) and self.bytes > available:
            text += f"; more than the {gigabytes(available)} of memory that are available"
        return text


@dataclass(frozen=True, eq=False)
class Gram:
    """The kernel matrix of n training points. Made by `kernelinf.gram`.

    The matrix is evaluated when it is first needed; until then only `plan` is known. `gram @ v`
    is K v for v of shape (n, d, ...).

    Attributes
    ----------
    n
        Number of training points.
    outputs
        d of full (n, d, n, d) blocks; None when the kernel of one output, Sigma, serves all
        outputs, K = Sigma (x) I_d for any d.
    """

    n: int
    outputs: int | None
    _make: Callable[[], Storage]
    _tiles: Tiles | None = None
    _bytes: int = 8  # kept an entry
    _where: str = Dense.name
    _whole: "tuple[Gram, npt.NDArray[np.intp]] | None" = None  # what this is a part of, and which

    @classmethod
    def of(cls, storage: Storage, outputs: int | None = None) -> "Gram":
        """Wrap a square matrix, (n, n), or (n d, n d) of full blocks."""
        return cls(storage.side // (outputs or 1), outputs, lambda: storage)

    def __repr__(self) -> str:
        blocks = "" if self.outputs is None else f", blocks of {self.outputs} outputs"
        kernel = "a given matrix" if self.kernel is None else repr(self.kernel)
        where = "" if self._where == Dense.name else f", {self._where}"
        return f"Gram({self.n} points{blocks}, {kernel}{where})"

    @property
    def kernel(self) -> Kernel | None:
        """The kernel; None for a matrix that was given."""
        return None if self._tiles is None else self._tiles.kernel

    @property
    def x(self) -> Points | None:
        """The training points; None for a matrix that was given."""
        return None if self._tiles is None else self._tiles.x

    @functools.cached_property
    def plan(self) -> Plan:
        """What evaluating the matrix takes (a `Plan`), known before it is allocated."""
        entries = (self.n * (self.outputs or 1)) ** 2
        size, tiles = self._bytes * entries, self._tiles
        if tiles is None:
            return Plan(entries, size, self.n, 0, 0.0)
        blocks = len(tiles.pairs())
        return Plan(entries, size, tiles.size, blocks, tiles.seconds(), self._where)

    @functools.cached_property
    def storage(self) -> Storage:
        """The matrix, evaluated, wherever it is.

        Raises
        ------
        FloatingPointError
            The kernel returned NaN or infinite values; names the block.
        MemoryError
            It does not fit.
        """
        return self._make()

    @property
    def matrix(self) -> Array:
        """Sigma (n, n), symmetric bit for bit, or the full (n, d, n, d) blocks.

        A float64 NumPy array on a CPU, a JAX array on an accelerator.

        Raises
        ------
        ValueError
            The matrix is not one array where it is kept.
        """
        whole = self.square()
        return whole if self.outputs is None else whole.reshape(2 * (self.n, self.outputs))

    @property
    def whole(self) -> bool:
        """Whether the matrix is one array in memory, so that factorising it is an option."""
        return self.storage.whole

    @property
    def rounded(self) -> bool:
        """Whether the matrix is kept in float32."""
        return self.storage.rounded

    def __matmul__(self, v: Array) -> Array:
        # A symmetric matrix may stand on either side: BLAS takes half the time with the skinny
        # factor on the left. With points last in memory, as in what is returned, nothing is copied.
        if self.outputs is None:
            return self.storage.left(v.T.reshape(-1, self.n)).reshape(v.T.shape).T
        rows = v.reshape(self.n * self.outputs, -1).T
        return self.storage.left(rows).T.reshape(v.shape)

    def like(self, values: npt.ArrayLike) -> Array:
        """Put values in float64 where products with the matrix run."""
        return self.storage.place(values)

    def take(self, rows: npt.NDArray[np.intp]) -> "Gram":
        """Return the Gram matrix of some of the points, (m,) indices: a copy if in memory."""
        part = self.storage.part(self._rows(rows))
        return replace(Gram.of(part, self.outputs), _where=self._where, _whole=(self, rows))

    @in_float64
    def extend(self, x_new: npt.ArrayLike, name: str = "x_new") -> "Gram":
        """Return the Gram matrix with more points at the end; nothing known is evaluated again.

        Parameters
        ----------
        x_new
            The added points (a, ...). For a precomputed Gram, their rows of the larger matrix:
            (a, n + a), or (a, d, n + a, d).

        Raises
        ------
        ValueError
            Shapes do not fit, or the larger matrix is not symmetric or not positive semidefinite.
        """
        if self._tiles is None:
            return Gram.given(self._bordered(place(real(x_new, name)), name))
        points = matching(x_new, self._tiles.x, name)
        x = np.concatenate([self._tiles.x, points])
        tiles = replace(self._tiles, x=x)
        if isinstance(self.storage, Recomputed):
            return replace(self, n=len(x), _tiles=tiles, _make=lambda: Recomputed(tiles))
        added = Tiles(tiles.kernel, x, min(tiles.limit, len(x))).rows(points)
        corner = added[:, -len(points) * tiles.outputs :]
        corner[:] = np.triu(corner) + np.triu(corner, 1).T
        larger = self._with(added)
        return replace(self, n=len(x), _tiles=tiles, _make=lambda: larger)

    def _with(self, added: npt.NDArray[np.float64]) -> Storage:
        storage = self.storage
        border = storage.place(added)
        if not storage.whole:
            return Bordered(storage, border)
        xp, old = namespace(border), storage.side
        above = xp.concatenate([storage.matrix(), border[:, :old].T], axis=1)
        return Dense(xp.concatenate([above, border], axis=0))

    def _bordered(self, rows: Array, name: str) -> Array:
        """Put the given rows of added points below a given matrix, and mirrored beside it."""
        middle = () if self.outputs is None else (self.outputs,)
        added = rows.shape[0] if rows.ndim else 0
        shape = (added, *middle, self.n + added, *middle)
        if rows.shape != shape:
            raise ValueError(
                f"`{name}` has shape {rows.shape}; this Gram is precomputed, so pass the added "
                f"points' rows of the larger matrix, {shape}"
            )
        total = self.n + len(rows)
        flat = rows.reshape(len(rows) * (self.outputs or 1), -1)
        return self._with(to_numpy(flat)).matrix().reshape(total, *middle, total, *middle)

    @classmethod
    def given(cls, matrix: npt.ArrayLike) -> "Gram":
        """Check and wrap a matrix, (n, n) or (n, d, n, d)."""
        checked = checked_matrix(matrix)
        return cls.of(Dense(square(checked)), None if checked.ndim == 2 else checked.shape[1])

    @functools.cached_property
    @in_float64
    def diagonal(self) -> Array:
        """The matrix's diagonal, (n, 1), or (n, d) for full blocks."""
        return self.like(self.storage.diagonal()).reshape(self.n, -1)

    @functools.cached_property
    @in_float64
    def norm(self) -> float:
        """Frobenius norm of the matrix, or a bound on it: a bound on its largest eigenvalue."""
        return self.storage.norm()

    @functools.cached_property
    @in_float64
    def single(self) -> "tuple[Gram, float] | None":
        """The matrix over a number, to be multiplied in float32, and that number.

        None where that would be no faster.
        """
        single = self.storage.single()
        return None if single is None else (Gram.of(single[0], self.outputs), single[1])

    @functools.cached_property
    @in_float64
    def low_rank(self) -> LowRank:
        """A low-rank approximation of the square matrix, from below, for preconditioning."""
        if self._whole is not None:  # rows of the whole matrix's factor are a factor of the part
            whole, rows = self._whole
            return whole.low_rank.take(rows, self.outputs or 1)
        storage = self.storage

        def column(i: int) -> npt.NDArray[np.float64]:
            return to_numpy(storage.rows(np.array([i])))[0]

        rank = math.ceil(math.sqrt(RANK * storage.side))
        return pivoted_cholesky(to_numpy(storage.diagonal()), column, rank)

    def square(self) -> Array:
        """Return the matrix as a square one: (n, n), or (n d, n d) for full blocks."""
        return self.storage.matrix()

    def with_blocks(self, d: int) -> "Gram":
        """Return the matrix with full blocks for d outputs, Sigma (x) I written out."""
        whole = self.square()
        xp = namespace(whole)
        return Gram.of(Dense(xp.kron(whole, xp.eye(d))), d)

    def rows(self, points: npt.NDArray[np.intp]) -> Cross:
        """Return the kernel between some of the training points, (m,) indices, and all."""
        rows = self.storage.rows(self._rows(points))
        if self.outputs is None:
            return Cross(rows)
        return Cross(rows.reshape(len(points), self.outputs, self.n, self.outputs))

    @in_float64
    def cross(self, x_test: npt.ArrayLike | Cross) -> Cross:
        """Evaluate the kernel between test and training points.

        Parameters
        ----------
        x_test
            Test points (t, ...) of the training points' shape. For a precomputed Gram, the cross
            kernel itself: (t, n), or (t, d, n, d). The result of an earlier call is passed through,
            so what takes test points also takes `gram.cross(x_test)`, evaluated once.

        Raises
        ------
        ValueError
            Shapes do not fit the training points, or values are not finite.
        """
        if isinstance(x_test, Cross):
            return self._checked_cross(x_test.matrix)
        if self._tiles is None:
            return self._checked_cross(place(real(x_test, "x_test")))
        points = matching(x_test, self._tiles.x, "x_test")
        rows = self._tiles.rows(points)
        if self.outputs is not None:
            rows = rows.reshape(len(points), self.outputs, self.n, self.outputs)
        return Cross(self.like(rows))

    def fingerprint(self) -> dict[str, Any]:
        """Return what tells this matrix from another one, in plain values."""
        if self._tiles is not None:
            return of_tiles(self._tiles)
        return of_storage(self.storage, self.n, self.outputs)

    def _rows(self, points: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Return the rows of the square matrix that belong to points."""
        d = self.outputs or 1
        return (d * np.asarray(points)[:, None] + np.arange(d)).reshape(-1)

    def _checked_cross(self, matrix: Array) -> Cross:
        d = self.outputs
        tail = (self.n,) if d is None else (d, self.n, d)
        if matrix.ndim != len(tail) + 1 or matrix.shape[1:] != tail:
            wanted = ", ".join(map(str, ("t", *tail)))
            raise ValueError(
                f"`x_test` has shape {matrix.shape}; this Gram takes the kernel between "
                f"test and training points, shape ({wanted})"
            )
        if not finite(matrix):
            raise ValueError("`x_test` (the cross kernel) holds NaN or infinite values")
        return Cross(matrix)


def matching(x: npt.ArrayLike, training: Points, name: str) -> Points:
    """Return points of the training points' shape, or say what is wrong with the argument."""
    points = check_inputs(x, name)
    if points.shape[1:] != training.shape[1:]:
        raise ValueError(
            f"`{name}` has points of shape {points.shape[1:]} but the training points have "
            f"{training.shape[1:]}"
        )
    return points


def duration(seconds: float) -> str:
    """Return a time in words."""
    if seconds < 120:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
