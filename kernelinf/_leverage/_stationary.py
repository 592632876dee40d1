"""Where a method that counts the forget set's losses w times comes to rest, seen from that set.

The retained points answer linearly, so all is a pull u on the forget set, with the outputs
f_r + S_FF u there, and at rest u = -w v g(f_r + S_FF u). With the squared loss that is linear,
u = (I + w V S_FF)^-1 u_0; with other losses Newton steps in u lead to it.
"""

from dataclasses import dataclass

import numpy as np
import scipy  # loads its parts when they are first used

from .._arrays import Array, as_stack, dot, like, to_numpy
from .._losses import HessianRoot
from .._response import Response
from ..unlearning import Plan

SOLVED = 1e-12  # relative residual of an iterative solve
SETTLED = 1e-10  # relative size of the last Newton step
MOST_STEPS = 30
MOST_HALVINGS = 30


@dataclass(frozen=True, eq=False)
class Rest:
    """The forget set's side of a minimum.

    Attributes
    ----------
    response
        That of the retained model.
    own
        S_FF, (m, k, m k); None where it is not formed.
    retrained
        Outputs of the retrained model on the forget set, (m, d).
    plan
        What is minimised.
    """

    response: Response
    own: Array | None
    retrained: Array
    plan: Plan

    def pull(self) -> Array:
        """Return u at rest, (m, d).

        Raises
        ------
        ValueError
            There is no minimum.
        """
        quadratic = self.plan.objective.problem.loss.quadratic
        pull = moved = 0 * self.retrained
        for _ in range(1 if quadratic else MOST_STEPS):
            missing = self._missing(pull, moved)
            step = self._damped(missing, self._root(moved))
            change = self.moved(step)
            length = 1.0 if quadratic else self._length(pull, moved, step, change)
            pull, moved = pull + length * step, moved + length * change
            if float(dot(change, change)) <= SETTLED**2 * float(dot(moved, moved)):
                break
        return pull

    def moved(self, pull: Array) -> Array:
        """Return S_FF u, (m, d)."""
        if self.own is None:
            return self.response.to(as_stack(pull)).product[self.response.forget, :, 0]
        side = self.response.side
        return (self.own.reshape(side, side) @ pull.reshape(side, -1)).reshape(pull.shape)

    def _missing(self, pull: Array, moved: Array) -> Array:
        """Return -w v g - u, zero at rest."""
        forget, objective = self.plan.forget, self.plan.objective
        targets = objective.problem.targets[forget]
        gradient = objective.problem.loss.gradient(self.retrained + moved, targets)
        return -objective.weights[forget][:, None] * gradient - pull

    def _root(self, moved: Array) -> HessianRoot:
        loss = self.plan.objective.problem.loss
        return loss.root(self.retrained + moved, self.response.weights)

    def _damped(self, pull: Array, root: HessianRoot) -> Array:
        """Return (I + w W_F S_FF)^-1 u = u - w L (I + w L^T S_FF L)^-1 L^T S_FF u, (m, d)."""
        w, response = self.plan.weight, self.response
        half = root.apply_transposed(as_stack(self.moved(pull)))
        flat = to_numpy(half).reshape(response.side, -1)
        if self.own is not None:
            system = response.between(root, self.own)
            check_convex(w, float(np.linalg.eigvalsh(system)[-1]))
            solved = np.linalg.solve(np.eye(response.side) + w * system, flat)
        else:
            product = response.flat(lambda v: response.weighted(v, root))
            operator = scipy.sparse.linalg.LinearOperator(
                2 * (response.side,), matvec=lambda v: v + w * product(v), dtype=np.float64
            )
            columns = [scipy.sparse.linalg.cg(operator, b, rtol=SOLVED)[0] for b in flat.T]
            solved = np.stack(columns, axis=1)
        return pull - w * root.apply(like(solved.reshape(half.shape), pull))[:, :, 0]

    def _length(self, pull: Array, moved: Array, step: Array, change: Array) -> float:
        """Return 1, or halve it until the objective no longer rises steeply at the end."""
        slope, length = -float(dot(self._missing(pull, moved), change)), 1.0
        for _ in range(MOST_HALVINGS):
            there = self._missing(pull + length * step, moved + length * change)
            if not -float(dot(there, change)) > max(-0.1 * slope, 0.0):
                break
            length /= 2
        return length


def check_convex(w: float, largest: float) -> None:
    """Refuse a negative weight w from which on there is no minimum, by lambda_max(H)."""
    if w < 0 and -w * largest >= 1:
        raise ValueError(
            f"`weight` is {-w:g}, but from gamma_max = {1 / largest:.3g} on the difference of the "
            "risks has no minimum; pass less, or a number of `steps`"
        )
