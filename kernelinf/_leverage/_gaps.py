"""How far each method ends from retraining, from the response of the retained model alone.

Everything is a change of coefficients c (n, d) relative to the retrained model's, and the outputs
K c. With mu the ridge after the removal, T = (mu I + W_R K)^-1 and r = mu alpha + v g on the
retained points (mu alpha on the forget set), the model itself is off by c_0 = T r: the Newton step
of the removal, backwards. A method that follows losses adds to it, or replaces it.
"""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy  # loads its parts when they are first used

from .._arrays import Array, as_stack, like, to_numpy
from .._gram import Cross
from .._methods import FirstOrder, Method, NewtonStep, Retrain, SecondOrder
from .._problem import Problem
from .._response import Points, Response, symmetric
from .._training import Model
from ..unlearning import NoUnlearning, Plan, Unlearning
from ._spectral import steps_taken

DENSE_BYTES = 128e6  # of the response to every pull on the forget set, to be formed
SOLVED = 1e-12


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
    """One removal: the model, the problem without the forget set, and the test points' kernel."""

    model: Model
    problem: Problem
    forget: Points
    cross: Cross | None

    @functools.cached_property
    def retained(self) -> Points:
        """Indices of the retained points."""
        return np.flatnonzero(to_numpy(self.problem.weights))

    @functools.cached_property
    def response(self) -> Response:
        """The response of the retained model, expanded at the model's outputs."""
        weights = self.model.problem.weights[self.forget]
        return Response(self.problem, self.model._outputs, self.forget, weights)

    @property
    def dense(self) -> bool:
        """Whether the response to every pull is formed."""
        rows = self.model.gram.n * self.response.columns
        return 8 * rows * self.response.side <= DENSE_BYTES

    @functools.cached_property
    def pulls(self) -> tuple[Array, Array]:
        """T E_F L and S_F L, (n, k, m k)."""
        return self.response.to_all()

    @functools.cached_property
    def self_leverage(self) -> Array:
        """Return H = L^T S_FF L, (m k, m k)."""
        half = self.response.root.apply_transposed(self.pulls[1][self.forget])
        return symmetric(half, self.response.side)

    @functools.cached_property
    def start(self) -> Moved:
        """The model itself."""
        residual = self.problem.residual(self.model._alpha, self.model._outputs)
        solution = self.response.system.solve(residual)
        return Moved(solution.x, solution.product)

    @functools.cached_property
    def retrained_outputs(self) -> Array:
        """Outputs of the retrained model, to second order, (n, d)."""
        return self.model._outputs - self.start.outputs

    @functools.cached_property
    def errors(self) -> Array:
        """Return e = -v g of the forget set at the model, (m, d)."""
        return -self._pull(self.model._outputs, self.response.weights, self.model.problem)

    def gap(self, method: Method) -> Gap:
        """Return the gap of a method."""
        moved = self.moved(method)
        outputs = to_numpy(moved.outputs)
        test = None if self.cross is None else to_numpy(self.cross @ moved.alpha)
        return Gap(method, outputs[self.forget], outputs[self.retained], test)

    def moved(self, method: Method) -> Moved:
        """Return where a method ends, relative to the retrained model."""
        if isinstance(method, NewtonStep | Retrain):
            return Moved(0 * self.start.alpha, 0 * self.start.outputs)
        if isinstance(method, FirstOrder | SecondOrder):
            first = self._full_step(self._edit())
            step = first if isinstance(method, FirstOrder) else first.plus(self._second(first))
            return self.start.plus(step)
        if isinstance(method, NoUnlearning):
            return self.start
        if isinstance(method, Unlearning):
            plan = method.plan(self.model, self.problem)
            return self._stationary(method, plan) if plan.steps is None else self._stepped(plan)
        raise TypeError(
            f"`method` is {method!r}; pass one of ki.unlearning, ki.FirstOrder(), "
            "ki.SecondOrder(), ki.NewtonStep() or ki.Retrain()"
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
        kept = self.response.system.hessian(as_stack(first.outputs))
        return self._full_step(ridge * first.alpha + (curved - kept)[:, :, 0])

    def _stationary(self, method: Unlearning, plan: Plan) -> Moved:
        """Return S (I + w W_F S_FF)^-1 u for the pull u = -w v g of the labels that are used."""
        w, root, forget = plan.weight, self.response.root, self.forget
        if w < 0 and -w * self.largest >= 1:
            raise ValueError(
                f"`weight` is {-w:g}, but from gamma_max = {1 / self.largest:.3g} on "
                f"{type(method).__name__} has no minimum; pass less, or a number of `steps`"
            )
        objective = plan.objective
        weights = objective.weights[forget]
        pull = -self._pull(self.retrained_outputs, weights, objective.problem)
        first = self.response.to(as_stack(pull))
        half = root.apply_transposed(first.product[forget])
        back = w * root.apply(self._damped(half, w))
        step = self.response.to(as_stack(pull) - back)
        return Moved(step.x[:, :, 0], step.product[:, :, 0])

    def _damped(self, half: Array, w: float) -> Array:
        """Return (I + w H)^-1 times a stack (m, d, 1)."""
        response, flat = self.response, to_numpy(half).reshape(self.response.side, -1)
        if self.dense:
            system = np.eye(response.side) + w * self.self_leverage
            return like(np.linalg.solve(system, flat).reshape(half.shape), half)
        product = response.flat(response.weighted)
        operator = scipy.sparse.linalg.LinearOperator(
            2 * (response.side,), matvec=lambda v: v + w * product(v), dtype=np.float64
        )
        columns = [scipy.sparse.linalg.cg(operator, b, rtol=SOLVED)[0] for b in flat.T]
        return like(np.stack(columns, axis=1).reshape(half.shape), half)

    @functools.cached_property
    def largest(self) -> float:
        """The largest eigenvalue of H."""
        if not self.dense:
            return self.response.largest()
        return max(0.0, float(np.linalg.eigvalsh(self.self_leverage)[-1]))

    def _stepped(self, plan: Plan) -> Moved:
        """Subtract k steps of gradient descent on the plan's objective, expanded at the model."""
        objective, steps = plan.objective, plan.steps or 0
        alpha, outputs = self.model._alpha, self.model._outputs
        residual = objective.residual(alpha, outputs)
        if objective.ridge > 0:
            change = steps_taken(objective, outputs, residual, plan.rate, steps)
        else:  # only the forget set moves
            rows = plan.forget
            own = steps_taken(plan.part(), outputs[rows], residual[rows], plan.rate, steps)
            change = plan.spread(own)
        return self.start.plus(Moved(change, self.model.gram @ change), -1.0)
