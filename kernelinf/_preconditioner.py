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
from ._losses import HessianRoot, rounded
from ._low_rank import RANK

STACK_SHARE = 2  # how much narrower F is in a stack
LEFT_OVER = 0.01  # trace of L^T (K - F F^T) L, over rho, from which a larger F gains nothing
EPS, SMALLEST = float(np.finfo(np.float64).eps), float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """M for the system of a loss whose Hessian has this root; rho M^-1 v when called."""

    gram: Gram
    root: HessianRoot
    rho: Any

    def __call__(self, v: Array) -> Array:
        """Return rho M^-1 v for a stack (n, d, s), M / rho being what approximates A / rho."""
        return _woodbury(v, self.root, self._factor, self._inner)

    def single(self, v: Array) -> Array:
        """Return rho M^-1 v in float32, for a stack in float32."""
        return _woodbury(v, *self._single)

    @functools.cached_property
    def _single(self) -> tuple[HessianRoot, Array, list[Any]]:
        xp, largest = namespace(self._factor), self.gram.single[1]
        root = rounded(self.root, (largest / self.rho) ** 0.5)
        factor = xp.asarray(self._factor / largest**0.5, dtype=xp.float32)
        rho = np.broadcast_to(np.atleast_1d(self.rho), len(self._inner))
        inner = [
            (xp.asarray(matrix / ridge**0.5, dtype=xp.float32), lower)
            for (matrix, lower), ridge in zip(self._inner, rho, strict=True)
        ]
        return root, factor, inner

    @functools.cached_property
    def _factor(self) -> Array:
        """F, (n, k), or (n d, k) for full blocks.

        As wide as makes the small matrix in the time of a few products, 2 n^2 d operations each; in
        a stack, whose products are faster, half as wide.
        """
        n, d, _ = self.root.scale.shape
        side = n * d if self.gram.outputs is not None else n / d
        curvature = max(float((self.root.scale**2).max()), SMALLEST)
        error = LEFT_OVER * float(np.min(self.rho)) / curvature
        width = math.ceil(math.sqrt(RANK * side) / (1 if self._stacked == 1 else STACK_SHARE))
        return like(self.gram.low_rank.columns(width, error), self.gram.matrix)

    @property
    def _stacked(self) -> int:
        """How many different matrices A there are."""
        return max(self.root.scale.shape[2], np.size(self.rho))

    @functools.cached_property
    def _inner(self) -> list[Any]:
        """Cholesky factors of rho I + F^T W F, one for the stack or one for each of it."""
        rho = np.atleast_1d(self.rho)
        return [
            _cholesky(self._curved(_member(self.root, i)), float(rho[i % len(rho)]))
            for i in range(self._stacked)
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


def _woodbury(v: Array, root: HessianRoot, factor: Array, inner: list[Any]) -> Array:
    """Return v - L^T F (inner)^-1 F^T L v for a stack (n, d, s)."""
    if factor.shape[1] == 0:
        return v
    lifted, (n, _, s) = root.apply(v), v.shape
    if len(factor) == n:  # points last in memory, as in products with the Gram matrix
        gathered = (lifted.T.reshape(-1, n) @ factor).reshape(s, -1, factor.shape[1])
        solved = _solve(inner, gathered.transpose(0, 2, 1))
        spread = (solved.transpose(0, 2, 1).reshape(-1, factor.shape[1]) @ factor.T).reshape(
            v.T.shape
        )
        return v - root.apply_transposed(spread.T)
    gathered = (factor.T @ lifted.reshape(len(factor), s)).T[:, :, None]
    spread = (factor @ _solve(inner, gathered)[:, :, 0].T).reshape(v.shape)
    return v - root.apply_transposed(spread)


def _solve(inner: list[Any], gathered: Array) -> Array:
    """Solve the small systems for a stack (s, k, d), whose rows run over k, or over k and d."""
    xp, side = namespace(gathered), len(inner[0][0])
    if len(inner) == 1:
        columns = xp.moveaxis(gathered, 0, -1).reshape(side, -1)
        solved = cho_solve(inner[0], columns)
        return xp.moveaxis(solved.reshape(*gathered.shape[1:], len(gathered)), -1, 0)
    parts = [
        cho_solve(factor, part.reshape(side, -1)).reshape(part.shape)
        for factor, part in zip(inner, gathered, strict=True)
    ]
    return xp.stack(parts)


def _member(root: HessianRoot, i: int) -> HessianRoot:
    """Return one of a stack of roots; what all of them share has an axis of length one."""

    def pick(array: Array) -> Array:
        return array[:, :, [i % array.shape[2]]]

    return HessianRoot(pick(root.scale), None if root.direction is None else pick(root.direction))


def _cholesky(matrix: Array, rho: float) -> Any:
    """Factorise matrix + rho I, with a larger rho where rounding would hide it."""
    hidden = len(matrix) * EPS * float(matrix.trace())
    return cho_factor(with_ridge(matrix, max(rho, hidden)))
