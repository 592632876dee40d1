"""The removal of every point on its own, from one system: what all scores of points are made of.

Without point i the coefficients change by d_i = (rho I + W K)^-1 b_i with

    b_i = share_i common + e_i push_i,

e_i the rows of point i. To first order that is the system of all the data with push_i = v_i g_i and
common = reg alpha (share_i = v_i; the ridge of a mean risk falls with the weights). For one Newton
step it is the system at the retained ridge, rho_i, with common = -(rho_i alpha + v g), a residual
that trained models have from their ridge alone, and

    push_i = (I - W_i S_ii)^-1 (v_i g_i + W_i (S common)_i),    S = K (rho_i I + W K)^-1,

by the Sherman-Morrison-Woodbury identity for the Hessian of a single point (the leverage of
approximate leave-one-out; Pregibon 1981, and Koh et al. 2019 for groups).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, dot, like, namespace
from ._factorization import solve_blocks
from ._losses import HessianRoot
from ._methods import FirstOrder, Method, NewtonStep
from ._newton import EPS, TOLERANCE, Solution, System
from ._training import Model

STACK_BYTES = 16e6  # size of one stack (n, d, s) of right-hand sides

# Square root of the least curvature that blocks are computed with. Probabilities below 1e-200 would
# divide zero by zero; what this makes of them is far below rounding.
LEAST_ROOT = 1e-100


@dataclass(frozen=True, eq=False)
class Removals:
    """Removals of single points that share one system.

    Attributes
    ----------
    system
        (rho I + W K) at the ridge of the removals.
    push
        (n, d), one removal a row; zero for points that are not among them.
    common, share
        (n, d) and (n,).
    residual
        Relative residual of the solves behind `push`.
    """

    system: System
    push: Array
    common: Array
    share: Array
    residual: float = 0.0

    def scores(self, b: Array) -> tuple[Array, float]:
        """Return a_s . K d_i for the stack b = K a, (s, n), and the residual of the solve."""
        solution = self.system.solve_transposed(b)
        xp, u = namespace(b), solution.x
        along = xp.einsum("nds,nd->s", u, self.common)
        scores = xp.einsum("nds,nd->sn", u, self.push) + along[:, None] * self.share
        return scores, max(solution.residual, self.residual)

    def own_changes(self) -> tuple[Array, float]:
        """Return the change of every point's own outputs, (K d_i)_i, (n, d), and the residual."""
        xp, base = namespace(self.push), self._base()
        own = []
        for rows, part in _parts(self.push):
            response = self.system.response(np.arange(rows.start, rows.stop))
            own.append(_by_block(xp.matmul, response, part))
        residual = max(base.residual, self.residual)
        return self.share[:, None] * base.product[:, :, 0] + xp.concatenate(own), residual

    def norms(self) -> tuple[Array, float]:
        """Return sqrt(d_i^T K d_i), (n,), the distance that the parameters move, and the residual.

        Zero where rounding hides it: a quadratic form of d_i is known to eps ||K|| ||d_i||^2.
        """
        xp, base = namespace(self.push), self._base()
        squares, size = [], EPS * self.system.gram.norm
        for rows, _ in _parts(self.push):
            move = self._move(rows) + base.x * self.share[rows]
            square = dot(move, self.system.gram @ move)
            hidden = square <= size * dot(move, move)
            squares.append(xp.where(hidden, 0.0, square))
        return xp.concatenate(squares) ** 0.5, max(base.residual, self.residual)

    def _move(self, rows: slice) -> Array:
        """Return (rho I + W K)^-1 e_i push_i of some points, (n, d, s)."""
        push, n = self.push[rows], len(self.push)
        place = np.arange(n)[:, None] == np.arange(rows.start, rows.stop)
        own = like(place, push)[:, None] * push.T
        product = self.system.gram.rows(np.arange(rows.start, rows.stop)).pull_back(
            push
        )  # K e_i push_i
        return self.system.correction(own, product, TOLERANCE)[0]

    def _base(self) -> Solution:
        """Return the solution for the common part."""
        return self.system.solve(as_stack(self.common))


