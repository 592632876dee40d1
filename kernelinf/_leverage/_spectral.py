"""Many steps of gradient descent on a quadratic objective at once, from its spectrum.

With the Hessian ridge I + W K of the coefficients, k steps at a rate eta from a residual r move
them by -p(ridge + W K) r,

    p(y) = eta sum_{j<k} (1 - eta y)^j = (1 - (1 - eta y)^k) / y.

W may have both signs. With K = B B^T, W K has the eigenvalues of the symmetric B^T W B.
"""

import math

import numpy as np

from .._arrays import Array, as_stack, like, namespace, to_numpy
from .._objective import Objective

SPECTRAL_SIDE = 1000  # rows up to which eigenvalues are computed; beyond, k products with K
EPS = float(np.finfo(np.float64).eps)


def steps_taken(
    objective: Objective, outputs: Array, residual: Array, rate: float, steps: int
) -> Array:
    """Return p(ridge + W K) r, (n, d), with W at these outputs: minus the change by the steps."""
    gram = objective.problem.gram
    columns = 1 if _uniform(objective, outputs) else residual.shape[1]
    side = gram.n * (gram.outputs or columns)
    if side <= SPECTRAL_SIDE and gram.whole:
        return _by_spectrum(objective, outputs, residual, rate, steps)
    return _by_products(objective, outputs, residual, rate, steps)


def _uniform(objective: Objective, outputs: Array) -> bool:
    """Tell whether one curvature serves all outputs of a point."""
    return objective.problem.loss.root(outputs, abs(objective.weights)).direction is None


def _by_spectrum(
    objective: Objective, outputs: Array, residual: Array, rate: float, steps: int
) -> Array:
    gram = objective.problem.gram
    uniform = _uniform(objective, outputs)
    blocks = gram if uniform or gram.outputs else gram.with_blocks(residual.shape[1])
    k, hessian, xp = blocks.outputs or 1, objective.hessian(outputs), namespace(residual)
    square = blocks.square()
    values, vectors = xp.linalg.eigh(square)
    half = vectors * values.clip(0.0) ** 0.5
    curved = hessian(half.reshape(gram.n, k, -1)).reshape(square.shape)
    bends, modes = xp.linalg.eigh(half.T @ curved)
    base = _polynomial(np.array([objective.ridge]), rate, steps)[0]
    gain = like(_slopes(to_numpy(bends), objective.ridge, base, rate, steps), residual)
    flat = residual.reshape(len(square), -1)
    moved = curved @ (modes @ (gain[:, None] * (modes.T @ (half.T @ flat))))
    return base * residual + moved.reshape(residual.shape)


def _polynomial(y: Array, rate: float, steps: int) -> Array:
    """Return p(y)."""
    with np.errstate(all="ignore"):
        values = (1 - (1 - rate * y) ** steps) / np.where(y == 0, 1.0, y)
    return np.where(np.abs(rate * y) < EPS, steps * rate, values)


def _slopes(z: Array, ridge: float, base: float, rate: float, steps: int) -> Array:
    """Return (p(ridge + z) - p(ridge)) / z; where z is lost in rounding it does not count."""
    kept = np.abs(z) > EPS * np.abs(z).max(initial=0.0)
    difference = _polynomial(ridge + z, rate, steps) - base
    return np.where(kept, difference / np.where(kept, z, 1.0), 0.0)


def _by_products(
    objective: Objective, outputs: Array, residual: Array, rate: float, steps: int
) -> Array:
    gram, hessian = objective.problem.gram, objective.hessian(outputs)
    taken = 0 * residual
    for _ in range(steps):
        curved = hessian(as_stack(gram @ taken))[:, :, 0]
        taken = taken + rate * (residual - objective.ridge * taken - curved)
    if not math.isfinite(float(abs(taken).max())):
        raise FloatingPointError("the steps diverge; pass fewer `steps`, or a lower `step_size`")
    return taken
