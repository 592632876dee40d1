"""Named architectures for `kernelinf.from_stax`: triples ``(init_fn, apply_fn, kernel_fn)``."""

import math
import warnings
from typing import Any

from ._checks import is_number, is_one_of, is_whole
from ._convolutional import Architecture, Layer, remember
from ._neural_tangents import stax

Network = tuple[Any, Any, Any]
POOLING = (None, "avg", "global")
MYRTLE = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}  # convolutions between poolings, by depth
MOST_LAYERS = 10_000
LOST = 150  # powers of ten from which squares of kernel values leave float64
FAR = 8  # and from which they surely are in another unit than `reg`


def fcnn(
    depth: int = 3,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    *,
    width: int = 512,
    outputs: int = 1,
) -> Network:
    """Build a fully connected ReLU network: `depth` hidden layers and a dense readout.

    Parameters
    ----------
    depth
        Hidden layers, each dense and followed by a ReLU; at least 1.
    w_std, b_std
        Standard deviations of weights and biases in the NTK parameterisation, where weights are
        divided by the square root of their fan-in. ``w_std=2**0.5`` keeps the size of signals from
        layer to layer under ReLU (He et al. 2015).
    width, outputs
        Hidden units and outputs of the finite network that ``init_fn`` draws. The kernel of
        infinite width depends on neither.

    Returns
    -------
    tuple
        ``(init_fn, apply_fn, kernel_fn)``. Inputs are (n, features); images are flattened.

    Raises
    ------
    ValueError
        A size is not a positive integer, or a standard deviation is not finite and positive
        (`b_std` may be 0).

    References
    ----------
    Jacot, Gabriel and Hongler, "Neural Tangent Kernel", 2018, https://arxiv.org/abs/1806.07572.
    """
    _check_sizes(depth=depth, width=width, outputs=outputs)
    _check_scales(w_std, b_std)
    _check_gain(depth, w_std, b_std)
    dense, relu, readout = (
        stax.Dense(width, w_std, b_std),
        stax.Relu(),
        stax.Dense(outputs, w_std, b_std),
    )
    init_fn, apply_fn, _ = stax.serial(stax.Flatten(), *[dense, relu] * depth, readout)
    # The same kernel in a loop: a chain's compilation grows faster than the square of its depth.
    hidden = stax.repeat(stax.serial(dense, relu), depth - 1)
    *_, kernel_fn = stax.serial(stax.Flatten(), dense, relu, hidden, readout)
    return init_fn, apply_fn, kernel_fn


def cnn(
    depth: int = 3,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    pooling: str | None = None,
    *,
    strides: int | tuple[int, int] = 1,
    channels: int = 64,
    outputs: int = 1,
) -> Network:
    """Build a convolutional ReLU network: `depth` 3 x 3 convolutions and a dense readout.

    `kernelinf.from_stax` knows its layers and evaluates the kernel many times faster than that of
    an equal network put together from `kernelinf.stax`; so it does for `myrtle`.

    Parameters
    ----------
    depth
        Convolutions, each followed by a ReLU; at least 1. Zeros around the image keep its size.
    w_std, b_std
        Standard deviations of weights and biases, as in `fcnn`.
    pooling
        None: positions are flattened before the readout. "avg": a 2 x 2 average after every ReLU,
        which halves height and width, an odd last row or column left out; flattened at the end.
        "global": the average over all positions before the readout. For images of height x width
        pixels a kernel value takes height x width steps a layer without pooling, more with "avg",
        and (height x width)^2 with "global".
    strides
        Steps of the convolutions from one output to the next, of both axes or (rows, columns): 2
        halves height and width.
    channels, outputs
        Channels and outputs of the finite network that ``init_fn`` draws. The kernel of infinite
        width depends on neither.

    Returns
    -------
    tuple
        ``(init_fn, apply_fn, kernel_fn)``. Inputs are images (n, height, width, channels), channels
        last.

    Raises
    ------
    ValueError
        A size or a stride is not a positive integer, a standard deviation is not finite and
        positive (`b_std` may be 0), or `pooling` is none of the three.

    References
    ----------
    Arora et al., "On Exact Computation with an Infinitely Wide Neural Net", 2019,
    https://arxiv.org/abs/1904.11955.
    """
    _check_sizes(depth=depth, channels=channels, outputs=outputs)
    _check_scales(w_std, b_std)
    _check_gain(depth, w_std, b_std)
    if not is_one_of(pooling, POOLING):
        raise ValueError(f"`pooling` is {pooling!r}; pass None, 'avg' or 'global'")
    layer = Layer(_pair_of_strides(strides), pooled=pooling == "avg")
    architecture = Architecture((layer,) * depth, pooling == "global", w_std, b_std)
    return _convolutional(architecture, channels, outputs)


