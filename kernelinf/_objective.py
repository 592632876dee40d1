"""Objectives in which points may count with a negative weight: followed downhill, or to a minimum.

ridge/2 ||theta - theta'||^2 + sum_i w_i loss_i. Losses with a negative weight are climbed. Where
the objective is convex nevertheless, the system of a Newton step, (ridge I + W K) x = b with a W of
both signs, is self-adjoint and positive definite in the inner product a^T K b, which is that of
parameter space: so conjugate gradients solve it there, a product with K an iteration, and find out
when it is not convex.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, dot, finite, namespace
from ._gram import Gram
from ._problem import Problem

Points = npt.NDArray[np.intp]

REDUCTION = 1e-7  # of a Newton step's system, in which rounding leaves half of the digits
MOST_ITERATIONS = 2000
MOST_STEPS = 60
MOST_HALVINGS = 30
STEPS_DIVERGE = "pass fewer `steps`, a lower `step_size`, or None for it"
STALL_STEPS = 3  # in a row that do not halve the gradient norm


class NotConvexError(ArithmeticError):
    """The objective bends down somewhere: there is no minimum to find."""


@dataclass(frozen=True, eq=False)
class Objective:
    """ridge/2 ||theta - theta'||^2 + sum_i w_i loss_i.

    Attributes
    ----------
    problem
        Gram, targets, loss and initial outputs; its own weights and ridge do not count here.
    weights
        w, (n,), of either sign.
    ridge
        Zero or more.
    """

    problem: Problem
    weights: Array
    ridge: float

    def residual(self, alpha: Array, outputs: Array) -> Array:
        """Return ridge alpha + w g, (n, d)."""
        gradient = self.problem.loss.gradient(outputs, self.problem.targets)
        return self.ridge * alpha + self.weights[:, None] * gradient

    def hessian(self, outputs: Array) -> Callable[[Array], Array]:
        """Return the product W v with stacks (n, d, s)."""
        xp = namespace(outputs)
        root = self.problem.loss.root(outputs, xp.abs(self.weights))
        sign = xp.sign(self.weights)[:, None, None]
        return lambda v: sign * root.apply(root.apply_transposed(v))

    def take(self, rows: Points, gram: Gram | None = None) -> "Objective":
        """Return the part of some points, with another kernel among them if one is given."""
        part = self.problem.take(rows)
        part = part if gram is None else replace(part, gram=gram)
        return Objective(part, self.weights[rows], self.ridge)

    def descend(self, alpha: Array, outputs: Array, rate: float, steps: int) -> Array:
        """Return the coefficients after steps of gradient descent from those with these outputs."""
        gram = self.problem.gram
        for _ in range(steps):
            residual = self.residual(alpha, outputs)
            alpha, outputs = alpha - rate * residual, outputs - rate * (gram @ residual)
        return alpha

    def minimise(self, alpha: Array, tol: float) -> tuple[Array, bool]:
        """Return the coefficients of a minimum near these, and whether it was reached.

        Parameters
        ----------
        tol
            Gradient norm in parameter space, relative to that before training.

        Raises
        ------
        NotConvexError
            The objective bends down on the way.
        """
        problem, slow, before = self.problem, 0, np.inf
        unit = replace(problem, weights=abs(self.weights), reg=self.ridge, reg_scale="sum")
        least = tol * unit.gradient_size()
        for _ in range(MOST_STEPS):
            outputs = problem.outputs(alpha)
            residual = self.residual(alpha, outputs)
            norm = unit.gradient_norm(residual)
            if not np.isfinite(norm):
                raise NotConvexError
            slow = slow + 1 if norm > 0.5 * before else 0
            if norm <= least or slow >= STALL_STEPS:
                break
            step = self._step(outputs, -residual)
            alpha, before = alpha + self._length(alpha, outputs, step) * step, norm
        return alpha, bool(norm <= max(least, unit.rounding_norm(alpha)))

    def _step(self, outputs: Array, right: Array) -> Array:
        """Solve (ridge I + W K) x = b by conjugate gradients in the inner product of K."""
        gram, hessian, b = self.problem.gram, self.hessian(outputs), as_stack(right)
        x_product, r, pull = 0 * b, b, gram @ b
        p, moved = r, pull
        size = first = float(dot(r, pull)[0])
        for _ in range(MOST_ITERATIONS):
            if not size > REDUCTION**2 * first:
                break
            image = self.ridge * p + hessian(moved)
            bend = float(dot(moved, image)[0])
            if bend <= 0:
                raise NotConvexError
            length = size / bend
            x_product, r = x_product + length * moved, r - length * image
            pull = gram @ r
            size, last = float(dot(r, pull)[0]), size
            p, moved = r + size / last * p, pull + size / last * moved
        # what K maps to zero, which no inner product sees, is right for this form alone
        return ((b - hessian(x_product)) / self.ridge)[:, :, 0]

    def _length(self, alpha: Array, outputs: Array, step: Array) -> float:
        """Return 1, or halve it until the objective no longer rises steeply at the end."""
        if self.problem.loss.quadratic:
            return 1.0
        change, length = self.problem.gram @ step, 1.0
        slope = float(dot(self.residual(alpha, outputs), change))
        for _ in range(MOST_HALVINGS):
            there = self.residual(alpha + length * step, outputs + length * change)
            if not float(dot(there, change)) > max(-0.1 * slope, 0.0):
                break
            length /= 2
        return length


def check_finite(alpha: Array, cause: str) -> None:
    """Refuse coefficients that grew beyond float64."""
    if not finite(alpha):
        raise FloatingPointError(f"the method diverged to NaN or infinite values: {cause}")
