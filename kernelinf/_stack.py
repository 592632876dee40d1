"""Many problems at once that differ in the weights of their points, as stacked matrix products.

One product of the Gram matrix with the stack's columns serves all problems, at the speed of matrix
multiplication, where the products of one problem alone wait for memory.
"""

import functools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._arrays import Array, as_stack, dot, like, namespace, root_dot, to_numpy
from ._newton import SINGLE_CONDITION, System
from ._problem import EPS, ROUNDING_SHARE, Problem, vanished

HALVINGS = 30
MAX_STEPS = 100
STALL_STEPS = 5  # in a row that do not halve the gradient norm
LOOSEST_SOLVE = 0.1  # relative accuracy of an early Newton step's solve


@dataclass(frozen=True, eq=False)
class Stack:
    """Problems that share everything but their weights; coefficients and outputs are (n, d, s).

    Attributes
    ----------
    problem
        What they share.
    weights
        One column a problem, (n, s).
    """

    problem: Problem
    weights: Array

    @functools.cached_property
    def total(self) -> Array:
        """Total weight of each problem, (s,)."""
        return self.weights.sum(axis=0)

    @property
    def rho(self) -> Any:
        """The ridge of each problem's dual system, (s,)."""
        rho = self.problem.reg * self.total if self._mean else self.problem.reg + 0 * self.total
        if bool((rho == 0).any()):
            raise vanished()
        return rho

    @property
    def scale(self) -> Any:
        """What the summed losses of each problem are multiplied by in its risk, (s,)."""
        return 1 / self.total if self._mean else 1 + 0 * self.total

    @property
    def _mean(self) -> bool:
        return self.problem.reg_scale == "mean"

    def outputs(self, alpha: Array) -> Array:
        """Return f at the training points, (n, d, s)."""
        return self.problem.offset[:, :, None] + self.problem.gram @ alpha

    def residual(self, alpha: Array, outputs: Array) -> Array:
        """Return rho alpha + v g, (n, d, s)."""
        gradient = self.problem.loss.gradient(outputs, self.problem.targets[:, :, None])
        return self.rho * alpha + self.weights[:, None] * gradient

    def gradient_norms(self, residual: Array, product: Array | None = None) -> Array:
        """Return `Problem.gradient_norm` of each problem, (s,)."""
        gram = self.problem.gram
        product = gram @ residual if product is None else product
        hidden = EPS**0.5 * root_dot(residual, gram.diagonal[:, :, None] * residual)
        return self.scale * namespace(residual).maximum(root_dot(residual, product), hidden)

    def gradient_sizes(self) -> Array:
        """Return `Problem.gradient_size` of each problem, (s,)."""
        problem = self.problem
        gradient = problem.loss.gradient(problem.offset, problem.targets)
        sizes = namespace(gradient).abs(gradient) * problem.gram.diagonal**0.5
        return self.scale * (sizes.sum(axis=1) @ self.weights)

    def rounding_norms(self, alpha: Array) -> Array:
        """Return `Problem.rounding_norm` of each problem, (s,)."""
        size, weight = self.problem.gram.norm, self.weights.max()
        distance = size**0.5 * root_dot(alpha, alpha)  # first: it is near one for any kernel
        change = self.problem.loss.curvature * weight * size + self.rho
        largest = ROUNDING_SHARE * self.gradient_sizes()
        return namespace(alpha).minimum(self.scale * EPS * change * distance, largest)

    @property
    def single(self) -> bool:
        """Whether float32 is faster, and the largest condition number of a system allows it."""
        gram = self.problem.gram
        condition = self.problem.loss.curvature * float(gram.diagonal.sum())
        allowed = bool(condition <= SINGLE_CONDITION * self.rho.min())
        return allowed and gram.single is not None

    def system(self, outputs: Array) -> System:
        """Return the linear system of a Newton step from these outputs."""
        root = self.problem.loss.root(outputs, self.weights)
        return System(self.problem.gram, root, self.rho, direct=False, single=self.single)

    def columns(self, chosen: Any) -> "Stack":
        """Return some of the problems, by indices or a mask."""
        return replace(self, weights=self.weights[:, chosen])

    def prepare(self) -> None:
        """Compute what solving needs of the Gram matrix now, and not in one of several threads."""
        gram = self.problem.gram
        _ = gram.diagonal, gram.norm, gram.low_rank, self.single and gram.single

    def moved(self, at: "Place", step: Array, change: Array) -> "Place":
        """Go along each problem's step, whose outputs change by `change`.

        All the way, or halved until the risk no longer rises steeply at the end.
        """
        xp = namespace(step)
        slope = dot(at.residual, change)
        length = 1 + 0 * slope
        for _ in range(HALVINGS):
            alpha, outputs = at.alpha + length * step, at.outputs + length * change
            there = Place(alpha, outputs, self.residual(alpha, outputs))
            far = (slope < 0) & (dot(there.residual, change) > -0.1 * slope)
            if not bool(far.any()):
                break
            length = xp.where(far, length / 2, length)
        return there

    def place(self, alpha: Array, outputs: Array) -> "Place":
        """Return where coefficients (n, d) or (n, d, s) with these outputs are."""
        alpha, outputs = as_stack(alpha), as_stack(outputs)
        return Place(alpha, outputs, self.residual(alpha, outputs))


