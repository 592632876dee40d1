"""What an unlearning method does to one model: which losses it follows, and how far."""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from .._arrays import Array, like, namespace, to_numpy
from .._gram import Dense, Gram
from .._methods import Method
from .._objective import STEPS_DIVERGE, Objective, check_finite
from .._problem import Problem
from .._training import Model, largest_curvature

Points = npt.NDArray[np.intp]

CUT = 1e-12  # eigenvalues of a kernel below this share of the largest are taken as zero


@dataclass(frozen=True, eq=False)
class Projection:
    """What is left of the forget set's features off the span of the retained ones.

    Attributes
    ----------
    forget, retained
        Indices, (m,) and (r,).
    kernel
        K_FF - K_FR K_RR^+ K_RF.
    pull
        K_RR^+ K_RF as a square matrix has it, (r, m) or (r d, m d).
    """

    forget: Points
    retained: Points
    kernel: Gram
    pull: Array

    @classmethod
    def off(cls, gram: Gram, forget: Points, retained: Points) -> "Projection":
        """Project off the retained features, directions of `CUT` of the largest left out."""
        xp, d = namespace(gram.diagonal), gram.outputs or 1
        values, vectors = xp.linalg.eigh(gram.take(retained).square())
        rows = gram.rows(forget).matrix.reshape(len(forget) * d, -1)
        columns = (d * retained[:, None] + np.arange(d)).reshape(-1)
        kept = values > CUT * values[-1]
        roots = xp.where(kept, xp.where(kept, values, 1.0) ** -0.5, 0.0)
        half = (vectors * roots).T @ rows[:, columns].T
        own = gram.take(forget).square()
        kernel = Gram.of(Dense(own - half.T @ half), gram.outputs)
        return cls(forget, retained, kernel, (vectors * roots) @ half)

    def coefficients(self, change: Array, n: int) -> Array:
        """Return the change of all coefficients, (n, d), by one (m, d) of the forget set's."""
        full = np.zeros((n, change.shape[1]))
        flat = change.reshape(self.pull.shape[1], -1)
        full[self.forget] = to_numpy(change)
        full[self.retained] -= to_numpy(self.pull @ flat).reshape(-1, change.shape[1])
        return like(full, change)


@dataclass(frozen=True, eq=False)
class Plan:
    """What a method does to one model: an objective, and how far it is followed.

    Attributes
    ----------
    objective
        Followed downhill.
    forget
        Indices of the forget set, (m,), ascending.
    steps
        Of gradient descent; None goes to the minimum.
    rate
        Factor of the objective's gradient in a step.
    projection
        What keeps steps from moving the retained outputs, if anything does.
    """

    objective: Objective
    forget: Points
    steps: int | None = None
    rate: float = 0.0
    projection: Projection | None = None

    @property
    def weight(self) -> float:
        """What the forget set's losses count, in units of what they counted before."""
        return float(self.objective.weights[self.forget[0]]) / self._before

    def part(self) -> Objective:
        """Return the objective of the forget set alone, off the projection."""
        kernel = None if self.projection is None else self.projection.kernel
        return self.objective.take(self.forget, kernel)

    def spread(self, change: Array) -> Array:
        """Return the change of all coefficients, (n, d), by one (m, d) of the forget set's."""
        n = self.objective.problem.gram.n
        if self.projection is not None:
            return self.projection.coefficients(change, n)
        full = np.zeros((n, change.shape[1]))
        full[self.forget] = to_numpy(change)
        return like(full, change)

    @property
    def _before(self) -> float:
        return float(self.objective.problem.weights[self.forget[0]])


def forget_set(method: Method, model: Model, problem: Problem) -> Points:
    """Return the points that an edit removes, or refuse an edit that is more than a removal."""
    before, after = model.problem, problem
    weights, left = to_numpy(before.weights), to_numpy(after.weights)
    removed = (weights > 0) & (left == 0)
    same = np.array_equal(np.where(removed, weights, left), weights)
    if not removed.any() or not same or bool((before.targets != after.targets).any()):
        raise ValueError(
            f"`method` is {method!r}, which forgets points and makes no other edit; pass "
            "ki.NewtonStep(), ki.FirstOrder() or ki.Retrain(), or use ki.remove"
        )
    return np.flatnonzero(removed)


def descended(model: Model, plan: Plan) -> Array:
    """Return the coefficients after the steps of a plan, (n, d)."""
    objective, steps = plan.objective, plan.steps or 0
    if objective.ridge > 0:
        alpha = objective.descend(model._alpha, model._outputs, plan.rate, steps)
    else:
        alpha = model._alpha + climbed(model, plan)
    check_finite(alpha, STEPS_DIVERGE)
    return alpha


def climbed(model: Model, plan: Plan) -> Array:
    """Return the change of the coefficients, (n, d), by steps that move the forget set's alone."""
    forget, part = plan.forget, plan.part()
    start = model._alpha[forget]
    change = part.descend(start, model._outputs[forget], plan.rate, plan.steps or 0) - start
    return plan.spread(change)


def counting(
    model: Model,
    problem: Problem,
    forget: Points,
    weight: float,
    *,
    labels: Array | None = None,
    retained: float = 1.0,
    ridge: float | None = None,
) -> Objective:
    """Return the objective in which the forget set counts `weight` of what it did before."""
    weights = retained * to_numpy(problem.weights)
    weights[forget] = weight * to_numpy(model.problem.weights)[forget]
    targets = to_numpy(problem.targets)
    if labels is not None:
        targets = targets.copy()
        targets[forget] = labels
    before = replace(model.problem, targets=like(targets, problem.targets))
    rho = problem.rho if ridge is None else ridge
    return Objective(before, like(weights, problem.weights), rho)


def ascent_rate(steps: int, size: float | None, model: Model, forget: Points) -> float:
    """Return the factor of the forget set's summed gradient in a step of ascent."""
    part = model.problem.take(forget)
    if size is not None:
        return size * part.scale
    curvature = largest_curvature(part) - part.rho
    return 1 / (max(steps, 1) * curvature) if curvature > 0 else 1.0


def descent_rate(size: float | None, problem: Problem, objective: Objective) -> float:
    """Return the factor of the residual in a step of descent."""
    if size is not None:
        return size * problem.scale
    weights = abs(objective.weights)
    risk = replace(problem, weights=weights, reg=objective.ridge, reg_scale="sum")
    return 2 / (largest_curvature(risk) + objective.ridge)
