"""Preconditioned conjugate gradients for a stack of right-hand sides."""

from collections.abc import Callable
from typing import Any

from ._arrays import Array, dot, namespace, unit

MAX_ITERATIONS = 20_000  # and never more than 20 an unknown


def conjugate_gradients(
    operator: Callable[[Array], Array],
    b: Array,
    *,
    reduction: Any,
    inverse: Callable[[Array], Array],
    most: float = MAX_ITERATIONS,
) -> tuple[Array, int, bool]:
    """Solve A x = b, A >= I, for a stack (n, d, s), one step size each.

    Stops when ||r|| <= `reduction` ||x||. No eigenvalue of A is below one, so the error of x is
    then at most about `reduction` of x, however A is conditioned and whatever the preconditioner.

    Parameters
    ----------
    operator
        v -> A v.
    reduction
        A number, or one for each of the stack, (s,).
    inverse
        v -> M^-1 v, M a symmetric positive definite approximation of A, up to a factor.
    most
        Iterations after which to give up.

    Returns
    -------
    x (n, d, s), the iterations used, and whether all of the stack were solved.
    """
    xp, unit_size = namespace(b), unit(b)
    b = b / unit_size
    x, r, z = 0 * b, b, inverse(b)
    p, size = z, dot(r, z)
    active = size != 0  # where it is no number, x is to be none either
    iteration = 0
    most = min(most, MAX_ITERATIONS, 100 + 20 * b.shape[0] * b.shape[1])
    while iteration < most and bool(xp.any(active)):
        product = operator(p)
        curvature = xp.where(active, dot(p, product), 1.0)
        step = xp.where(active, size / curvature, 0.0)
        x, r = x + step * p, r - step * product
        solved = dot(r, r) <= reduction**2 * dot(x, x)
        z = inverse(r)
        new = dot(r, z)
        active = active & xp.logical_not(solved) & (new > 0)
        p = z + xp.where(active, new / xp.where(active, size, 1.0), 0.0) * p
        size = new
        iteration += 1
    return unit_size * x, iteration, not bool(xp.any(active))
