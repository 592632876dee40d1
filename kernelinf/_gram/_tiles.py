"""A kernel on points in blocks of one shape, so that one compiled program serves them all."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import finite, in_float64
from .._kernels import Kernel

SAMPLE_ROWS = 16  # timed first, so that planning a slow kernel stays cheap
SAMPLE_SECONDS = 0.05  # below this the sample is mostly overhead, and a whole block is timed

Points = npt.NDArray[Any]
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tiles:
    """The kernel matrix of n points in blocks, named by their numbers (i, j), down and across.

    A matrix is a square one: (n, n), or (n d, n d) for a kernel of d outputs.

    Attributes
    ----------
    kernel, x
        The kernel and the points (n, ...).
    limit
        Points of a block at most.
    """

    kernel: Kernel
    x: Points
    limit: int

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.x)

    @property
    def outputs(self) -> int:
        """Rows of the matrix for a point."""
        return self.kernel.outputs or 1

    @property
    def side(self) -> int:
        """Rows of the matrix."""
        return self.n * self.outputs

    @property
    def count(self) -> int:
        """Blocks a side."""
        return math.ceil(self.n / self.limit)

    @property
    def size(self) -> int:
        """Points of a block: blocks are as equal as they can be."""
        return math.ceil(self.n / self.count)

    def span(self, i: int) -> slice:
        """Return the rows of the matrix that the i-th block covers."""
        return _span(i, self.size, self.n, self.outputs)

    def pairs(self) -> list[tuple[int, int]]:
        """Return the blocks on and above the diagonal, of which the others are mirror images."""
        return [(i, j) for i in range(self.count) for j in range(i, self.count)]

    def block(self, i: int, j: int) -> Matrix:
        """Evaluate one block; one on the diagonal is symmetric bit for bit.

        Raises
        ------
        FloatingPointError
            The kernel is NaN or infinite in it.
        ValueError
            The kernel has another shape.
        """
        values = self._evaluate(self.x, (i, j), self.size)
        return np.triu(values) + np.triu(values, 1).T if i == j else values

    def rows(self, points: Points) -> Matrix:
        """Evaluate the kernel between other points and these, the rectangular matrix."""
        height = min(self.size, len(points))
        matrix = np.empty((len(points) * self.outputs, self.n * self.outputs))
        for i in range(math.ceil(len(points) / height)):
            down = _span(i, height, len(points), self.outputs)
            for j in range(self.count):
                matrix[down, self.span(j)] = self._evaluate(points, (i, j), height)
        return matrix

    def panels(self, points: Points) -> Iterator[tuple[slice, Matrix]]:
        """Yield the columns of `rows` of each block, one block at a time."""
        for j in range(self.count):
            yield self.span(j), self._evaluate(points, (0, j), len(points))

    def diagonal(self) -> Matrix:
        """Evaluate the kernel of every point with itself, (n d,)."""
        return np.asarray(self.kernel.diagonal(self.x)).reshape(-1)

    def seconds(self) -> float:
        """Estimate the seconds that all blocks take, from a timed one."""
        pairs = self.n * (self.n + self.size) / 2
        for rows in (min(SAMPLE_ROWS, self.size), self.size):
            sample = self.x[:rows]
            taken = min(_timed(self.kernel, sample) for _ in range(2))  # the first one compiles
            if taken > SAMPLE_SECONDS:
                break
        return taken * pairs / rows**2

    def _evaluate(self, points: Points, block: tuple[int, int], height: int) -> Matrix:
        """Evaluate a block; a short last one is padded, so that every block runs one program."""
        (i, j), d = block, self.outputs
        above, left = _padded(points, i * height, height), _padded(self.x, j * self.size, self.size)
        m, n = (
            min(part, whole - start)
            for part, whole, start in (
                (height, len(points), i * height),
                (self.size, self.n, j * self.size),
            )
        )
        where = (
            f"in rows {i * height} to {i * height + m - 1}, columns {j * self.size} to "
            f"{j * self.size + n - 1}"
        )
        values = np.asarray(self.kernel.block(above, left))
        wanted = (height, self.size) if self.kernel.outputs is None else (height, d, self.size, d)
        if values.shape != wanted:
            raise ValueError(f"the kernel has shape {values.shape} and not {wanted} {where}")
        values = values.reshape(height * d, self.size * d)[: m * d, : n * d]
        if not finite(values):
            raise FloatingPointError(
                f"the kernel is NaN or infinite {where}; scale the inputs, or lower w_std or the "
                "depth"
            )
        return values


def _span(i: int, size: int, n: int, outputs: int) -> slice:
    return slice(i * size * outputs, min(n, (i + 1) * size) * outputs)


def _padded(x: Points, start: int, size: int) -> Points:
    part = x[start : start + size]
    if len(part) == size:
        return part
    return np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])


@in_float64
def _timed(kernel: Kernel, sample: Points) -> float:
    start = time.perf_counter()
    np.asarray(kernel.block(sample, sample[::-1]))  # not symmetric: some kernels halve that
    return time.perf_counter() - start
