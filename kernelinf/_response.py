"""How a model without a forget set answers to pulls on the points of that set.

A pull u on the forget set F moves the outputs of the retained model, linearised, by S_F u with

    S = K T,    T = (mu I + W_R K)^-1,

at the ridge mu that the removal leaves and with the Hessians W_R of the retained points alone.
S_FF is the forget set's leverage on itself, and S_RF that on the retained points.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import scipy  # loads its parts when they are first used

from ._arrays import Array, like, namespace, to_numpy
from ._losses import HessianRoot
from ._newton import Solution, System
from ._problem import Problem

Points = npt.NDArray[np.intp]

BLOCK_BYTES = 16e6  # of columns that are solved together; about a dozen such stacks are alive
DENSE_SIDE = 200  # up to which all eigenvalues are taken, from columns that are solved as a stack


@dataclass(frozen=True, eq=False)
class Response:
    """The response S to pulls on a forget set.

    Where one number serves all outputs of a point, pulls have a single column, k = 1; else k = d.

    Attributes
    ----------
    problem
        The one without the forget set.
    outputs
        Where the losses are expanded, (n, d).
    forget
        Indices, (m,), ascending.
    weights
        What the forget set counted before, (m,).
    """

    problem: Problem
    outputs: Array
    forget: Points
    weights: Array

    @functools.cached_property
    def system(self) -> System:
        """The linear system of the retained points, prepared for a column of each pull."""
        return self.problem.system(self.outputs).prepared(self.side)

    @functools.cached_property
    def root(self) -> HessianRoot:
        """L_F with W_F = L_F L_F^T, of the forget set as it counted before."""
        return self.problem.loss.root(self.outputs[self.forget], self.weights)

    @property
    def columns(self) -> int:
        """Return k, the columns of a pull."""
        uniform = self.root.direction is None and self.problem.gram.outputs is None
        return 1 if uniform else self.problem.targets.shape[1]

    @property
    def side(self) -> int:
        """Return m k, the side of S_FF."""
        return len(self.forget) * self.columns

    def to(self, pull: Array) -> Solution:
        """Return T E_F u and S_F u, (n, d or k, s), of pulls u (m, d or k, s)."""
        b = np.zeros((self.problem.gram.n, *pull.shape[1:]))
        b[self.forget] = to_numpy(pull)
        return self.system.solve(like(b, self.outputs))

    def to_all(self) -> tuple[Array, Array]:
        """Return T E_F and S_F, (n, k, m k), a block of columns at a time."""
        unit = np.eye(self.side).reshape(len(self.forget), self.columns, self.side)
        basis, n = like(unit, self.outputs), self.problem.gram.n
        size = max(1, int(BLOCK_BYTES / (8 * n * self.columns)))
        parts = [self.to(basis[:, :, start : start + size]) for start in range(0, self.side, size)]
        join = namespace(basis).concatenate
        return join([p.x for p in parts], axis=2), join([p.product for p in parts], axis=2)

    def weighted(self, v: Array, root: HessianRoot | None = None) -> Array:
        """Return L^T S_FF L v, symmetric positive semidefinite, for v (m, k, s) and a root L."""
        left = self.root if root is None else root
        return left.apply_transposed(self.to(left.apply(v)).product[self.forget])

    def between(self, left: HessianRoot, square: Array) -> Array:
        """Return L^T A L, (m k, m k), for a symmetric A, (m, k, m k), of pulls and a root L."""
        shape = (len(self.forget), self.columns, self.side)
        half = left.apply_transposed(square).reshape(self.side, self.side)
        whole = to_numpy(left.apply_transposed(half.T.reshape(shape)).reshape(half.shape))
        return (whole + whole.T) / 2

    def largest(self) -> float:
        """Return the largest eigenvalue of L^T S_FF L, to 1e-8 where it is not computed densely."""
        if self.side <= DENSE_SIDE:
            matrix = self.between(self.root, self.to_all()[1][self.forget])
            return max(0.0, float(np.linalg.eigvalsh(matrix)[-1]))
        product, start = self.flat(self.weighted), np.random.default_rng(0).normal(size=self.side)
        if not product(start).any():  # ARPACK finds nothing in a matrix of zeros
            return 0.0
        operator = scipy.sparse.linalg.LinearOperator(
            (self.side, self.side), matvec=product, dtype=np.float64
        )
        return float(scipy.sparse.linalg.eigsh(operator, k=1, tol=1e-8, v0=start)[0][0])

    def flat(self, product: Callable[[Array], Array]) -> Callable[[Array], Array]:
        """Return a product with stacks as one with flat vectors, (m k,)."""

        def apply(v: Array) -> Array:
            stack = like(v.reshape(len(self.forget), self.columns, 1), self.outputs)
            return to_numpy(product(stack)).reshape(-1)

        return apply
