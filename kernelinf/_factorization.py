"""Direct forms of P = L (rho I + L^T K L)^-1 L^T, the inner operator of the linear system.

Besides P v they give diagonal blocks of K - K P K, which is rho times the response
S = K (rho I + W K)^-1 of the outputs, and what a point's own leverage leaves over, I - W_i S_ii:
all that leaving points out one by one takes.
"""

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from ._arrays import Array, like, namespace
from ._gram import Gram
from ._losses import HessianRoot
from ._threads import one_scipy_thread

# Measured on one core, against the rate of a product of two square matrices: a product with c
# vectors takes as long as c + THIN would at that rate, a factorisation runs at FACTOR_RATE of it.
# With two cores thin products gain less: there a factorisation of one output costs half as much.
THIN = 12
FACTOR_RATE = 0.35

TILE = 64  # rows copied at once
BLOCK_BYTES = 64e6  # of the rows whose inner products are taken at once

Points = npt.NDArray[np.intp]


class Factorization(Protocol):
    """P, ready to be applied to any number of stacks (n, d, s)."""

    def apply(self, v: Array) -> Array:
        """Return P v."""

    def remainder(self, points: Points) -> Array:
        """Return the diagonal blocks of K - K P K at some points.

        (m, d, d); or (m, 1, 1) where one number serves all outputs of a point.
        """

    def corner(self, points: Points) -> Array:
        """Return rho times the rows and columns of A^-1 at some points, (m d, m d) or (m, m).

        It is I - L_F^T S_FF L_F, what the group F's own leverage leaves over.
        """

    def slack(self, points: slice) -> Array:
        """Return I - W_i S_ii of some points, (m, d, d); or (m, 1, 1) as for `remainder`.

        With W = L L^T, I - L_i^T S_ii L_i is rho times a diagonal block of A^-1 for the A that is
        factorised: so it keeps its digits when the leverage is near one. The blocks agree with
        I - W_i S_ii on the range of W_i, which has every gradient of the loss in it.
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


def worth(gram: Gram, root: HessianRoot, columns: int) -> float:
    """Return how many conjugate-gradient iterations take as long as a factorisation.

    An iteration is one product with `columns` right-hand sides (n, d).
    """
    n, d = root.scale.shape[:2]
    side, vectors = (n, columns * d) if gram.outputs is None else (n * gram.outputs, columns)
    return cost(gram, root)[1] / (2 * FACTOR_RATE * side**2 * (vectors + THIN))


@dataclass(frozen=True, eq=False)
class Uniform:
    """One Cholesky factor when all outputs of a point share one curvature, L = scale (x) I."""

    gram: Gram
    scale: Array  # (n, 1, 1)
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        columns = (self.scale * v).reshape(len(self._factor[0]), -1)
        return self.scale * cho_solve(self._factor, columns).reshape(v.shape)

    def remainder(self, points: Points) -> Array:
        """Return the diagonal blocks of K - K P K, (m, d, d) or (m, 1, 1)."""
        rows, own = _rows(self.gram, points)
        half = (self.scale * rows.T.reshape(self.gram.n, -1, rows.shape[0])).reshape(rows.T.shape)
        return own - _squares(_solve_lower(self._factor, half), own.shape[1])

    def corner(self, points: Points) -> Array:
        """Return rho times the rows and columns of A^-1 at some points, (m, m) or (m d, m d)."""
        return self.rho * _corner(self._inverse, points, self.gram.outputs or 1)

    def slack(self, points: slice) -> Array:
        """Return I - W_i S_ii, (m, d, d) or (m, 1, 1)."""
        return self.rho * _inverse_blocks(self._factor, points, self.gram.outputs or 1)

    @functools.cached_property
    def _factor(self) -> Any:
        square = self.gram.square()
        scale = namespace(square).repeat(self.scale[:, 0, 0], self.gram.outputs or 1)
        return cho_factor(with_ridge(scale[:, None] * square * scale, self.rho))

    @functools.cached_property
    def _inverse(self) -> Array:
        return _inverted(self._factor)


@dataclass(frozen=True, eq=False)
class Dense:
    """One Cholesky factor of the whole (n d, n d) matrix, for full blocks."""

    gram: Gram
    root: HessianRoot
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        flat = self.root.apply_transposed(v).reshape(len(self._factor[0]), -1)
        return self.root.apply(cho_solve(self._factor, flat).reshape(v.shape))

    def remainder(self, points: Points) -> Array:
        """Return the diagonal blocks of K - K P K, (m, d, d)."""
        rows, own = _rows(self.gram, points)
        half = self.root.apply_transposed(rows.T.reshape(self.gram.n, -1, rows.shape[0]))
        return own - _squares(_solve_lower(self._factor, half.reshape(rows.T.shape)), own.shape[1])

    def corner(self, points: Points) -> Array:
        """Return rho times the rows and columns of A^-1 at some points, (m d, m d)."""
        return self.rho * _corner(self._inverse, points, self.root.scale.shape[1])

    def slack(self, points: slice) -> Array:
        """Return I - W_i S_ii on the range of W_i, (m, d, d)."""
        scale = self.root.scale[points, :, 0]
        scale = namespace(scale).where(scale > 0, scale, 1.0)
        blocks = _inverse_blocks(self._factor, points, scale.shape[1])
        return self.rho * scale[:, :, None] * blocks / scale[:, None, :]

    @functools.cached_property
    def _factor(self) -> Any:
        n, d = self.root.scale.shape[:2]
        square = self.gram.square()
        half = self.root.apply_transposed(square.reshape(n, d, n * d)).reshape(n * d, n * d)
        both = self.root.apply_transposed(half.T.reshape(n, d, n * d)).reshape(n * d, n * d)
        return cho_factor(with_ridge(both, self.rho))

    @functools.cached_property
    def _inverse(self) -> Array:
        return _inverted(self._factor)


@dataclass(frozen=True, eq=False)
class Structured:
    """The softmax system by d factorisations of size n instead of one of size n d.

    With D_c the weighted probabilities of class c, B_c = (rho I + D_c^1/2 Sigma D_c^1/2)^-1,
    E_c = D_c^1/2 B_c D_c^1/2 and M = sum_c E_c: (P v)_c = E_c (v_c - M^-1 sum_k E_k v_k)
    (Rasmussen & Williams 2006, Algorithm 3.3). About d n^3 operations and 8 d n^2 bytes.
    """

    gram: Gram
    curvature: Array  # D, (n, d)
    rho: float

    def apply(self, v: Array) -> Array:
        """Return P v."""
        xp = namespace(v)
        inner = [self._times(c, v[:, c]) for c in range(v.shape[1])]
        shared = cho_solve(self.joint, functools.reduce(xp.add, inner))
        return xp.stack([a - self._times(c, shared) for c, a in enumerate(inner)], axis=1)

    def remainder(self, points: Points) -> Array:
        """Return the diagonal blocks of K - K P K, (m, d, d).

        Class c of K P K has Sigma E_c Sigma on the diagonal, less (Sigma E_c) M^-1 (E_k Sigma)
        for every k: about 3 d n^2 m operations and 8 d n m bytes, besides the factorisation's.
        """
        rows, own = _rows(self.gram, points)
        xp = namespace(rows)
        kept, shared = [], []
        for root, inverse in zip(self.roots, self.inverses, strict=True):
            moved = ((rows * root) @ inverse) * root  # Sigma E_c
            kept.append(own[:, 0, 0] - xp.einsum("mn,mn->m", moved, rows))
            shared.append(_solve_lower(self.joint, moved.T).T)
        diagonal = xp.stack(kept, axis=1)[:, :, None] * xp.eye(len(kept))
        return diagonal + _inner_products(shared)

    def corner(self, points: Points) -> Array:
        """Return rho times the rows and columns of A^-1 at some points, (m d, m d).

        A^-1 has B_c on the diagonal, less (B_c D_c^1/2) M^-1 (D_k^1/2 B_k), and 1 / rho along
        q = sqrt(p) of each point, which L maps to zero. n (d m)^2 operations, and once, for all
        groups, d n^3 operations and 8 d n^2 bytes more than the factorisation's.
        """
        xp = namespace(self.curvature)
        m, d = len(points), self.curvature.shape[1]
        half = xp.stack([part[:, points] for part in self._halves], axis=2).reshape(-1, m * d)
        own = xp.stack([inverse[points[:, None], points] for inverse in self.inverses], axis=1)
        diagonal = own[:, :, :, None] * xp.eye(d)[:, None]  # (m, d, m, d)
        inner = diagonal.reshape(m * d, m * d) - half.T @ half
        return self.rho * inner + self._along(points)

    def _along(self, points: Points) -> Array:
        """Return the projection on q of each of some points, (m d, m d)."""
        xp = namespace(self.curvature)
        chosen = self.curvature[points]
        q = (chosen / xp.sum(chosen, axis=1, keepdims=True)) ** 0.5
        outer = q[:, :, None, None] * xp.eye(len(points))[:, None, :, None] * q[None, None, :, :]
        return outer.reshape(q.size, q.size)

    def slack(self, points: slice) -> Array:
        """Return I - W_i S_ii on the range of W_i, (m, d, d).

        About d n^2 m operations and 16 d n m bytes, besides the factorisation's.
        """
        xp = namespace(self.curvature)
        curvature = self.curvature[points]
        own = xp.stack([xp.diagonal(inverse)[points] for inverse in self.inverses], axis=1)
        own = own * curvature
        shared = [
            _solve_lower(self.joint, root[:, None] * inverse[:, points] * root[points]).T
            for root, inverse in zip(self.roots, self.inverses, strict=True)
        ]
        unit = xp.eye(own.shape[1])
        blocks = own[:, :, None] * unit - _inner_products(shared)
        weight = curvature.sum(axis=1)[:, None, None]
        probability = curvature[:, :, None] / xp.where(weight > 0, weight, 1.0)
        blocks = self.rho * blocks / xp.where(weight > 0, curvature[:, None, :], 1.0) + probability
        return xp.where(weight > 0, blocks, unit)

    @functools.cached_property
    def roots(self) -> Array:
        """D_c^1/2 of every class, (d, n)."""
        return self.curvature.T**0.5

    @functools.cached_property
    def inverses(self) -> list[Array]:
        """B_c = (rho I + D_c^1/2 Sigma D_c^1/2)^-1 of every class, (n, n) each."""
        matrix = self.gram.matrix
        return [
            _inverse(with_ridge(root[:, None] * matrix * root, self.rho)) for root in self.roots
        ]

    @functools.cached_property
    def joint(self) -> Any:
        """Cholesky factor of M; rows of points without weight, where M is zero, get a one."""
        xp = namespace(self.curvature)
        absent = xp.sum(self.curvature, axis=1) == 0
        total = xp.diag(like(absent, self.curvature))
        for root, inverse in zip(self.roots, self.inverses, strict=True):
            total = total + root[:, None] * inverse * root
        return cho_factor(total)

    @functools.cached_property
    def _halves(self) -> list[Array]:
        """R^-1 D_c^1/2 B_c of every class, M = R R^T: (n, n) each."""
        pairs = zip(self.roots, self.inverses, strict=True)
        return [_solve_lower(self.joint, root[:, None] * inverse) for root, inverse in pairs]

    def _times(self, c: int, v: Array) -> Array:
        """Return E_c v, E_c = D_c^1/2 B_c D_c^1/2, for v of shape (n, s)."""
        root = self.roots[c][:, None]
        return root * (self.inverses[c] @ (root * v))


def solve_with_blocks(matrix: Array, ridge: Array, columns: Array, d: int) -> tuple[Array, Array]:
    """Solve (matrix + diag(ridge)) x = columns, and return the inverse's diagonal d x d blocks too.

    One Cholesky factor R R^T serves both: a block is made of inner products of d columns of R^-1.
    2/3 side^3 operations and one copy of the matrix.

    Parameters
    ----------
    matrix
        (side, side), symmetric positive semidefinite.
    ridge
        (side,), positive.
    columns
        (side, q).
    d
        A divisor of side.

    Returns
    -------
    x (side, q) and the blocks (side / d, d, d).
    """
    factor = cho_factor(
        with_ridge(np.array(matrix), ridge).T
    )  # symmetric: the transpose saves LAPACK a copy
    x = cho_solve(factor, columns)
    return x, _column_blocks(_inverse_root(factor), d)


def solve_blocks(blocks: Array, values: Array) -> Array:
    """Solve with one matrix a point, (m, k, k) and (m, k, q).

    Raises
    ------
    FloatingPointError
        A block is singular.
    """
    try:
        return namespace(values).linalg.solve(blocks, values)
    except np.linalg.LinAlgError:
        raise _singular() from None


def with_ridge(matrix: Array, ridge: Array | float) -> Array:
    """Add a number, or one for each row, to the diagonal; the matrix may be overwritten."""
    if namespace(matrix) is not np:
        return matrix + jnp.diag(jnp.broadcast_to(ridge, len(matrix)))
    matrix[np.diag_indices(len(matrix))] += ridge
    return matrix


def _inverse_root(factor: Any) -> Any:
    """Return R^-1 of a Cholesky factor R R^T, in its place; above the diagonal may be anything."""
    if namespace(factor[0]) is not np:
        identity: Any = jnp.eye(len(factor[0]))
        return _solve_lower(factor, identity)
    with one_scipy_thread(len(factor[0])):
        inverse, _ = scipy.linalg.lapack.dtrtri(factor[0], lower=True, overwrite_c=True)
    return inverse


def _column_blocks(lower: Array, d: int) -> Array:
    """Return the inner products of each d columns of a lower triangular matrix, (n, d, d)."""
    side, xp = len(lower), namespace(lower)
    size = d * max(1, int(BLOCK_BYTES / (8 * side * d)))
    blocks = []
    for start in range(0, side, size):
        rows = xp.triu(lower.T[start : start + size, start:])
        rows = rows.reshape(-1, d, side - start)
        blocks.append(rows @ rows.transpose(0, 2, 1))
    return xp.concatenate(blocks)


def cho_factor(matrix: Array) -> Any:
    """Factorise a symmetric positive definite matrix, which may be overwritten."""
    if namespace(matrix) is not np:
        factor = jax.scipy.linalg.cho_factor(matrix, lower=True)
        if not bool(jnp.isfinite(factor[0]).all()):
            raise _singular()
        return factor
    try:
        with one_scipy_thread(len(matrix)):
            return scipy.linalg.cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)
    except scipy.linalg.LinAlgError:
        raise _singular() from None


def _singular() -> FloatingPointError:
    return FloatingPointError(
        "the ridge is lost in rounding beside the kernel: the system is singular; raise `reg`"
    )


def cho_solve(factor: Any, columns: Array) -> Any:
    """Solve with a factor from `cho_factor`."""
    if namespace(columns) is np:
        with one_scipy_thread(len(columns)):
            return scipy.linalg.cho_solve(factor, columns, check_finite=False)
    return jax.scipy.linalg.cho_solve(factor, columns)


def _solve_lower(factor: Any, columns: Array) -> Any:
    """Return R^-1 columns for a Cholesky factor A = R R^T."""
    if namespace(columns) is np:
        with one_scipy_thread(len(columns)):
            return scipy.linalg.solve_triangular(factor[0], columns, lower=True, check_finite=False)
    return jax.scipy.linalg.solve_triangular(factor[0], columns, lower=True)


def _rows(gram: Gram, points: Points) -> tuple[Array, Array]:
    """Return some points' rows of K, (m d, n d), and their diagonal blocks, (m, d, d)."""
    d = gram.outputs or 1
    xp = namespace(gram.matrix)
    rows = gram.matrix.reshape(gram.n, d, gram.n, d)[points]
    own = rows[np.arange(len(points)), :, points]
    return xp.reshape(rows, (len(points) * d, gram.n * d)), own


