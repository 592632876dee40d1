"""The one linear system of the library, (rho I + W K) x = b, and its solvers.

W is the block-diagonal Hessian of the loss, W = L L^T. The square-root form

    x = (b - P K b) / rho,    P = L A^-1 L^T,    A = rho I + L^T K L

has a symmetric positive definite A whatever the ranks of K and W (the identity behind Rasmussen &
Williams 2006, Eq. 3.27), with condition number at most 1 + curvature lambda_max(K) / rho. P v comes
from conjugate gradients or from a factorisation.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, dot, namespace, root_dot, unit
from ._factorization import Factorization, cost, factorize
from ._gram import Gram
from ._losses import HessianRoot

TOLERANCE = 1e-12  # relative residual of a solve meant to be exact
EPS = float(np.finfo(np.float64).eps)
MAX_ROUNDS = 6
EXPECTED_ITERATIONS = 25  # of conjugate gradients, to weigh them against a factorisation
MAX_FACTOR_BYTES = 4e9
SINGLE_REDUCTION = 1e-5  # what one solve in float32 is asked for at most
SINGLE_CONDITION = 1e5  # beyond which rounding in float32 spoils it
MAX_ITERATIONS = 20_000  # of conjugate gradients, and never more than 20 an unknown


@dataclass(frozen=True, eq=False)
class Solution:
    """A solution of the system and how good it is.

    Attributes
    ----------
    x
        The shape of the right-hand side, (n, d) or (n, d, s).
    product
        K x, same shape.
    residuals
        Relative residual ||b - (rho I + W K) x|| / ||b||, recomputed from x; one a column, (s,).
    iterations
        Conjugate gradient iterations, zero for a direct solve.
    """

    x: Array
    product: Array
    residuals: Array
    iterations: int

    @property
    def residual(self) -> float:
        """The worst relative residual of the stack."""
        return float(self.residuals.max())


@dataclass(frozen=True, eq=False)
class System:
    """(rho I + W K) x = b with W = L L^T.

    Attributes
    ----------
    gram
        K.
    root
        L.
    rho
        The ridge, positive; or (s,), one for each column of a stack.
    direct
        Factorise A instead of iterating.
    single
        Iterate in float32, which a refinement or an outer iteration in float64 has to follow.
    """

    gram: Gram
    root: HessianRoot
    rho: Any
    direct: bool
    single: bool = False

    def prepared(self, columns: int) -> "System":
        """Return the system, factorised if that many right-hand sides (n, d) repay it."""
        size, operations = cost(self.gram, self.root)
        products = 2 * EXPECTED_ITERATIONS * columns * size
        pays = operations < products and 8 * size <= MAX_FACTOR_BYTES
        return replace(self, direct=self.direct or pays)

    def solve(self, b: Array, tolerance: float = TOLERANCE) -> Solution:
        """Solve for one right-hand side (n, d) or a stack (n, d, s), refining until it is exact.

        The true residual is recomputed after every round, so that rounding in a badly conditioned
        system is repaired by the next one, and what cannot be repaired is reported.
        """
        target = as_stack(b)
        xp = namespace(b)
        x, product, iterations = 0 * target, 0 * target, 0
        remainder, residuals = target, _relative(target, target)
        for _ in range(MAX_ROUNDS):
            reduction = 0.1 * tolerance / xp.maximum(residuals, tolerance)
            step, used = self.correction(remainder, self.gram @ remainder, reduction)
            trial = x + step
            trial_product = self.gram @ trial
            trial_remainder = target - self.rho * trial - self.hessian(trial_product)
            iterations += used
            previous, new = residuals, _relative(trial_remainder, target)
            better = new < previous
            x, product, remainder, residuals = (
                xp.where(better, new_value, value)
                for new_value, value in (
                    (trial, x),
                    (trial_product, product),
                    (trial_remainder, remainder),
                    (new, previous),
                )
            )
            if bool(((new <= self._enough(tolerance)) | (new > 0.1 * previous)).all()):
                break
        return Solution(x.reshape(b.shape), product.reshape(b.shape), residuals, iterations)

    def solve_transposed(self, b: Array, tolerance: float = TOLERANCE) -> Solution:
        """Solve (rho I + K W) u = b for a stack (n, d, s) whose columns lie in the range of K.

        `Solution.product` is W u here.
        """
        u, residual, iterations, remainder = 0 * b, 1.0, 0, b
        product, xp = u, namespace(b)
        for _ in range(MAX_ROUNDS):
            # ||r||^2 / ||r||_K bounds the norm of r that belongs to K^-1 from below
            reference = dot(remainder, remainder) / _norm(remainder, self.gram @ remainder)
            inner, used = self._inner(remainder, 0.1 * tolerance / residual, reference)
            trial = u + (remainder - self.gram @ inner) / self.rho
            trial_product = self.hessian(trial)
            trial_remainder = b - self.rho * trial - self.gram @ trial_product
            iterations += used
            previous, new = residual, float(xp.max(_relative(trial_remainder, b)))
            if new < previous:
                u, product, remainder, residual = trial, trial_product, trial_remainder, new
            if new <= self._enough(tolerance) or new > 0.1 * previous:
                break
        return Solution(u, product, np.array([residual]), iterations)

    def response(self, points: npt.NDArray[np.intp]) -> Array:
        """Return the diagonal blocks of S = K (rho I + W K)^-1 at some points, by factorising.

        S_ij is the derivative of point i's outputs in a pull -g_j on point j. (m, d, d); or
        (m, 1, 1) where one number serves all outputs of a point.
        """
        return self._factorization.remainder(points) / self.rho

    def corner(self, points: npt.NDArray[np.intp]) -> Array:
        """Return I - L_F^T S_FF L_F of a group, (m d, m d), by factorising.

        (m, m) where one number serves all outputs of a point.
        """
        return self._factorization.corner(points)

    def slack(self, points: slice) -> Array:
        """Return I - W_i S_ii of some points, what their own leverage leaves over, by factorising.

        (m, d, d); or (m, 1, 1) where one number serves all outputs of a point. Right on the range
        of W_i.
        """
        return self._factorization.slack(points)

    def hessian(self, v: Array) -> Array:
        """Return W v for a stack (n, d, s)."""
        return self.root.apply(self.root.apply_transposed(v))

    def _enough(self, tolerance: float) -> float:
        """Return the residual to stop at: with a factor at hand, rounding costs little more."""
        return EPS if self.direct else tolerance

    def correction(self, b: Array, product: Array, reduction: Any) -> tuple[Array, int]:
        """Solve once, to a residual whose K-norm is `reduction` times that of b.

        The K-norm sqrt(r^T K r) is the norm of the gradient in parameter space, so a Newton step
        is solved no further than the progress it can make.

        Parameters
        ----------
        b, product
            Right-hand side and K times it, (n, d, s).
        reduction
            A number, or one a column, (s,); float32 does not go below `SINGLE_REDUCTION`.

        Returns
        -------
        The approximate solution (n, d, s) and the iterations used.
        """
        reference = _norm(b, product)
        inner, used = self._inner(product, reduction, reference)
        return (b - inner) / self.rho, used

    def _inner(self, v: Array, reduction: Any, reference: Array) -> tuple[Array, int]:
        """Return P v, P = L A^-1 L^T, and the iterations used."""
        if self.direct:
            return self._factorization.apply(v), 0
        b = self.root.apply_transposed(v)
        if self.single:
            reduction = namespace(b).maximum(reduction, SINGLE_REDUCTION)
            z, used = self._in_single(b, reduction * reference)
        else:
            z, used = conjugate_gradients(self._operator, b, self.rho, reduction * reference)
        return self.root.apply(z), used

    def _in_single(self, b: Array, target: Array) -> tuple[Array, int]:
        """Solve A z = b in float32, as (A / rho) z' = b / ||b||: scaled so, nothing overflows."""
        xp = namespace(b)

        def rounded(values: Any) -> Array:
            return xp.asarray(values, dtype=xp.float32)

        gram, largest = self.gram.single
        direction = None if self.root.direction is None else rounded(self.root.direction)
        root = HessianRoot(rounded(self.root.scale * (largest / self.rho) ** 0.5), direction)

        def operator(v: Array) -> Array:
            # v is orthogonal to the directions of L, as all that L^T returns, so that L scales it;
            # rounding spoils that slowly, and not within a few digits
            return v + root.apply_transposed(gram @ (root.scale * v))

        size = root_dot(b, b)
        size = xp.where(size > 0, size, 1.0)
        norm = rounded(target * (self.rho**0.5 / size))
        z, used = conjugate_gradients(operator, rounded(b / size), rounded(1.0), norm)
        return z * (size / self.rho), used

    def _operator(self, v: Array) -> Array:
        return self.rho * v + self.root.apply_transposed(self.gram @ self.root.apply(v))

    @functools.cached_property
    def _factorization(self) -> Factorization:
        return factorize(self.gram, self.root, self.rho)


