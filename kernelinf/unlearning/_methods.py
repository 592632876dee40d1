"""Methods that follow the losses as they are, up or down."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .._arrays import Array, namespace, to_numpy
from .._checks import is_number, is_whole
from .._methods import Batch, Method, Solved
from .._objective import NotConvexError, Objective
from .._problem import Problem
from .._response import Response
from .._training import Model, Newton, largest_curvature
from ._plan import (
    Plan,
    Points,
    Projection,
    ascent_rate,
    counting,
    descended,
    descent_rate,
    forget_set,
)

TOLERANCE = 1e-11  # gradient norm of a minimum, as `Newton` has it
SIGNED_TOLERANCE = 1e-13  # the same near gamma_max, where it is divided by what is left of it


class Unlearning(Method):
    """A method that follows losses of the forget set or of the retained points."""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)  # type: ignore[arg-type]
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(given)})"

    @abc.abstractmethod
    def plan(self, model: Model, problem: Problem) -> Plan:
        """Say what the method follows, for one removal; costs an eigenvalue at most."""

    def solve(self, model: Model, problem: Problem) -> Solved:
        """Compute the coefficients of one removal."""
        plan = self.plan(model, problem)
        alpha, converged = self._followed(model, problem, plan)
        return Solved(alpha, np.zeros(1), np.array([converged]))

    def batch(self, model: Model, sets: Sequence[Points]) -> Batch:
        """Return what solves some removals one by one."""

        def solve(_: Any, members: Sequence[Points]) -> Solved:
            solved = [self.solve(model, model.problem.without(group)) for group in members]
            alpha = namespace(model._alpha).stack([part.alpha for part in solved], axis=2)
            converged = np.concatenate([part.converged for part in solved])
            return Solved(alpha, np.zeros(len(members)), converged)

        return solve

    def _followed(self, model: Model, problem: Problem, plan: Plan) -> tuple[Array, bool]:
        if plan.steps is None:
            return self._minimum(model, problem, plan)
        return descended(model, plan), True

    def _minimum(self, model: Model, problem: Problem, plan: Plan) -> tuple[Array, bool]:
        """Train on the objective of positive weights, an ordinary risk."""
        objective = plan.objective
        total = float(objective.weights.sum()) if problem.reg_scale == "mean" else 1.0
        risk = replace(objective.problem, weights=objective.weights, reg=objective.ridge / total)
        start = 0 * model._alpha if problem.loss.quadratic else model._alpha
        trained = Newton(TOLERANCE).train(risk, start, progress=False)
        return trained.alpha, trained.converged


@dataclass(frozen=True, repr=False)
class NoUnlearning(Unlearning):
    """Leave the model as it is: what every other method has to improve on."""

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Follow nothing."""
        forget = forget_set(self, model, problem)
        return Plan(Objective(model.problem, problem.weights, problem.rho), forget, steps=0)


@dataclass(frozen=True, repr=False)
class GradientAscent(Unlearning):
    """Steps of gradient ascent on the loss of the forget set (Jang et al. 2023).

    The penalty and the retained points take no part.

    Attributes
    ----------
    steps
        How many.
    step_size
        The learning rate. None takes 1 / (steps L), L a bound on the curvature of the forget set's
        loss: residuals grow at most e-fold, however many the steps.
    """

    steps: int
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_size(self.step_size)

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Climb the loss of the forget set."""
        forget = forget_set(self, model, problem)
        objective = counting(model, problem, forget, -1.0, retained=0.0, ridge=0.0)
        rate = ascent_rate(self.steps, self.step_size, model, forget)
        return Plan(objective, forget, self.steps, rate)


@dataclass(frozen=True, repr=False)
class ProjectedAscent(Unlearning):
    """Gradient ascent on the forget set, projected off the gradients of the retained outputs.

    Each step is made orthogonal to the gradients of every output at every retained point (as
    Farajtabar et al. 2020 do for learning), so that the retained outputs do not move at all.
    Takes an eigendecomposition of the retained part of the Gram matrix, which has to be in memory.

    Attributes
    ----------
    steps, step_size
        As for `GradientAscent`.
    """

    steps: int
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_size(self.step_size)

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Climb the loss of the forget set where that moves no retained output."""
        plan = GradientAscent(self.steps, self.step_size).plan(model, problem)
        retained = np.flatnonzero(to_numpy(problem.weights))
        return replace(plan, projection=Projection.off(problem.gram, plan.forget, retained))


