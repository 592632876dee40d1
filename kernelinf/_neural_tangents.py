"""neural-tangents 0.6.5 on the JAX of today. The only module that imports it.

The library is archived and looks up names that JAX has since moved or removed. They are put in
place while it is imported and taken away again, so that JAX is left as it was. TensorFlow, which
only its experimental module uses, is never imported and need not be installed.

Two of its private functions are replaced: one for accuracy, one because XLA crashes in it.
"""

import contextlib
import importlib
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.interpreters.ad
import jax.numpy as jnp
from jax.extend import core as extend_core

SUPPORTED = ((0, 10), (0, 11))  # first JAX version that works, first that was never tried
UNUSED = ("neural_tangents.experimental", "jax.util")


def _check_version() -> None:
    if not SUPPORTED[0] <= jax.__version_info__ < SUPPORTED[1]:
        first, beyond = (".".join(map(str, version)) for version in SUPPORTED)
        raise ImportError(
            f"kernelinf works with JAX {first} and later, before {beyond}; found "
            f"{jax.__version__}. Install one that works: pip install 'jax>={first},<{beyond}'"
        )


def _missing_names() -> Iterator[tuple[types.ModuleType, str, Any]]:
    for name in ("Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var"):
        yield jax.core, name, getattr(extend_core, name)
    # A key of a table of rules; no program of today contains this operation.
    yield jax.interpreters.ad, "zeros_like_p", extend_core.Primitive("zeros_like")


def _safe_map(function: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    return [function(*items) for items in zip(*args, strict=True)]


def _safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*args, strict=True))


def _stand_ins() -> dict[str, types.ModuleType]:
    experimental, util = (types.ModuleType(name) for name in UNUSED)
    vars(util).update(safe_map=_safe_map, safe_zip=_safe_zip)
    return {module.__name__: module for module in (experimental, util)}


@contextlib.contextmanager
def _names_in_place() -> Iterator[None]:
    """Add the names and modules that JAX lacks, and take them away at the end."""
    names = [entry for entry in _missing_names() if entry[1] not in vars(entry[0])]
    modules = {name: new for name, new in _stand_ins().items() if name not in sys.modules}
    for module, name, value in names:
        setattr(module, name, value)
    sys.modules.update(modules)
    try:
        yield
    finally:
        for module, name, _ in names:
            delattr(module, name)
        for name in modules:
            del sys.modules[name]


def _import() -> types.ModuleType:
    if "neural_tangents" in sys.modules:
        return sys.modules["neural_tangents"]
    # What an import that failed half way left behind would be mixed with what is imported now.
    for name in [name for name in sys.modules if name.startswith("neural_tangents.")]:
        del sys.modules[name]
    with _names_in_place():
        library = importlib.import_module("neural_tangents")
    del library.experimental  # the stand-in: whoever has TensorFlow can still import the real one
    return library


_check_version()
neural_tangents = _import()
stax = neural_tangents.stax
_elementwise: Any = importlib.import_module("neural_tangents._src.stax.elementwise")
_linear: Any = importlib.import_module("neural_tangents._src.stax.linear")
_requirements: Any = importlib.import_module("neural_tangents._src.stax.requirements")


def is_builder(thing: Any) -> bool:
    """Whether it is a function that builds a network or a layer, and has yet to be called."""
    home = getattr(thing, "__module__", None) or ""
    of_stax = home.startswith("neural_tangents._src.stax")  # which marks what it built
    return home == "kernelinf.networks" or (of_stax and _requirements.get_req(thing) is None)


def is_layer(kernel_fn: Callable[..., Any]) -> bool:
    """Whether it is made of layers of stax, whose kernels are functions of two points."""
    return _requirements.get_req(kernel_fn) is not None


def uses_dropout(kernel_fn: Callable[..., Any]) -> bool:
    """Whether a network of stax has a Dropout layer in its "train" mode."""
    return bool((_requirements.get_req(kernel_fn) or {}).get("use_dropout", False))


def _snap(covariance: jax.Array, product: jax.Array) -> jax.Array:
    # Piecewise linear activations take sqrt(1 - cos^2) of the angle between two points. Where the
    # points are equal, rounding leaves 1 - cos^2 at 1e-16 and not 0: an angle of 1e-8 and as large
    # an error in the NTK's diagonal (1e-4 in float32). A cosine within rounding of 1 carries no
    # angle: it is moved just past 1, where the library's own clipping makes the angle exactly 0.
    eps = jnp.finfo(covariance.dtype).eps
    norm = jnp.sqrt(product)
    beyond = jnp.sign(covariance) * norm * (1 + 4 * eps)
    close = norm - jnp.abs(covariance) <= 32 * eps * norm
    return covariance + jax.lax.stop_gradient(jnp.where(close, beyond - covariance, 0))


def _without_spurious_angles(k: Any) -> Any:
    _, product, _ = _requirements.get_diagonal_outer_prods(
        k.cov1, k.cov2, k.diagonal_batch, k.diagonal_spatial, operator.mul
    )
    return k.replace(nngp=_snap(k.nngp, product))


def _make_exact(library: Any) -> None:
    build = library._elementwise

    def exact(fn: Any, name: str, kernel_fn: Callable[[Any], Any] | None) -> Any:
        if kernel_fn is None or not name.startswith(("ABReLU", "Sign")):
            return build(fn, name, kernel_fn)
        return build(fn, name, lambda k: kernel_fn(_without_spurious_angles(k)))

    library._elementwise = exact


def _window(x: jax.Array, filters: jax.Array, strides: tuple[int, int], padding: str) -> jax.Array:
    # Covariances (batch, 1, p, p) are convolved with a constant diagonal filter. On CPUs with
    # AVX-512 the float64 convolution of jaxlib 0.10 reads outside its input and can crash the
    # process. Adding up shifted slices is the same sum. The barriers keep XLA from computing the
    # padded input and the sum again inside each of their uses, which is several times slower.
    size, stride, length = filters.shape[-1], strides[0], x.shape[-1]
    ((before, after),) = jax.lax.padtype_to_pads((length,), (size,), (stride,), padding)
    edges = ((0, 0), (0, 0), (before, after), (before, after))
    x = jax.lax.optimization_barrier(jnp.pad(x, edges))
    last = length + before + after - size + 1
    total = sum(x[..., k : k + last : stride, k : k + last : stride] for k in range(size))
    return jax.lax.optimization_barrier(total / size)


def _shared_convolution(
    covariance: jax.Array | None, filters: Any, strides: Any, padding: Any, batch_ndim: int
) -> jax.Array | None:
    if covariance is None or covariance.ndim == 0:
        return covariance
    if padding == _linear.Padding.CIRCULAR:
        axes = tuple(range(batch_ndim, covariance.ndim))
        covariance = _linear._same_pad_for_filter_shape(
            covariance, _double(filters), _double(strides), axes
        )
    return _linear._conv_kernel_full_spatial_loop(
        covariance, filters, strides, padding, _window, lambda _: 1
    )


def _double(sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(size for size in sizes for _ in range(2))


_make_exact(_elementwise)
_linear._conv_kernel_full_spatial_shared = _shared_convolution
