"""The Gram matrix: planned, evaluated block by block, stored as Sigma with K = Sigma (x) I."""

import functools
import math
import time
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used
from tqdm import tqdm

from ._arrays import Array, finite, in_float64, local, namespace, real, to_numpy
from ._checks import check_unmasked, is_whole
from ._kernels import Kernel, check_inputs
from ._low_rank import RANK, LowRank, pivoted_cholesky

BLOCK_SIZE = 512  # rows; larger blocks fall out of cache, smaller ones pay for each call
SAMPLE_ROWS = 16  # timed first, so that planning a slow kernel stays cheap
SAMPLE_SECONDS = 0.05  # below this the sample is mostly overhead, and a whole block is timed


@dataclass(frozen=True)
class Plan:
    """What evaluating a Gram matrix takes.

    Attributes
    ----------
    entries
        Numbers stored: n^2, or (n d)^2 for full blocks.
    bytes
        Memory of the finished matrix, 8 bytes an entry.
    block_size
        Rows and columns of one block.
    blocks
        Blocks evaluated; the mirror image of an off-diagonal block is copied.
    seconds
        Estimated time, from a timed sample on this machine, after compilation.
    """

    entries: int
    bytes: int
    block_size: int
    blocks: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.entries:,} entries, {self.bytes / 1e9:.3g} GB, "
            f"{self.blocks} blocks of {self.block_size} rows, about {self.seconds:.2g} s"
        )


