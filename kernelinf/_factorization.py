"""Direct forms of P = L (rho I + L^T K L)^-1 L^T, the inner operator of the linear system."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy  # loads its parts when they are first used

from ._arrays import Array, namespace
from ._gram import Gram
from ._losses import HessianRoot

CHUNK_BYTES = 16e6  # size of one array (side, columns) while blocks of the diagonal are gathered


class Factorization(Protocol):
    """P, ready to be applied to any number of stacks (n, d, s)."""

    def apply(self, v: Array) -> Array:
        """Return P v."""

    def self_blocks(self, d: int) -> Array:
        """Return the diagonal blocks S_ii of S = K (rho I + W K)^-1, (n, d, d).

        S_ii is the change of point i's outputs per unit of its own entry of the right-hand side.
        They come from S = (K - K P K) / rho.
        """

    def slack_blocks(self, d: int) -> Array:
        """Return I - W_i S_ii, what a point's own leverage leaves over, (n, d, d).

        With W = L L^T, I - L_i^T S_ii L_i is rho times a diagonal block of A^-1: computed from
        that, it keeps its digits when the leverage is near one. The blocks agree with I - W_i S_ii
        on the range of W_i, which has every gradient of the loss in it.
        """


def factorize(gram: Gram, root: HessianRoot, rho: float) -> Factorization:
    """Factorise the system of a loss whose Hessian has this root."""
    if root.direction is None:
        return Uniform(gram, root.scale, rho)
    if gram.outputs is not None:
        return Dense(gram, root, rho)
    return Structured(gram, root.scale[:, :, 0] ** 2, rho)


def cost(gram: Gram, root: HessianRoot) -> tuple[int, float]:
    """Return the numbers that a factorisation holds (times two, a product's operations) and makes.

    The first is also half the operations of one product K v.
    """
    n, d = root.scale.shape[:2]
    if gram.outputs is not None:
        side = n * gram.outputs
        return side**2, side**3 / 3
    if root.direction is None:
        return n**2, n**3 / 3
    return d * n**2, d * n**3


@dataclass(frozen=True, eq=False)
class Uniform:
    """One Cholesky factor when all outputs of a point share one curvature, L = scale (x) I."""

    gram: Gram
    scale: Array  # (n, 1, 1)
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        columns = (self.scale * v).reshape(len(self._factor[0]), -1)
        return self.scale * _cho_solve(self._factor, columns).reshape(v.shape)

    def self_blocks(self, d: int) -> Array:
        """Return S_ii, (n, d, d)."""
        return _self_blocks(self.gram, self._factor, self._scaled, self.rho, d)

    def slack_blocks(self, d: int) -> Array:
        """Return I - W_i S_ii, (n, d, d)."""
        return self.rho * _inverse_blocks(self.gram, self._factor, d)

    def _scaled(self, columns: Array) -> Array:
        xp = namespace(columns)
        return xp.repeat(self.scale[:, 0], self.gram.outputs or 1, axis=0) * columns

    @functools.cached_property
    def _factor(self) -> Any:
        square = self.gram.square()
        xp = namespace(square)
        scale = xp.repeat(self.scale[:, 0, 0], self.gram.outputs or 1)
        return _cho_factor(scale[:, None] * square * scale + self.rho * xp.eye(len(scale)))


@dataclass(frozen=True, eq=False)
class Dense:
    """One Cholesky factor of the whole (n d, n d) matrix, for full blocks."""

    gram: Gram
    root: HessianRoot
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        flat = self.root.apply_transposed(v).reshape(len(self._factor[0]), -1)
        return self.root.apply(_cho_solve(self._factor, flat).reshape(v.shape))

    def self_blocks(self, d: int) -> Array:
        """Return S_ii, (n, d, d)."""
        return _self_blocks(self.gram, self._factor, self._rooted, self.rho, d)

    def slack_blocks(self, d: int) -> Array:
        """Return I - W_i S_ii on the range of W_i, (n, d, d)."""
        blocks = self.rho * _inverse_blocks(self.gram, self._factor, d)
        return _similar(blocks, self.root.scale[:, :, 0])

    def _rooted(self, columns: Array) -> Array:
        n, d = self.root.scale.shape[:2]
        return self.root.apply_transposed(columns.reshape(n, d, -1)).reshape(columns.shape)

    @functools.cached_property
    def _factor(self) -> Any:
        n, d = self.root.scale.shape[:2]
        square = self.gram.square()
        xp = namespace(square)
        half = self.root.apply_transposed(square.reshape(n, d, n * d)).reshape(n * d, n * d)
        both = self.root.apply_transposed(half.T.reshape(n, d, n * d)).reshape(n * d, n * d)
        return _cho_factor(both + self.rho * xp.eye(n * d))


@dataclass(frozen=True, eq=False)
class Structured:
    """The softmax system by d factorisations of size n instead of one of size n d.

    With D_c the weighted probabilities of class c, E_c = D_c^1/2 (rho I + D_c^1/2 Sigma D_c^1/2)^-1
    D_c^1/2 and M = sum_c E_c: (P v)_c = E_c (v_c - M^-1 sum_k E_k v_k) (Rasmussen & Williams 2006,
    Algorithm 3.3). About d n^3 operations and 8 d n^2 bytes.
    """

    gram: Gram
    curvature: Array  # D, (n, d)
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        xp = namespace(v)
        inner = [e @ v[:, c] for c, e in enumerate(self.blocks)]
        shared = _cho_solve(self.joint, functools.reduce(xp.add, inner))
        return xp.stack([a - e @ shared for a, e in zip(inner, self.blocks, strict=True)], axis=1)

    def self_blocks(self, d: int) -> Array:
        """Return S_ii, (n, d, d)."""
        matrix = self.gram.matrix
        xp = namespace(matrix)
        parts = [self._self_part(rows) for rows in _chunks(self.gram.n, d * self.gram.n)]
        prior = xp.diagonal(matrix)[:, None, None] * xp.eye(d)
        return (prior - xp.concatenate(parts)) / self.rho

    def _self_part(self, rows: slice) -> Array:
        """Return the blocks of K P K of some points."""
        columns = self.gram.matrix[:, rows]
        xp = namespace(columns)
        inner = [e @ columns for e in self.blocks]
        own = xp.stack([xp.einsum("ni,ni->i", columns, v) for v in inner], axis=1)
        half = xp.stack([_half(self.joint, v) for v in inner], axis=2)
        return own[:, :, None] * xp.eye(len(inner)) - xp.einsum("nia,nib->iab", half, half)

    def slack_blocks(self, d: int) -> Array:
        """Return I - W_i S_ii on the range of W_i, (n, d, d)."""
        xp = namespace(self.curvature)
        parts = [self._joint_part(rows) for rows in _chunks(self.gram.n, d * self.gram.n)]
        own = xp.stack([xp.diagonal(e) for e in self.blocks], axis=1)
        whole = xp.where(self.curvature > 0, self.curvature, 1.0)
        inverse = (own[:, :, None] * xp.eye(d) - xp.concatenate(parts)) / whole[:, None, :]
        weight = self.curvature.sum(axis=1)
        present = (weight > 0)[:, None, None]
        share = self.curvature / xp.where(weight > 0, weight, 1.0)[:, None]  # probabilities
        return xp.where(present, self.rho * inverse + share[:, :, None], xp.eye(d))

    def _joint_part(self, rows: slice) -> Array:
        """Return the blocks of E M^-1 E of some points."""
        xp = namespace(self.curvature)
        half = xp.stack([_half(self.joint, e[:, rows]) for e in self.blocks], axis=2)
        return xp.einsum("nia,nib->iab", half, half)

    @functools.cached_property
    def blocks(self) -> list[Array]:
        """E_c of every class, (n, n) each."""
        return [self._block(self.curvature[:, c] ** 0.5) for c in range(self.curvature.shape[1])]

    @functools.cached_property
    def joint(self) -> Any:
        """Cholesky factor of M; rows of points without weight, where M is zero, get a one."""
        total = functools.reduce(namespace(self.curvature).add, self.blocks)
        absent = (self.curvature.sum(axis=1) == 0).astype(total.dtype)
        return _cho_factor(total + namespace(total).diag(absent))

    def _block(self, root: Array) -> Array:
        xp = namespace(root)
        matrix = root[:, None] * self.gram.matrix * root + self.rho * xp.eye(len(root))
        return root[:, None] * _inverse(matrix) * root


def _self_blocks(
    gram: Gram, factor: Any, transposed: Callable[[Array], Array], rho: float, d: int
) -> Array:
    """Return the diagonal blocks of (K - K L A^-1 L^T K) / rho from a factor of A."""
    square, width = gram.square(), gram.outputs or 1
    xp = namespace(square)
    parts = []
    for rows in _chunks(gram.n, len(square) * width):
        half = _half(factor, transposed(square[:, rows.start * width : rows.stop * width]))
        half = half.reshape(len(square), -1, width)
        parts.append(xp.einsum("kia,kib->iab", half, half))
    return _widened((_diagonal_blocks(gram) - xp.concatenate(parts)) / rho, d)


def _inverse_blocks(gram: Gram, factor: Any, d: int) -> Array:
    """Return the diagonal blocks of A^-1 from its factor."""
    side, width = len(factor[0]), gram.outputs or 1
    xp = namespace(factor[0])
    parts = []
    for rows in _chunks(gram.n, side * width):
        columns = np.arange(rows.start * width, rows.stop * width)
        unit = xp.asarray(np.arange(side)[:, None] == columns, dtype=np.float64)
        half = _half(factor, unit).reshape(side, -1, width)
        parts.append(xp.einsum("kia,kib->iab", half, half))
    return _widened(xp.concatenate(parts), d)


def _diagonal_blocks(gram: Gram) -> Array:
    """Return K_ii of one output, (n, 1, 1), or of full blocks, (n, d, d)."""
    xp = namespace(gram.matrix)
    if gram.outputs is None:
        return xp.diagonal(gram.matrix)[:, None, None]
    return xp.einsum("iaib->iab", gram.matrix)


def _widened(blocks: Array, d: int) -> Array:
    """Give one number a point, (n, 1, 1), to every output alike."""
    return blocks if blocks.shape[1] == d else blocks * namespace(blocks).eye(d)


def _similar(blocks: Array, scale: Array) -> Array:
    """Return D B D^-1 for blocks (n, d, d) and diagonals D (n, d); rows of zeros leave B alone."""
    scale = namespace(scale).where(scale > 0, scale, 1.0)
    return scale[:, :, None] * blocks / scale[:, None, :]


def _chunks(n: int, numbers: int) -> list[slice]:
    """Divide n points, which take so many numbers each, into slices of `CHUNK_BYTES`."""
    size = max(1, int(CHUNK_BYTES / (8 * numbers)))
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def _cho_factor(matrix: Array) -> Any:
    if namespace(matrix) is not np:
        factor = jax.scipy.linalg.cho_factor(matrix, lower=True)
        if not bool(jnp.isfinite(factor[0]).all()):
            raise _singular()
        return factor
    try:
        return scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        raise _singular() from None


def _singular() -> FloatingPointError:
    return FloatingPointError(
        "the ridge is lost in rounding beside the kernel: the system is singular; raise `reg`"
    )


def _cho_solve(factor: Any, columns: Array) -> Any:
    if namespace(columns) is np:
        return scipy.linalg.cho_solve(factor, columns, check_finite=False)
    return jax.scipy.linalg.cho_solve(factor, columns)


def _half(factor: Any, columns: Array) -> Any:
    """Return C^-1 times columns for the lower Cholesky factor C."""
    if namespace(columns) is np:
        return scipy.linalg.solve_triangular(factor[0], columns, lower=True, check_finite=False)
    return jax.scipy.linalg.solve_triangular(factor[0], columns, lower=True)


def _inverse(matrix: Array) -> Any:
    """Invert a symmetric positive definite matrix."""
    if namespace(matrix) is not np:
        return jax.scipy.linalg.cho_solve(_cho_factor(matrix), jnp.eye(len(matrix)))
    factor, _ = _cho_factor(matrix.T)
    lower, _ = scipy.linalg.lapack.dpotri(factor, lower=True, overwrite_c=True)
    return np.tril(lower) + np.tril(lower, -1).T
