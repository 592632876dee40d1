"""The regularised risk that training minimises, in dual form."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ._arrays import Array, dot, like, namespace, root_dot, to_numpy
from ._gram import Gram
from ._losses import Loss
from ._newton import SINGLE_CONDITION, System
from ._patience import Patience

EPS = float(np.finfo(np.float64).eps)

ALLOWED_CONDITION = 1e10  # of the system, so that training reaches its tolerance (measured)
ROUNDING_SHARE = 1e-6  # of the gradient before training that may be put down to rounding

RegScale = Literal["mean", "sum"]


@dataclass(frozen=True, eq=False)
class Problem:
    """Weighted risk of a model f = offset + K alpha with ||theta - theta'||^2 = alpha^T K alpha.

    "mean": sum_i v_i loss_i / sum_i v_i + reg/2 ||theta - theta'||^2, so that the ridge
    rho = reg sum_i v_i shrinks with every point removed. "sum": sum_i v_i loss_i +
    reg/2 ||theta - theta'||^2 with rho = reg. A point is removed by giving it weight zero.

    Attributes
    ----------
    gram
        K of all n points.
    targets, offset
        (n, d).
    weights
        v, (n,), non-negative.
    """

    gram: Gram
    targets: Array
    loss: Loss
    reg: float
    reg_scale: RegScale
    offset: Array
    weights: Array

    @property
    def total(self) -> float:
        """Total weight: the number of points, unless they are weighted."""
        return float(to_numpy(self.weights).sum())

    @property
    def points(self) -> int:
        """How many points have a weight."""
        return int((to_numpy(self.weights) > 0).sum())

    @property
    def rho(self) -> float:
        """The ridge of the dual system, positive."""
        rho = self.reg * self.total if self.reg_scale == "mean" else self.reg
        if rho == 0:
            raise vanished()
        return rho

    @property
    def scale(self) -> float:
        """What the summed losses are multiplied by in the risk."""
        return 1 / self.total if self.reg_scale == "mean" else 1.0

    def outputs(self, alpha: Array) -> Array:
        """Return f at the training points, (n, d)."""
        return self.offset + self.gram @ alpha

    def residual(self, alpha: Array, outputs: Array) -> Array:
        """Return rho alpha + v g, (n, d): zero when alpha is trained."""
        gradient = self.loss.gradient(outputs, self.targets)
        return self.rho * alpha + self.weights[:, None] * gradient

    def gradient_norm(self, residual: Array, product: Array | None = None) -> float:
        """Return the norm of the risk's gradient in parameter space from the residual r.

        It is `scale` sqrt(r^T K r), exact at any width; pass `product` = K r if it is known. Where
        r lies so far in the null space of K that rounding hides the product, what rounding may make
        of it is returned, eps sum_i K_ii r_i^2.
        """
        product = self.gram @ residual if product is None else product
        hidden = EPS**0.5 * root_dot(residual, self.gram.diagonal * residual)
        return self.scale * max(float(root_dot(residual, product)), float(hidden))

    def gradient_size(self) -> float:
        """Bound the gradient norm before training by those of the points' own losses.

        scale sum_i v_i sum_c |g_ic| k_c(x_i, x_i)^1/2: the unit in which gradients are small.
        """
        gradient = self.loss.gradient(self.offset, self.targets)
        sizes = namespace(gradient).abs(gradient) * self.gram.diagonal**0.5
        return self.scale * float((self.weights[:, None] * sizes).sum())

    def rounding_norm(self, alpha: Array) -> float:
        """Return the gradient norm that rounding alone may leave in place of zero.

        Outputs carry errors of about eps ||K|| ||alpha||, and the gradient those of the outputs.
        It is not allowed more than a millionth of the gradient before training: what is lost in
        rounding altogether is not trained.
        """
        size = self.gram.norm
        distance = size**0.5 * float(root_dot(alpha, alpha))  # first: it is near one for any kernel
        change = self.loss.curvature * float(self.weights.max()) * size + self.rho
        return min(self.scale * EPS * change * distance, ROUNDING_SHARE * self.gradient_size())

    def advice(self) -> str:
        """Advise a larger `reg`, by number where this one is lost beside the kernel.

        The condition number of the system is at most 1 + curvature ||K|| / rho.
        """
        weight = self.loss.curvature * float(self.weights.max())
        least = self.scale * weight * self.gram.norm / ALLOWED_CONDITION
        return "raise `reg`" + (f" to {least:.1e} or more" if self.reg < least else "")

    def risk(self, alpha: Array, outputs: Array) -> float:
        """Return the regularised risk."""
        losses = self.loss.value(outputs, self.targets)
        penalty = float(dot(alpha, outputs - self.offset)) / 2
        return self.scale * (float((self.weights * losses).sum()) + self.rho * penalty)

    def system(self, outputs: Array, patience: Patience | None = None) -> System:
        """Return the linear system of a Newton step from these outputs."""
        root = self.loss.root(outputs, self.weights)
        direct = self.loss.quadratic and self.gram.whole
        return System(self.gram, root, self.rho, direct, patience or Patience(), self._single)

    @property
    def _single(self) -> bool:
        """Whether to iterate in float32: the matrix is in float32, and the condition allows it."""
        condition = self.loss.curvature * float(self.weights.max() * self.gram.diagonal.sum())
        return self.gram.rounded and condition <= SINGLE_CONDITION * self.rho

    def without(self, forget: npt.NDArray[np.intp]) -> "Problem":
        """Return the problem with weight zero on some points."""
        keep = np.ones(self.gram.n)
        keep[forget] = 0.0
        return replace(self, weights=self.weights * like(keep, self.weights))

    def take(self, rows: npt.NDArray[np.intp]) -> "Problem":
        """Return the problem of some of the points alone, (m,) indices, as a copy."""

        def pick(array: Any) -> Array:
            return namespace(array).take(array, rows, axis=0)

        return replace(
            self,
            gram=self.gram.take(rows),
            targets=pick(self.targets),
            offset=pick(self.offset),
            weights=pick(self.weights),
        )


def vanished() -> FloatingPointError:
    """Return the error of a ridge that is too small for float64."""
    return FloatingPointError(
        "the ridge, `reg` times the total weight, is below what float64 holds; raise `reg`"
    )
