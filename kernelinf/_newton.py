"""The one linear system of the library, (rho I + W K) x = b, and its solvers.

W is the block-diagonal Hessian of the loss, W = L L^T. The square-root form

    x = (b - P K b) / rho,    P = L A^-1 L^T,    A = rho I + L^T K L

has a symmetric positive definite A whatever the ranks of K and W (the identity behind Rasmussen &
Williams 2006, Eq. 3.27), with condition number at most 1 + curvature lambda_max(K) / rho. P v comes
from conjugate gradients or from a factorisation.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, like, namespace, root_dot, unit
from ._conjugate_gradients import conjugate_gradients
from ._factorization import Factorization, Structured, cost, factorize, worth
from ._gram import Gram
from ._losses import HessianRoot, rounded
from ._patience import Patience
from ._preconditioner import Preconditioner

TOLERANCE = 1e-12  # relative residual of a solve meant to be exact
EPS = float(np.finfo(np.float64).eps)
MAX_ROUNDS = 6
EXPECTED_ITERATIONS = 25  # of conjugate gradients, to weigh them against a factorisation
MAX_FACTOR_BYTES = 4e9
SINGLE_REDUCTION = 1e-5  # what one solve in float32 is asked for at most
SINGLE_ITERATIONS = 200  # after which float64 goes on
SINGLE_CONDITION = 1e5  # beyond which rounding in float32 spoils it
# The structured factorisation loses twice the digits that the condition number says: beyond this,
# and up to so many rows, the matrix is written out and factorised as it is.
STRUCTURED_CONDITION = 1e4
BLOCKS_SIDE = 3000
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
    patience
        Otherwise, how long conjugate gradients may go on before A is factorised after all.
    single
        Iterate in float32, which a refinement or an outer iteration in float64 has to follow.
    """

    gram: Gram
    root: HessianRoot
    rho: Any
    direct: bool
    patience: Patience = field(default_factory=Patience)
    single: bool = False

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

    def solve(self, b: Array, tolerance: float = TOLERANCE, shift: Array | None = None) -> Solution:
        """Solve for one right-hand side (n, d) or a stack (n, d, s), refining until it is exact.

        The true residual is recomputed after every round, so that rounding in a badly conditioned
        system is repaired by the next one, and what cannot be repaired is reported.

        Parameters
        ----------
        shift
            Of the outputs, like b, for the right-hand side b - W shift. It is kept apart, because
            K x may cancel most of it, and the rounding of W shift would stay in x, over rho.
            Residuals are relative to the larger of b and rho x then.

        Raises
        ------
        FloatingPointError
            No round brought the residual down at all.
        """
        target, xp = as_stack(b), namespace(b)
        moved = 0 * target if shift is None else as_stack(shift)
        x, product, iterations = 0 * target, 0 * target, 0
        size = root_dot(target, target)
        remainder, pull = target, self.gram @ target + self.rho * moved
        residuals = _ratio(size, size) if shift is None else 1 + 0 * size
        for _ in range(MAX_ROUNDS):
            reduction = 0.1 * tolerance / xp.maximum(residuals, tolerance)
            step, used = self.correction(remainder, pull, reduction)
            trial = x + step
            trial_product = self.gram @ trial
            trial_remainder = target - self.rho * trial - self.hessian(moved + trial_product)
            iterations += used
            if shift is not None:
                size = xp.maximum(size, root_dot(self.rho * trial, self.rho * trial))
            previous, new = residuals, _ratio(root_dot(trial_remainder, trial_remainder), size)
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
            pull = self.gram @ remainder
        if self.single and bool((residuals > xp.maximum(tolerance, self._rounding)).any()):
            return replace(self, single=False).solve(b, tolerance, shift)
        _check_progress(residuals)
        return Solution(x.reshape(b.shape), product.reshape(b.shape), residuals, iterations)

    def solve_transposed(self, b: Array, tolerance: float = TOLERANCE) -> Solution:
        """Solve (rho I + K W) u = b for a stack (n, d, s) whose columns lie in the range of K.

        `Solution.product` is W u here.
        """
        u, residual, iterations, remainder = 0 * b, 1.0, 0, b
        product, xp = u, namespace(b)
        for _ in range(MAX_ROUNDS):
            inner, used = self._inner(remainder, 0.1 * tolerance / residual)
            trial = u + (remainder - self.gram @ inner) / self.rho
            trial_product = self.hessian(trial)
            trial_remainder = b - self.rho * trial - self.gram @ trial_product
            iterations += used
            previous, new = residual, float(xp.max(_relative(trial_remainder, b)))
            if new < previous:
                u, product, remainder, residual = trial, trial_product, trial_remainder, new
            if new <= self._enough(tolerance) or new > 0.1 * previous:
                break
        residuals = np.array([residual])
        _check_progress(residuals)
        return Solution(u, product, residuals, iterations)

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
        return EPS if self.factorised else tolerance

    def correction(self, b: Array, product: Array, reduction: Any) -> tuple[Array, int]:
        """Solve once, so that the error is at most `reduction` of the solution.

        Both are measured in the norm of the risk's Hessian in parameter space, in which a Newton
        step of relative error e leaves about e of the way to go: so it is solved no further than
        the progress it can make. With z = L^T K x for the solution x, an error of z is at least
        that of x in this norm, and z at most x itself.

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
        inner, used = self._inner(product, reduction)
        return (b - inner) / self.rho, used

    def _inner(self, v: Array, reduction: Any) -> tuple[Array, int]:
        """Return P v, P = L A^-1 L^T, and the iterations used."""
        if self.factorised:
            return self._factorization.apply(v), 0
        b = self.root.apply_transposed(v)
        z, used, solved = (self._iterate_single if self.single else self._iterate)(b, reduction)
        if not solved and self.factorised:
            return self._factorization.apply(v), used
        if not solved:
            rest, more, _ = self._iterate(b - self._operator(z), reduction)
            z, used = z + rest, used + more
        return self.root.apply(z) / self.rho, used

    def _iterate(self, b: Array, reduction: Any) -> tuple[Array, int, bool]:
        """Solve (A / rho) z = b by conjugate gradients, as far as patience allows."""
        price = worth(self.gram, self.root, b.shape[2])
        z, used, solved = conjugate_gradients(
            self._operator,
            b,
            reduction=reduction,
            inverse=self._preconditioner,
            most=self.patience.iterations(price) if self._fits else float("inf"),
        )
        self.patience.spent += used / price
        return z, used, solved

    def _iterate_single(self, b: Array, reduction: Any) -> tuple[Array, int, bool]:
        """Do the same in float32, with the kernel scaled so that nothing overflows."""
        scaled = self.gram.single
        assert scaled is not None  # or `single` would not be set
        gram, largest = scaled
        root = rounded(self.root, (largest / self.rho) ** 0.5)

        def operator(v: Array) -> Array:
            # v is orthogonal to the directions of L, as all that L^T returns, so that L scales it;
            # rounding spoils that slowly, and not within a few digits
            return v + root.apply_transposed(gram @ (root.scale * v))

        xp, size = namespace(b), unit(b)
        z, used, solved = conjugate_gradients(
            operator,
            xp.asarray(b / size, dtype=xp.float32),
            reduction=xp.asarray(xp.maximum(reduction, SINGLE_REDUCTION), dtype=xp.float32),
            inverse=self._preconditioner.single,
            most=SINGLE_ITERATIONS,
        )
        return size * z, used, solved

    def _operator(self, v: Array) -> Array:
        return v + self.root.apply_transposed(self.gram @ self.root.apply(v)) / self.rho

    @functools.cached_property
    def _preconditioner(self) -> Preconditioner:
        return Preconditioner(self.gram, self.root, self.rho, narrow=self.single)

    @property
    def _fits(self) -> bool:
        """Whether there is one matrix A, not one for each of a stack, and room for its factors."""
        one = self.root.scale.shape[2] == 1 and np.size(self.rho) == 1
        fits = 8 * cost(self.gram, self.root)[0] <= MAX_FACTOR_BYTES
        return one and self.gram.whole and fits

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
        if not isinstance(factor, Structured):
            return factor
        n, d = self.root.scale.shape[:2]
        if n * d <= BLOCKS_SIDE and self._condition > STRUCTURED_CONDITION:
            factor = factorize(self.gram.with_blocks(d), self.root, self.rho)
        self._try(factor)
        return factor

    @property
    def _condition(self) -> Any:
        """Bound the condition number of the system by the trace of K; (s,) for s ridges."""
        return float(self.gram.diagonal.sum()) / self.rho

    @property
    def _rounding(self) -> Any:
        """Relative residual that float64 may leave, (s,) for s ridges."""
        return 8 * EPS * (1 + self._condition)

    def _try(self, factor: Factorization) -> None:
        """Refuse a factorisation that solves a random system much worse than rounding explains."""
        shape = (self.gram.n, self.root.scale.shape[1], 1)
        b = like(np.random.default_rng(0).normal(size=shape), self.root.scale)
        x = (b - factor.apply(self.gram @ b)) / self.rho
        missed = float(_relative(b - self.rho * x - self.hessian(self.gram @ x), b)[0])
        if not missed <= max(SPOILED, min(100 * EPS * self._condition, 0.01)):
            raise FloatingPointError(
                "the ridge is so small beside the kernel that rounding spoils the factorisation; "
                "raise `reg`"
            )


def _check_progress(residuals: Array) -> None:
    if bool((residuals >= 1).any()):
        raise FloatingPointError(
            "the ridge is lost in rounding beside the kernel: nothing of the system could be "
            "solved; raise `reg`"
        )


def _relative(remainder: Array, b: Array) -> Array:
    """Return ||remainder|| / ||b||, (s,); zero where b is."""
    return _ratio(root_dot(remainder, remainder), root_dot(b, b))


def _ratio(part: Array, size: Array) -> Array:
    """Return part / size, and part where size is zero."""
    return part / namespace(size).where(size > 0, size, 1.0)
