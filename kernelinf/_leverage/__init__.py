"""The leverage audit: what forgetting will change, and how far each method will end from it."""

import numpy as np
import numpy.typing as npt

from .._arrays import Array, finite, in_float64, namespace, to_numpy
from .._checks import is_whole
from .._gram import Cross
from .._newton import System
from .._removal import forget_indices
from .._test_points import check_model
from .._training import Model
from ._gaps import Gap as Gap
from ._gaps import Geometry
from ._record import Leverage as Leverage
from ._record import shrunk
from ._scan import LeverageScan as LeverageScan
from ._scan import leverage_scan as leverage_scan


@in_float64
def leverage(
    model: Model,
    forget: npt.ArrayLike,
    x_test: npt.ArrayLike | Cross | None = None,
    *,
    refine: int = 3,
) -> Leverage:
    """Look at a forget set before anything is unlearned.

    The geometry of the retained model, seen from the forget set, says which unlearning methods can
    come close to retraining, and how close. The matrices are formed while the response of all
    points to a pull on each forgotten one fits into 128 MB; beyond that they are known by their
    products, and the blocks of h of single points come from a factorisation of the whole system.

    Parameters
    ----------
    model
        A trained model. It need not be trained to the end.
    forget
        The points to forget: indices (m,), or a boolean mask (n,).
    x_test
        Test points (t, ...), a `gram.cross(x_test)`, or the (t, n) cross kernel when the Gram is
        precomputed: gaps are predicted there too.
    refine
        Newton steps, after the first, to the retrained model: gaps are measured from where they
        lead, and losses expanded there. The squared loss needs none. For other losses the first
        step is good when few points are forgotten, or points like those that stay, and off when a
        class goes; three more take a small part of the audit's time. Zero expands at the model.

    Returns
    -------
    Leverage
        It prints as a table, with a recommendation.

    Raises
    ------
    TypeError
        `model` is no model.
    ValueError
        Indices repeat, are out of range, are already removed, or are all points or none; `refine`
        is no whole number from zero.
    FloatingPointError
        The ridge is lost in rounding beside the kernel.
    """
    check_model(model)
    if not is_whole(refine) or refine < 0:
        raise ValueError(f"`refine` is {refine!r}; pass a number of Newton steps, zero or more")
    points = forget_indices(forget, to_numpy(model.problem.weights))
    cross = None if x_test is None else model.gram.cross(x_test)
    geometry = Geometry(model, model.problem.without(points), points, cross, int(refine))
    largest = geometry.largest
    per_point = _shares(geometry)
    start = geometry.start
    if not finite(start.alpha, start.outputs, np.array(largest)):
        raise FloatingPointError("the leverage is NaN or infinite; raise the model's `reg`")
    return Leverage(
        forget=points,
        largest=largest / (1 + largest),
        trace=float(per_point.sum()),
        per_point=per_point,
        entanglement=_entanglement(geometry),
        gamma_max=1 / largest if largest > 0 else float("inf"),
        _geometry=geometry,
    )


def _shares(geometry: Geometry) -> Array:
    """Return the trace of each point's block of h, over all outputs, (m,)."""
    m, d, response = len(geometry.forget), geometry.model.alpha.shape[1], geometry.response
    if geometry.dense:
        own = np.diagonal(shrunk(geometry.self_leverage)).reshape(m, -1)
        return own.sum(axis=1) * (d // response.columns)
    problem = geometry.model.problem
    root = problem.loss.root(response.outputs, problem.weights)
    system = System(problem.gram, root, geometry.problem.rho, direct=True)
    blocks = system.response(geometry.forget)
    half = response.root.apply_transposed(blocks)
    both = response.root.apply_transposed(namespace(half).swapaxes(half, 1, 2))
    own = to_numpy(namespace(both).einsum("mcc->m", both))
    return own * (d // blocks.shape[1])


def _entanglement(geometry: Geometry) -> float:
    """Return ||X e|| / ||H e||, zero where H e is."""
    moved = to_numpy(geometry.response.to(geometry.errors[:, :, None]).product)
    forget, retained = (
        np.linalg.norm(moved[rows]) for rows in (geometry.forget, geometry.retained)
    )
    return float(retained / forget) if forget > 0 else 0.0
