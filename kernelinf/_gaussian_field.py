"""Random functions of a Gaussian process, drawn at one set of points after another."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from ._gram import Tiles
from ._kernels import Kernel

BLOCK = 64  # points of a block of the kernel, padded to, so that one program serves every call
# What earlier points leave of a point's variance, below which they are taken to determine it.
DETERMINED = 1e-10

Matrix = npt.NDArray[np.float64]
Points = npt.NDArray[Any]


class GaussianField:
    """d functions b ~ GP(0, k), independent of each other unless the kernel has full blocks.

    Values at points asked for later are drawn given those drawn before, so that all of them come
    from the same functions: the joint distribution is that of one draw at all points. The functions
    grow with every call, and with them the time of the next: (all points so far)^2 a new point.
    A value that those before leave `DETERMINED` of its variance is taken from them, and moves by
    about 1e-5 of its standard deviation when it is asked for again.

    Parameters
    ----------
    kernel
        k, of one output or of d.
    outputs
        d.
    key
        Seed of the draws. The same key and the same calls in the same order give the same values.
    """

    def __init__(self, kernel: Kernel, outputs: int, key: int) -> None:
        self.kernel, self.outputs = kernel, outputs
        self._generator, self._lock = np.random.default_rng(key), threading.Lock()
        self._columns = outputs if kernel.outputs is None else 1
        self._points: Points | None = None
        # The kernel of the rows that carry the draws, factorised, and their independent normals.
        self._rows: npt.NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._root: Matrix = np.empty((0, 0))
        self._white: Matrix = np.empty((0, self._columns))

    def __call__(self, x: Points) -> Matrix:
        """Draw the functions at points (t, ...): (t, d)."""
        return self.draw(x, self._kernel(x, x))

    def draw(self, x: Points, square: Matrix) -> Matrix:
        """Draw them where the kernel's square matrix, (t, t) or (t d, t d), is known already."""
        with self._lock:
            known = self._given_known(x)
            left, order, rank = _pivoted(square, square - known @ known.T)
            fresh = self._generator.normal(size=(rank, self._columns))
            values = known @ self._white
            values[order] += left @ fresh
            self._remember(x, order[:rank], known, left[:rank], fresh)
            return values.reshape(len(x), self.outputs)

    def _given_known(self, x: Points) -> Matrix:
        """Return what the known rows' normals contribute to the rows of `x`."""
        if not len(self._rows):
            return np.empty((len(x) * (self.kernel.outputs or 1), 0))
        assert self._points is not None
        cross = self._kernel(x, self._points)[:, self._rows]
        return scipy.linalg.solve_triangular(self._root, cross.T, lower=True).T

    def _remember(
        self, x: Points, new: npt.NDArray[np.intp], known: Matrix, left: Matrix, fresh: Matrix
    ) -> None:
        size, rank = len(self._root), len(new)
        if rank == 0:
            return
        root = np.zeros((size + rank, size + rank))
        root[:size, :size], root[size:, :size], root[size:, size:] = self._root, known[new], left
        per_point = self.kernel.outputs or 1
        points, rows = np.unique(new // per_point, return_inverse=True)
        start = 0 if self._points is None else len(self._points)
        rows = (start + rows) * per_point + new % per_point
        kept = x[points]
        self._points = kept if self._points is None else np.concatenate([self._points, kept])
        self._rows = np.concatenate([self._rows, rows])
        self._root, self._white = root, np.concatenate([self._white, fresh])

    def _kernel(self, x: Points, other: Points) -> Matrix:
        tiles = Tiles(self.kernel, _padded(other), BLOCK)
        rows = tiles.rows(_padded(x))
        per_point = self.kernel.outputs or 1
        return rows[: len(x) * per_point, : len(other) * per_point]


def _padded(x: Points) -> Points:
    """Repeat the last point until blocks of `BLOCK` points are full."""
    return x[np.minimum(np.arange(len(x) + -len(x) % BLOCK), len(x) - 1)]


def _pivoted(prior: Matrix, left: Matrix) -> tuple[Matrix, npt.NDArray[np.intp], int]:
    """Factorise the variance that is left, P^T A P = L L^T, by pivoted Cholesky.

    Each row is measured by its own prior variance.

    Returns
    -------
    L (m, r), the order of the rows in it, and r.
    """
    scale = np.sqrt(np.diagonal(prior))
    unit = np.where(scale > 0, scale, 1.0)
    scaled = left / unit / unit[:, None]
    if not scaled.diagonal().max() > DETERMINED:  # LAPACK looks at its second pivot first
        return np.empty((len(left), 0)), np.arange(len(left)), 0
    factor, order, rank, _ = scipy.linalg.lapack.dpstrf(scaled, lower=1, tol=DETERMINED)
    order = np.asarray(order, dtype=np.intp) - 1
    return unit[order, None] * np.tril(factor)[:, :rank], order, rank
