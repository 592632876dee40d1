"""Losses of one point: value, gradient and a square root of the Hessian, in its outputs.

Outputs are (n, d), or (n, d, s) for a stack of s problems: axis 1 always runs over the outputs.
"""

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np

from ._arrays import Array, as_stack, namespace
from ._checks import is_one_of


@dataclass(frozen=True, eq=False)
class HessianRoot:
    """The block-diagonal L with W = L L^T, one block L_i = diag(scale_i) (I - u_i u_i^T) a point.

    Every loss here has that shape, so L is applied in O(d) a point and W, which may be singular,
    is never formed. Vectors are stacks (n, d, s).
    """

    scale: Array  # (n, 1 or d, 1 or s)
    direction: Array | None = None  # u, (n, d, 1 or s); None stands for zero

    def apply(self, v: Array) -> Array:
        """Return L v."""
        return self.scale * self._project(v)

    def apply_transposed(self, v: Array) -> Array:
        """Return L^T v."""
        return self._project(self.scale * v)

    def _project(self, v: Array) -> Array:
        if self.direction is None:
            return v
        xp = namespace(v)
        direction = xp.broadcast_to(self.direction, v.shape)
        along = xp.einsum("nds,nds->ns", direction, v)  # five times as fast as a product and a sum
        return v - self.direction * along[:, None]


def rounded(root: HessianRoot, factor: Any = 1.0) -> HessianRoot:
    """Return a multiple of a root in float32."""
    xp, direction = namespace(root.scale), root.direction
    scale = xp.asarray(root.scale * factor, dtype=xp.float32)
    return HessianRoot(
        scale, None if direction is None else xp.asarray(direction, dtype=xp.float32)
    )


class Loss(abc.ABC):
    """A convex loss of one point's outputs given its target."""

    name: str
    curvature: float  # the largest eigenvalue its Hessian can have
    quadratic = False  # whether its Hessian is the identity everywhere
    steepest: float  # the largest norm its gradient can have
    lipschitz: float  # of its Hessian, in the spectral norm

    @abc.abstractmethod
    def value(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each point, (n,)."""

    @abc.abstractmethod
    def gradient(self, outputs: Array, targets: Array) -> Array:
        """Return the derivative of each point's loss in its outputs, (n, d)."""

    @abc.abstractmethod
    def root(self, outputs: Array, weights: Array) -> HessianRoot:
        """Return L of the Hessian of sum_i weights_i loss_i at `outputs`.

        Weights are (n,), or (n, s) for a stack of outputs (n, d, s).
        """


class SquaredLoss(Loss):
    """1/2 ||f - y||^2, summed over the outputs."""

    name, curvature, quadratic = "squared", 1.0, True
    steepest, lipschitz = float("inf"), 0.0

    def value(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each point, (n,)."""
        return 0.5 * namespace(outputs).sum((outputs - targets) ** 2, axis=1)

    def gradient(self, outputs: Array, targets: Array) -> Array:
        """Return f - y, (n, d)."""
        return outputs - targets

    def root(self, outputs: Array, weights: Array) -> HessianRoot:
        """Return L = sqrt(weights) I."""
        return HessianRoot(_column(weights) ** 0.5)


class CrossEntropyLoss(Loss):
    """-log softmax(f)[label]; targets are one-hot rows, or rows of class probabilities."""

    name, curvature = "cross_entropy", 0.5
    steepest = 2**0.5
    # Its third derivative along u, v, v is a covariance, E[(u - E u) (v - E v)^2] <= max |u - E u|
    # Var v, with entries of u at most sqrt(2) ||u|| apart and Var v <= ||v||^2 / 2.
    lipschitz = 0.5**0.5

    def value(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each point, (n,)."""
        xp = namespace(outputs)
        top = xp.max(outputs, axis=1, keepdims=True)
        log_sum = xp.log(xp.sum(xp.exp(outputs - top), axis=1, keepdims=True)) + top
        return xp.sum(targets * (log_sum - outputs), axis=1)

    def gradient(self, outputs: Array, targets: Array) -> Array:
        """Return softmax(f) - y, (n, d)."""
        return softmax(outputs) - targets

    def root(self, outputs: Array, weights: Array) -> HessianRoot:
        """Return L = sqrt(weights) diag(sqrt p) (I - sqrt(p) sqrt(p)^T), p = softmax(f)."""
        direction = as_stack(softmax(outputs)) ** 0.5
        return HessianRoot(_column(weights) ** 0.5 * direction, direction)


class LogisticLoss(Loss):
    """log(1 + exp(-y f)) of a single output; targets are -1 and +1."""

    name, curvature = "logistic", 0.25
    steepest, lipschitz = 1.0, 1 / (6 * 3**0.5)

    def value(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each point, (n,)."""
        return namespace(outputs).logaddexp(0.0, -targets * outputs)[:, 0]

    def gradient(self, outputs: Array, targets: Array) -> Array:
        """Return -y sigmoid(-y f), (n, 1)."""
        return -targets * _sigmoid(-targets * outputs)

    def root(self, outputs: Array, weights: Array) -> HessianRoot:
        """Return L = sqrt(weights sigmoid(f) sigmoid(-f))."""
        slope = _sigmoid(outputs) * _sigmoid(-outputs)
        return HessianRoot((_column(weights) * as_stack(slope)) ** 0.5)


def softmax(outputs: Array) -> Array:
    """Return class probabilities along axis 1."""
    xp = namespace(outputs)
    odds = xp.exp(outputs - xp.max(outputs, axis=1, keepdims=True))
    return odds / xp.sum(odds, axis=1, keepdims=True)


def _sigmoid(margin: Array) -> Array:
    # exp(-log(1 + exp(-m))) neither overflows nor loses the small tail
    xp = namespace(margin)
    return xp.exp(-xp.logaddexp(0.0, -margin))


def _column(weights: Array) -> Array:
    """Give weights (n,) or (n, s) the axes of a stack, (n, 1, 1 or s)."""
    return weights[:, None, None] if weights.ndim == 1 else weights[:, None]


LOSSES: dict[str, Loss] = {
    loss.name: loss for loss in (SquaredLoss(), CrossEntropyLoss(), LogisticLoss())
}


def named(loss: str) -> Loss:
    """Look a loss up by name.

    Raises
    ------
    ValueError
        `loss` is none of the known names.
    """
    if not is_one_of(loss, LOSSES):
        raise ValueError(f"`loss` is {loss!r}; pass one of {', '.join(map(repr, LOSSES))}")
    return LOSSES[loss]


def accuracy(outputs: Array, targets: Array) -> float:
    """Return the share of points whose largest output (or sign, for one output) is their label."""
    if outputs.shape[1] == 1:
        return float(np.mean(np.sign(outputs) == np.sign(targets)))
    return float(np.mean(np.argmax(outputs, axis=1) == np.argmax(targets, axis=1)))
