"""Kernel functions: infinitely wide networks (`from_stax`), `linear` and `rbf`."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from ._arrays import Array, in_float64
from ._checks import as_array, check_unmasked, is_number, is_one_of
from ._convolutional import Evaluator, recall
from ._neural_tangents import is_builder, is_layer, neural_tangents, uses_dropout
from ._traps import warn_of_pixels

MIXED = 1e-5  # relative change of a value by what else is in the batch that is no rounding
KINDS = ("ntk", "nngp")
DIAGONAL_CHUNK = 16  # a pair of 32 x 32 images under global pooling takes 8 MB a layer


@dataclass(frozen=True, eq=False)
class Kernel:
    """A positive semidefinite function of two points. Made by `from_stax`, `linear` or `rbf`.

    Called as ``kernel(x1, x2=None)`` on points (n1, ...) and (n2, ...) it returns the (n1, n2)
    values in float64, whatever the dtype of the points and JAX's global precision.
    """

    @property
    def outputs(self) -> int | None:
        """Outputs d of values (n1, d, n2, d); None where one number a pair serves all outputs."""
        return None

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        """Values (n1, n2) for float64 points, traceable by JAX."""
        raise NotImplementedError

    def _check_points(self, shape: tuple[int, ...]) -> None:
        """Refuse points of a shape (without the first axis) that the kernel cannot take."""

    def __call__(self, x1: npt.ArrayLike, x2: npt.ArrayLike | None = None) -> Array:
        """Evaluate the kernel on all pairs of points at once.

        Time and memory grow with n1 n2; `kernelinf.gram` works block by block.

        Parameters
        ----------
        x1, x2
            Points (n1, ...) and (n2, ...), of any real dtype. Without `x2` the points are paired
            with themselves, and the result is symmetric bit for bit.

        Returns
        -------
        numpy.ndarray
            Kernel values (n1, n2), or (n1, d, n2, d), float64.

        Raises
        ------
        ValueError
            Points are empty, not finite, unscaled uint8, of different shapes, or of a shape that
            the network cannot take; the network has no readout or gives no n x n kernel; a value of
            the kernel is not finite.
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
        values = self._finite(self.block(rows, columns))
        return _mirrored(values) if x2 is None else values

    @in_float64
    def diagonal(self, x: npt.ArrayLike) -> Array:
        """Evaluate the kernel of each point with itself, in time and memory that grow with n.

        Parameters
        ----------
        x
            Points (n, ...).

        Returns
        -------
        numpy.ndarray
            Values (n,), or (n, d) of a kernel with blocks, float64: the diagonal of ``kernel(x)``,
            to rounding.

        Raises
        ------
        ValueError, TypeError
            As for calling the kernel.
        """
        points = check_inputs(x, "x")
        self.check_shape(points.shape[1:])
        n = len(points)
        # Chunks of one size, so that the kernel is compiled once: the last repeats its last point.
        rows = np.minimum(np.arange(n + -n % DIAGONAL_CHUNK), n - 1).reshape(-1, DIAGONAL_CHUNK)
        return np.concatenate([self._finite(self._one_by_one(points[r])) for r in rows])[:n]

    @in_float64
    def block(self, x1: Any, x2: Any) -> jax.Array:
        """Evaluate the kernel without looking at values: compiled once for each pair of shapes.

        It may be traced, inside ``jax.enable_x64(True)``.

        Parameters
        ----------
        x1, x2
            Points (n1, ...) and (n2, ...).

        Returns
        -------
        jax.Array
            Values (n1, n2), float64, on the default device.
        """
        self.check_shape(np.shape(x1)[1:])
        return self._pairs(x1, x2)

    def check_shape(self, shape: tuple[int, ...]) -> None:
        """Refuse points of a shape (without the first axis) that the kernel cannot take."""
        if shape not in self._probed:
            self._check_points(shape)
            if _channels_first(shape) and self._sees_positions(shape):
                warnings.warn(
                    f"points of shape {shape} look like images with channels first; networks take "
                    "channels last: pass np.moveaxis(x, 1, -1)",
                    stacklevel=2,
                )
            self._probed.add(shape)

    def _sees_positions(self, shape: tuple[int, ...]) -> bool:
        """Whether the order of a point's axes matters."""
        return False

    def __deepcopy__(self, memo: dict[int, Any]) -> "Kernel":
        """Return the kernel itself, which nothing changes, with all that was compiled for it."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was compiled, which cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @cached_property
    def _probed(self) -> set[tuple[int, ...]]:
        return set()

    @cached_property
    def _pairs(self) -> Callable[[Any, Any], jax.Array]:
        return jax.jit(lambda x1, x2: self._evaluate(x1.astype(np.float64), x2.astype(np.float64)))

    @cached_property
    def _one_by_one(self) -> Callable[[Any], jax.Array]:
        return jax.jit(jax.vmap(lambda x: self._pairs(x[None], x[None])[0, 0]))

    def _finite(self, values: jax.Array) -> Array:
        on_host = np.asarray(values)
        if not np.isfinite(on_host).all():
            raise ValueError(
                f"{self!r} is NaN or infinite on these points; scale them down, drop rows of "
                "zeros, or change the network"
            )
        return on_host


@dataclass(frozen=True, eq=False)
class _Stax(Kernel):
    kernel_fn: Callable[..., Any]
    kind: str

    def __repr__(self) -> str:
        name = getattr(self.kernel_fn, "__name__", type(self.kernel_fn).__name__)
        return f"from_stax({name}, kind={self.kind!r})"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        return self.kernel_fn(x1, x2, self.kind)

    def _check_points(self, shape: tuple[int, ...]) -> None:
        # Abstract evaluation: shapes and flags, no arithmetic and nothing to compile.
        two, three = (jax.ShapeDtypeStruct((n, *shape), np.float64) for n in (2, 3))
        try:
            result = jax.eval_shape(lambda x1, x2: self.kernel_fn(x1, x2, None), two, three)
        except Exception as error:
            raise ValueError(f"the network cannot take points of shape {shape}: {error}") from error
        _check_output(result, self.kind)
        if not is_layer(self.kernel_fn):
            self._check_batches(shape)

    @in_float64
    def _check_batches(self, shape: tuple[int, ...]) -> None:
        """Refuse a function of other make whose values depend on the other points of a batch."""
        x = jnp.asarray(np.random.default_rng(0).normal(size=(3, *shape)))
        together, alone = self._evaluate(x, x), self._evaluate(x[:1], x[:1])
        away = abs(float(together[0, 0] - alone[0, 0]))
        if not away <= MIXED * abs(float(together[0, 0])):
            raise ValueError(
                "`network` gives a point another kernel value with other points in its batch "
                f"({float(together[0, 0]):.6g} and not {float(alone[0, 0]):.6g}); a kernel is a "
                "function of two points"
            )

    def _sees_positions(self, shape: tuple[int, ...]) -> bool:
        flat = jax.ShapeDtypeStruct((2, math.prod(shape)), np.float64)
        try:
            jax.eval_shape(lambda x: self.kernel_fn(x, x, self.kind), flat)
        except Exception:
            return True
        return False


@dataclass(frozen=True, eq=False)
class _Convolutional(_Stax):
    """A network whose layers are known: the same kernel, many times faster."""

    evaluator: Evaluator

    def block(self, x1: Any, x2: Any) -> jax.Array:
        if _same(x1, x2):
            self.check_shape(np.shape(x1)[1:])
            return self._with_themselves(x1)
        return super().block(x1, x2)

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        return self.evaluator.matrix(x1, x2)

    def _check_points(self, shape: tuple[int, ...]) -> None:
        self.evaluator.architecture.check(shape)

    def _sees_positions(self, shape: tuple[int, ...]) -> bool:
        return True

    @cached_property
    def _with_themselves(self) -> Callable[[Any], jax.Array]:
        return in_float64(jax.jit(lambda x: self.evaluator.symmetric(x.astype(np.float64))))

    @cached_property
    def _one_by_one(self) -> Callable[[Any], jax.Array]:
        return jax.jit(lambda x: self.evaluator.diagonal(x.astype(np.float64)))


@dataclass(frozen=True, eq=False)
class _Linear(Kernel):
    def __repr__(self) -> str:
        return "linear()"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        return _flat(x1) @ _flat(x2).T


@dataclass(frozen=True, eq=False)
class _Rbf(Kernel):
    length_scale: float

    def __repr__(self) -> str:
        return f"rbf({self.length_scale})"

    def _evaluate(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        # About a centre in the data, so that points far from the origin lose no digits.
        centre = _flat(x2).mean(axis=0)
        rows, columns = _flat(x1) - centre, _flat(x2) - centre
        squares = jnp.sum(rows**2, axis=1)[:, None] + jnp.sum(columns**2, axis=1)
        distances = jnp.maximum(squares - 2 * rows @ columns.T, 0)
        return jnp.exp(-distances / (2 * self.length_scale**2))


def from_stax(network: Any, kind: str = "ntk") -> Kernel:
    """Take the kernel of an infinitely wide network.

    Parameters
    ----------
    network
        An architecture built with `kernelinf.stax`: the triple ``(init_fn, apply_fn, kernel_fn)``,
        or its ``kernel_fn``. It must give one (n, n) kernel: it ends in a dense readout, and images
        are flattened or pooled globally before that.
    kind
        "ntk": the neural tangent kernel, by which gradient descent trains all layers. "nngp": the
        covariance of the outputs at initialisation, by which it trains the readout alone.

    Returns
    -------
    Kernel
        ``kernel(x1, x2=None)`` and ``kernel.diagonal(x)``. Points have the shape that the network
        takes, images with channels last: (n, height, width, channels).

    Raises
    ------
    TypeError
        `network` is neither of the two.
    ValueError
        `kind` is neither of the two, or the network has Dropout in its "train" mode. On first use
        with points: the network has no readout, gives no n x n kernel, or cannot take the points.

    References
    ----------
    Novak et al., "Neural Tangents: Fast and Easy Infinite Neural Networks in Python", 2020,
    https://arxiv.org/abs/1912.02803. Jacot, Gabriel and Hongler, "Neural Tangent Kernel", 2018,
    https://arxiv.org/abs/1806.07572.
    """
    if not is_one_of(kind, KINDS):
        raise ValueError(f"`kind` is {kind!r}; pass 'ntk' or 'nngp'")
    kernel_fn = _kernel_fn(network)
    if uses_dropout(kernel_fn):
        raise ValueError(
            "`network` has Dropout in its 'train' mode, whose noise is added to the kernel's "
            "diagonal alone; pass mode='test' to stax.Dropout"
        )
    architecture = recall(kernel_fn)
    if architecture is None:
        return _Stax(kernel_fn, kind)
    return _Convolutional(kernel_fn, kind, Evaluator(architecture, kind))


def linear() -> Kernel:
    """Take the inner product of two points, with no bias and no scaling.

    Returns
    -------
    Kernel
        ``kernel(x1, x2) = x1 @ x2.T`` on points (n, ...), flattened: the kernel of linear
        regression.
    """
    return _Linear()


def rbf(length_scale: float) -> Kernel:
    """Take the radial basis function (squared exponential) kernel.

    Parameters
    ----------
    length_scale
        Distance, in the units of the points, over which values fall to ``exp(-1/2)``.

    Returns
    -------
    Kernel
        ``kernel(x1, x2) = exp(-|x1 - x2|^2 / (2 length_scale^2))`` on points (n, ...), flattened.

    Raises
    ------
    ValueError
        `length_scale` is not positive and finite.

    References
    ----------
    Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, eq. 2.16.
    """
    if not (is_number(length_scale) and length_scale > 0):
        raise ValueError(f"`length_scale` is {length_scale!r}; pass a positive, finite number")
    return _Rbf(float(length_scale))


def check_inputs(x: npt.ArrayLike, name: str) -> npt.NDArray[Any]:
    """Return points as a NumPy array of floats, or say what is wrong with the argument `name`."""
    check_unmasked(x, name)
    points = as_array(x, name)
    _check_dtype(points, name)
    if points.ndim < 2 or points.size == 0:
        raise ValueError(
            f"`{name}` has shape {points.shape}; pass at least one point: (n, features), or images "
            "(n, height, width, channels)"
        )
    warn_of_pixels(points, name)
    if points.dtype not in (np.float32, np.float64):
        points = points.astype(np.float64)
    if not np.isfinite(points).all():
        raise ValueError(f"`{name}` holds NaN or infinite values; remove or replace them")
    return points


def _check_dtype(points: npt.NDArray[Any], name: str) -> None:
    if points.dtype == np.uint8:
        raise ValueError(
            f"`{name}` holds unscaled pixels (uint8, 0 to 255); pass {name} / 255, or "
            f"{name}.astype(float) if the size is meant"
        )
    if not any(jnp.issubdtype(points.dtype, kind) for kind in (np.floating, np.integer, np.bool_)):
        raise TypeError(f"`{name}` has dtype {points.dtype}; pass an array of real numbers")


def _kernel_fn(network: Any) -> Callable[..., Any]:
    layer = network[2] if isinstance(network, tuple | list) and len(network) == 3 else network
    if is_builder(layer):
        raise TypeError(
            f"`network` is the function {layer.__name__}; pass what it returns, such as "
            "ki.networks.fcnn(depth=3)"
        )
    if not callable(layer):
        raise TypeError(
            f"`network` is a {type(network).__name__}; pass the (init_fn, apply_fn, kernel_fn) of "
            "kernelinf.stax, or the kernel_fn"
        )
    return layer


def _check_output(result: Any, kind: str) -> None:
    if isinstance(result, tuple | list):
        raise ValueError(
            f"the network has {len(result)} outputs side by side; join them with stax.FanInSum() "
            "or stax.FanInConcat()"
        )
    if not isinstance(result, neural_tangents.Kernel):
        raise TypeError(
            f"`network` returned a {type(result).__name__} for two batches of points; pass a "
            "network of kernelinf.stax"
        )
    if not result.is_gaussian:
        raise ValueError(
            "the network has no readout: its last layer must be linear; add stax.Dense(1)"
        )
    shape = getattr(result, kind).shape
    if shape != (2, 3):
        raise ValueError(
            f"the network's kernel of 2 and 3 points has shape {shape} and not (2, 3); put "
            "stax.Flatten() or stax.GlobalAvgPool() before its last stax.Dense(1)"
        )


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] in (1, 3) and shape[1] == shape[2] > 4


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)


def _same(x1: Any, x2: Any) -> bool:
    """Whether points that are not being traced are equal: looked at in no time beside a kernel."""
    if isinstance(x1, jax.core.Tracer) or isinstance(x2, jax.core.Tracer):
        return x1 is x2
    return x1 is x2 or np.array_equal(x1, x2)


def _mirrored(values: Array) -> Array:
    side = math.prod(values.shape[: values.ndim // 2])  # n, or n d of full blocks
    square = values.reshape(side, side)
    return (np.tril(square) + np.tril(square, -1).T).reshape(values.shape)
