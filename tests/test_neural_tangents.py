"""Every layer of stax against a reference that shares no code with it; what the import leaves.

References: recursions in NumPy; quadrature of an activation's two-dimensional Gaussian integrals;
for layers that are linear in the weights, the Jacobian of the finite network, exact at any width;
and random wide networks where nothing exact exists (attention).
"""

import functools
import itertools
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf import stax
from scipy.special import roots_hermitenorm

# --- references ----------------------------------------------------------------------------------


def arc_cosine(cosine, first, second):
    """E[relu(u) relu(v)] and E[relu'(u) relu'(v)] of Cho and Saul (2009)."""
    angle = np.arccos(np.clip(cosine, -1.0, 1.0))
    norm = np.sqrt(np.outer(first, second))
    value = norm * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    return value, (np.pi - angle) / (2 * np.pi)


def arc_sine(cosine, first, second):
    """E[erf(u) erf(v)] and E[erf'(u) erf'(v)] of Williams (1997)."""
    covariance = cosine * np.sqrt(np.outer(first, second))
    scale = np.outer(1 + 2 * first, 1 + 2 * second)
    value = 2 / np.pi * np.arcsin(2 * covariance / np.sqrt(scale))
    return value, 4 / np.pi / np.sqrt(scale - 4 * covariance**2)


def exact_cosines(x1, x2):
    """Cosines of the angles between rows, exactly 1 for rows that are equal."""
    norms = np.linalg.norm(x1, axis=1)[:, None] * np.linalg.norm(x2, axis=1)
    equal = (x1[:, None] == x2[None]).all(axis=2)
    return np.where(equal, 1.0, x1 @ x2.T / norms)


def deep_kernels(points, depth, scales, activation):
    """NNGP and NTK of dense layers, following cosines so that equal points stay equal."""
    (x1, x2), (w_std, b_std) = points, scales
    affine = lambda k: w_std**2 * k + b_std**2  # noqa: E731
    first, second = (affine(np.mean(x**2, axis=1)) for x in (x1, x2))
    cosine = exact_cosines(x1, x2)
    cosine = np.where(
        cosine == 1.0, 1.0, affine(x1 @ x2.T / x1.shape[1]) / np.sqrt(np.outer(first, second))
    )
    ntk = cosine * np.sqrt(np.outer(first, second))
    for _ in range(depth):
        value, slope = activation(cosine, first, second)
        own = [
            affine(np.diag(activation(np.ones((len(v), len(v))), v, v)[0])) for v in (first, second)
        ]
        nngp = affine(value)
        first, second = own
        cosine = np.where(cosine == 1.0, 1.0, nngp / np.sqrt(np.outer(first, second)))
        ntk = w_std**2 * slope * ntk + nngp
    return nngp, ntk


def gaussian_integral(function, covariance, first, second):
    """E[f(u) f(v)] by Gauss-Hermite quadrature, for a smooth f."""
    nodes, weights = roots_hermitenorm(250)
    weights = weights / weights.sum()
    slope = covariance / np.sqrt(first)
    rest = np.sqrt(np.maximum(second - slope**2, 0.0))
    u = np.sqrt(first) * nodes[:, None]
    v = slope * nodes[:, None] + rest * nodes
    return weights @ (np.asarray(function(u)) * np.asarray(function(v))) @ weights


def homogeneous_integral(function, degree, covariance, first, second):
    """E[f(u) f(v)] for f(r a) = r^degree f(a): exact in radius, quadrature in angle."""
    angle = np.arccos(np.clip(covariance / np.sqrt(first * second), -1.0, 1.0))
    kinks = np.sort(
        np.mod([np.pi / 2, -np.pi / 2, angle + np.pi / 2, angle - np.pi / 2], 2 * np.pi)
    )
    edges = [0.0, *kinks, 2 * np.pi]
    nodes, weights = np.polynomial.legendre.leggauss(60)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        phi = low + (high - low) * (nodes + 1) / 2
        values = np.asarray(function(np.sqrt(first) * np.cos(phi)))
        values = values * np.asarray(function(np.sqrt(second) * np.cos(phi - angle)))
        total += (high - low) / 2 * weights @ values
    radius = 2.0**degree * np.prod(np.arange(1, degree + 1))  # E[r^(2 degree)]
    return radius * total / (2 * np.pi)