@dataclass(frozen=True, eq=False)
class Cross:
    """The kernel between t test points and the n training points, evaluated once for many uses.

    Attributes
    ----------
    matrix
        (t, n), or (t, d, n, d) for full blocks.
    """

    matrix: Array

    def __len__(self) -> int:
        return len(self.matrix)

    def __repr__(self) -> str:
        return f"Cross({' x '.join(map(str, self.matrix.shape))})"

    def __matmul__(self, v: Array) -> Array:
        """Return K_tX v, (t, d, ...), for v of shape (n, d, ...)."""
        matrix = self.matrix
        if matrix.ndim == 2:
            return (matrix @ v.reshape(len(v), -1)).reshape(len(matrix), *v.shape[1:])
        rows = matrix.shape[:2]
        columns = v.reshape(math.prod(v.shape[:2]), -1)
        return (matrix.reshape(math.prod(rows), -1) @ columns).reshape(*rows, *v.shape[2:])

    def pull_back(self, c: Array) -> Array:
        """Return the stack K_Xt c_t, (n, d, t), of one row of c (t, d) at a time."""
        subscripts = "tn,td->ndt" if self.matrix.ndim == 2 else "tand,ta->ndt"
        return namespace(self.matrix).einsum(subscripts, self.matrix, c)

    def rows(self, block: slice) -> "Cross":
        """Return the kernel of some of the test points."""
        return Cross(self.matrix[block])


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
    outputs: int | None = None
    kernel: Kernel | None = None
    x: npt.NDArray[Any] | None = None
    block_size: int = BLOCK_SIZE
    progress: bool = False
    _given: Array | None = None

    def __repr__(self) -> str:
        blocks = "" if self.outputs is None else f", blocks of {self.outputs} outputs"
        kernel = "a given matrix" if self.kernel is None else repr(self.kernel)
        return f"Gram({self.n} points{blocks}, {kernel})"

    @functools.cached_property
    def plan(self) -> Plan:
        """What evaluating the matrix takes (a `Plan`), known before it is allocated."""
        entries = (self.n * (self.outputs or 1)) ** 2
        if self._given is not None:
            return Plan(entries, 8 * entries, self.n, 0, 0.0)
        size, blocks = self._tiling
        seconds = _sampled_seconds(self._kernel, self._points, size, self.n * (self.n + size) / 2)
        return Plan(entries, 8 * entries, size, blocks * (blocks + 1) // 2, seconds)

    @functools.cached_property
    @in_float64
    def matrix(self) -> Array:
        """Sigma (n, n), symmetric bit for bit, or the full (n, d, n, d) blocks.

        A float64 NumPy array on a CPU, a JAX array on an accelerator.

        Raises
        ------
        FloatingPointError
            The kernel returned NaN or infinite values; names the block.
        """
        if self._given is not None:
            return self._given
        return _place(_symmetric(self._kernel, self._points, *self._tiling, self.progress))

    def __matmul__(self, v: Array) -> Array:
        # A symmetric matrix may stand on either side: BLAS takes half the time with the skinny
        # factor on the left. With points last in memory, as in what is returned, nothing is copied.
        square = self.square()
        if self.outputs is None:
            return (v.T.reshape(-1, self.n) @ square).reshape(v.T.shape).T
        return (v.reshape(len(square), -1).T @ square).T.reshape(v.shape)

    def take(self, rows: npt.NDArray[np.intp]) -> "Gram":
        """Return the Gram matrix of some of the points, (m,) indices, as a copy."""
        xp = namespace(self.matrix)
        columns_axis = self.matrix.ndim // 2
        part = xp.take(xp.take(self.matrix, rows, axis=0), rows, axis=columns_axis)
        return Gram(len(rows), self.outputs, _given=part)

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
        if self.kernel is None:
            rows = _place(real(x_new, name))
            return gram(_bordered(self.matrix, rows, name))
        points = _matching(x_new, self._points, name)
        rows = self.cross(points).matrix
        size = min(self.block_size, len(points))
        corner = gram(self.kernel, points, block_size=size).matrix
        xp = namespace(rows)
        whole = _bordered(self.matrix, xp.concatenate([rows, corner], axis=1), name)
        x = np.concatenate([self._points, points])
        return replace(self, n=len(x), x=x, _given=whole)

    @functools.cached_property
    @in_float64
    def diagonal(self) -> Array:
        """The matrix's diagonal, (n, 1), or (n, d) for full blocks."""
        square = self.square()
        return namespace(square).diagonal(square).reshape(self.n, -1)

    @functools.cached_property
    @in_float64
    def norm(self) -> float:
        """Frobenius norm of the matrix: a bound on its largest eigenvalue."""
        square, largest = self.square(), float(self.diagonal.max())
        if largest == 0:
            return 0.0
        starts = range(0, len(square), BLOCK_SIZE)  # no second matrix, and no squares to overflow
        parts = (square[i : i + BLOCK_SIZE] / largest for i in starts)
        return largest * math.sqrt(sum(float((part * part).sum()) for part in parts))

    @functools.cached_property
    @in_float64
    def single(self) -> tuple["Gram", float]:
        """The matrix over its largest entry in float32, as a Gram matrix, and that entry."""
        largest = float(self.diagonal.max()) or 1.0
        xp = namespace(self.matrix)
        rounded = xp.asarray(self.matrix / largest, dtype=xp.float32)
        return Gram(self.n, self.outputs, _given=rounded), largest

    @functools.cached_property
    @in_float64
    def low_rank(self) -> LowRank:
        """A low-rank approximation of the square matrix, from below, for preconditioning."""
        square = self.square()
        return pivoted_cholesky(square, math.ceil(math.sqrt(RANK * len(square))))

    def square(self) -> Array:
        """Return the matrix as a square one: (n, n), or (n d, n d) for full blocks."""
        return _square(self.matrix)

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
        if self.kernel is None:
            return self._checked_cross(_place(real(x_test, "x_test")))
        points = _matching(x_test, self._points, "x_test")
        return Cross(_place(_rectangular(self.kernel, points, self._points, self._tiling[0])))

    @property
    def _kernel(self) -> Kernel:
        assert self.kernel is not None
        return self.kernel

    @property
    def _points(self) -> npt.NDArray[Any]:
        assert self.x is not None
        return self.x

    @property
    def _tiling(self) -> tuple[int, int]:
        """Rows of a block and blocks a side, the blocks as equal as they can be."""
        blocks = math.ceil(self.n / self.block_size)
        return math.ceil(self.n / blocks), blocks

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


@in_float64
def gram(
    kernel: Kernel | npt.ArrayLike,
    x: npt.ArrayLike | None = None,
    *,
    block_size: int | None = None,
    progress: bool = False,
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
        is not symmetric or not positive semidefinite (the message has the eigenvalue).
    """
    if isinstance(kernel, Kernel):
        if x is None:
            raise ValueError("`x` is missing; pass the training points: ki.gram(kernel, x)")
        points = check_inputs(x, "x")
        kernel.check_shape(points.shape[1:])
        _check_block_size(block_size)
        size = min(block_size or BLOCK_SIZE, len(points))
        return Gram(len(points), None, kernel, points, size, progress)
    if callable(kernel) or isinstance(kernel, tuple):
        raise TypeError(
            f"`kernel` is a {type(kernel).__name__}; pass a kernel such as "
            "ki.from_stax(network), ki.linear(), ki.rbf(1.0), or a matrix"
        )
    if kernel is None or isinstance(kernel, str):
        raise TypeError(f"`kernel` is {kernel!r}; pass a kernel such as ki.rbf(1.0), or a matrix")
    if x is not None or block_size is not None:
        given = "x" if x is not None else "block_size"
        raise ValueError(f"`{given}` was given with a precomputed matrix; pass the matrix alone")
    matrix = _checked_matrix(kernel)
    return Gram(len(matrix), None if matrix.ndim == 2 else matrix.shape[1], _given=matrix)


def _matching(x: npt.ArrayLike, training: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    points = check_inputs(x, name)
    if points.shape[1:] != training.shape[1:]:
        raise ValueError(
            f"`{name}` has points of shape {points.shape[1:]} but the training points have "
            f"{training.shape[1:]}"
        )
    return points


def _bordered(matrix: Array, rows: Array, name: str) -> Array:
    """Put the rows of added points below the matrix and their mirror image beside it."""
    columns = matrix.ndim // 2
    n, a = len(matrix), len(rows)
    shape = (a, *matrix.shape[1:columns], n + a, *matrix.shape[columns + 1 :])
    if rows.shape != shape:
        raise ValueError(
            f"`{name}` has shape {rows.shape}; this Gram is precomputed, so pass the added points' "
            f"rows of the larger matrix, {shape}"
        )
    xp = namespace(matrix)
    old = xp.split(rows, [n], axis=columns)[0]
    mirrored = xp.moveaxis(old, tuple(range(columns)), tuple(range(columns, 2 * columns)))
    above = xp.concatenate([matrix, mirrored], axis=columns)
    return xp.concatenate([above, rows], axis=0)


def _check_block_size(block_size: int | None) -> None:
    if block_size is not None and not (is_whole(block_size) and block_size > 0):
        raise ValueError(f"`block_size` is {block_size!r}; pass a positive number of rows")


def _square(matrix: Array) -> Array:
    side = math.prod(matrix.shape[: matrix.ndim // 2])
    return matrix.reshape(side, side)


def _place(matrix: npt.NDArray[np.float64]) -> Array:
    """Put a host matrix where products with it run: a CPU's BLAS beats XLA's, so it stays."""
    return matrix if jax.default_backend() == "cpu" else jax.device_put(matrix)


def _symmetric(
    kernel: Kernel, x: npt.NDArray[Any], size: int, blocks: int, progress: bool
) -> npt.NDArray[np.float64]:
    n = len(x)
    matrix = np.empty((n, n))
    starts = range(0, blocks * size, size)
    pairs = [(i, j) for i in starts for j in starts if i <= j]
    for i, j in tqdm(pairs, desc="Gram", unit="block", disable=not progress):
        values = _block(kernel, x, x, (i, j), (size, size))
        if i == j:
            values = np.triu(values) + np.triu(values, 1).T
        matrix[i : i + size, j : j + size] = values
        matrix[j : j + size, i : i + size] = values.T
    return matrix


def _rectangular(
    kernel: Kernel, rows: npt.NDArray[Any], columns: npt.NDArray[Any], size: int
) -> npt.NDArray[np.float64]:
    height = min(size, len(rows))
    matrix = np.empty((len(rows), len(columns)))
    for i in range(0, len(rows), height):
        for j in range(0, len(columns), size):
            block = _block(kernel, rows, columns, (i, j), (height, size))
            matrix[i : i + height, j : j + size] = block
    return matrix


def _block(
    kernel: Kernel,
    rows: npt.NDArray[Any],
    columns: npt.NDArray[Any],
    start: tuple[int, int],
    size: tuple[int, int],
) -> npt.NDArray[np.float64]:
    """Evaluate one block; a short last one is padded so that every block runs one program."""
    (i, j), (height, width) = start, size
    above, left = _padded(rows, i, height), _padded(columns, j, width)
    values = np.asarray(kernel.block(above, left))[: len(rows) - i, : len(columns) - j]
    if not finite(values):
        raise FloatingPointError(
            f"the kernel is NaN or infinite in rows {i} to {i + len(values) - 1}, columns {j} to "
            f"{j + values.shape[1] - 1}; scale the inputs, or lower w_std or the depth"
        )
    return values


def _padded(x: npt.NDArray[Any], start: int, size: int) -> npt.NDArray[Any]:
    part = x[start : start + size]
    if len(part) == size:
        return part
    return np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])


def _sampled_seconds(kernel: Kernel, x: npt.NDArray[Any], size: int, pairs: float) -> float:
    """Estimate the seconds that `pairs` kernel entries take, from a timed block."""
    for rows in (min(SAMPLE_ROWS, size), size):
        sample = x[:rows]
        seconds = min(_timed(kernel, sample) for _ in range(2))  # the first one compiles
        if seconds > SAMPLE_SECONDS:
            break
    return seconds * pairs / rows**2


@in_float64
def _timed(kernel: Kernel, sample: npt.NDArray[Any]) -> float:
    start = time.perf_counter()
    np.asarray(kernel.block(sample, sample))
    return time.perf_counter() - start


def _checked_matrix(given: Any) -> Array:
    check_unmasked(given, "kernel")
    matrix = local(given)
    if not hasattr(matrix, "dtype"):
        matrix = np.asarray(matrix)
    if matrix.dtype.kind not in "iuf":
        raise TypeError(f"`kernel` has dtype {matrix.dtype}; pass a kernel or a real matrix")
    _check_square(matrix.shape)
    rounding = float(np.finfo(matrix.dtype if matrix.dtype.kind == "f" else np.float64).eps)
    matrix = namespace(matrix).asarray(matrix, dtype=np.float64)
    if not finite(matrix):
        raise ValueError("`kernel` (a precomputed matrix) holds NaN or infinite values")
    square = _symmetrised(_square(matrix), rounding)
    _check_positive(to_numpy(square), rounding)
    return square.reshape(matrix.shape)


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
