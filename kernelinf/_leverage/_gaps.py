"""How far each method ends from retraining, from the response of the retained model alone.

Everything is a change of coefficients c (n, d) relative to the retrained model's, and the outputs
K c. With mu the ridge after the removal, T = (mu I + W_R K)^-1 and r = mu alpha + v g on the
retained points (mu alpha on the forget set), the model itself is off by c_0 = T r: the Newton step
of the removal, backwards, unless further steps have been taken to see the retrained model. A method
that follows losses adds to it, or replaces it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arrays import Array, as_stack, to_numpy
from .._gram import Cross
from .._methods import FirstOrder, Method, NewtonStep, Retrain, SecondOrder
from .._objective import STEPS_DIVERGE, Objective, check_finite
from .._problem import Problem
from .._response import Points, Response
from .._training import Model, Newton
from ..unlearning import NoUnlearning, Plan, Unlearning, descended
from ._spectral import Descent
from ._stationary import Rest, check_convex

DENSE_BYTES = 128e6  # of the response to every pull on the forget set, to be formed


@dataclass(frozen=True, eq=False)
class Gap:
    """How far a method ends from retraining: its outputs minus those of the retrained model.

    Attributes
    ----------
    method
        The method.
    forget
        On the forget set, (m, d).
    retained
        On the retained points, (r, d).
    test
        At the test points, (t, d); None without any.
    """

    method: Method
    forget: Array
    retained: Array
    test: Array | None = None

    @property
    def norm(self) -> float:
        """Root of the sum of squares over the training points, forgotten and retained."""
        return float(np.hypot(self.forget_norm, self.retained_norm))

    @property
    def forget_norm(self) -> float:
        """Root of the sum of squares on the forget set."""
        return float(np.linalg.norm(self.forget))

    @property
    def retained_norm(self) -> float:
        """Root of the sum of squares on the retained points."""
        return float(np.linalg.norm(self.retained))

    @property
    def test_norm(self) -> float | None:
        """Root of the sum of squares at the test points; None without any."""
        return None if self.test is None else float(np.linalg.norm(self.test))

    def __repr__(self) -> str:
        test = "" if self.test is None else f", test {self.test_norm:.3g}"
        norms = f"forget {self.forget_norm:.3g}, retained {self.retained_norm:.3g}{test}"
        return f"Gap({self.method}: {norms})"


@dataclass(frozen=True, eq=False)
class Moved:
    """Coefficients (n, d) and outputs (n, d) relative to the retrained model's."""

    alpha: Array
    outputs: Array

    def plus(self, other: "Moved", factor: float = 1.0) -> "Moved":
        """Return the sum with a multiple of another."""
        return Moved(self.alpha + factor * other.alpha, self.outputs + factor * other.outputs)