def conjugate_gradients(
    operator: Callable[[Array], Array], b: Array, rho: Any, target: Array
) -> tuple[Array, int]:
    """Solve A x = b, A = rho I + B with B = L^T K L, for a stack (n, d, s), one step size each.

    Stops when sqrt(r^T B r) / rho, the K-norm of the residual that r leaves in the system that A
    comes from, is at most `target` (s,). That costs no product: successive residuals
    r = p - beta p' of conjugate directions have r^T A r = p^T A p + beta^2 p'^T A p'.

    SciPy's solver takes one vector and stops on ||r||, which undersolves small eigenvalues: with it
    the outer Newton iteration can stall.
    """
    xp, size = namespace(b), unit(b)
    b, target = b / size, target / size
    x, r, p = 0 * b, b, b
    squared = dot(r, r)
    beta, before = 0 * squared, 0 * squared
    active = squared > 0
    iteration = 0
    most = min(MAX_ITERATIONS, 100 + 20 * b.shape[0] * b.shape[1])
    while iteration < most and bool(xp.any(active)):
        product = operator(p)
        curvature = dot(p, product)
        norm = xp.sqrt(xp.maximum(curvature + beta**2 * before - rho * squared, 0.0)) / rho
        step = xp.where(active, squared / xp.where(active, curvature, 1.0), 0.0)
        x, r = x + step * p, r - step * product
        new = dot(r, r)
        active = active & (norm > target) & (new > 0)
        beta = xp.where(active, new / xp.where(active, squared, 1.0), 0.0)
        p, squared, before = r + beta * p, new, curvature
        iteration += 1
    return size * x, iteration


def _norm(v: Array, product: Array) -> Array:
    """Return the K-norm of v from K v, and one where it is zero."""
    norm = root_dot(v, product)
    return namespace(v).where(norm > 0, norm, 1.0)


def _relative(remainder: Array, b: Array) -> Array:
    """Return ||remainder|| / ||b||, (s,); zero where b is."""
    xp = namespace(b)
    size = root_dot(b, b)
    return root_dot(remainder, remainder) / xp.where(size > 0, size, 1.0)
