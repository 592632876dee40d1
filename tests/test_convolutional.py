"""Kernels of convolutional networks against those of neural-tangents, which shares no code."""

import functools
import re

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf._convolutional import Evaluator, _angle, recall

BIASED = {"w_std": 1.3, "b_std": 0.2}
CNNS = {
    "depth-1": (ki.networks.cnn(1), (4, 5, 2)),
    "depth-4-strided": (ki.networks.cnn(4, **BIASED, strides=2), (5, 6, 1)),
    "avg": (ki.networks.cnn(3, pooling="avg"), (8, 9, 3)),
    "avg-strided": (ki.networks.cnn(2, **BIASED, pooling="avg", strides=(2, 1)), (11, 4, 2)),
    "global": (ki.networks.cnn(2, pooling="global"), (4, 3, 2)),
    "global-strided": (ki.networks.cnn(2, **BIASED, pooling="global", strides=(1, 3)), (3, 5, 1)),
    "myrtle": (ki.networks.myrtle(), (5, 4, 2)),
}
cnns = pytest.mark.parametrize("name", CNNS)


def images(seed, n, shape):
    """Images of which two are equal, one is black, one black but for a corner, one flat."""
    x = np.random.default_rng(seed).normal(size=(n, *shape))
    x[1] = x[0]
    x[2] = 0.0
    x[3, 1:] = 0.0
    x[4] = 0.7
    return x


@functools.cache
def referee(name):
    """Both kinds of kernel by neural-tangents, compiled once."""
    kernel_fn = CNNS[name][0][2]
    compiled = jax.jit(lambda x: kernel_fn(x, x, ("ntk", "nngp")))

    def evaluate(x):
        with jax.enable_x64(True):
            return compiled(x)

    return evaluate


@functools.cache
def kernel(name, kind):
    return ki.from_stax(CNNS[name][0], kind)


def assert_close(actual, expected, matrix):
    """To rounding of the size that values of such points can have."""
    root = np.sqrt(np.diag(matrix))
    scale = np.outer(root, root) if np.ndim(expected) == 2 else root**2
    assert np.all(np.abs(actual - expected) <= 1e-12 * np.abs(expected) + 1e-13 * scale)


# --- against neural-tangents ---------------------------------------------------------------------


@cnns
@settings(max_examples=10)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([0.1, 1.0, 1e6]))
def test_a_kernel_is_that_of_neural_tangents(name, seed, size):
    """Not of images far below the biases: at an angle a, rounding moves arccos by 1e-16 / a."""
    x = size * images(seed, 6, CNNS[name][1])
    with jax.enable_x64(True):
        expected = {kind: np.asarray(getattr(referee(name)(x), kind)) for kind in ("ntk", "nngp")}
    for kind, matrix in expected.items():
        actual = kernel(name, kind)(x)
        assert np.array_equal(actual, actual.T)
        assert_close(actual, matrix, matrix)
        assert np.linalg.eigvalsh(actual)[0] >= -1e-12 * np.abs(actual).max()


@pytest.mark.parametrize("name", ["depth-1", "avg", "global-strided"])
def test_the_diagonal_and_cross_kernels_are_those_of_the_matrix(name):
    x = images(1, 6, CNNS[name][1])
    ntk = kernel(name, "ntk")
    matrix = ntk(x)
    assert_close(ntk.diagonal(x), np.diag(matrix), matrix)
    shifted = np.roll(np.arange(6), 1)
    assert_close(ntk(x, x[shifted]), matrix[:, shifted], matrix)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_equal_images_have_the_exact_diagonal_of_a_network_that_keeps_sizes(depth):
    """Away from zeros around the image, every layer keeps a covariance at w_std^2 = 2."""
    x = images(0, 7, (1, 1, 3))  # one pixel: each convolution has a ninth of the weights
    expected = (depth + 1) * 2 * np.mean(x**2, axis=(1, 2, 3)) / 9.0**depth
    diagonal = ki.from_stax(ki.networks.cnn(depth)).diagonal(x)
    np.testing.assert_allclose(diagonal, expected, rtol=1e-13)


@pytest.mark.parametrize(("depth", "groups"), [(5, (2, 1, 1)), (7, (2, 2, 2)), (10, (3, 3, 3))])
def test_myrtle_is_convolutions_in_three_groups(depth, groups):
    """Shankar et al. 2020: a pooling after the first and the second, all averaged at the end."""
    architecture = recall(ki.networks.myrtle(depth, **BIASED)[2])
    ends = np.cumsum(groups)[:2] - 1
    assert np.flatnonzero([layer.pooled for layer in architecture.layers]).tolist() == list(ends)
    assert len(architecture.layers) == sum(groups) == depth - 1
    assert architecture.averaged


