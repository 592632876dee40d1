"""Direct forms of P = L (rho I + L^T K L)^-1 L^T, the inner operator of the linear system."""

import functools
from dataclasses import dataclass
from typing import Any, Protocol

import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy  # loads its parts when they are first used

from ._arrays import Array, namespace
from ._gram import Gram
from ._losses import HessianRoot


class Factorization(Protocol):
    """P, ready to be applied to any number of stacks (n, d, s)."""

    def apply(self, v: Array) -> Array:
        """Return P v."""


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


def _inverse(matrix: Array) -> Any:
    """Invert a symmetric positive definite matrix."""
    if namespace(matrix) is not np:
        return jax.scipy.linalg.cho_solve(_cho_factor(matrix), jnp.eye(len(matrix)))
    factor, _ = _cho_factor(matrix.T)
    lower, _ = scipy.linalg.lapack.dpotri(factor, lower=True, overwrite_c=True)
    return np.tril(lower) + np.tril(lower, -1).T
