"""Named architectures: their kernels, their finite networks, and what is refused."""

import re

import jax
import kernelinf as ki
import numpy as np
import pytest
from kernelinf import stax


def points(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def assert_same_kernel(network, reference, x):
    actual, expected = (ki.from_stax(n)(x) for n in (network, reference))
    np.testing.assert_allclose(actual, expected, rtol=1e-13)


def test_fcnn_is_dense_relu_layers_and_a_readout():
    dense = [stax.Dense(512, 1.3, 0.2), stax.Relu()]
    reference = stax.serial(*dense, *dense, stax.Dense(1, 1.3, 0.2))
    assert_same_kernel(ki.networks.fcnn(2, 1.3, 0.2), reference, points(0, 5, 4))


def test_fcnn_defaults_are_three_hidden_layers_of_he_scale_without_bias():
    assert_same_kernel(
        ki.networks.fcnn(), ki.networks.fcnn(3, w_std=2**0.5, b_std=0.0), points(0, 4, 3)
    )
    x = points(0, 4, 3)
    diagonal = ki.from_stax(ki.networks.fcnn()).diagonal(x)
    np.testing.assert_allclose(diagonal, 4 * 2 * np.mean(x**2, axis=1), rtol=1e-12)


def test_fcnn_flattens_images():
    x = points(0, 4, 5, 6, 2)
    kernel = ki.from_stax(ki.networks.fcnn(2))
    np.testing.assert_allclose(kernel(x), kernel(x.reshape(4, -1)), rtol=1e-13)


@pytest.mark.parametrize("pooling", [None, "avg", "global"])
def test_cnn_is_convolutions_pooling_and_a_readout(pooling):
    convolution = stax.Conv(64, (3, 3), padding="SAME", W_std=1.3, b_std=0.2)
    pool = [stax.AvgPool((2, 2), (2, 2))] if pooling == "avg" else []
    end = stax.GlobalAvgPool() if pooling == "global" else stax.Flatten()
    block = [convolution, stax.Relu(), *pool]
    reference = stax.serial(*block, *block, end, stax.Dense(1, 1.3, 0.2))
    assert_same_kernel(ki.networks.cnn(2, 1.3, 0.2, pooling), reference, points(0, 3, 4, 4, 2))


def test_cnn_poolings_are_three_different_kernels():
    x = points(0, 3, 4, 4, 2)
    values = [ki.from_stax(ki.networks.cnn(2, pooling=p))(x) for p in (None, "avg", "global")]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert np.abs(values[first] - values[second]).max() > 0.01


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (ki.networks.fcnn(2, width=16, outputs=3), (4, 5)),
        (ki.networks.fcnn(1, width=16, outputs=3), (4, 3, 3, 2)),
        (ki.networks.cnn(2, channels=8, outputs=3), (4, 4, 4, 2)),
        (ki.networks.cnn(2, channels=8, outputs=3, pooling="avg"), (4, 4, 4, 2)),
        (ki.networks.cnn(2, channels=8, outputs=3, pooling="global"), (4, 4, 4, 2)),
    ],
)
def test_finite_networks_have_the_outputs_asked_for(network, shape):
    _, params = network[0](jax.random.key(0), shape)
    assert network[1](params, points(0, *shape)).shape == (4, 3)


@pytest.mark.parametrize(
    ("build", "size"), [(ki.networks.fcnn, "width"), (ki.networks.cnn, "channels")]
)
def test_widths_are_of_the_finite_network_alone(build, size):
    network = build(2, **{size: 7, "outputs": 3})
    _, params = network[0](jax.random.key(0), (4, 4, 4, 2))
    assert {leaf.shape[-1] for leaf in jax.tree.leaves(params)} == {7, 3}
    assert_same_kernel(network, build(2), points(0, 3, 4, 4, 2))


BAD_ARGUMENTS = [
    ({"depth": 0}, "`depth` is 0; pass a positive integer"),
    ({"depth": 1.0}, "`depth` is 1.0; pass a positive integer"),
    ({"depth": True}, "`depth` is True; pass a positive integer"),
    ({"outputs": -1}, "`outputs` is -1; pass a positive integer"),
    ({"w_std": 0.0}, "`w_std` is 0.0; pass a positive, finite number"),
    ({"w_std": np.nan}, "`w_std` is nan; pass a positive, finite number"),
    ({"w_std": np.inf}, "`w_std` is inf; pass a positive, finite number"),
    ({"b_std": -0.1}, "`b_std` is -0.1; pass 0 or a positive, finite number"),
    ({"b_std": np.nan}, "`b_std` is nan; pass 0 or a positive, finite number"),
]


@pytest.mark.parametrize("build", [ki.networks.fcnn, ki.networks.cnn])
@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_by_name(build, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**arguments)


@pytest.mark.parametrize("pooling", ["max", "", True])
def test_an_unknown_pooling_is_refused(pooling):
    message = re.escape(f"`pooling` is {pooling!r}; pass None, 'avg' or 'global'")
    with pytest.raises(ValueError, match=message):
        ki.networks.cnn(pooling=pooling)


@pytest.mark.parametrize(
    ("build", "size"), [(ki.networks.fcnn, "width"), (ki.networks.cnn, "channels")]
)
def test_a_width_of_nothing_is_refused(build, size):
    with pytest.raises(ValueError, match=f"`{size}` is 0; pass a positive integer"):
        build(**{size: 0})


def test_numpy_integers_are_integers():
    ki.networks.fcnn(np.int64(2))