def myrtle(
    depth: int = 5,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    *,
    channels: int = 64,
    outputs: int = 1,
) -> Network:
    """Build a Myrtle network: 3 x 3 convolutions with two poolings between, and a global average.

    Parameters
    ----------
    depth
        5, 7 or 10 layers with weights: 2 + 1 + 1, 2 + 2 + 2 or 3 + 3 + 3 convolutions, each with a
        ReLU after it, and a dense readout. A 2 x 2 average ends the first and the second group, the
        average over all positions the third.
    w_std, b_std
        Standard deviations of weights and biases, as in `fcnn`.
    channels, outputs
        As in `cnn`.

    Returns
    -------
    tuple
        ``(init_fn, apply_fn, kernel_fn)``. Inputs are images (n, height, width, channels), channels
        last, of at least 4 x 4 pixels.

    Raises
    ------
    ValueError
        `depth` is none of the three, a size is not a positive integer, or a standard deviation is
        not finite and positive (`b_std` may be 0).

    References
    ----------
    Shankar et al., "Neural Kernels Without Tangents", 2020, https://arxiv.org/abs/2003.02237.
    """
    _check_sizes(channels=channels, outputs=outputs)
    _check_scales(w_std, b_std)
    if not is_whole(depth) or depth not in MYRTLE:
        raise ValueError(f"`depth` is {depth!r}; pass 5, 7 or 10")
    _check_gain(depth, w_std, b_std)
    first, second, third = MYRTLE[depth]
    ends = {first, first + second}
    layers = (Layer((1, 1), pooled=i in ends) for i in range(1, first + second + third + 1))
    return _convolutional(Architecture(tuple(layers), True, w_std, b_std), channels, outputs)


def _convolutional(architecture: Architecture, channels: int, outputs: int) -> Network:
    w_std, b_std = architecture.w_std, architecture.b_std
    network = []
    for layer in architecture.layers:
        network += [stax.Conv(channels, (3, 3), layer.strides, "SAME", w_std, b_std), stax.Relu()]
        if layer.pooled:
            network.append(stax.AvgPool((2, 2), strides=(2, 2)))
    flat = stax.GlobalAvgPool() if architecture.averaged else stax.Flatten()
    built = stax.serial(*network, flat, stax.Dense(outputs, w_std, b_std))
    remember(built[2], architecture)
    return built


def _pair_of_strides(strides: int | tuple[int, int]) -> tuple[int, int]:
    pair = tuple(strides) if isinstance(strides, tuple | list) else (strides, strides)
    if len(pair) != 2 or not all(is_whole(s) and s > 0 for s in pair):
        raise ValueError(f"`strides` is {strides!r}; pass a positive integer, or one for each axis")
    return int(pair[0]), int(pair[1])


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not is_whole(size) or size < 1:
            raise ValueError(f"`{name}` is {size!r}; pass a positive integer")
        if name == "depth" and size > MOST_LAYERS:
            raise ValueError(f"`depth` is {size}; pass {MOST_LAYERS:,} at most")


def _check_scales(w_std: float, b_std: float) -> None:
    if not (is_number(w_std) and w_std > 0):
        raise ValueError(f"`w_std` is {w_std!r}; pass a positive, finite number")
    if not (is_number(b_std) and b_std >= 0):
        raise ValueError(f"`b_std` is {b_std!r}; pass 0 or a positive, finite number")


def _check_gain(depth: int, w_std: float, b_std: float) -> None:
    """Refuse, or warn of, weights that scale values layer by layer until they are lost.

    A layer multiplies the kernel by w_std^2 / 2 and adds b_std^2 (Poole et al. 2016, for ReLU).
    """
    powers = depth * math.log10(w_std**2 / 2)
    vanishes = powers < 0
    if abs(powers) < FAR:
        return
    change = f"`w_std` {w_std:g} and `depth` {depth} multiply kernel values by 1e{powers:+.0f}"
    if abs(powers) > LOST and not (vanishes and b_std):
        raise ValueError(
            f"{change}, beyond float64; pass `w_std` nearer to 2**0.5, or fewer layers"
        )
    lost = "what is left is that of the biases: all points look alike"
    unit = "`reg` has to be as large, or as small"
    warnings.warn(
        f"{change}; {lost if vanishes and b_std else unit}, or pass `w_std` nearer to 2**0.5",
        stacklevel=3,
    )
