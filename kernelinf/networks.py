"""Named architectures for `kernelinf.from_stax`: triples ``(init_fn, apply_fn, kernel_fn)``."""

from typing import Any

from ._checks import is_number, is_whole
from ._neural_tangents import stax

Network = tuple[Any, Any, Any]
POOLING = (None, "avg", "global")


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
    hidden = [
        layer for _ in range(depth) for layer in (stax.Dense(width, w_std, b_std), stax.Relu())
    ]
    return stax.serial(stax.Flatten(), *hidden, stax.Dense(outputs, w_std, b_std))


def cnn(
    depth: int = 3,
    w_std: float = 2**0.5,
    b_std: float = 0.0,
    pooling: str | None = None,
    *,
    channels: int = 64,
    outputs: int = 1,
) -> Network:
    """Build a convolutional ReLU network: `depth` 3 x 3 convolutions and a dense readout.

    Parameters
    ----------
    depth
        Convolutions, each followed by a ReLU; at least 1.
    w_std, b_std
        Standard deviations of weights and biases, as in `fcnn`.
    pooling
        None: positions are flattened before the readout. "avg": a 2 x 2 average after every ReLU,
        which halves height and width; flattened at the end. "global": the average over all
        positions before the readout. With pooling the kernel costs height x width times more time
        and memory, because it then needs the covariance between every pair of positions.
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
        A size is not a positive integer, a standard deviation is not finite and positive (`b_std`
        may be 0), or `pooling` is none of the three.

    References
    ----------
    Arora et al., "On Exact Computation with an Infinitely Wide Neural Net", 2019,
    https://arxiv.org/abs/1904.11955.
    """
    _check_sizes(depth=depth, channels=channels, outputs=outputs)
    _check_scales(w_std, b_std)
    if pooling not in POOLING:
        raise ValueError(f"`pooling` is {pooling!r}; pass None, 'avg' or 'global'")
    block = [stax.Conv(channels, (3, 3), padding="SAME", W_std=w_std, b_std=b_std), stax.Relu()]
    if pooling == "avg":
        block.append(stax.AvgPool((2, 2), strides=(2, 2)))
    flat = stax.GlobalAvgPool() if pooling == "global" else stax.Flatten()
    return stax.serial(*block * depth, flat, stax.Dense(outputs, w_std, b_std))


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not is_whole(size) or size < 1:
            raise ValueError(f"`{name}` is {size!r}; pass a positive integer")


def _check_scales(w_std: float, b_std: float) -> None:
    if not (is_number(w_std) and w_std > 0):
        raise ValueError(f"`w_std` is {w_std!r}; pass a positive, finite number")
    if not (is_number(b_std) and b_std >= 0):
        raise ValueError(f"`b_std` is {b_std!r}; pass 0 or a positive, finite number")
