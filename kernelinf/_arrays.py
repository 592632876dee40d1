"""Where arrays live: NumPy on a CPU, JAX on an accelerator; float64 on both."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
import numpy.typing as npt

from ._checks import as_array, check_unmasked

Array = npt.NDArray[np.float64]  # or a float64 JAX array: both speak the array API

P = ParamSpec("P")
T = TypeVar("T")


def in_float64(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function with JAX in float64, whatever the global setting, and restore the setting.

    NumPy is kept from warning of values beyond float64, as JAX never does: what a function returns
    is checked instead, since an overflow on the way may be harmless.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True), np.errstate(all="ignore"):
            return function(*args, **kwargs)

    return wrapped


def namespace(array: Array) -> Any:
    """Return the module whose functions act on `array`: numpy or jax.numpy."""
    return array.__array_namespace__()


def like(values: npt.ArrayLike, array: Array) -> Array:
    """Put `values` in float64 where `array` lives; on all of its devices if it is on several."""
    if isinstance(array, jax.Array) and len(array.sharding.device_set) > 1:
        return replicated(values, array.sharding)
    return namespace(array).asarray(values, dtype=np.float64)


def replicated(values: npt.ArrayLike, sharding: jax.sharding.Sharding) -> Any:
    """Put `values` in float64 on every device, of this and of other processes."""
    if isinstance(values, jax.Array) and values.sharding == sharding:
        return values
    host = np.asarray(values, dtype=np.float64)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def local(array: Any) -> Array:
    """Return a JAX array of a CPU as a NumPy view (no copy); leave any other array alone."""
    if isinstance(array, jax.Array) and all(d.platform == "cpu" for d in array.devices()):
        return np.asarray(array)
    return array


def real(values: Any, name: str) -> Array:
    """Return what a user gave as real numbers in float64, where it is; not copied if it is so.

    Raises
    ------
    TypeError
        They are complex, or no numbers.
    ValueError
        Some are masked.
    """
    check_unmasked(values, name)
    given = local(values)
    array = given if isinstance(given, jax.Array) else as_array(given, name)
    if array.dtype.kind not in "biuf" and not jax.numpy.issubdtype(array.dtype, np.floating):
        raise TypeError(f"`{name}` has dtype {array.dtype}; pass real numbers")
    return namespace(array).asarray(array, dtype=np.float64)


def finite(*arrays: Array) -> bool:
    """Tell whether all values are numbers, neither NaN nor infinite."""
    return all(bool(namespace(array).isfinite(array).all()) for array in arrays)


def count(points: Any, name: str) -> int:
    """Return how many points were given, before they are checked.

    Raises
    ------
    TypeError
        They are nothing that holds points.
    """
    holds = hasattr(points, "__len__") and not isinstance(points, str | bytes | dict | set | type)
    if not holds or getattr(points, "shape", None) == ():
        raise TypeError(f"`{name}` is a {type(points).__name__}; pass points, (n, ...)")
    return len(points)


def to_numpy(array: Array) -> Array:
    """Copy an array to the host when it is not there already."""
    return np.asarray(array)


def dot(a: Array, b: Array) -> Array:
    """Inner products over points and outputs: (n, d, ...) and (n, d, ...) give (...)."""
    return namespace(a).einsum("nd...,nd...->...", a, b)


def unit(v: Array) -> Array:
    """Return the largest size of an entry in each column of a stack (n, d, ...), one if zero.

    Squares of what was divided by it neither overflow nor vanish.
    """
    xp = namespace(v)
    largest = xp.max(xp.abs(v), axis=(0, 1))
    return xp.where(largest > 0, largest, 1.0)


def root_dot(v: Array, product: Array) -> Array:
    """Return the roots of the inner products of stacks v and A v, (n, d, ...); zero if negative.

    With A = I the Euclidean norms.
    """
    size = unit(v)
    return size * namespace(v).sqrt(dot(v / size, product / size).clip(0.0))


def as_stack(v: Array) -> Array:
    """Give (n, d) a trailing axis; leave a stack (n, d, s) alone."""
    return v if v.ndim == 3 else v[:, :, None]
