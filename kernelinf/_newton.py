"""The one linear system of the library, (rho I + W K) x = b, and its solvers.

W is the block-diagonal Hessian of the loss, W = L L^T. The square-root form

    x = (b - P K b) / rho,    P = L A^-1 L^T,    A = rho I + L^T K L

has a symmetric positive definite A whatever the ranks of K and W (the identity behind Rasmussen &
Williams 2006, Eq. 3.27), with condition number at most 1 + curvature lambda_max(K) / rho. P v comes
from conjugate gradients or from a factorisation.
"""

import functools
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, dot, like, namespace
from ._conjugate_gradients import conjugate_gradients
from ._factorization import Factorization, Structured, cost, factorize, worth
from ._gram import Gram
from ._losses import HessianRoot
from ._patience import Patience
from ._preconditioner import Preconditioner

TOLERANCE = 1e-12  # relative residual of a solve meant to be exact
EPS = float(np.finfo(np.float64).eps)
MAX_ROUNDS = 6
EXPECTED_ITERATIONS = 25  # of conjugate gradients, to weigh them against a factorisation
MAX_FACTOR_BYTES = 4e9
SPOILED = 1e-6  # relative residual from which rounding is too much for a factorisation


@dataclass(frozen=True, eq=False)
class Solution:
    """A solution of the system and how good it is.

    Attributes
    ----------
    x
        The shape of the right-hand side, (n, d) or (n, d, s).
    product
        K x, same shape.
    residual
        Relative residual ||b - (rho I + W K) x|| / ||b||, recomputed from x; the worst of a stack.
    iterations
        Conjugate gradient iterations, zero for a direct solve.
    """

    x: Array
    product: Array
    residual: float
    iterations: int


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
        The ridge, positive.
    direct
        Factorise A instead of iterating.
    patience
        Otherwise, how long conjugate gradients may go on before A is factorised after all.
    """

    gram: Gram
    root: HessianRoot
    rho: float
    direct: bool
    patience: Patience = field(default_factory=Patience)

    def prepared(self, columns: int) -> "System":
        """Return the system, factorised if that many right-hand sides (n, d) repay it."""
        pays = worth(self.gram, self.root, columns) < EXPECTED_ITERATIONS
        return replace(self, patience=Patience(0.0)) if pays else self

    @property
    def factorised(self) -> bool:
        """Whether P comes from a factorisation, made when this is first asked for."""
        return self.direct or (self.patience.exhausted and self._possible)

    @property
    def next_patience(self) -> Patience:
        """Patience with the next system of an iteration, which is much like this one.

        Half as much after a factorisation, so that iterating in vain is not repeated in full.
        """
        if not self.patience.exhausted:
            return Patience()
        return Patience(0.5 if self._possible else float("inf"))

    def solve(self, b: Array, tolerance: float = TOLERANCE) -> Solution:
        """Solve for one right-hand side (n, d) or a stack (n, d, s), refining until it is exact.

        The true residual is recomputed after every round, so that rounding in a badly conditioned
        system is repaired by the next one, and what cannot be repaired is reported.

        Raises
        ------
        FloatingPointError
            No round brought the residual down at all.
        """
        target = as_stack(b)
        x, product, iterations = 0 * target, 0 * target, 0
        remainder, residual = target, 1.0
        for _ in range(MAX_ROUNDS):
            step, used = self.correction(
                remainder, self.gram @ remainder, 0.1 * tolerance / residual
            )
            trial = x + step
            trial_product = self.gram @ trial
            trial_remainder = target - self.rho * trial - self.hessian(trial_product)
            iterations += used
            previous, new = residual, _relative(trial_remainder, target)
            if new < previous:
                x, product, remainder, residual = trial, trial_product, trial_remainder, new
            if new <= self._enough(tolerance) or new > 0.1 * previous:
                break
        _check_progress(residual)
        return Solution(x.reshape(b.shape), product.reshape(b.shape), residual, iterations)

    def solve_transposed(self, b: Array, tolerance: float = TOLERANCE) -> Solution:
        """Solve (rho I + K W) u = b for a stack (n, d, s) whose columns lie in the range of K.

        `Solution.product` is W u here.
        """
        u, residual, iterations, remainder = 0 * b, 1.0, 0, b
        product = u
        for _ in range(MAX_ROUNDS):
            inner, used = self._inner(remainder, 0.1 * tolerance / residual)
            trial = u + (remainder - self.gram @ inner) / self.rho
            trial_product = self.hessian(trial)
            trial_remainder = b - self.rho * trial - self.gram @ trial_product
            iterations += used
            previous, new = residual, _relative(trial_remainder, b)
            if new < previous:
                u, product, remainder, residual = trial, trial_product, trial_remainder, new
            if new <= self._enough(tolerance) or new > 0.1 * previous:
                break
        _check_progress(residual)
        return Solution(u, product, residual, iterations)

    def response(self, points: npt.NDArray[np.intp]) -> Array:
        """Return the diagonal blocks of S = K (rho I + W K)^-1 at some points, by factorising.

        S_ij is the derivative of point i's outputs in a pull -g_j on point j. (m, d, d); or
        (m, 1, 1) where one number serves all outputs of a point.
        """
        return self._factorization.remainder(points) / self.rho

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
        return EPS if self.factorised else tolerance

    def correction(self, b: Array, product: Array, reduction: float) -> tuple[Array, int]:
        """Solve once, so that the error is at most `reduction` of the solution.

        Both are measured in the norm of the risk's Hessian in parameter space, in which a Newton
        step of relative error e leaves about e of the way to go: so it is solved no further than
        the progress it can make. With z = L^T K x for the solution x, an error of z is at least
        that of x in this norm, and z at most x itself.

        Parameters
        ----------
        b, product
            Right-hand side and K times it, (n, d, s).

        Returns
        -------
        The approximate solution (n, d, s) and the iterations used.
        """
        inner, used = self._inner(product, reduction)
        return (b - inner) / self.rho, used

    def _inner(self, v: Array, reduction: float) -> tuple[Array, int]:
        """Return P v, P = L A^-1 L^T, and the iterations used."""
        if self.factorised:
            return self._factorization.apply(v), 0
        b = self.root.apply_transposed(v)
        z, used, solved = self._iterate(b, reduction)
        if solved:
            return self.root.apply(z), used
        if self.factorised:
            return self._factorization.apply(v), used
        rest, more, _ = self._iterate(b - self._operator(z), reduction)
        return self.root.apply(z + rest), used + more

    def _iterate(self, b: Array, reduction: float) -> tuple[Array, int, bool]:
        """Solve A z = b by conjugate gradients, as far as patience allows."""
        price = worth(self.gram, self.root, b.shape[2])
        z, used, solved = conjugate_gradients(
            self._operator,
            b,
            rho=self.rho,
            reduction=reduction,
            inverse=self._preconditioner,
            most=self.patience.iterations(price) if self._fits else float("inf"),
        )
        self.patience.spent += used / price
        return z, used, solved

    def _operator(self, v: Array) -> Array:
        return self.rho * v + self.root.apply_transposed(self.gram @ self.root.apply(v))

    @functools.cached_property
    def _preconditioner(self) -> Preconditioner:
        return Preconditioner(self.gram, self.root, self.rho)

    @property
    def _fits(self) -> bool:
        """Whether there is one matrix A, not one for each of a stack, with room for its factors."""
        one = self.root.scale.shape[2] == 1
        return one and 8 * cost(self.gram, self.root)[0] <= MAX_FACTOR_BYTES

    @functools.cached_property
    def _possible(self) -> bool:
        """Whether there is a factorisation: it fits, and rounding leaves it some digits."""
        try:
            return self._fits and self._factorization is not None
        except FloatingPointError:
            return False

    @functools.cached_property
    def _factorization(self) -> Factorization:
        factor = factorize(self.gram, self.root, self.rho)
        if isinstance(factor, Structured):
            self._try(factor)
        return factor

    def _try(self, factor: Factorization) -> None:
        """Refuse a factorisation that solves a random system much worse than rounding explains."""
        shape = (self.gram.n, self.root.scale.shape[1], 1)
        b = like(np.random.default_rng(0).normal(size=shape), self.root.scale)
        x = (b - factor.apply(self.gram @ b)) / self.rho
        missed = _relative(b - self.rho * x - self.hessian(self.gram @ x), b)
        condition = float(self.gram.diagonal.sum()) / self.rho
        if not missed <= max(SPOILED, min(100 * EPS * condition, 0.01)):
            raise FloatingPointError(
                "the ridge is so small beside the kernel that rounding spoils the factorisation; "
                "raise `reg`"
            )


def _check_progress(residual: float) -> None:
    if residual >= 1:
        raise FloatingPointError(
            "the ridge is lost in rounding beside the kernel: nothing of the system could be "
            "solved; raise `reg`"
        )


def _relative(remainder: Array, b: Array) -> float:
    xp = namespace(b)
    size = xp.sqrt(dot(b, b))
    return float(xp.max(xp.sqrt(dot(remainder, remainder)) / xp.where(size > 0, size, 1.0)))
