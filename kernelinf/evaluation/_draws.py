"""Random sets of training points, from a seed."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._arrays import to_numpy
from .._checks import is_number, is_whole
from .._training import Model

Points = npt.NDArray[np.intp]


def present_points(model: Model) -> Points:
    """Return the points that the model still has, at least two of them.

    Raises
    ------
    ValueError
        There is one point, which cannot be removed.
    """
    present = np.flatnonzero(to_numpy(model.problem.weights))
    if len(present) < 2:
        raise ValueError("`model` has a single training point; removing it leaves none")
    return present


def generator(seed: Any) -> np.random.Generator:
    """Return a generator of random numbers."""
    check_count(seed, "seed", least=0)
    return np.random.default_rng(seed)


def check_count(count: Any, name: str, least: int = 1, most: int | None = None) -> None:
    """Refuse what is no whole number in the range."""
    if not is_whole(count) or count < least or (most is not None and count > most):
        bound = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"`{name}` is {count!r}; pass a whole number {bound}")


def share_size(fraction: Any, n: int) -> int:
    """Return how many of n points that fraction is, leaving at least one in and one out."""
    if not (is_number(fraction) and 0 < fraction < 1):
        raise ValueError(f"`fraction` is {fraction!r}; pass a number between 0 and 1")
    return min(max(round(fraction * n), 1), n - 1)


def random_subsets(rng: np.random.Generator, points: Points, size: int, count: int) -> Points:
    """Draw `count` sets of `size` points each, (count, size), ascending."""
    drawn = [rng.choice(points, size, replace=False) for _ in range(count)]
    return np.sort(np.array(drawn, dtype=np.intp), axis=1)


def outside(points: Points, subsets: Iterable[Points]) -> list[Points]:
    """Return the points that are not in each subset."""
    return [np.setdiff1d(points, subset) for subset in subsets]