# --- how it is evaluated -------------------------------------------------------------------------


def test_tiles_of_any_width_give_the_same_matrix(monkeypatch):
    network, shape = CNNS["depth-1"]
    x, y = images(0, 7, shape), images(1, 5, shape)
    whole, cross = ki.from_stax(network)(x), ki.from_stax(network)(x, y)
    for width in (1, 2, 4):
        monkeypatch.setattr(Evaluator, "_tile", lambda self, x, width=width: width)
        np.testing.assert_allclose(ki.from_stax(network)(x), whole, rtol=1e-13)
        np.testing.assert_allclose(ki.from_stax(network)(x, y), cross, rtol=1e-13)


def test_only_positions_that_matter_are_propagated():
    """Matching ones without pooling; 7, 3 and 1 apart under three poolings; all when averaged."""

    def entries(pooling):
        architecture = recall(ki.networks.cnn(3, pooling=pooling)[2])
        return architecture.plan((32, 32, 3)).entries

    assert entries(None) == 32**2
    assert entries("avg") == sum(32 - abs(d) for d in range(-7, 8)) ** 2
    assert entries("global") == 32**4


def test_a_wrapper_of_a_known_network_is_not_known():
    network, shape = CNNS["depth-1"]
    assert recall(network[2]) is not None
    x = images(0, 5, shape)
    doubled = functools.wraps(network[2])(lambda x1, x2, get: network[2](2 * x1, 2 * x2, get))
    assert recall(doubled) is None
    np.testing.assert_allclose(
        ki.from_stax(doubled)(x), 4 * ki.from_stax(network)(x), rtol=1e-12, atol=1e-13
    )


def test_equal_points_are_recognised_in_other_memory_and_under_tracing():
    shape = CNNS["global"][1]
    x, ntk = images(0, 5, shape), kernel("global", "ntk")
    matrix = ntk(x)
    assert np.array_equal(ntk.block(x, x.copy()), matrix)
    with jax.enable_x64(True):
        traced = jax.jit(lambda v: ntk.block(v, v))(x)
    np.testing.assert_allclose(traced, matrix, rtol=1e-13)


def test_the_arccos_keeps_its_digits():
    cosine = np.concatenate([np.linspace(-1, 1, 10_001), 1 - np.logspace(-15, -1, 50)])
    with jax.enable_x64(True):
        actual = np.asarray(_angle(jax.numpy.asarray(cosine)))
    np.testing.assert_allclose(actual, np.arccos(cosine), rtol=2e-15)


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "shape", "message"),
    [
        (ki.networks.cnn(1), (3,), r"cannot take points of shape \(3,\); pass images"),
        (ki.networks.cnn(1), (8, 8), r"cannot take points of shape \(8, 8\); pass images .* grey"),
        (
            ki.networks.cnn(3, pooling="avg"),
            (7, 32, 3),
            "images of 7 x 32 pixels: its 3 poolings leave nothing .* at least 8 x 8",
        ),
        (
            ki.networks.cnn(2, pooling="avg", strides=(2, 1)),
            (9, 3, 1),
            "images of 9 x 3 pixels: its 2 poolings leave nothing .* at least 11 x 4",
        ),
        (ki.networks.myrtle(), (3, 3, 1), "images of 3 x 3 pixels: .* at least 4 x 4"),
    ],
)
def test_images_that_a_network_cannot_take_are_refused_by_size(network, shape, message):
    x = np.ones((2, *shape))
    convolutional = ki.from_stax(network)
    for evaluation in (
        convolutional,
        convolutional.diagonal,
        lambda v: convolutional.block(v, v),
        lambda v: convolutional.block(v, 2 * v),
        lambda v: ki.gram(convolutional, v),
    ):
        with pytest.raises(ValueError, match=message):
            evaluation(x)


@pytest.mark.parametrize("strides", [0, -1, 1.0, True, None, (1,), (1, 2, 3), (0, 1), "2"])
def test_bad_strides_are_refused(strides):
    message = re.escape(f"`strides` is {strides!r}; pass a positive integer, or one for each axis")
    with pytest.raises(ValueError, match=message):
        ki.networks.cnn(strides=strides)


@pytest.mark.parametrize("depth", [0, 3, 6, 5.0, True])
def test_an_unknown_myrtle_is_refused(depth):
    with pytest.raises(ValueError, match=re.escape(f"`depth` is {depth!r}; pass 5, 7 or 10")):
        ki.networks.myrtle(depth)


def test_values_beyond_float64_are_refused():
    x = 1e200 * images(0, 5, (4, 4, 1))
    with pytest.raises(ValueError, match="is NaN or infinite on these points"):
        ki.from_stax(ki.networks.cnn(1))(x)