@dataclass(frozen=True, repr=False)
class GradientDifference(Unlearning):
    """Minimise the loss of the retained points minus `weight` times that of the forget set.

    sum_R loss_i - weight sum_F loss_i + mu/2 ||theta - theta'||^2, mu the ridge that the removal
    leaves (Liu, Liu & Stone 2022; Maini et al. 2024). It has a minimum while `weight` is below
    gamma_max = 1 / lambda_max(H), H the forget set's self-leverage. With other losses than the
    squared one H grows as outputs move, so it may have none at less; the one that is found is that
    near the retrained model.

    Attributes
    ----------
    weight
        How much a forgotten point counts against a retained one; positive.
    steps
        Steps of gradient descent from the model; None goes to the minimum.
    step_size
        The learning rate of the steps. None takes 2 / (L + ridge), as `KernelGradientDescent`.
    """

    weight: float
    steps: int | None = None
    step_size: float | None = None

    def __post_init__(self) -> None:
        check_weight(self.weight)
        _check_size(self.step_size)
        if self.steps is not None:
            _check_steps(self.steps)
        elif self.step_size is not None:
            raise ValueError("`step_size` was given without `steps`; pass both, or neither")

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Descend on the retained points and climb on the forget set."""
        forget = forget_set(self, model, problem)
        objective = counting(model, problem, forget, -self.weight)
        rate = 0.0 if self.steps is None else descent_rate(self.step_size, problem, objective)
        return Plan(objective, forget, self.steps, rate)

    def _minimum(self, model: Model, problem: Problem, plan: Plan) -> tuple[Array, bool]:
        """Descend from the retrained model, the minimum for a weight of zero."""
        start, outputs = model._alpha, model._outputs
        if not problem.loss.quadratic:
            retrained = Newton(TOLERANCE).train(problem, start, progress=False)
            start, outputs = retrained.alpha, retrained.outputs
        try:
            alpha, converged = plan.objective.minimise(start, SIGNED_TOLERANCE)
        except NotConvexError:
            raise _beyond(self.weight, model, problem, plan.forget, outputs) from None
        # conjugate gradients may miss a direction in which the objective bends down
        outputs = problem.outputs(alpha)
        response = Response(problem, outputs, plan.forget, model.problem.weights[plan.forget])
        if self.weight * response.largest() >= 1:
            raise _beyond(self.weight, model, problem, plan.forget, outputs)
        return alpha, converged


@dataclass(frozen=True, repr=False)
class FineTuning(Unlearning):
    """Steps of gradient descent on the risk without the forget set, from the model.

    Attributes
    ----------
    steps
        How many.
    step_size
        The learning rate. None takes 2 / (L + reg), as `KernelGradientDescent`.
    """

    steps: int
    step_size: float | None = None

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        _check_size(self.step_size)

    def plan(self, model: Model, problem: Problem) -> Plan:
        """Descend on the retained risk."""
        forget = forget_set(self, model, problem)
        objective = Objective(model.problem, problem.weights, problem.rho)
        rate = descent_rate(self.step_size, problem, objective)
        return Plan(objective, forget, self.steps, rate)

    def _followed(self, model: Model, problem: Problem, plan: Plan) -> tuple[Array, bool]:
        alpha = descended(model, plan)
        before, after = (problem.risk(a, problem.outputs(a)) for a in (model._alpha, alpha))
        if not after <= before + 1e-9 * abs(before):
            stable = 2 / (problem.scale * largest_curvature(problem))
            raise FloatingPointError(
                f"`step_size` is {self.step_size!r}: fine-tuning diverges, the risk rises from "
                f"{before:.3g} to {after:.3g}; pass less than {stable:.3g}, or None"
            )
        return alpha, True


def _beyond(
    weight: float, model: Model, problem: Problem, forget: Points, outputs: Array
) -> ValueError:
    """Return the error of a weight that leaves no minimum."""
    response = Response(problem, outputs, forget, model.problem.weights[forget])
    largest = response.largest()
    most = f"{1 / largest:.3g}" if largest > 0 else "inf"
    return ValueError(
        f"`weight` is {weight:g}, but from gamma_max = {most} on the difference of the risks has "
        "no minimum; pass less (ki.leverage gives gamma_max), or a number of `steps`"
    )


def _check_steps(steps: Any) -> None:
    if not (is_whole(steps) and steps >= 0):
        raise ValueError(f"`steps` is {steps!r}; pass a whole number, zero or more")


def _check_size(size: Any) -> None:
    if size is not None and not (is_number(size) and size > 0):
        raise ValueError(f"`step_size` is {size!r}; pass a positive number, or None")


def check_weight(weight: Any) -> None:
    if not (is_number(weight) and weight > 0):
        raise ValueError(f"`weight` is {weight!r}; pass a positive number")