@dataclass(frozen=True, eq=False)
class Place:
    """Coefficients, their outputs and their residual rho alpha + v g, (n, d, s)."""

    alpha: Array
    outputs: Array
    residual: Array

    def columns(self, chosen: Any) -> "Place":
        """Return those of some problems."""
        return Place(*(a[:, :, chosen] for a in (self.alpha, self.outputs, self.residual)))


@dataclass(frozen=True, eq=False)
class TrainedStack:
    """Coefficients (n, d, s), gradient norms (s,), and whether they reached the tolerance (s,)."""

    alpha: Array
    gradient_norms: Array
    converged: npt.NDArray[np.bool]


def train(stack: Stack, alpha: Array, outputs: Array, tol: float) -> TrainedStack:
    """Train every problem by inexact Newton steps to a gradient norm `tol`, as `Newton` does.

    Parameters
    ----------
    alpha, outputs
        Where all of them start, (n, d).
    """
    s = stack.weights.shape[1]
    alphas = np.empty((*alpha.shape, s), order="F")
    norms, converged = np.empty(s), np.empty(s, dtype=bool)
    course = _Course(stack, np.arange(s), stack.place(spread(alpha, s), spread(outputs, s)), tol)
    for taken in range(MAX_STEPS + 1):
        done = np.asarray(course.ended) | (taken == MAX_STEPS)
        columns = course.columns[done]
        alphas[:, :, columns] = to_numpy(course.at.alpha)[:, :, done]
        norms[columns] = to_numpy(course.norm)[done]
        rounding = course.stack.rounding_norms(course.at.alpha)
        enough = namespace(alpha).maximum(course.tol, rounding)
        converged[columns] = to_numpy(course.norm <= enough)[done]
        if done.all():
            break
        course = (course.rest(~done) if done.any() else course).stepped()
    return TrainedStack(like(alphas, alpha), norms, converged)


@dataclass(frozen=True, eq=False)
class _Course:
    """Problems on their way: those that have not arrived yet.

    Attributes
    ----------
    columns
        Their numbers in the stack they come from, (s,).
    at
        Where they are.
    least
        The gradient norm to reach, as `Newton` takes it.
    before
        Gradient norms a step ago, (s,).
    slow_before
        Steps in a row that had not halved them by then, (s,).
    """

    stack: Stack
    columns: npt.NDArray[np.intp]
    at: Place
    least: float
    before: Any = np.inf
    slow_before: Any = 0

    @functools.cached_property
    def tol(self) -> Array:
        """The gradient norm of each to reach, (s,)."""
        return self.least * namespace(self.at.alpha).minimum(1.0, self.stack.gradient_sizes())

    @functools.cached_property
    def product(self) -> Array:
        """K times the residual."""
        return self.stack.problem.gram @ self.at.residual

    @functools.cached_property
    def norm(self) -> Array:
        """Gradient norms, (s,)."""
        return self.stack.gradient_norms(self.at.residual, self.product)

    @functools.cached_property
    def slow(self) -> Array:
        """Steps in a row that have not halved the gradient norm, (s,)."""
        return namespace(self.norm).where(self.norm > 0.5 * self.before, self.slow_before + 1, 0)

    @property
    def ended(self) -> Any:
        """Return which have arrived, or no longer move, (s,)."""
        xp = namespace(self.norm)
        return xp.logical_not(
            (self.norm > self.tol) & (self.slow < STALL_STEPS)
        )  # also where it is NaN

    def rest(self, keep: npt.NDArray[np.bool]) -> "_Course":
        """Return some of the problems."""
        before, slow = (
            np.broadcast_to(a, keep.shape)[keep] for a in (self.before, self.slow_before)
        )
        stack, at = self.stack.columns(keep), self.at.columns(keep)
        return _Course(stack, self.columns[keep], at, self.least, before, slow)

    def stepped(self) -> "_Course":
        """Take one Newton step, solved no further than it can help."""
        xp, system = namespace(self.at.alpha), self.stack.system(self.at.outputs)
        if bool(xp.any(self.slow > 0)):  # float32 may be what holds them up
            system = replace(system, single=False)
        ratio = self.norm / self.before
        forcing = xp.where(ratio > 0, xp.minimum(LOOSEST_SOLVE, 0.9 * ratio**2), LOOSEST_SOLVE)
        accuracy = xp.maximum(forcing, 0.3 * self.tol / self.norm)
        back, _ = system.correction(self.at.residual, self.product, accuracy)
        at = self.stack.moved(self.at, -back, -(self.stack.problem.gram @ back))
        return _Course(self.stack, self.columns, at, self.least, self.norm, self.slow)


def spread(values: Array, s: int) -> Array:
    """Repeat (n, d) as the s columns of a stack, points last in memory."""
    xp = namespace(values)
    return xp.repeat(values.T[None], s, axis=0).T
