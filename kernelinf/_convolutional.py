"""Kernels of convolutional ReLU networks, from the covariances of only those positions that matter.

neural-tangents propagates the covariance of all pairs of positions of two images. A network that
ends in a flattening reads only equal positions of its last layer: before a 2 x 2 pooling these need
positions at most 1 apart, before the pooling below that 3 apart, and so on; convolutions leave
distances as they are. For rows and for columns the pairs (r, r') that matter are listed, and a
covariance is a matrix of row pairs by column pairs. A convolution sums each pair and its neighbours
(r - 1, r' - 1) and (r + 1, r' + 1), along one axis and then along the other; a pooling sums four
pairs along each. One image meets several at a time, which come last in memory, so that all sums are
of contiguous numbers. The variances of an image are computed once for all its pairs.
"""

import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

WINDOW = 3  # side of a convolution's filter
POOL = 2  # side of a pooling's window, and its stride
# One image meets a power of two of others at a time: as many as keep their largest covariance
# within bytes that a CPU's caches hold, or that occupy an accelerator. Fewer leave vector units
# idle, more leave little of the half that symmetry saves.
TILE_BYTES = {"cpu": 2**24, "accelerator": 2**28}
TILE_WIDTH = (4, 64)
SLAB_BYTES = {"cpu": 2**18, "accelerator": 2**26}  # of what is evaluated before it is kept

# arcsin(y) / y by powers of 8 y^2 - 1, for y from 0 to 1/2: its Taylor series, economised in exact
# arithmetic (Lanczos 1938). The remainder is 2e-17.
ARCSINE = (
    1.0221005752492498,
    0.023472196200223696,
    0.0014859415578623095,
    0.00012529313331256214,
    1.2116523077144013e-05,
    1.269930661896025e-06,
    1.4033986094563414e-07,
    1.6101623159871324e-08,
    1.8997263232217636e-09,
    2.2879502893106995e-10,
    2.8056550122182057e-11,
    3.6825162866292884e-12,
    4.658263107307935e-13,
)

Indices = npt.NDArray[np.intp]
Maps = tuple[jax.Array, jax.Array | None]  # of the NNGP, and of the NTK if that is asked for


@dataclass(frozen=True)
class Layer:
    """A 3 x 3 convolution with zeros around the image, a ReLU and perhaps a 2 x 2 average."""

    strides: tuple[int, int]
    pooled: bool


