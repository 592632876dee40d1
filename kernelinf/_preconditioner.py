"""A cheap approximation of A = rho I + L^T K L, to speed conjugate gradients up.

With F F^T <= K of low rank, M = rho I + L^T F F^T L takes the few large eigenvalues of K out of the
iteration. Its inverse needs a small matrix only,

    M^-1 = (I - L^T F (rho I + F^T W F)^-1 F^T L) / rho,    W = L L^T

(Woodbury). F belongs to K alone, so that every Newton step, forget set and influence matrix shares
one. For K = Sigma (x) I it is F (x) I with Sigma ~ F F^T.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._arrays import Array, namespace
from ._factorization import with_ridge
from ._gram import Gram
from ._losses import HessianRoot, rounded
from ._low_rank import RANK

NARROW = 4  # how much narrower F is for iterations in float32
LEFT_OVER = 0.01  # trace of L^T (K - F F^T) L, over rho, from which a larger F gains nothing
EPS, SMALLEST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """M for the system of a loss whose Hessian has this root; rho M^-1 v when called.

    `narrow` makes F narrower, for iterations in float32, which are cheap beside it.
    """

    gram: Gram
    root: HessianRoot
    rho: Any
    narrow: bool = False

    def __call__(self, v: Array) -> Array:
        """Return rho M^-1 v for a stack (n, d, s), M / rho being what approximates A / rho."""
        return _woodbury(v, self.root.apply(v), self.root, self._factor, self._inner)

    def single(self, v: Array) -> Array:
        """Return rho M^-1 v in float32, for a stack in float32."""
        root, factor, inner = self._single
        return _woodbury(v, root.scale * v, root, factor, inner)  # v is orthogonal to directions

    @functools.cached_property
    def _single(self) -> tuple[HessianRoot, Array, Array]:
        scaled, xp = self.gram.single, namespace(self._factor)
        largest = 1.0 if scaled is None else scaled[1]
        root = rounded(self.root, (largest / self.rho) ** 0.5)
        factor = xp.asarray(self._factor / largest**0.5, dtype=xp.float32)
        inner = self._inner * np.reshape(self.rho, (-1, 1, 1)) ** 0.5
        return root, factor, xp.asarray(inner, dtype=xp.float32)

    @functools.cached_property
    def _factor(self) -> Array:
        """F, (n, k), or (n d, k) for full blocks.

        As wide as makes the small matrix in the time of a few products, 2 n^2 d operations each.
        """
        n, d, _ = self.root.scale.shape
        side = n * d if self.gram.outputs is not None else n / d
        curvature = max(float((self.root.scale**2).max()), SMALLEST)
        error = LEFT_OVER * float(np.min(self.rho)) / curvature
        width = math.ceil(math.sqrt(RANK * side) / (NARROW if self.narrow else 1))
        return self.gram.like(self.gram.low_rank.columns(width, error))

    @property
    def _stacked(self) -> int:
        """How many different matrices A there are."""
        return max(self.root.scale.shape[2], np.size(self.rho))

    @functools.cached_property
    def _inner(self) -> Array:
        """R^-1 of rho I + F^T W F = R R^T, one for the stack or one for each of it."""
        rho = np.atleast_1d(self.rho)
        return namespace(self._factor).stack(
            [
                _inverse_root(self._curved(_member(self.root, i)), float(rho[i % len(rho)]))
                for i in range(self._stacked)
            ]
        )

    def _curved(self, root: HessianRoot) -> Array:
        """Return F^T W F for one root: (k d, k d), or (k, k) where one block serves all outputs."""
        factor = self._factor
        xp, k = namespace(factor), factor.shape[1]
        n, d, _ = root.scale.shape
        if self.gram.outputs is not None:
            blocks = factor.reshape(n, self.gram.outputs, k)
            half = root.apply_transposed(blocks).reshape(factor.shape)
            return half.T @ half
        if root.direction is None:
            half = root.scale[:, 0] * factor
            return half.T @ half
        scale, direction = root.scale[:, :, 0], root.direction[:, :, 0]
        across = (factor[:, :, None] * (scale * direction)[:, None]).reshape(n, k * d)
        curved = -(across.T @ across).reshape(k, d, k, d)
        others = direction**2 @ (1 - xp.eye(d))  # 1 - direction^2 to its last digit
        own = [(factor * (scale[:, c] ** 2 * others[:, c])[:, None]).T @ factor for c in range(d)]
        same = xp.eye(d, dtype=bool)[:, None]
        own = xp.stack(own, axis=1)[:, :, :, None]  # (k, d, k, 1)
        return xp.where(same, own, curved).reshape(k * d, k * d)


def _woodbury(v: Array, lifted: Array, root: HessianRoot, factor: Array, inner: Array) -> Array:
    """Return v - L^T F R^-T R^-1 F^T (L v) for a stack (n, d, s), and L v."""
    k = factor.shape[1]
    if k == 0:
        return v
    n, d, s = v.shape
    if len(factor) == n:  # points last in memory, as in products with the Gram matrix
        gathered = (lifted.T.reshape(-1, n) @ factor).reshape(s, d, k).transpose(0, 2, 1)
        solved = _solve(inner, gathered).transpose(0, 2, 1).reshape(-1, k)
        return v - root.apply_transposed((solved @ factor.T).reshape(s, d, n).T)
    gathered = (factor.T @ lifted.reshape(len(factor), s)).T[:, :, None]
    spread = (factor @ _solve(inner, gathered)[:, :, 0].T).reshape(v.shape)
    return v - root.apply_transposed(spread)


def _solve(inner: Array, gathered: Array) -> Array:
    """Return R^-T R^-1 of a stack (s, k, d), for R^-1 whose rows run over k, or over k and d."""
    side = inner.shape[1]
    columns = gathered.reshape(len(gathered), side, -1)
    return (inner.transpose(0, 2, 1) @ (inner @ columns)).reshape(gathered.shape)


def _member(root: HessianRoot, i: int) -> HessianRoot:
    """Return one of a stack of roots; what all of them share has an axis of length one."""

    def pick(array: Array) -> Array:
        return array[:, :, [i % array.shape[2]]]

    return HessianRoot(pick(root.scale), None if root.direction is None else pick(root.direction))


def _inverse_root(matrix: Array, rho: float) -> Array:
    """Return R^-1 of matrix + rho I = R R^T, with a larger rho where rounding would hide it.

    NumPy's and not SciPy's: each has threads of its own, which wait for work at full speed, so
    that changing between them in a loop slows both down tenfold.
    """
    xp = namespace(matrix)
    hidden = len(matrix) * EPS * float(matrix.trace())
    return xp.linalg.inv(xp.linalg.cholesky(with_ridge(matrix, max(rho, hidden))))
