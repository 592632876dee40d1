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

from ._arrays import Array, like, namespace
from ._factorization import cho_factor, cho_solve, with_ridge
from ._gram import Gram
from ._losses import HessianRoot
from ._low_rank import RANK

LEFT_OVER = 0.01  # trace of L^T (K - F F^T) L, over rho, from which a larger F gains nothing
EPS, SMALLEST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """M for the system of a loss whose Hessian has this root."""

    gram: Gram
    root: HessianRoot
    rho: Array | float

    def __call__(self, v: Array) -> Array:
        """Return rho M^-1 v for a stack (n, d, s): the factor is of no matter to the iteration."""
        factor = self._factor
        if factor.shape[1] == 0:
            return v
        gathered = factor.T @ self.root.apply(v).reshape(len(factor), -1)
        spread = (factor @ self._solve(gathered, v.shape[2])).reshape(v.shape)
        return v - self.root.apply_transposed(spread)

    def _solve(self, gathered: Array, s: int) -> Array:
        """Solve the small systems for F^T L v, (k, d s) or (k, s)."""
        side = len(self._inner[0][0])
        if len(self._inner) == 1:
            return cho_solve(self._inner[0], gathered.reshape(side, -1)).reshape(gathered.shape)
        columns = gathered.reshape(len(gathered), -1, s)
        solved = [
            cho_solve(factor, columns[:, :, i].reshape(side, -1)).reshape(columns.shape[:2])
            for i, factor in enumerate(self._inner)
        ]
        return namespace(gathered).stack(solved, axis=2).reshape(gathered.shape)

    @functools.cached_property
    def _factor(self) -> Array:
        """F, (n, k), or (n d, k) for full blocks.

        As wide as makes the small matrix in the time of a few products, 2 n^2 d operations each.
        """
        n, d, _ = self.root.scale.shape
        side = n * d if self.gram.outputs is not None else n / d
        curvature = max(float((self.root.scale**2).max()), SMALLEST)
        error = LEFT_OVER * float(np.min(self.rho)) / curvature
        columns = self.gram.low_rank.columns(math.ceil(math.sqrt(RANK * side)), error)
        return like(columns, self.gram.matrix)

    @functools.cached_property
    def _inner(self) -> list[Any]:
        """Cholesky factors of rho I + F^T W F, one for the stack or one for each of it."""
        rho = np.atleast_1d(self.rho)
        stacked = max(self.root.scale.shape[2], len(rho))
        return [
            _cholesky(self._curved(_member(self.root, i)), float(rho[i % len(rho)]))
            for i in range(stacked)
        ]

    def _curved(self, root: HessianRoot) -> Array:
        """Return F^T W F for one root: (k d, k d), or (k, k) where one block serves all outputs."""
        factor = self._factor
        xp, k = namespace(factor), factor.shape[1]
        n, d, _ = root.scale.shape
        if self.gram.outputs is not None:
            half = root.apply_transposed(factor.reshape(n, -1, k)).reshape(-1, k)
            return half.T @ half
        if root.direction is None:
            half = root.scale[:, 0] * factor
            return half.T @ half
        scale, direction = root.scale[:, :, 0], root.direction[:, :, 0]
        across = (factor[:, :, None] * (scale * direction)[:, None]).reshape(n, -1)
        curved = -(across.T @ across).reshape(k, d, k, d)
        others = direction**2 @ (1 - xp.eye(d))  # 1 - direction^2 to its last digit
        own = [(factor * (scale[:, c] ** 2 * others[:, c])[:, None]).T @ factor for c in range(d)]
        same = xp.eye(d, dtype=bool)[:, None]
        own = xp.stack(own, axis=1)[:, :, :, None]  # (k, d, k, 1)
        return xp.where(same, own, curved).reshape(k * d, k * d)


def _member(root: HessianRoot, i: int) -> HessianRoot:
    """Return one of a stack of roots; what all of them share has an axis of length one."""

    def pick(array: Array) -> Array:
        return array[:, :, [i % array.shape[2]]]

    return HessianRoot(pick(root.scale), None if root.direction is None else pick(root.direction))


def _cholesky(matrix: Array, rho: float) -> Any:
    """Factorise matrix + rho I, with a larger rho where rounding would hide it."""
    hidden = len(matrix) * EPS * float(matrix.trace())
    return cho_factor(with_ridge(matrix, max(rho, hidden)))