def pairs(integral, inputs):
    """An integral for every pair of points, whose first-layer covariance is inputs."""
    n = len(inputs)
    return np.array(
        [[integral(inputs[i, j], inputs[i, i], inputs[j, j]) for j in range(n)] for i in range(n)]
    )


def evaluate(kernel_fn, x1, x2=None, **kwargs):
    with jax.enable_x64(True):
        kernels = jax.jit(lambda a, b: kernel_fn(a, b, ("nngp", "ntk"), **kwargs))(x1, x2)
        return np.asarray(kernels.nngp), np.asarray(kernels.ntk)


def assert_close(actual, expected, scale=None, tolerance=1e-12):
    scale = np.abs(expected).max() if scale is None else scale
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.max(np.abs(actual - expected) / scale) <= tolerance


def points(seed, n, *shape):
    return np.random.default_rng(seed).normal(size=(n, *shape))


# --- dense networks of any depth -----------------------------------------------------------------

ACTIVATIONS = {"relu": (stax.Relu(), arc_cosine), "erf": (stax.Erf(), arc_sine)}


@functools.cache
def deep_network(depth, name):
    """Compiled once for all scales: they are traced."""

    def kernels(x1, x2, w_std, b_std):
        hidden = [stax.Dense(8, w_std, b_std), ACTIVATIONS[name][0]] * depth
        network = stax.serial(*hidden, stax.Dense(1, w_std, b_std))
        return network[2](x1, x2, ("nngp", "ntk"))

    return jax.jit(kernels)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("depth", range(1, 9))
@settings(max_examples=10)
@given(
    w_std=st.floats(0.5, 2.0),
    b_std=st.one_of(st.just(0.0), st.floats(0.05, 1.0)),
    seed=st.integers(0, 2**32 - 2),
)
def test_deep_kernels_match_the_closed_form(depth, name, w_std, b_std, seed):
    features = 784 if depth % 2 else 3
    x1, x2 = points(seed, 6, features), points(seed + 1, 6, features)
    x1[1] = x1[0]  # equal points in one batch, and in two
    x2[0] = x1[2]
    for a, b in ((x1, x1), (x1, x2)):
        expected, rows, columns = (
            deep_kernels(arrays, depth, (w_std, b_std), ACTIVATIONS[name][1])
            for arrays in ((a, b), (a, a), (b, b))
        )
        with jax.enable_x64(True):
            actual = deep_network(depth, name)(a, b, w_std, b_std)
        for which in range(2):
            scale = np.sqrt(np.outer(np.diag(rows[which]), np.diag(columns[which])))
            assert_close(actual[which], expected[which], scale)


# --- activations ---------------------------------------------------------------------------------

NORMS = np.array([0.6, 1.0, 1.7, 1.0])


def activation_points(norms):
    """Four points in general position with given root mean squares."""
    x = points(7, len(norms), 6)
    return x * norms[:, None] / np.sqrt(np.mean(x**2, axis=1, keepdims=True))


def one_hidden_layer(activation):
    return stax.serial(stax.Dense(1), activation, stax.Dense(1, 1.3, 0.4))[2]


def assert_one_hidden_layer(activation, value, slope, norms=NORMS, tolerance=1e-12):
    """Compare with kernels made of E[f f] and E[f' f'] for every pair of points."""
    x = activation_points(norms)
    inputs = x @ x.T / x.shape[1]
    nngp = 1.3**2 * pairs(value, inputs) + 0.4**2
    ntk = 1.3**2 * pairs(slope, inputs) * inputs + nngp
    actual = evaluate(one_hidden_layer(activation), x, x)
    assert_close(actual[0], nngp, tolerance=tolerance)
    assert_close(actual[1], ntk, tolerance=tolerance)