@dataclass(frozen=True, eq=False)
class Geometry:
    """One removal: the model, the problem without the forget set, and the test points' kernel.

    `refine` Newton steps after the first lead to the model that counts as retrained.
    """

    model: Model
    problem: Problem
    forget: Points
    cross: Cross | None
    refine: int = 0

    @functools.cached_property
    def retained(self) -> Points:
        """Indices of the retained points."""
        return np.flatnonzero(to_numpy(self.problem.weights))

    @functools.cached_property
    def response(self) -> Response:
        """The response of the retained model: at the model's outputs, or the refined ones."""
        outputs = self.retrained[1] if self.refined else self.model._outputs
        weights = self.model.problem.weights[self.forget]
        return Response(self.problem, outputs, self.forget, weights)

    @property
    def dense(self) -> bool:
        """Whether the response to every pull is formed."""
        rows = self.model.gram.n * self.response.columns
        return 8 * rows * self.response.side <= DENSE_BYTES

    @functools.cached_property
    def pulls(self) -> tuple[Array, Array]:
        """T E_F and S_F, (n, k, m k)."""
        return self.response.to_all()

    @functools.cached_property
    def self_leverage(self) -> Array:
        """Return H = L^T S_FF L, (m k, m k)."""
        return self.response.between(self.response.root, self._own)

    @property
    def _own(self) -> Array:
        """S_FF, (m, k, m k)."""
        return self.pulls[1][self.forget]

    @property
    def refined(self) -> bool:
        """Whether steps after the first have been taken."""
        return self.refine > 0 and not self.problem.loss.quadratic

    @functools.cached_property
    def step(self) -> Moved:
        """The Newton step of the removal, backwards: the model relative to where it leads."""
        at = self.model._outputs
        system = self.problem.system(at) if self.refined else self.response.system
        solution = system.solve(self.problem.residual(self.model._alpha, at))
        return Moved(solution.x, solution.product)

    @functools.cached_property
    def retrained(self) -> tuple[Array, Array]:
        """Coefficients and outputs that count as retrained, (n, d)."""
        alpha, outputs = self.model._alpha - self.step.alpha, self.model._outputs
        if not self.refined:
            return alpha, outputs - self.step.outputs
        trained = Newton(max_steps=self.refine).train(self.problem, alpha, progress=False)
        return trained.alpha, trained.outputs

    @functools.cached_property
    def start(self) -> Moved:
        """The model itself."""
        if not self.refined:
            return self.step
        alpha, outputs = self.retrained
        return Moved(self.model._alpha - alpha, self.model._outputs - outputs)

    @functools.cached_property
    def errors(self) -> Array:
        """Return e = -v g of the forget set at the model, (m, d)."""
        return -self._pull(self.model._outputs, self.response.weights, self.model.problem)

    def gap(self, method: Method) -> Gap:
        """Return the gap of a method."""
        moved = self.moved(method)
        outputs = to_numpy(moved.outputs)
        test = None if self.cross is None else to_numpy(self.cross @ moved.alpha)
        gap = Gap(method, outputs[self.forget], outputs[self.retained], test)
        check_finite(np.array(gap.norm), STEPS_DIVERGE)  # outputs whose squares are lost, too
        return gap

    def moved(self, method: Method) -> Moved:
        """Return where a method ends, relative to the retrained model."""
        if isinstance(method, Retrain):
            return self.start.plus(self.start, -1.0)
        if isinstance(method, NewtonStep) and method == NewtonStep(method.form):  # no other options
            return self.start.plus(self.step, -1.0)
        if isinstance(method, FirstOrder | SecondOrder):
            first = self._full_step(self._edit())
            step = first if isinstance(method, FirstOrder) else first.plus(self._second(first))
            return self.start.plus(step)
        if isinstance(method, NoUnlearning):
            return self.start
        if isinstance(method, Unlearning):
            plan = method.plan(self.model, self.problem)
            return self._stationary(plan) if plan.steps is None else self._stepped(plan)
        raise TypeError(
            f"`method` is {method!r}; pass one of ki.unlearning, ki.FirstOrder(), "
            "ki.SecondOrder(), ki.NewtonStep() without options, or ki.Retrain()"
        )

    def _pull(self, outputs: Array, weights: Array, problem: Problem) -> Array:
        forget = self.forget
        gradient = problem.loss.gradient(outputs[forget], problem.targets[forget])
        return weights[:, None] * gradient

    def _edit(self) -> Array:
        """Return what the removal takes from the residual, (n, d): v g of F, (rho - mu) alpha."""
        alpha, outputs = self.model._alpha, self.model._outputs
        return self.model.problem.residual(alpha, outputs) - self.problem.residual(alpha, outputs)

    @functools.cached_property
    def _full(self) -> Any:
        return self.model.problem.system(self.model._outputs)

    def _full_step(self, b: Array) -> Moved:
        solution = self._full.solve(b)
        return Moved(solution.x, solution.product)

    def _second(self, first: Moved) -> Moved:
        ridge = self.model.problem.rho - self.problem.rho
        curved = self._full.hessian(as_stack(first.outputs))
        kept = self.problem.system(self.model._outputs).hessian(as_stack(first.outputs))
        return self._full_step(ridge * first.alpha + (curved - kept)[:, :, 0])

    def _stationary(self, plan: Plan) -> Moved:
        """Return S u for the pull u of the forget set where a plan comes to rest."""
        check_convex(plan.weight, self.largest)
        own = self._own if self.dense else None
        rest = Rest(self.response, own, self.retrained[1][self.forget], plan)
        step = self.response.to(as_stack(rest.pull()))
        return Moved(step.x[:, :, 0], step.product[:, :, 0])

    @functools.cached_property
    def largest(self) -> float:
        """The largest eigenvalue of H."""
        if not self.dense:
            return self.response.largest()
        return max(0.0, float(np.linalg.eigvalsh(self.self_leverage)[-1]))

    def _stepped(self, plan: Plan) -> Moved:
        """Subtract what k steps of gradient descent on the plan's objective change.

        Once the retrained model is known, steps on a loss that is not quadratic are followed as
        they are: with a fixed Hessian they would take as many products with K, and end elsewhere.
        """
        alpha, outputs = self.model._alpha, self.model._outputs
        if self.refined:
            change = alpha - descended(self.model, plan)
        elif plan.objective.ridge > 0:
            change = _expanded(plan.objective, plan, alpha, outputs)
        else:  # only the forget set moves
            own = alpha[self.forget], outputs[self.forget]
            change = plan.spread(_expanded(plan.part(), plan, *own))
        return self.start.plus(Moved(change, self.model.gram @ change), -1.0)


def _expanded(objective: Objective, plan: Plan, alpha: Array, outputs: Array) -> Array:
    """Return minus the change by k steps with the Hessian that the objective starts with."""
    uniform = objective.problem.loss.root(outputs, abs(objective.weights)).direction is None
    gram, hessian = objective.problem.gram, objective.hessian(outputs)
    descent = Descent(gram, objective.ridge, plan.rate, plan.steps or 0, hessian, uniform)
    return descent.taken(objective.residual(alpha, outputs))
