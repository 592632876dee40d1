"""Kernel functions: infinitely wide networks (`from_stax`), `linear` and `rbf`."""

import abc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ._arrays import Array, in_float64
from ._neural_tangents import neural_tangents, uses_dropout

KINDS = ("ntk", "nngp")
DIAGONAL_CHUNK = 16  # a pair of 32 x 32 images under global pooling takes 8 MB a layer


@dataclass(frozen=True, eq=False)
class Kernel(abc.ABC):
    """A positive semidefinite function of two points. Made by `from_stax`, `linear` or `rbf`.

    Called as ``kernel(x1, x2=None)`` on points (n1, ...) and (n2, ...) it returns the (n1, n2) values
    in float64, whatever the dtype of the points and JAX's global precision.
    """

    @abc.abstractmethod
    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        """Values (n1, n2) for float64 points, traceable by JAX."""

    def _check_points(self, shape: tuple[int, ...]) -> None:
        """Refuse points of a shape (without the first axis) that the kernel cannot take."""

    def __call__(self, x1: npt.ArrayLike, x2: npt.ArrayLike | None = None) -> Array:
        """Evaluate the kernel on all pairs of points at once.

        Time and memory grow with n1 n2; `kernelinf.gram` works block by block.

        Parameters
        ----------
        x1, x2
            Points (n1, ...) and (n2, ...), of any real dtype. Without `x2` the points are paired with
            themselves, and the result is symmetric bit for bit.

        Returns
        -------
        numpy.ndarray
            Kernel values (n1, n2), float64.

        Raises
        ------
        ValueError
            Points are empty, not finite, unscaled uint8, of different shapes, or of a shape that the
            network cannot take; the network has no readout or gives no n x n kernel; values overflow.
        TypeError
            Points are not real numbers.
        """
        rows = check_inputs(x1, "x1")
        columns = rows if x2 is None else check_inputs(x2, "x2")
        if rows.shape[1:] != columns.shape[1:]:
            raise ValueError(
                f"`x1` has points of shape {rows.shape[1:]} but `x2` of {columns.shape[1:]}; pass "
                "points of one shape"
            )
        values = self._values(self.block, rows, columns)
        return _mirrored(values) if x2 is None else values

    def diagonal(self, x: npt.ArrayLike) -> Array:
        """Evaluate the kernel of each point with itself, in time and memory that grow with n.

        Parameters
        ----------
        x
            Points (n, ...).

        Returns
        -------
        numpy.ndarray
            Values (n,), float64: the diagonal of ``kernel(x)``, to rounding.

        Raises
        ------
        ValueError, TypeError
            As for calling the kernel.
        """
        points = check_inputs(x, "x")
        self._probe(points.shape[1:])
        n = len(points)
        # Chunks of one size, so that the kernel is compiled once: the last repeats its last point.
        rows = np.minimum(np.arange(n + -n % DIAGONAL_CHUNK), n - 1).reshape(-1, DIAGONAL_CHUNK)
        return np.concatenate([self._values(self._one_by_one, points[r]) for r in rows])[:n]

    def block(self, x1: npt.ArrayLike, x2: npt.ArrayLike) -> jax.Array:
        """Evaluate the kernel without checks on values, compiled once for each pair of shapes.

        Call it inside ``jax.enable_x64(True)``; it may be traced.

        Parameters
        ----------
        x1, x2
            Points (n1, ...) and (n2, ...).

        Returns
        -------
        jax.Array
            Values (n1, n2), float64, on the default device.
        """
        self._probe(np.shape(x1)[1:])
        return self._pairs(x1, x2)

    def _probe(self, shape: tuple[int, ...]) -> None:
        if shape not in self._probed:
            self._check_points(shape)
            self._probed.add(shape)

    @cached_property
    def _probed(self) -> set[tuple[int, ...]]:
        return set()

    @cached_property
    def _pairs(self) -> Callable[[Any, Any], jax.Array]:
        return jax.jit(
            lambda x1, x2: self._evaluate(x1.astype(np.float64), x2.astype(np.float64))
        )

    @cached_property
    def _one_by_one(self) -> Callable[[Any], jax.Array]:
        return jax.jit(jax.vmap(lambda x: self._pairs(x[None], x[None])[0, 0]))

    @in_float64
    def _values(self, function: Callable[..., jax.Array], *points: npt.NDArray[Any]) -> Array:
        values = np.asarray(function(*points))
        if not np.isfinite(values).all():
            raise ValueError(f"{self!r} is NaN or infinite on these points; scale them down")
        return values


@dataclass(frozen=True, eq=False)
class _Stax(Kernel):
    kernel_fn: Callable[..., Any] = field(repr=False)
    kind: str

    def __repr__(self) -> str:
        return f"from_stax({self.kernel_fn.__name__}, kind={self.kind!r})"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        return self.kernel_fn(x1, x2, self.kind)

    @in_float64
    def _check_points(self, shape: tuple[int, ...]) -> None:
        # Abstract evaluation: shapes and flags of the kernel, and no arithmetic.
        two, three = (jax.ShapeDtypeStruct((n, *shape), np.float64) for n in (2, 3))
        result = jax.eval_shape(lambda x1, x2: self.kernel_fn(x1, x2, None), two, three)
        _check_structure(result, getattr(result, self.kind))


@dataclass(frozen=True, eq=False)
class _Linear(Kernel):
    def __repr__(self) -> str:
        return "linear()"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        return _rows(x1) @ _rows(x2).T


@dataclass(frozen=True, eq=False)
class _Rbf(Kernel):
    length_scale: float

    def __repr__(self) -> str:
        return f"rbf({self.length_scale!r})"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        raise NotImplementedError


def from_stax(network: Any, kind: str = "ntk") -> Kernel:
    return _Stax(network[2] if isinstance(network, tuple) else network, kind)


def linear() -> Kernel:
    return _Linear()


def rbf(length_scale: float) -> Kernel:
    return _Rbf(length_scale)


def check_inputs(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    return np.asarray(x)


def _check_structure(result: Any, values: Any) -> None:
    pass


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)


def _mirrored(values: Array) -> Array:
    lower = np.tril(values)
    return lower + np.tril(values, -1).T
