"""Many candidate forget sets, from one factorisation of the system of all points."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from .._arrays import Array, as_stack, in_float64, like, to_numpy
from .._groups import Groups
from .._newton import System
from .._removals import checked_sets
from .._response import Points
from .._scores import library
from .._stack import Stack
from .._test_points import check_model
from .._training import Model

ROUNDED = 16 * float(np.finfo(np.float64).eps)  # of 1 - lambda_max(h), where h may be zero
STACK_BYTES = 16e6  # of one stack (n, d, s); about a dozen are alive at once


@dataclass(frozen=True, eq=False)
class LeverageScan:
    """Diagnostics of many forget sets. Made by `kernelinf.leverage_scan`.

    Attributes
    ----------
    forget_sets
        Indices of the points of each, s arrays.
    largest, trace, gamma_max, entanglement
        As in `Leverage` with ``refine=0``, (s,) each.
    no_unlearning, first_order
        Predicted gap to retraining of leaving the model as it is, and of `FirstOrder`: norms on the
        forget set and on the retained points, (s, 2).
    """

    forget_sets: tuple[Points, ...]
    largest: Array
    trace: Array
    gamma_max: Array
    entanglement: Array
    no_unlearning: Array
    first_order: Array

    def __len__(self) -> int:
        return len(self.forget_sets)

    def __repr__(self) -> str:
        low, high = self.largest.min(), self.largest.max()
        return f"LeverageScan({len(self)} forget sets: largest leverages {low:.3g} to {high:.3g})"

    @property
    def hardest(self) -> npt.NDArray[np.intp]:
        """Numbers of the sets, (s,), from what first order misses most of to what it forgets best.

        By the gap of `FirstOrder` over that of no unlearning, on all training points.
        """
        gaps = [np.linalg.norm(gap, axis=1) for gap in (self.first_order, self.no_unlearning)]
        share = gaps[0] / np.where(gaps[1] > 0, gaps[1], 1.0)
        return np.argsort(-share, kind="stable")

    def rows(self) -> list[dict[str, Any]]:
        """Return a row a forget set, in the order given."""
        return [
            {
                "points": len(group),
                "largest": float(self.largest[i]),
                "trace": float(self.trace[i]),
                "gamma_max": float(self.gamma_max[i]),
                "entanglement": float(self.entanglement[i]),
                "no_unlearning_forget": float(self.no_unlearning[i, 0]),
                "no_unlearning_retained": float(self.no_unlearning[i, 1]),
                "first_order_forget": float(self.first_order[i, 0]),
                "first_order_retained": float(self.first_order[i, 1]),
            }
            for i, group in enumerate(self.forget_sets)
        ]

    def to_dataframe(self) -> Any:
        """Return the rows as a `pandas.DataFrame`.

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        return library("pandas", "to_dataframe").DataFrame(self.rows())


@in_float64
def leverage_scan(
    model: Model, forget_sets: Sequence[npt.ArrayLike], *, progress: bool = False
) -> LeverageScan:
    """Audit many candidate forget sets without unlearning any.

    The system of all points is factorised once for each ridge that removals leave: once if
    ``reg_scale`` is "sum", or if all sets are of one size. A set then costs a matrix of its own
    size. The matrix has to be in memory, and the factorisation takes what `self_influence`'s does.

    Parameters
    ----------
    model
        A trained model.
    forget_sets
        Candidates: indices (m,), or a boolean mask (n,), of each. They may overlap.
    progress
        Show a progress bar.

    Returns
    -------
    LeverageScan

    Raises
    ------
    TypeError
        `model` is no model.
    ValueError
        There are no forget sets, one is not valid (its number is named), or the Gram matrix is not
        in memory.
    """
    check_model(model)
    sets = checked_sets(forget_sets, model)
    values = np.empty((len(sets), 8))
    with tqdm(total=len(sets), desc="Leverage", disable=not progress) as bar:
        for numbers, ridge_system in _shared(model, sets):
            values[numbers] = _audited(model, ridge_system, [sets[i] for i in numbers])
            bar.update(len(numbers))
    if np.isnan(values).any():
        raise FloatingPointError("the leverage is NaN or infinite; raise the model's `reg`")
    largest, trace, gamma, entanglement = values[:, :4].T
    return LeverageScan(sets, largest, trace, gamma, entanglement, values[:, 4:6], values[:, 6:])


def _shared(
    model: Model, sets: tuple[Points, ...]
) -> Iterator[tuple[npt.NDArray[np.intp], System]]:
    """Yield a stack of forget sets a time, and the system of all points at the ridge they leave."""
    ridges = np.array([model.problem.without(group).rho for group in sets])
    root = model.problem.loss.root(model._outputs, model.problem.weights)
    size = max(1, int(STACK_BYTES / (8 * model.alpha.size)))
    for ridge in np.unique(ridges):
        system = System(model.gram, root, float(ridge), direct=True)
        numbers = np.flatnonzero(ridges == ridge)
        for start in range(0, len(numbers), size):
            yield numbers[start : start + size], system


def _audited(model: Model, full: System, members: list[Points]) -> Array:
    """Return the eight numbers of each forget set, (s, 8)."""
    weights = np.repeat(to_numpy(model.problem.weights)[:, None], len(members), axis=1)
    for column, group in enumerate(members):
        weights[group, column] = 0.0
    stack = Stack(model.problem, like(weights, model.problem.weights))
    alpha, outputs = as_stack(model._alpha), as_stack(model._outputs)
    root = stack.problem.loss.root(outputs, stack.weights)
    groups = Groups(model.gram, root, full.rho, True, full=full, sets=tuple(members))
    after = stack.residual(alpha, outputs)
    before = as_stack(model.problem.residual(model._alpha, model._outputs))
    start = to_numpy(groups.solve(after).product)
    system = model.problem.system(model._outputs).prepared(len(members))
    first = start + to_numpy(system.solve(before - after).product)
    pulls = to_numpy(groups.solve(_pulls(model, stack)).product)
    d, rows = model.alpha.shape[1], []
    for column, group in enumerate(members):
        kept = to_numpy(stack.weights)[:, column] > 0
        parts = [
            np.linalg.norm(moved[rows_of, :, column])
            for moved in (start, first, pulls)
            for rows_of in (group, kept)
        ]
        entanglement = parts[5] / parts[4] if parts[4] > 0 else 0.0
        rows.append([*_diagnostics(full, group, d), entanglement, *parts[:4]])
    return np.array(rows)


def _pulls(model: Model, stack: Stack) -> Array:
    """Return e = -v g on the forget set of each column, zero elsewhere, (n, d, s)."""
    problem = model.problem
    gradient = problem.loss.gradient(model._outputs, problem.targets)
    removed = as_stack(problem.weights[:, None]) - stack.weights[:, None]
    return -removed * as_stack(gradient)


def _diagnostics(full: System, group: Points, d: int) -> tuple[float, float, float]:
    """Return lambda_max(h), tr(h) over all outputs, and gamma_max = 1 / lambda_max(H).

    The corner is I - h, with the digits that 1 - lambda_max(h) has.
    """
    left = np.linalg.eigvalsh(to_numpy(full.corner(group))).clip(0.0, 1.0)
    trace = float((1 - left).sum()) * (d * len(group) // len(left))
    largest = float(1 - left[0])
    if largest <= ROUNDED:
        return 0.0, trace, float("inf")
    return largest, trace, float(left[0]) / largest