def elementwise_function(activation):
    """The activation as a function of numbers, and its derivative."""

    def function(u):
        with jax.enable_x64(True):
            return activation[1]((), jnp.asarray(u))

    def derivative(u):
        with jax.enable_x64(True):
            flat = jnp.asarray(u).ravel()
            return jax.vmap(jax.grad(lambda v: activation[1]((), v)))(flat).reshape(u.shape)

    return function, derivative


def numerical_softplus():
    with pytest.warns(UserWarning, match="Numerical Activation Layer"):
        return stax.ElementwiseNumerical(jax.nn.softplus, deg=60, df=jax.nn.sigmoid)


def elementwise_erf():
    def arcsine(covariance, first, second):
        return (
            jnp.arcsin(2 * covariance / jnp.sqrt((1 + 2 * first) * (1 + 2 * second))) * 2 / jnp.pi
        )

    with pytest.warns(UserWarning, match="Using JAX autodiff"):
        return stax.Elementwise(jax.scipy.special.erf, arcsine)


SMOOTH = {
    "Cos": lambda: stax.Cos(1.2, 0.8, 0.3),
    "Elementwise": elementwise_erf,
    "ElementwiseNumerical": numerical_softplus,
    "Erf": lambda: stax.Erf(0.9, 0.8, 0.2),
    "Exp": lambda: stax.Exp(0.7, 0.5),
    "Gabor": stax.Gabor,
    "Gaussian": lambda: stax.Gaussian(1.5, -0.4),
    "Gelu": stax.Gelu,
    "Monomial": lambda: stax.Monomial(3),
    "Polynomial": lambda: stax.Polynomial([0.3, -1.0, 0.5, 0.2]),
    "Rbf": lambda: stax.Rbf(0.4),
    "Sigmoid_like": stax.Sigmoid_like,
    "Sin": lambda: stax.Sin(1.2, 0.8, 0.3),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_smooth_activation_matches_quadrature(name):
    activation = SMOOTH[name]()
    function, derivative = elementwise_function(activation)
    assert_one_hidden_layer(
        activation,
        functools.partial(gaussian_integral, function),
        functools.partial(gaussian_integral, derivative),
        tolerance=1e-8,  # of the quadrature, at 250 nodes
    )


@pytest.mark.filterwarnings("ignore:Inputs to this layer are assumed to have unit norm")
def test_hermite_matches_quadrature_at_unit_norm():
    activation = stax.Hermite(3)
    function, derivative = elementwise_function(activation)
    assert_one_hidden_layer(
        activation,
        functools.partial(gaussian_integral, function),
        functools.partial(gaussian_integral, derivative),
        norms=np.ones(4),
    )


KINKED = {  # function, derivative, degree
    "ABRelu": (lambda: stax.ABRelu(-0.3, 1.4), lambda u: np.where(u < 0, -0.3, 1.4), 1),
    "Abs": (stax.Abs, np.sign, 1),
    "LeakyRelu": (lambda: stax.LeakyRelu(0.2), lambda u: np.where(u < 0, 0.2, 1.0), 1),
    "Relu": (stax.Relu, lambda u: (u > 0) * 1.0, 1),
    "Relu-stabilized": (
        lambda: stax.Relu(do_stabilize=True),
        lambda u: (u > 0) * 1.0,
        1,
    ),
    "Sign": (stax.Sign, np.zeros_like, 0),
}


@pytest.mark.parametrize("name", KINKED)
def test_kinked_activation_matches_quadrature(name):
    build, derivative, degree = KINKED[name]
    activation = build()
    function, _ = elementwise_function(activation)
    assert_one_hidden_layer(
        activation,
        functools.partial(homogeneous_integral, function, degree),
        functools.partial(homogeneous_integral, derivative, max(degree - 1, 0)),
    )


def rectified_square():
    activation = stax.RectifiedMonomial(2)
    function, _ = elementwise_function(activation)
    value = functools.partial(homogeneous_integral, function, 2)
    slope = functools.partial(homogeneous_integral, lambda u: 2 * np.maximum(u, 0), 1)
    return activation, value, slope


def test_rectified_monomial_matches_quadrature_between_different_points():
    activation, value, slope = rectified_square()
    x = activation_points(NORMS)
    inputs = x @ x.T / x.shape[1]
    nngp = 1.3**2 * pairs(value, inputs) + 0.4**2
    ntk = 1.3**2 * pairs(slope, inputs) * inputs + nngp
    different = ~np.eye(len(x), dtype=bool)
    actual = evaluate(one_hidden_layer(activation), x, x)
    assert_close(actual[0][different], nngp[different], tolerance=1e-10)
    assert_close(actual[1][different], ntk[different], tolerance=1e-10)


@pytest.mark.xfail(
    strict=True,
    reason="upstream divides by the sine of the angle: NaN between a point and itself",
)
def test_rectified_monomial_matches_quadrature_on_the_diagonal():
    assert_one_hidden_layer(*rectified_square())


def test_exp_normalized_matches_its_definition():
    def value(covariance, first, second):
        norm = np.sqrt(first * second)
        return norm * np.exp(0.7 * (covariance / norm - 1))

    def slope(covariance, first, second):
        return 0.7 * np.exp(0.7 * (covariance / np.sqrt(first * second) - 1))

    assert_one_hidden_layer(stax.ExpNormalized(0.7), value, slope)


ZERO_IS_NAN = {"ElementwiseNumerical", "Polynomial"}


@pytest.mark.parametrize("name", sorted(SMOOTH | KINKED))
def test_equal_and_zero_points_give_finite_values_and_one_diagonal(name, request):
    if name in ZERO_IS_NAN:
        reason = "upstream divides by the variance of a point: 0/0 for a row of zeros"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    build = SMOOTH[name] if name in SMOOTH else KINKED[name][0]
    x = points(3, 5, 40)
    x[3] = x[1]
    x[4] = 0.0
    for kernel in evaluate(one_hidden_layer(build()), x, x):
        assert np.isfinite(kernel).all()
        np.testing.assert_allclose(kernel[1, 3], kernel[1, 1], rtol=1e-12)
        np.testing.assert_allclose(kernel[3, 3], kernel[1, 1], rtol=1e-12)


def test_gradients_of_a_relu_kernel_pass_through_equal_points_and_zero():
    kernel_fn = one_hidden_layer(stax.Relu())
    x, y = points(0, 1, 5), points(1, 1, 5)
    with jax.enable_x64(True):
        value = jax.jit(lambda v: kernel_fn(v, y, "nngp")[0, 0])
        gradient = jax.jit(jax.grad(value))
        for at in (x, y, 0 * x):  # y: the two points are equal
            slopes = [(value(at + s) - value(at - s)) / 2e-5 for s in 1e-5 * np.eye(5)]
            np.testing.assert_allclose(gradient(at)[0], slopes, rtol=1e-6)


# --- convolutional networks ----------------------------------------------------------------------


def shifted_sum(covariance):
    """Sum over the 9 offsets of a 3 x 3 filter, at both positions; zeros beyond the edges."""
    h, w = covariance.shape[2:4]
    padded = np.pad(covariance, [(0, 0), (0, 0)] + 4 * [(1, 1)])
    offsets = [(i, j) for i in range(3) for j in range(3)]
    return sum(padded[:, :, i : i + h, j : j + w, i : i + h, j : j + w] for i, j in offsets)


def relu_between_positions(covariance):
    n, _, h, w = covariance.shape[:4]
    flat = covariance.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, n * h * w)
    variance = np.diag(flat)
    cosine = flat / np.sqrt(np.outer(variance, variance))
    np.fill_diagonal(cosine, 1.0)
    back = lambda k: k.reshape(n, h, w, n, h, w).transpose(0, 3, 1, 2, 4, 5)  # noqa: E731
    return [back(k) for k in arc_cosine(cosine, variance, variance)]


