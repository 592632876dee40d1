"""Models without each of many forget sets, at test points, and what is asked of their outputs."""

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .._arrays import Array, to_numpy
from .._gram import Cross
from .._losses import Loss
from .._methods import Method, Retrain
from .._removals import Updates, remove_many
from .._scores import Of
from .._test_points import TestPoints, test_points
from .._training import Model
from ._draws import Points

File = str | os.PathLike[str] | None

BLOCK_BYTES = 256e6  # of the coefficients (s, n, d) held at once


@dataclass(frozen=True, eq=False)
class Outcomes:
    """Changes of the outputs by several removals, (s, t, d), and their gradient norms, (s,)."""

    changes: Array
    gradient_norms: Array


@dataclass(frozen=True, eq=False)
class Tests:
    """Checked test points.

    Attributes
    ----------
    points
        The points, and what is asked about them.
    cross
        Their kernel.
    """

    points: TestPoints
    cross: Cross

    def __len__(self) -> int:
        return len(self.cross)

    @property
    def model(self) -> Model:
        """The model before any removal."""
        return self.points.model

    @functools.cached_property
    def outputs(self) -> Array:
        """The model's outputs, (t, d)."""
        return self.offset + to_numpy(self.cross @ self.model._alpha)

    @functools.cached_property
    def offset(self) -> Array:
        """The initial outputs, (t, d)."""
        points = self.points
        return to_numpy(self.model.test_offset(points.x, len(self), points.offset))

    @property
    def targets(self) -> Array:
        """The labels as targets, (t, d)."""
        assert self.points.targets is not None
        return to_numpy(self.points.targets)

    def removals(
        self,
        forget_sets: Sequence[Points],
        method: Method,
        progress: bool = False,
        out: File = None,
    ) -> Iterator[tuple[slice, Outcomes]]:
        """Remove forget sets in blocks of bounded memory: which ones, and what that does."""
        for rows, updates in self._updates(forget_sets, method, progress, out):
            yield rows, Outcomes(updates.effect(self.cross).outputs, updates.gradient_norms)

    def without(
        self,
        forget_sets: Sequence[Points],
        method: Method,
        progress: bool = False,
        out: File = None,
    ) -> Outcomes:
        """Return what the removal of each forget set does."""
        return _joined(found for _, found in self.removals(forget_sets, method, progress, out))

    def retrained_at(self, tests: Points, forget_sets: Sequence[Points]) -> Outcomes:
        """Retrain without each forget set; return the changes at one test point each, (s, d)."""
        found = []
        for rows, updates in self._updates(forget_sets, Retrain(), False):
            kernel = to_numpy(self.cross.matrix)[tests[rows]]
            axes = "sn,snd->sd" if kernel.ndim == 2 else "sdne,sne->sd"
            changes = np.einsum(axes, kernel, updates.alpha - self.model.alpha)
            found.append(Outcomes(changes, updates.gradient_norms))
        return _joined(found)

    def _updates(
        self, forget_sets: Sequence[Points], method: Method, progress: bool, out: File = None
    ) -> Iterator[tuple[slice, Updates]]:
        size = max(1, int(BLOCK_BYTES / (8 * self.model.alpha.size)))
        if out is not None:  # what a file holds takes no memory
            size = len(forget_sets)
        for start in range(0, len(forget_sets), size):
            block = forget_sets[start : start + size]
            rows = slice(start, start + len(block))
            yield rows, remove_many(self.model, block, method=method, out=out, progress=progress)

    def loss_changes(self, changes: Array) -> Array | None:
        """Return the changes of the losses, (s, t), by changes (s, t, d) of the outputs."""
        if self.points.targets is None:
            return None
        before = self.quantity("loss", self.outputs[None])
        return self.quantity("loss", self.outputs + changes) - before

    def quantity(self, of: Literal["loss", "margin"], outputs: Array) -> Array:
        """Return the losses or margins (s, t) of outputs (s, t, d)."""
        if of == "margin":
            values = margins(outputs, self.targets)
        else:
            values = losses(self.model.problem.loss, outputs, self.targets)
        if not np.isfinite(values).all():
            raise FloatingPointError("losses are NaN or infinite; scale the targets down")
        return values


def held_out(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None,
    of: Of,
    offset: npt.ArrayLike | None,
) -> Tests:
    """Check test points, and evaluate the kernel there."""
    tests = test_points(model, x_test, y_test, of=of, offset=offset)
    found = Tests(tests, model.gram.cross(tests.x))
    if y_test is not None:
        _ = found.offset  # refuses a missing one before the long work
    return found


def on_training_points(model: Model) -> Tests:
    """Take all training points as test points."""
    problem, cross = model.problem, Cross(model.gram.matrix)
    points = TestPoints(model, cross, problem.targets, "loss", to_numpy(problem.offset))
    return Tests(points, cross)


def name_of(method: Any) -> str:
    """Return a method as it is written, without what it has by default."""
    given = [field for field in fields(method) if getattr(method, field.name) != field.default]
    options = ", ".join(f"{field.name}={getattr(method, field.name)!r}" for field in given)
    return f"{type(method).__name__}({options})"


def _joined(found: Iterable[Outcomes]) -> Outcomes:
    parts = list(found)
    changes = np.concatenate([part.changes for part in parts])
    return Outcomes(changes, np.concatenate([part.gradient_norms for part in parts]))


def losses(loss: Loss, outputs: Array, targets: Array) -> Array:
    """Return the losses (s, t) of outputs (s, t, d)."""
    return loss.value(np.moveaxis(outputs, 0, -1), targets[:, :, None]).T


def margins(outputs: Array, targets: Array) -> Array:
    """Return the output of the true class minus the largest other one; y f for a single output."""
    own = (outputs * targets).sum(axis=-1)
    if outputs.shape[-1] == 1:
        return own
    return own - np.where(targets == 1, -np.inf, outputs).max(axis=-1)


def correct(outputs: Array, targets: Array) -> npt.NDArray[np.bool]:
    """Tell whether the largest output (or the sign of the only one) is that of the label."""
    if outputs.shape[-1] == 1:
        return np.sign(outputs[..., 0]) == np.sign(targets[..., 0])
    return outputs.argmax(axis=-1) == targets.argmax(axis=-1)
