"""The systems of many removals of the same ridge, from one factorisation of all points' system.

With weight zero on a group F the Hessian loses the blocks W_F, so that

    (rho I + W' K)^-1 = T + T E (I - W_F S_FF)^-1 W_F E^T K T,    T = (rho I + W K)^-1,

E the columns of F and S = K T (Sherman, Morrison & Woodbury; Koh et al. 2019 for groups). In terms
of the factorised A, (I - W_F S_FF)^-1 W_F = L_F (rho (A^-1)_FF)^-1 L_F^T: symmetric positive
definite, and of the group's size.
"""

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ._arrays import Array, like, namespace, to_numpy
from ._losses import HessianRoot
from ._newton import System

Points = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Groups(System):
    """The systems (rho I + W' K) x = b of many groups: `solve` takes a stack, a column a group.

    `root` is that of W', (n, d, s).

    Attributes
    ----------
    full
        The system of all points at the same ridge, to be factorised.
    sets
        The groups F.
    """

    full: System | None = None
    sets: tuple[Points, ...] = ()

    def correction(self, b: Array, product: Array, reduction: float) -> tuple[Array, int]:
        """Solve once, as exactly as one factorisation does."""
        assert self.full is not None
        x, _ = self.full.correction(b, product, 0.0)
        moved = self.gram @ x
        pulls, removed = np.zeros(b.shape), np.zeros((len(b), 1, len(self.sets)), dtype=bool)
        for column, group in enumerate(self.sets):
            pulls[group, :, column] = to_numpy(self._pull(column, moved[group, :, column]))
            removed[group, :, column] = True
        pull = like(pulls, b)
        x = x + self.full.correction(pull, self.gram @ pull, 0.0)[0]
        # without curvature their rows read rho x = b: rounding there moves all outputs
        return namespace(b).where(removed, b / self.rho, x), 0

    def _enough(self, tolerance: float) -> float:
        return tolerance  # a further round costs as much as the first

    def _pull(self, column: int, outputs: Array) -> Array:
        """Return (I - W_F S_FF)^-1 W_F times the outputs of a group, (m, d)."""
        own, inverse = self._corners[column]
        half = own.apply_transposed(outputs[:, :, None])
        solved = inverse @ half.reshape(len(inverse), -1)
        return own.apply(solved.reshape(half.shape))[:, :, 0]

    @functools.cached_property
    def _corners(self) -> list[tuple[HessianRoot, Array]]:
        """L_F and (rho (A^-1)_FF)^-1 of every group."""
        assert self.full is not None
        root, corners = self.full.root, []
        for group in self.sets:
            direction = None if root.direction is None else root.direction[group]
            corner = self.full.corner(group)
            inverse = namespace(corner).linalg.inv(corner)
            corners.append((HessianRoot(root.scale[group], direction), inverse))
        return corners