def removals(model: Model, method: Method | None, columns: int) -> list[Removals]:
    """Prepare the removals of all points that have a weight, to solve for that many columns.

    One system serves all points; for `NewtonStep` on a mean risk with weights, one for each
    distinct weight, and each is factorised.

    Raises
    ------
    TypeError
        `method` is neither `FirstOrder` nor `NewtonStep`.
    ValueError
        `method` is `NewtonStep` and the model has a single point.
    """
    method = FirstOrder() if method is None else method
    if isinstance(method, FirstOrder):
        return [_first_order(model, columns)]
    if not isinstance(method, NewtonStep):
        raise TypeError(f"`method` is {method!r}; pass ki.FirstOrder() or ki.NewtonStep()")
    if not method.plain:
        raise ValueError(
            f"`method` is {method!r}; single points are removed by the Newton step itself, "
            "ki.NewtonStep(); pass other steps to ki.remove_many"
        )
    if model.problem.points < 2:
        raise ValueError("the model has a single training point; `method` NewtonStep takes two")
    weights = model.problem.weights
    if model.problem.reg_scale == "sum":
        return [_newton(model, weights > 0, 0.0)]
    xp = namespace(weights)
    distinct = (weight for weight in xp.unique(weights).tolist() if weight > 0)
    return [_newton(model, weights == weight, weight) for weight in distinct]


def columns_at_once(shape: tuple[int, ...]) -> int:
    """Return how many columns (n, d) a stack has."""
    return max(1, int(STACK_BYTES / (8 * shape[0] * shape[1])))


def _first_order(model: Model, columns: int) -> Removals:
    problem = model.problem
    push = problem.weights[:, None] * problem.loss.gradient(model._outputs, problem.targets)
    mean = problem.reg_scale == "mean"
    share = problem.weights if mean else 0 * problem.weights
    system = problem.system(model._outputs).prepared(columns)
    return Removals(system, push, problem.reg * model._alpha, share)


def _newton(model: Model, points: npt.NDArray[np.bool], lost: float) -> Removals:
    """Prepare Newton steps without one of the points at which the mask (n,) is true.

    The ridge falls by reg `lost`.
    """
    problem, xp = model.problem, namespace(model._alpha)
    system = problem.system(model._outputs)
    system = replace(
        system,
        rho=problem.rho - problem.reg * lost,
        root=floored(system.root),
        direct=True,
    )
    gradient = problem.weights[:, None] * problem.loss.gradient(model._outputs, problem.targets)
    common = -(system.rho * model._alpha + gradient)
    base = system.solve(as_stack(common))
    raised = gradient + system.hessian(base.product)[:, :, 0]
    solved = [_by_block(solve_blocks, system.slack(rows), part) for rows, part in _parts(raised)]
    push = xp.where(points[:, None], xp.concatenate(solved), 0.0)
    return Removals(system, push, common, like(points, common), base.residual)


def floored(root: HessianRoot) -> HessianRoot:
    """Return the root with no curvature at all only where a point has no weight."""
    if root.direction is None:
        return root
    xp = namespace(root.scale)
    least = xp.where((root.scale > 0).any(axis=1, keepdims=True), LEAST_ROOT, 0.0)
    return HessianRoot(xp.maximum(root.scale, least), xp.maximum(root.direction, LEAST_ROOT))


def _parts(values: Array) -> Iterator[tuple[slice, Array]]:
    """Yield points, so many that their (n, d) arrays make a stack, and their rows of `values`."""
    n, step = len(values), columns_at_once(values.shape)
    for start in range(0, n, step):
        rows = slice(start, min(start + step, n))
        yield rows, values[rows]


def _by_block(function: Callable[[Array, Array], Array], blocks: Array, values: Array) -> Array:
    """Apply a block (m, k, k) a point to `values` (m, d), where k is d or one."""
    m, k, _ = blocks.shape
    return function(blocks, values.reshape(m, k, -1)).reshape(values.shape)