@dataclass(frozen=True)
class Architecture:
    """Layers, then the average of all positions or a flattening, then a dense readout."""

    layers: tuple[Layer, ...]
    averaged: bool
    w_std: float
    b_std: float

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse points of a shape (without the first axis) that the network cannot take."""
        if len(shape) != 3:
            raise ValueError(
                f"the network cannot take points of shape {shape}; pass images (n, height, width, "
                "channels), grey ones with one channel"
            )
        least = [_least_length(self._along(axis)) for axis in (0, 1)]
        if shape[0] < least[0] or shape[1] < least[1]:
            poolings = sum(layer.pooled for layer in self.layers)
            raise ValueError(
                f"the network cannot take images of {shape[0]} x {shape[1]} pixels: its {poolings} "
                f"poolings leave nothing of them; pass at least {least[0]} x {least[1]}, or take "
                "fewer layers"
            )

    def plan(self, shape: tuple[int, ...]) -> "Plan":
        """List the pairs of rows and of columns that matter in images of a shape."""
        axes = (_axis(shape[i], self._along(i), self.averaged) for i in (0, 1))
        return Plan(*axes)

    def _along(self, axis: int) -> list[tuple[int, bool]]:
        return [(layer.strides[axis], layer.pooled) for layer in self.layers]


# --- which pairs matter --------------------------------------------------------------------------


@dataclass(frozen=True)
class Pairs:
    """Positions along one axis of two images: `first` (m,) of the one, `second` of the other."""

    first: Indices
    second: Indices

    def indices(self, first: Indices, second: Indices) -> Indices:
        """Return where pairs are in the list, -1 for those that are not."""
        length = self.first.max() + 1
        place = np.full((length + 2, length + 2), -1)  # a margin: zeros lie around the image
        place[self.first + 1, self.second + 1] = np.arange(len(self.first))
        return place[np.clip(first + 1, 0, length + 1), np.clip(second + 1, 0, length + 1)]

    @property
    def own(self) -> Indices:
        """Where the pairs (r, r) are, in the order of r."""
        positions = np.arange(self.first.max() + 1)
        return self.indices(positions, positions)


@dataclass(frozen=True)
class Step:
    """One layer along one axis.

    `pairs` is what matters after the convolution. `window` (3, m) has the indices of the pairs
    below that each of them sums, -1 outside the image; `pool` (4, m') those that are averaged.
    """

    pairs: Pairs
    window: Indices
    pool: Indices | None


@dataclass(frozen=True)
class Axis:
    """The pairs of positions of two images along one axis, and the layers above them."""

    pairs: Pairs
    steps: tuple[Step, ...]

    @property
    def sizes(self) -> list[int]:
        """Pairs below the first layer, and after each convolution."""
        return [len(pairs.first) for pairs in (self.pairs, *(step.pairs for step in self.steps))]


@dataclass(frozen=True)
class Plan:
    """What is propagated for images of one shape."""

    rows: Axis
    columns: Axis

    @property
    def entries(self) -> int:
        """Numbers of the largest covariance of two images."""
        sizes = zip(self.rows.sizes, self.columns.sizes, strict=True)
        return max(rows * columns for rows, columns in sizes)


def _axis(length: int, layers: Sequence[tuple[int, bool]], averaged: bool) -> Axis:
    lengths = [length]
    for stride, pooled in layers:
        lengths.append(_strided(lengths[-1], stride) // (POOL if pooled else 1))
    distances = np.arange(1 - lengths[-1], lengths[-1]) if averaged else np.zeros(1, np.intp)
    pairs, steps = _pairs(lengths[-1], distances), []
    for (stride, pooled), below in zip(reversed(layers), reversed(lengths[:-1]), strict=True):
        pool = None
        if pooled:
            distances = np.unique(POOL * distances[:, None] + np.arange(1 - POOL, POOL))
            above, pairs = pairs, _pairs(_strided(below, stride), distances)
            pool = _pool(above, pairs)
        distances = stride * distances
        source = _pairs(below, distances)
        steps.append(Step(pairs, _window(pairs, source, below, stride), pool))
        pairs = source
    return Axis(pairs, tuple(reversed(steps)))


def _pairs(length: int, distances: Indices) -> Pairs:
    """List the pairs (r, r + distance), so that neighbours are next to each other."""
    distances = distances[np.abs(distances) < length]
    ranges = [np.arange(max(0, -d), min(length, length - d)) for d in distances]
    seconds = [first + d for first, d in zip(ranges, distances, strict=True)]
    return Pairs(np.concatenate(ranges), np.concatenate(seconds))


def _window(pairs: Pairs, source: Pairs, length: int, stride: int) -> Indices:
    # Zeros are put around the image as for SAME of XLA: the smaller half of them before it.
    padding = max((_strided(length, stride) - 1) * stride + WINDOW - length, 0)
    offsets = np.arange(WINDOW)[:, None] - padding // 2
    return source.indices(stride * pairs.first + offsets, stride * pairs.second + offsets)


def _pool(pairs: Pairs, source: Pairs) -> Indices:
    first, second = (offset.reshape(-1, 1) for offset in np.indices((POOL, POOL)))
    return source.indices(POOL * pairs.first + first, POOL * pairs.second + second)


def _strided(length: int, stride: int) -> int:
    return -(-length // stride)


def _least_length(layers: Sequence[tuple[int, bool]]) -> int:
    """Pixels along an axis of which the layers leave one."""
    length = 1
    for stride, pooled in reversed(layers):
        length = ((POOL if pooled else 1) * length - 1) * stride + 1
    return length


# --- one layer -----------------------------------------------------------------------------------


def _sum(maps: jax.Array, indices: Indices, axis: int) -> jax.Array:
    """Add up slices along an axis: those of each row of `indices`, none for -1."""
    return sum(_slices(maps, row, axis) for row in indices)  # type: ignore[return-value]


def _slices(maps: jax.Array, indices: Indices, axis: int) -> jax.Array:
    taken = jnp.take(maps, np.maximum(indices, 0), axis=axis, mode="clip")
    if indices.min() >= 0:
        return taken
    inside = np.expand_dims(indices >= 0, [i for i in range(maps.ndim) if i != axis])
    return jnp.where(inside, taken, 0.0)


def _convolve(maps: jax.Array, rows: Step, columns: Step) -> jax.Array:
    return _sum(_sum(maps, rows.window, 0), columns.window, 1) / WINDOW**2


def _average(maps: jax.Array, rows: Step, columns: Step) -> jax.Array:
    if rows.pool is None or columns.pool is None:
        return maps
    return _sum(_sum(maps, rows.pool, 0), columns.pool, 1) / POOL**4


def _at(values: jax.Array, rows: Indices, columns: Indices) -> jax.Array:
    return jnp.take(jnp.take(values, rows, axis=0), columns, axis=1)


def _slabs(function: Callable[..., Any], pairs: Pairs, bytes_each: int) -> Any:
    """Evaluate a function of pairs, in slabs of some pairs at a time, and join what it returns.

    A loop keeps its results. Without one, XLA fuses a step into the next and evaluates it again for
    every neighbour that reads it, which takes several times as long.
    """
    n = len(pairs.first)
    slabs = min(n, max(2, n * bytes_each // SLAB_BYTES[_device()]))
    size = -(-n // slabs)
    rows = np.minimum(np.arange(n + -n % size), n - 1).reshape(-1, size)
    parts = jax.lax.map(lambda r: function(*r), (rows, pairs.first[rows], pairs.second[rows]))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], parts)


def _device() -> str:
    return "cpu" if jax.default_backend() == "cpu" else "accelerator"


def _inputs(x1: jax.Array, x2: jax.Array, rows: Pairs, columns: Pairs) -> jax.Array:
    """Mean over channels of the products of two images (rows, columns, channels, t or 1)."""
    channels = x2.shape[2]

    def some(_: jax.Array, first: jax.Array, second: jax.Array) -> jax.Array:
        above, below = x1[first], x2[second]
        products = (
            above[:, columns.first, c] * below[:, columns.second, c] for c in range(channels)
        )
        return sum(products) / channels  # type: ignore[return-value]

    return _slabs(some, rows, 8 * len(columns.first) * x2.shape[-1])


def _rectify(maps: Maps, first: jax.Array, second: jax.Array, rows: Pairs, columns: Pairs) -> Maps:
    """Pass covariances through a ReLU, given standard deviations (rows, columns, t or 1).

    The arc-cosine kernels of degrees 1 and 0 (Cho and Saul 2009).
    """
    nngp, ntk = maps
    inverse1, inverse2 = _inverse(first), _inverse(second)

    def some(row: jax.Array, row1: jax.Array, row2: jax.Array) -> Maps:
        def pairwise(a: jax.Array, b: jax.Array) -> jax.Array:
            return a[row1][:, columns.first] * b[row2][:, columns.second]

        cosine = _snap(nngp[row] * pairwise(inverse1, inverse2))
        slope = 0.5 - _angle(cosine) / (2 * np.pi)  # the expected product of the derivatives
        sine = jnp.sqrt((1 - cosine) * (1 + cosine))
        rectified = pairwise(first, second) * (sine / (2 * np.pi) + slope * cosine)
        return rectified, None if ntk is None else slope * ntk[row]

    return _slabs(some, rows, 8 * nngp[0].size)


def _inverse(scale: jax.Array) -> jax.Array:
    return jnp.where(scale > 0, 1 / scale, 0.0)  # no cosine is defined where nothing varies


def _snap(cosine: jax.Array) -> jax.Array:
    # Within rounding of 1 a cosine carries no angle, but its arccos would be as large as 1e-8.
    close = jnp.abs(cosine) >= 1 - 32 * jnp.finfo(cosine.dtype).eps
    return jnp.where(close, jnp.sign(cosine), cosine)


def _angle(cosine: jax.Array) -> jax.Array:
    """Return the arccos in a third of the time of XLA's.

    It is 2 arcsin of sqrt((1 - |cos|) / 2), or pi/2 - arcsin |cos| where |cos| is at most 1/2.
    """
    size = jnp.abs(cosine)
    wide = size <= 0.5
    square = jnp.where(wide, size * size, (1 - size) / 2)
    powers = jnp.full_like(size, ARCSINE[-1])
    for coefficient in ARCSINE[-2::-1]:
        powers = powers * (8 * square - 1) + coefficient
    arcsine = jnp.where(wide, size, jnp.sqrt(square)) * powers
    acute = jnp.where(wide, np.pi / 2 - arcsine, 2 * arcsine)
    return jnp.where(cosine < 0, np.pi - acute, acute)


# --- all layers ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evaluator:
    """The kernel of one architecture, "ntk" or "nngp", for images of any shape."""

    architecture: Architecture
    kind: str

    def matrix(self, x1: jax.Array, x2: jax.Array) -> jax.Array:
        """Return the kernel of all pairs of images, (n1, n2)."""
        tile = self._tile(x2)
        starts = [(i, j) for i in range(len(x1)) for j in range(-(-len(x2) // tile))]
        return self._tiles(x1, x2, self._scales(x1), self._scales(x2), starts)

    def symmetric(self, x: jax.Array) -> jax.Array:
        """Return the kernel of images with themselves, (n, n), in half the time."""
        tile, scales = self._tile(x), self._scales(x)
        starts = [(i, j) for i in range(len(x)) for j in range(i // tile, -(-len(x) // tile))]
        upper = jnp.triu(self._tiles(x, x, scales, scales, starts))
        return upper + jnp.triu(upper, 1).T

    def diagonal(self, x: jax.Array) -> jax.Array:
        """Return the kernel of each image with itself, (n,)."""
        return self._selves(x, self.kind)[0]

    def _tiles(
        self,
        x1: jax.Array,
        x2: jax.Array,
        scales1: list[jax.Array],
        scales2: list[jax.Array],
        tiles: list[tuple[int, int]],
    ) -> jax.Array:
        """Evaluate tiles of one row each, of which at most one is in memory at a time."""
        plan, width = self.architecture.plan(x1.shape[1:]), self._tile(x2)
        columns = jax.tree.map(lambda a: _last(_chunks(a, width)), (x2, scales2))
        rows = jax.tree.map(lambda a: a[..., None], (x1, scales1))

        def one(tile: jax.Array) -> jax.Array:
            (first, scale1), (second, scale2) = (
                jax.tree.map(lambda a, i=i: a[i], points)
                for points, i in zip((rows, columns), tile, strict=True)
            )
            scales = list(zip(scale1, scale2, strict=True))
            return self._pair(plan, self.kind, first, second, scales)[0]

        where = np.array(tiles)
        values = jax.lax.map(one, jnp.asarray(where))
        whole = (
            jnp.zeros((len(x1), len(columns[0]), width)).at[where[:, 0], where[:, 1]].set(values)
        )
        return whole.reshape(len(x1), -1)[:, : len(x2)]

    def _selves(self, x: jax.Array, kind: str) -> tuple[jax.Array, list[jax.Array]]:
        """Return each image's kernel with itself, and its standard deviations at each layer."""
        plan = self.architecture.plan(x.shape[1:])
        chunks = _last(_chunks(x, self._tile(x)))
        values, scales = jax.lax.map(lambda c: self._pair(plan, kind, c, c, None), chunks)
        flat = [jnp.moveaxis(s, -1, 1).reshape(-1, *s.shape[1:-1])[: len(x)] for s in scales]
        return values.reshape(-1)[: len(x)], flat

    def _scales(self, x: jax.Array) -> list[jax.Array]:
        return self._selves(x, "nngp")[1]

    def _tile(self, x: jax.Array) -> int:
        """Images that one image meets at a time: as many as caches, or an accelerator, can use."""
        most = TILE_BYTES[_device()] // (8 * self.architecture.plan(x.shape[1:]).entries)
        width = np.clip(2 ** (max(1, most).bit_length() - 1), *TILE_WIDTH)
        return min(int(width), len(x))

    def _pair(
        self,
        plan: Plan,
        kind: str,
        x1: jax.Array,
        x2: jax.Array,
        scales: list[tuple[jax.Array, jax.Array]] | None,
    ) -> tuple[jax.Array, list[jax.Array]]:
        """Propagate the covariances of images (rows, columns, channels, t or 1), t pairs in all.

        Without `scales` the images are the same, and their standard deviations are returned too.
        """
        w, b = self.architecture.w_std**2, self.architecture.b_std**2
        nngp = _inputs(x1, x2, plan.rows.pairs, plan.columns.pairs)
        ntk, found = None, []
        for level, step in enumerate(zip(plan.rows.steps, plan.columns.steps, strict=True)):
            nngp = w * _convolve(nngp, *step) + b
            if kind == "ntk":
                ntk = nngp if ntk is None else w * _convolve(ntk, *step) + nngp
            if scales is None:
                own = jnp.sqrt(_at(nngp, *(s.pairs.own for s in step)))
                found.append(own)
            scale1, scale2 = (own, own) if scales is None else scales[level]
            pairs = (s.pairs for s in step)
            nngp, ntk = _rectify((nngp, ntk), scale1, scale2, *pairs)
            nngp = _average(nngp, *step)
            ntk = None if ntk is None else _average(ntk, *step)
        nngp = w * nngp.mean(axis=(0, 1)) + b
        if ntk is None:
            return nngp, found
        return w * ntk.mean(axis=(0, 1)) + nngp, found


def _chunks(a: jax.Array, size: int) -> jax.Array:
    """Split (n, ...) into (chunks, size, ...); the last one repeats its last entry."""
    n = len(a)
    rows = np.minimum(np.arange(n + -n % size), n - 1)
    return a[rows].reshape(-1, size, *a.shape[1:])


def _last(a: jax.Array) -> jax.Array:
    return jnp.moveaxis(a, 1, -1)


# --- networks known by their kernel function -----------------------------------------------------

_known: weakref.WeakKeyDictionary[Callable[..., Any], Architecture] = weakref.WeakKeyDictionary()


def remember(kernel_fn: Callable[..., Any], architecture: Architecture) -> None:
    """Note that a kernel function of stax is that of an architecture.

    In a table and not in an attribute, which wrappers of the function would copy.
    """
    _known[kernel_fn] = architecture


def recall(kernel_fn: Callable[..., Any]) -> Architecture | None:
    """Return the architecture of a kernel function, if it was noted."""
    return _known.get(kernel_fn) if isinstance(kernel_fn, types.FunctionType) else None
