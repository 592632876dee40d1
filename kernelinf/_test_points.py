"""Test points in tiles: their kernel, and the derivative of what is asked about them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ._arrays import Array, count, like, namespace
from ._checks import as_array, is_one_of
from ._gram import Cross, Gram
from ._scores import Of
from ._training import Model

TILE_BYTES = 16e6  # of the kernel between the test points of a tile and the training points
LEAST_TILE = 64  # test points of a tile, at least


@dataclass(frozen=True, eq=False)
class TestPoints:
    """Checked test points, their targets (t, d) if known, and what is asked of them."""

    model: Model
    x: Any
    targets: Array | None
    of: Of
    offset: Any

    def __len__(self) -> int:
        return count(self.x, "x_test")

    @property
    def quantities(self) -> int:
        """Return q, how many numbers are scored at a test point."""
        return self.model.problem.targets.shape[1] if self.of == "outputs" else 1

    def tiles(self) -> Iterator[tuple[int, Cross, Array]]:
        """Yield blocks of test points: the first one's number, the kernel, c of `_directions`."""
        for rows, x, cross in tiles(self.model.gram, self.x):
            yield rows.start, cross, self._directions(x, cross, rows)

    def total(self, progress: bool) -> Array:
        """Return sum_t K_Xt c_t, (n, d, q)."""
        total: Any = 0.0
        with progress_bar(len(self), progress) as bar:
            for _, cross, directions in self.tiles():
                xp, axes = namespace(directions), tuple(range(cross.matrix.ndim // 2))
                parts = [
                    xp.tensordot(cross.matrix, directions[:, j], (axes, axes))
                    for j in range(self.quantities)
                ]
                total = total + xp.stack(parts, axis=2)
                bar.update(len(cross))
        return total

    def _directions(self, x: Any, cross: Cross, rows: slice) -> Array:
        """Return c, (t, q, d): the derivatives of the q scored quantities in the outputs."""
        t, d = len(cross), self.model.problem.targets.shape[1]
        if self.targets is None or self.of == "outputs":
            return like(np.broadcast_to(np.eye(d), (t, d, d)), cross.matrix)
        offset = None if self.offset is None else self.offset[rows]
        outputs = self.model.test_outputs(x, cross, offset)
        slope = margin_slope if self.of == "margin" else self.model.problem.loss.gradient
        return slope(outputs, self.targets[rows])[:, None, :]


def test_points(
    model: Model,
    x_test: npt.ArrayLike | Cross,
    y_test: npt.ArrayLike | None,
    *,
    of: Of,
    offset: npt.ArrayLike | None,
) -> TestPoints:
    """Check test points and labels before the kernel is evaluated."""
    check_model(model)
    if not is_one_of(of, ("loss", "outputs", "margin")):
        raise ValueError(f"`of` is {of!r}; pass 'loss', 'outputs' or 'margin'")
    if of != "outputs" and y_test is None:
        raise ValueError(f"`y_test` is missing; scores of the {of} need test labels")
    x = at_least_one(x_test)
    t = count(x, "x_test")
    targets = None if y_test is None else model.test_targets(y_test, t)
    if of == "margin":
        _check_classes(model, targets)
    if offset is not None:
        offset = as_array(offset, "offset")
        if offset.shape[:1] != (t,):
            raise ValueError(
                f"`offset` has shape {offset.shape}; pass the initial outputs at the test points, "
                f"({t}, d)"
            )
    return TestPoints(model, x, targets, of, offset)


def at_least_one(x_test: npt.ArrayLike | Cross) -> Any:
    """Return test points, which have a length.

    Raises
    ------
    TypeError
        They are nothing that holds points.
    ValueError
        There are none.
    """
    if count(x_test, "x_test") == 0:
        raise ValueError("`x_test` is empty; pass at least one test point")
    return x_test


def tiles(gram: Gram, x_test: Any) -> Iterator[tuple[slice, Any, Cross]]:
    """Yield blocks of test points: which they are, what was given for them, and the kernel."""
    t, ready = count(x_test, "x_test"), isinstance(x_test, Cross) or gram.kernel is None
    whole = gram.cross(x_test) if ready else None
    row = gram.n * (gram.outputs or 1) ** 2
    size = max(LEAST_TILE, int(TILE_BYTES / (8 * row)))
    for start in range(0, t, size):
        rows = slice(start, min(start + size, t))
        x = x_test if isinstance(x_test, Cross) else x_test[rows]
        yield rows, x, gram.cross(x) if whole is None else whole.rows(rows)


def _check_classes(model: Model, targets: Array | None) -> None:
    if model.classes is None:
        raise ValueError(
            "`of` is 'margin' but the model was trained on real targets and has no classes; pass "
            "'loss' or 'outputs'"
        )
    if model.problem.loss.name != "logistic" and not one_hot(targets):
        raise ValueError("`y_test` holds no single class a point, which a margin takes")


def one_hot(targets: Any) -> bool:
    """Tell whether each row is a single one among zeros."""
    return bool(((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all())


def margin_slope(outputs: Array, targets: Array) -> Array:
    """Return the derivative of the margin in the outputs, (t, d): the rival is the class next.

    The margin is linear in them for one rival, so it is the sum of both over the outputs.
    """
    if outputs.shape[1] == 1:
        return targets
    xp = namespace(outputs)
    rival = xp.argmax(xp.where(targets == 1, -xp.inf, outputs), axis=1)
    return targets - (xp.arange(outputs.shape[1]) == rival[:, None])


def progress_bar(total: int, progress: bool, what: str = "Influence") -> Any:
    """Return a bar over test points, which draws nothing unless asked."""
    return tqdm(total=total, desc=what, unit="point", disable=not progress)


def check_model(model: Model) -> None:
    """Refuse what is no model."""
    if not isinstance(model, Model):
        raise TypeError(f"`model` is a {type(model).__name__}; pass the result of ki.fit")