def _corner(inverse: Array, points: Points, d: int) -> Array:
    """Return the rows and columns of some points, d each, of a square matrix."""
    rows = (d * points[:, None] + np.arange(d)).reshape(-1)
    return inverse[rows[:, None], rows]


def _inverse_blocks(factor: Any, points: slice, d: int) -> Array:
    """Return the diagonal d x d blocks of A^-1 at some points, (m, d, d)."""
    columns = np.arange(points.start * d, points.stop * d)
    unit = np.arange(len(factor[0]))[:, None] == columns
    return _squares(_solve_lower(factor, like(unit, factor[0])), d)


def _squares(half: Array, d: int) -> Array:
    """Return the diagonal d x d blocks of half^T half, (m, d, d)."""
    columns = half.T.reshape(-1, d, len(half))
    return columns @ columns.transpose(0, 2, 1)


def _inner_products(classes: list[Array]) -> Array:
    """Return the inner products of row i of all classes' matrices (m, n), for each i: (m, d, d)."""
    m, n = classes[0].shape
    xp = namespace(classes[0])
    size = max(1, int(BLOCK_BYTES / (8 * n * len(classes))))
    products = []
    for start in range(0, m, size):
        rows = xp.stack([matrix[start : start + size] for matrix in classes], axis=1)
        products.append(rows @ rows.transpose(0, 2, 1))
    return xp.concatenate(products)


def _inverse(matrix: Array) -> Any:
    """Invert a symmetric positive definite matrix, perhaps in its place."""
    return _inverted(cho_factor(matrix.T), overwrite=True)  # the transpose saves LAPACK a copy


def _inverted(factor: Any, overwrite: bool = False) -> Any:
    """Return A^-1 of a Cholesky factor of A."""
    if namespace(factor[0]) is not np:
        return jax.scipy.linalg.cho_solve(factor, jnp.eye(len(factor[0])))
    with one_scipy_thread(len(factor[0])):
        lower, _ = scipy.linalg.lapack.dpotri(factor[0], lower=True, overwrite_c=overwrite)
    return _mirrored(lower)


def _mirrored(lower: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Copy what is below the diagonal above it, in place; tiles stay in cache."""
    for i in range(0, len(lower), TILE):
        rows = slice(i, i + TILE)
        lower[rows, rows] = np.tril(lower[rows, rows]) + np.tril(lower[rows, rows], -1).T
        lower[rows, i + TILE :] = lower[i + TILE :, rows].T
    return lower
