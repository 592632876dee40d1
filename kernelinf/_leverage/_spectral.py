"""Many steps of gradient descent on a quadratic objective at once, from its spectrum.

With the Hessian ridge I + W K of the coefficients, k steps at a rate eta from a residual r move
them by -p(ridge + W K) r,

    p(y) = eta sum_{j<k} (1 - eta y)^j = (1 - (1 - eta y)^k) / y.

W may have both signs. With K = B B^T, W K has the eigenvalues of the symmetric B^T W B. Where W
mixes the outputs that K = Sigma (x) I keeps apart, that would be a matrix of side n d; there, and
in large problems, the polynomial is evaluated by k products with K.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .._arrays import Array, as_stack, like, namespace, to_numpy
from .._gram import Gram

SPECTRAL_SIDE = 1000  # rows up to which eigenvalues are computed; beyond, k products with K
EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Descent:
    """Steps of gradient descent at a rate, with a Hessian ridge I + W K that stays as it is.

    Attributes
    ----------
    gram
        K.
    ridge, rate, steps
        As above.
    hessian
        The product W v with stacks (n, d, s).
    uniform
        Whether W has one number for all outputs of a point.
    """

    gram: Gram
    ridge: float
    rate: float
    steps: int
    hessian: Callable[[Array], Array]
    uniform: bool

    def taken(self, residual: Array) -> Array:
        """Return p(ridge + W K) r, (n, d): minus the change of the coefficients."""
        return _by_spectrum(self, residual) if self._spectral else _by_products(self, residual)

    @property
    def _spectral(self) -> bool:
        """Whether the eigenvalues are those of a matrix no larger than the Gram matrix."""
        written = not self.uniform and self.gram.outputs is None
        side = self.gram.n * (self.gram.outputs or 1)
        return side <= SPECTRAL_SIDE and self.gram.whole and not written


def _by_spectrum(descent: Descent, residual: Array) -> Array:
    gram, ridge, rate, steps = descent.gram, descent.ridge, descent.rate, descent.steps
    k, xp = gram.outputs or 1, namespace(residual)
    square = gram.square()
    values, vectors = xp.linalg.eigh(square)
    half = vectors * values.clip(0.0) ** 0.5
    curved = descent.hessian(half.reshape(gram.n, k, -1)).reshape(square.shape)
    bends, modes = xp.linalg.eigh(half.T @ curved)
    base = _polynomial(np.array([ridge]), rate, steps)[0]
    gain = like(_slopes(to_numpy(bends), ridge, base, rate, steps), residual)
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


def _by_products(descent: Descent, residual: Array) -> Array:
    taken = 0 * residual
    for _ in range(descent.steps):
        curved = descent.hessian(as_stack(descent.gram @ taken))[:, :, 0]
        taken = taken + descent.rate * (residual - descent.ridge * taken - curved)
    return taken
