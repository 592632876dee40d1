"""Low-rank approximation of a positive semidefinite matrix from a few of its columns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._arrays import Array

RANK = 4  # a matrix of n rows gets up to (4 n)^(1/2) columns: as much work as a few products
SEED = 0  # of the pivots: the same matrix has the same factor every time


@dataclass(frozen=True, eq=False)
class LowRank:
    """F with F F^T close to a matrix of `side` rows and nowhere above it.

    Attributes
    ----------
    factor
        F, (side, k), NumPy.
    errors
        Trace of what the first 0, 1, ..., k columns leave over, (k + 1,).
    """

    factor: npt.NDArray[np.float64]
    errors: npt.NDArray[np.float64]

    def columns(self, most: int, error: float) -> npt.NDArray[np.float64]:
        """Return the first columns: `most` of them, or as few as leave a trace of `error` over."""
        enough = int(np.searchsorted(-self.errors, -error))
        return self.factor[:, : min(most, enough)]

    def take(self, points: npt.NDArray[np.intp], d: int) -> "LowRank":
        """Return that of some points, with d rows each: what it leaves over is no more."""
        rows = (d * points[:, None] + np.arange(d)).reshape(-1)
        return LowRank(self.factor[rows], self.errors)


def pivoted_cholesky(diagonal: Array, column: Callable[[int], Array], rank: int) -> LowRank:
    """Factorise a matrix from its diagonal and `rank` of its columns, drawn by what they leave.

    Randomly pivoted Cholesky (Chen, Epperly, Tropp & Webber 2023, Algorithm 1): a pivot is drawn in
    proportion to the diagonal of what is left over. side rank^2 operations; no other entry of the
    matrix is read.
    """
    side = len(diagonal)
    random = np.random.default_rng(SEED)
    left = np.array(diagonal)
    start = left.sum()
    factor, errors = np.zeros((side, rank), order="F"), [start]
    for k in range(rank):
        if errors[-1] <= side * np.finfo(np.float64).eps * start:
            break
        pivot = random.choice(side, p=left / errors[-1])
        rest = column(int(pivot)) - factor[:, :k] @ factor[pivot, :k]
        factor[:, k] = rest / left[pivot] ** 0.5  # the column's own pivot may round below zero
        left = np.maximum(left - factor[:, k] ** 2, 0.0)
        left[pivot] = 0.0
        errors.append(left.sum())
    return LowRank(factor[:, : len(errors) - 1], np.array(errors))