def averaged(covariance):
    n, m, h, w = covariance.shape[:4]
    blocks = covariance.reshape(n, m, h // 2, 2, w // 2, 2, h // 2, 2, w // 2, 2)
    return blocks.mean(axis=(3, 5, 7, 9))


def cnn_kernels(x, depth, pooling, w_std, b_std):
    nngp = np.einsum("nhwc,mijc->nmhwij", x, x) / x.shape[-1]
    ntk = np.zeros_like(nngp)
    for _ in range(depth):
        nngp = w_std**2 * shifted_sum(nngp) / 9 + b_std**2
        ntk = w_std**2 * shifted_sum(ntk) / 9 + nngp
        nngp, slope = relu_between_positions(nngp)
        ntk = slope * ntk
        if pooling == "avg":
            nngp, ntk = averaged(nngp), averaged(ntk)
    positions = "nmhwij->nm" if pooling == "global" else "nmhwhw->nm"
    count = np.prod(nngp.shape[2:]) if pooling == "global" else np.prod(nngp.shape[2:4])
    nngp, ntk = (np.einsum(positions, k) / count for k in (nngp, ntk))
    nngp = w_std**2 * nngp + b_std**2
    return nngp, w_std**2 * ntk + nngp


@pytest.mark.parametrize("pooling", [None, "avg", "global"])
def test_convolutional_kernels_match_the_recursion(pooling):
    """At 8 x 8, float64, where XLA's own convolution crashes the process on CPUs with AVX-512."""
    x = points(11, 4, 8, 8, 2)
    x[3] = x[1]
    network = ki.networks.cnn(2, 1.3, 0.2, pooling)
    actual = evaluate(network[2], x, x)
    for kernel, expected in zip(actual, cnn_kernels(x, 2, pooling, 1.3, 0.2), strict=True):
        assert_close(kernel, expected)
        np.testing.assert_allclose(np.diag(kernel), np.diag(expected), rtol=1e-12)


# --- layers that are linear in the weights -------------------------------------------------------


def second_moment(trunk, x, **kwargs):
    """E[h h^T] (n, positions, n, positions) of h linear in standard normal weights: J J^T."""
    key = jax.random.key(0)
    _, params = trunk[0](key, x.shape)
    jacobian = jax.jit(jax.jacobian(lambda p: trunk[1](p, x, rng=key, **kwargs)))(params)
    leaves = zip(jax.tree.leaves(jacobian), jax.tree.leaves(params), strict=True)
    flat = [(np.asarray(rows, np.float64), np.size(weights)) for rows, weights in leaves]
    rows = [leaf.reshape(len(x), -1, size) for leaf, size in flat]
    return sum(np.einsum("npw,mqw->npmq", row, row) for row in rows)


def average_over_positions(moment):
    return np.einsum("npmp->nm", moment) / moment.shape[1]


def with_readout(*layers):
    return stax.serial(*layers, stax.Flatten(), stax.Dense(1))[2]


ASSUMES_INDEPENDENCE = pytest.mark.filterwarnings("ignore:`FanIn` layers assume independent inputs")


def branches(*fan_in):
    return [stax.FanOut(2), stax.parallel(stax.Dense(1, 1.2), stax.Dense(1, 0.7)), *fan_in]


def convolution(build, padding, pool=False, **kwargs):
    layer = build(1, (3, 2), padding=padding, W_std=1.2, b_std=0.3, **kwargs)
    return [layer, stax.GlobalAvgPool()] if pool else [layer]


def at_every_position(*layers):
    return [stax.Dense(1, 1.2, 0.3), *layers]


strides = (2, 1)
TRUNKS = {
    "AvgPool-valid": at_every_position(stax.AvgPool((2, 3), (1, 2))),
    "AvgPool-same": at_every_position(stax.AvgPool((2, 3), (2, 1), padding="SAME")),
    "AvgPool-circular": at_every_position(stax.AvgPool((3, 3), padding="CIRCULAR")),
    "Conv-same": convolution(stax.Conv, "SAME", strides=strides),
    "Conv-same-pooled": convolution(stax.Conv, "SAME", True, strides=strides),
    "Conv-valid": convolution(stax.Conv, "VALID"),
    "Conv-valid-pooled": convolution(stax.Conv, "VALID", True),
    "Conv-circular": convolution(stax.Conv, "CIRCULAR"),
    "Conv-circular-pooled": convolution(stax.Conv, "CIRCULAR", True, strides=strides),
    "ConvLocal-pooled": convolution(stax.ConvLocal, "SAME", True, strides=strides),
    "ConvTranspose": convolution(stax.ConvTranspose, "SAME", strides=strides),
    "ConvTranspose-pooled": convolution(stax.ConvTranspose, "VALID", True, strides=strides),
    "Dense": at_every_position(),
    "DotGeneral": at_every_position(
        stax.DotGeneral(rhs=points(1, 4, 3), dimension_numbers=(((1,), (0,)), ((), ())))
    ),
    "Dropout-test": at_every_position(stax.Dropout(0.5, mode="test")),
    "FanInConcat-channels": branches(stax.FanInConcat()),
    "FanInConcat-positions": branches(stax.FanInConcat(1)),
    "FanInSum": branches(stax.FanInSum()),
    "Flatten": at_every_position(stax.Flatten()),
    "GlobalAvgPool": at_every_position(stax.GlobalAvgPool()),
    "GlobalSumPool": at_every_position(stax.GlobalSumPool()),
    "Identity": at_every_position(stax.Identity()),
    "ImageResize-linear": at_every_position(stax.ImageResize((-1, 7, 3, -1), "linear")),
    "ImageResize-nearest": at_every_position(stax.ImageResize((-1, 7, 3, -1), "nearest")),
    "Index": at_every_position(stax.Index(stax.Slice[:, 1:4, ::2])),
    "SumPool": at_every_position(stax.SumPool((2, 2), (2, 2))),
}


@ASSUMES_INDEPENDENCE
@pytest.mark.parametrize("name", TRUNKS)
def test_linear_layer_matches_the_jacobian_of_a_finite_network(name):
    x = points(5, 3, 4, 5, 2)
    moment = average_over_positions(second_moment(stax.serial(*TRUNKS[name]), x))
    nngp, ntk = evaluate(with_readout(*TRUNKS[name]), x, x)
    assert_close(nngp, moment, tolerance=1e-5)  # the finite network is in float32
    assert_close(ntk, 2 * moment, tolerance=1e-5)  # two layers of weights


@pytest.mark.filterwarnings("ignore:Negative indices in `pattern` are considered as padding")
@pytest.mark.parametrize("implementation", ["DENSE", "SPARSE"])
def test_aggregate_matches_the_jacobian_of_a_finite_network(implementation):
    x = points(5, 3, 4, 2)
    dense = (np.random.default_rng(0).random((3, 4, 4)) < 0.5).astype(np.float32)
    edges = np.array([[[0, 1], [1, 2], [3, 0]], [[2, 2], [0, 3], [1, 0]], [[3, 1], [2, 0], [1, 1]]])
    pattern = dense if implementation == "DENSE" else edges
    to_dense = lambda p: p  # noqa: E731
    if implementation == "SPARSE":
        to_dense = jax.vmap(lambda e: jnp.zeros((4, 4)).at[e[:, 0], e[:, 1]].add(1.0))
    layer = stax.Aggregate(1, to_dense=to_dense, implementation=implementation)
    trunk = at_every_position(layer)
    moment = average_over_positions(second_moment(stax.serial(*trunk), x, pattern=pattern))
    nngp, ntk = evaluate(with_readout(*trunk), x, x, pattern=(pattern, pattern))
    assert_close(nngp, moment, tolerance=1e-5)
    assert_close(ntk, 2 * moment, tolerance=1e-5)


@ASSUMES_INDEPENDENCE
def test_fan_in_prod_multiplies_independent_branches():
    x = points(5, 3, 4, 5, 2)
    first, second = (second_moment(stax.Dense(1, w_std), x) for w_std in (1.2, 0.7))
    trunk = branches(stax.FanInProd())
    nngp, ntk = evaluate(with_readout(*trunk), x, x)
    moment = average_over_positions(first * second)
    assert_close(nngp, moment, tolerance=1e-5)
    assert_close(ntk, 3 * moment, tolerance=1e-5)  # either branch, and the readout


def test_layer_norm_gives_every_position_unit_variance():
    x = points(5, 3, 4, 5, 2)
    moment = second_moment(stax.Dense(1), x)
    norm = np.sqrt(np.einsum("npnp->np", moment))
    expected = average_over_positions(moment / norm[:, :, None, None] / norm)
    nngp, ntk = evaluate(with_readout(stax.Dense(1), stax.LayerNorm()), x, x)
    assert_close(nngp, expected, tolerance=1e-5)
    assert_close(ntk, 2 * expected, tolerance=1e-5)


def test_dropout_in_training_raises_the_diagonal_by_the_keep_rate():
    x = points(2, 4, 6)
    layers = [stax.Dense(1), stax.Relu()]
    plain = evaluate(with_readout(*layers), x, x)
    noisy = evaluate(with_readout(*layers, stax.Dropout(0.5)), x, x)
    for kernel, expected in zip(noisy, plain, strict=True):
        np.testing.assert_allclose(kernel, expected * (1 + np.eye(4)), rtol=1e-12)


def test_repeat_is_the_layers_one_after_another():
    x = points(2, 4, 6)
    layer = stax.serial(stax.Dense(6, 1.3, 0.2), stax.Relu())
    repeated = evaluate(with_readout(stax.repeat(layer, 4)), x, x)
    unrolled = evaluate(with_readout(*[layer] * 4), x, x)
    for kernel, expected in zip(repeated, unrolled, strict=True):
        np.testing.assert_allclose(kernel, expected, rtol=1e-12)


# --- attention, by random networks ---------------------------------------------------------------


def empirical_kernels(network, x, keys):
    """NNGP and NTK (draws, n, n) of random finite networks; the NTK of their first output."""

    def one(key):
        _, params = network[0](key, x.shape)
        outputs = network[1](params, x)
        jacobian = jax.tree.leaves(jax.jacobian(lambda p: network[1](p, x)[:, 0])(params))
        rows = jnp.concatenate([leaf.reshape(len(x), -1) for leaf in jacobian], axis=1)
        return outputs @ outputs.T / outputs.shape[1], rows @ rows.T

    drawn = jax.jit(functools.partial(jax.lax.map, one))(keys)
    return [np.asarray(kernel, np.float64) for kernel in drawn]


@pytest.mark.filterwarnings("ignore:Linear scaling attention used")
def test_global_self_attention_matches_random_networks():
    x = points(5, 2, 4, 3).astype(np.float32)
    attention = stax.GlobalSelfAttention(
        64, n_chan_key=128, n_chan_val=16, n_heads=64, W_key_std=1.2, W_query_std=1.2
    )
    network = stax.serial(attention, stax.Flatten(), stax.Dense(64))
    keys = jax.random.split(jax.random.key(1), 300)
    drawn = empirical_kernels(network, x, keys)
    for kernel, draws in zip(evaluate(network[2], x, x), drawn, strict=True):
        mean, error = draws.mean(axis=0), draws.std(axis=0) / np.sqrt(len(draws))
        size = np.abs(kernel).max()
        assert (4 * error <= 0.1 * size).all(), "too few draws to tell"
        assert (np.abs(mean - kernel) <= 4 * error + 0.01 * size).all()  # 0.01: the finite width


# --- nothing is left out -------------------------------------------------------------------------

TESTED_ALONE = {
    "Aggregate",
    "ExpNormalized",
    "FanInProd",
    "FanOut",
    "GlobalSelfAttention",
    "Hermite",
    "LayerNorm",
    "RectifiedMonomial",
    "parallel",
    "repeat",
    "serial",
}
NO_LAYERS = {
    "AggregateImplementation",
    "AttentionMechanism",
    "Bool",
    "Diagonal",
    "MaskedArray",
    "Padding",
    "PositionalEmbedding",
    "Slice",
    "layer",
    "requires",
    "supports_masking",
    "unmask_fn",
}


def test_every_layer_of_stax_has_a_test():
    tested = {name.split("-")[0] for name in [*SMOOTH, *KINKED, *TRUNKS]} | TESTED_ALONE
    public = {name for name in vars(stax) if not name.startswith("_")}
    assert public - NO_LAYERS == tested


# --- what importing does, and leaves -------------------------------------------------------------


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_leaves_jax_as_it_was_and_loads_nothing_heavy():
    run_python(
        """
        import sys, jax, jax.extend.core, jax.interpreters.ad, jax.random, jax.experimental.ode
        import jax.example_libraries.stax, jax.extend.linear_util
        modules = jax, jax.core, jax.random, jax.interpreters.ad, jax.extend.core
        before = [dict(vars(m)) for m in modules]
        import kernelinf
        for module, names in zip(modules, before):
            assert dict(vars(module)) == names, module
        assert not hasattr(jax, "util") and "jax.util" not in sys.modules
        assert not jax.config.jax_enable_x64
        for heavy in ("tensorflow", "tf2jax", "matplotlib", "sklearn"):
            assert heavy not in sys.modules, heavy
        assert not any(name.startswith("neural_tangents.experimental") for name in sys.modules)
        """
    )


def test_neural_tangents_imported_afterwards_is_the_working_one():
    run_python(
        """
        import warnings
        from kernelinf import stax
        import neural_tangents as nt
        from neural_tangents import stax as theirs
        assert theirs is stax
        assert not hasattr(nt, 'experimental')  # no stand-in is left
        import jax, jax.numpy as jnp
        init, apply, kernel_fn = stax.serial(stax.Dense(64), stax.Relu(), stax.Dense(1))
        x = jax.random.normal(jax.random.key(0), (4, 3))
        params = init(jax.random.key(1), x.shape)[1]
        warnings.simplefilter("ignore")  # the library's own, and JAX's about its habits
        for way in (1, 2):  # names that the library looks up when it is called, and not before
            implementation = nt.NtkImplementation(way)
            nt.empirical_ntk_fn(apply, implementation=implementation)(x, None, params)
        nt.monte_carlo_kernel_fn(init, apply, jax.random.key(2), 2)(x, None, "nngp")
        nt.linearize(apply, params)(params, x)
        nt.batch(kernel_fn, batch_size=2, device_count=0)(x, None, "ntk")
        predict = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x, x[:, :1], diag_reg=1e-3)
        assert predict(t=None, x_test=x, get="ntk").shape == (4, 1)
        assert predict(t=1.0, x_test=x, get="ntk").shape == (4, 1)
        attention = stax.GlobalSelfAttention(8, 8, 8, 8, pos_emb_type="SUM")
        init, apply, _ = stax.serial(attention, stax.GlobalAvgPool())
        images = x.reshape(2, 2, 3)
        apply(init(jax.random.key(3), images.shape)[1], images)
        """
    )


def test_import_recovers_from_an_import_that_failed_half_way():
    run_python(
        """
        import sys
        try:
            import neural_tangents
        except Exception:
            pass
        assert any(name.startswith("neural_tangents") for name in sys.modules)
        import numpy, kernelinf
        x = numpy.random.default_rng(0).normal(size=(3, 2))
        assert kernelinf.from_stax(kernelinf.networks.fcnn(1))(x).shape == (3, 3)
        """
    )


@pytest.mark.parametrize("version", ["0.9.2", "0.11.0"])
def test_an_unsupported_version_of_jax_is_refused_by_name(version):
    parts = tuple(int(part) for part in version.split("."))
    output = run_python(
        f"""
        import jax
        jax.__version__, jax.__version_info__ = {version!r}, {parts}
        try:
            import kernelinf
        except ImportError as error:
            print(error)
        """
    )
    assert f"works with JAX 0.10 and later, before 0.11; found {version}" in output
    assert "pip install 'jax>=0.10,<0.11'" in output
