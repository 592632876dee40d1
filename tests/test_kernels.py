"""Kernel objects: values, symmetry, diagonals, precision, and what is refused."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelinf import stax
from kernelinf._kernels import DIAGONAL_CHUNK, check_inputs

KERNELS = {
    "fcnn": ki.from_stax(ki.networks.fcnn(3)),
    "fcnn-bias": ki.from_stax(ki.networks.fcnn(2, b_std=0.5)),
    "fcnn-nngp": ki.from_stax(ki.networks.fcnn(3), kind="nngp"),
    "erf": ki.from_stax(stax.serial(stax.Dense(8, 1.5, 0.1), stax.Erf(), stax.Dense(1))),
    "linear": ki.linear(),
    "rbf": ki.rbf(2.0),
}
kernels = pytest.mark.parametrize("kernel", KERNELS.values(), ids=list(KERNELS))


def points(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def relu_ntk_diagonal(x, depth):
    """k(x, x) at w_std^2 = 2 and no bias: every layer adds |x|^2 2 / p."""
    return (depth + 1) * 2 * np.mean(x**2, axis=1)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", range(1, 9))
def test_relu_ntk_diagonal_is_exact(depth):
    x = points(depth, 20, 300) * np.logspace(-3, 3, 20)[:, None]
    expected = relu_ntk_diagonal(x, depth)
    kernel = ki.from_stax(ki.networks.fcnn(depth))
    np.testing.assert_allclose(np.diag(kernel(x)), expected, rtol=1e-12)
    np.testing.assert_allclose(np.diag(kernel(x, x.copy())), expected, rtol=1e-12)
    np.testing.assert_allclose(kernel.diagonal(x), expected, rtol=1e-12)


def test_weight_scales_keep_all_their_digits():
    w_std, b_std = 1.0 + 1e-9, 1e-5
    kernel = ki.from_stax(stax.serial(stax.Dense(1, w_std, b_std)), kind="nngp")
    x = points(0, 3, 4)
    np.testing.assert_allclose(kernel(x), w_std**2 * x @ x.T / 4 + b_std**2, rtol=1e-13)


def test_linear_is_the_inner_product_of_flattened_points():
    x1, x2 = points(0, 4, 3, 2), points(1, 5, 3, 2)
    expected = np.einsum("nij,mij->nm", x1, x2)
    np.testing.assert_allclose(ki.linear()(x1, x2), expected, rtol=1e-13)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_rbf_is_the_squared_exponential_far_from_the_origin_too(offset):
    x1, x2 = points(0, 4, 3) + offset, points(1, 5, 3) + offset
    distances = np.sum((x1[:, None] - x2) ** 2, axis=2)
    np.testing.assert_allclose(ki.rbf(1.7)(x1, x2), np.exp(-distances / (2 * 1.7**2)), rtol=1e-9)
    np.testing.assert_allclose(ki.rbf(1.7).diagonal(x1), 1.0, rtol=1e-15)


def test_kind_selects_the_kernel_of_the_network():
    network = ki.networks.fcnn(2, b_std=0.3)
    x = points(0, 4, 6)
    with jax.enable_x64(True):
        for kind in ("ntk", "nngp"):
            expected = jax.jit(lambda v, k=kind: network[2](v, None, k))(x)
            np.testing.assert_allclose(ki.from_stax(network, kind)(x), expected, rtol=1e-9)
            np.testing.assert_allclose(ki.from_stax(network[2], kind)(x), expected, rtol=1e-9)


@kernels
@settings(max_examples=15)
@given(seed=st.integers(0, 2**32 - 1), rank=st.integers(1, 5))
def test_a_matrix_is_symmetric_bit_for_bit_and_positive_semidefinite(kernel, seed, rank):
    x = points(seed, 9, rank) @ points(seed, rank, 5)
    x[4] = x[2]
    x[7] = 0.0
    matrix = kernel(x)
    assert np.array_equal(matrix, matrix.T)
    assert np.linalg.eigvalsh(matrix)[0] >= -1e-12 * np.abs(matrix).max()
    np.testing.assert_allclose(matrix, kernel(x, x), rtol=1e-12, atol=1e-13 * np.abs(matrix).max())
    np.testing.assert_allclose(matrix[4], matrix[2], rtol=1e-12, atol=1e-13 * np.abs(matrix).max())
    np.testing.assert_allclose(kernel.diagonal(x), np.diag(matrix), rtol=1e-12, atol=1e-13)


@kernels
@pytest.mark.parametrize("n", [1, DIAGONAL_CHUNK - 1, DIAGONAL_CHUNK, 2 * DIAGONAL_CHUNK + 3])
def test_diagonal_of_any_number_of_points(kernel, n):
    x = points(n, n, 5)
    diagonal = kernel.diagonal(x)
    assert diagonal.shape == (n,)
    np.testing.assert_allclose(diagonal, np.diag(kernel(x)), rtol=1e-12)


def test_diagonal_evaluates_every_point_with_itself_alone():
    """n evaluations and a fixed chunk, not n^2: recorded as shapes while tracing."""
    shapes = []
    inner = ki.networks.fcnn(1)[2]

    def recording(x1, x2, get):
        shapes.append((x1.shape, x2.shape))
        return inner(x1, x2, get)

    ki.from_stax(recording).diagonal(points(0, 100, 3))
    assert set(shapes[3:]) == {((1, 3), (1, 3))}  # the first three are probes


@kernels
def test_cross_kernels_are_part_of_the_whole(kernel):
    x = points(0, 7, 5)
    matrix = kernel(x)
    np.testing.assert_allclose(kernel(x[:3], x[2:]), matrix[:3, 2:], rtol=1e-12)
    np.testing.assert_allclose(kernel(x[2:], x[:3]), matrix[2:, :3], rtol=1e-12)


# --- precision and compilation -------------------------------------------------------------------


@kernels
def test_values_are_float64_whatever_the_setting_and_the_input(kernel):
    assert not jax.config.jax_enable_x64
    x = np.round(points(0, 4, 5) * 8)
    expected = kernel(x)
    assert type(expected) is np.ndarray
    converted = [x.astype(d) for d in ("float32", "float16", "int32", "int64", "int8")]
    for same in [*converted, x.tolist(), jnp.asarray(x, "float32"), jnp.asarray(x, "bfloat16")]:
        values = kernel(same)
        assert values.dtype == np.float64
        np.testing.assert_allclose(values, expected, rtol=1e-13)
        assert kernel.diagonal(same).dtype == np.float64
        assert kernel.block(np.asarray(same, "float32"), x).dtype == np.float64
    assert not jax.config.jax_enable_x64
    assert jnp.ones(2).dtype == np.float32


def test_values_do_not_depend_on_the_global_setting():
    code = (
        "import jax, sys\n"
        "jax.config.update('jax_enable_x64', sys.argv[1] == 'on')\n"
        "import numpy as np, kernelinf as ki\n"
        "x = np.random.default_rng(0).normal(size=(5, 4))\n"
        "k = ki.from_stax(ki.networks.fcnn(1, b_std=0.1))\n"
        "print(k(x).tobytes().hex(), k.diagonal(x).tobytes().hex())\n"
        "assert jax.config.jax_enable_x64 == (sys.argv[1] == 'on')\n"
    )
    results = [
        subprocess.run(
            [sys.executable, "-c", code, setting], capture_output=True, text=True, check=True
        ).stdout
        for setting in ("on", "off")
    ]
    assert results[0] == results[1]


def test_a_shape_is_compiled_once_and_a_network_probed_once():
    calls = []
    inner = ki.networks.fcnn(1)[2]

    def counting(x1, x2, get):
        calls.append(get)
        return inner(x1, x2, get)

    kernel = ki.from_stax(counting)
    for seed in range(3):
        kernel(points(seed, 4, 3), points(seed, 5, 3))
        kernel.block(points(seed, 4, 3), points(seed, 5, 3))
    probes = [None, "ntk", "ntk"]  # of shapes, and of points that are mixed
    assert calls == [*probes, "ntk"]
    kernel(points(0, 6, 3), points(0, 5, 3))
    assert calls == [*probes, "ntk", "ntk"]


@kernels
def test_a_block_can_be_traced(kernel):
    x = points(0, 4, 5)
    with jax.enable_x64(True):
        row_sums = jax.jit(lambda v: kernel.block(v, x).sum(axis=1))(x)
    np.testing.assert_allclose(row_sums, kernel(x).sum(axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        (KERNELS["fcnn"], "from_stax(serial, kind='ntk')"),
        (KERNELS["fcnn-nngp"], "from_stax(serial, kind='nngp')"),
        (ki.linear(), "linear()"),
        (ki.rbf(0.5), "rbf(0.5)"),
    ],
)
def test_repr_says_what_it_is(kernel, expected):
    assert repr(kernel) == expected


# --- what is refused -----------------------------------------------------------------------------

IMAGES = (4, 4, 2)
CONVOLUTION = stax.Conv(8, (3, 3), padding="SAME")
NETWORKS = {
    "no-flatten": (
        stax.serial(CONVOLUTION, stax.Relu(), stax.Dense(1)),
        IMAGES,
        r"shape \(2, 3, 4, 4, 4, 4\) and not \(2, 3\); put stax.Flatten\(\) or stax.GlobalAvgPool",
    ),
    "no-flatten-after-pooling": (
        stax.serial(CONVOLUTION, stax.Relu(), stax.AvgPool((2, 2)), stax.Dense(1)),
        IMAGES,
        r"not \(2, 3\); put stax.Flatten\(\)",
    ),
    "ends-in-relu": (
        stax.serial(stax.Dense(8), stax.Relu()),
        (3,),
        r"no readout: its last layer must be linear; add stax.Dense\(1\)",
    ),
    "ends-in-flatten": (
        stax.serial(CONVOLUTION, stax.Relu(), stax.Flatten()),
        IMAGES,
        "no readout",
    ),
    "no-weights": (stax.serial(stax.Flatten()), (3,), "no readout"),
    "two-heads": (
        stax.serial(stax.FanOut(2), stax.parallel(stax.Dense(1), stax.Dense(1))),
        (3,),
        r"2 outputs side by side; join them with stax.FanInSum\(\)",
    ),
    "activation-first": (
        stax.serial(stax.Relu(), stax.Dense(1)),
        (3,),
        r"cannot take points of shape \(3,\): The input to the activation function must be Gauss",
    ),
    "convolution-of-a-table": (
        ki.networks.cnn(1),
        (3,),
        r"cannot take points of shape \(3,\)",
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", ["ntk", "nngp"])
def test_a_network_that_gives_no_kernel_is_refused(name, kind):
    network, shape, message = NETWORKS[name]
    kernel = ki.from_stax(network, kind)
    x = points(0, 5, *shape)
    for evaluation in (kernel, kernel.diagonal, lambda v: kernel.block(v, v)):
        with pytest.raises(ValueError, match=message):
            evaluation(x)


def test_a_network_is_refused_before_any_large_work():
    """10^5 points against themselves would be 80 GB; shapes alone are looked at."""
    kernel = ki.from_stax(stax.serial(stax.Dense(8), stax.Relu()))
    with pytest.raises(ValueError, match="no readout"):
        kernel(np.ones((100_000, 2)))


@pytest.mark.parametrize("mode", ["train", "test"])
def test_dropout_is_refused_in_training_and_ignored_in_testing(mode):
    hidden = [stax.Dense(8), stax.Relu()]
    network = stax.serial(*hidden, stax.Dropout(0.5, mode=mode), stax.Dense(1))
    if mode == "train":
        with pytest.raises(ValueError, match=r"Dropout in its 'train' mode.* pass mode='test'"):
            ki.from_stax(network)
    else:
        x = points(0, 3, 4)
        plain = ki.from_stax(stax.serial(*hidden, stax.Dense(1)))
        np.testing.assert_array_equal(ki.from_stax(network)(x), plain(x))


@pytest.mark.parametrize("thing", [None, 3, "fcnn", (1, 2, 3), stax.Dense(1)[:2], np.eye(3)])
def test_what_is_no_network_is_refused(thing):
    with pytest.raises(TypeError, match=r"`network` is a .*; pass the \(init_fn, apply_fn, kernel"):
        ki.from_stax(thing)


def test_a_function_that_returns_no_kernel_is_refused():
    kernel = ki.from_stax(lambda x1, x2, get: x1 @ x2.T)
    with pytest.raises(TypeError, match="`network` returned a ShapeDtypeStruct for two batches"):
        kernel(points(0, 3, 2))


@pytest.mark.parametrize("kind", ["NTK", "both", None, ("ntk", "nngp")])
def test_an_unknown_kind_is_refused(kind):
    message = re.escape(f"`kind` is {kind!r}; pass 'ntk' or 'nngp'")
    with pytest.raises(ValueError, match=message):
        ki.from_stax(ki.networks.fcnn(1), kind)


@pytest.mark.parametrize("length_scale", [0.0, -1.0, np.inf, np.nan])
def test_a_length_scale_that_is_no_length_is_refused(length_scale):
    with pytest.raises(ValueError, match=r"`length_scale` is .*; pass a positive, finite number"):
        ki.rbf(length_scale)


def spoiled(value):
    x = points(0, 4, 5)
    x[2, 3] = value
    return x


BAD_POINTS = [
    (spoiled(np.nan), ValueError, "`{}` holds NaN or infinite values"),
    (spoiled(-np.inf), ValueError, "`{}` holds NaN or infinite values"),
    (np.zeros((4, 5), np.uint8), ValueError, r"`{0}` holds unscaled pixels.*pass {0} / 255"),
    (np.zeros((4, 6, 6, 3), np.uint8), ValueError, r"`{0}` holds unscaled.*{0}.astype\(float\)"),
    (points(0, 5), ValueError, r"`{}` has shape \(5,\); pass at least one point: \(n, features\)"),
    (np.float64(1.0), ValueError, r"`{}` has shape \(\)"),
    (np.zeros((0, 5)), ValueError, r"`{}` has shape \(0, 5\); pass at least one point"),
    (np.zeros((4, 0)), ValueError, r"`{}` has shape \(4, 0\)"),
    (np.ones((4, 5), complex), TypeError, "`{}` has dtype complex128; pass an array of real"),
    (np.full((4, 5), "a"), TypeError, "`{}` has dtype <U1"),
    (np.full((4, 5), None), TypeError, "`{}` has dtype object"),
]


@kernels
@pytest.mark.parametrize(("bad", "error", "message"), BAD_POINTS)
def test_bad_points_are_refused_by_name(kernel, bad, error, message):
    good = points(0, 4, 5)
    with pytest.raises(error, match=message.format("x1")):
        kernel(bad)
    with pytest.raises(error, match=message.format("x2")):
        kernel(good, bad)
    with pytest.raises(error, match=message.format("x")):
        kernel.diagonal(bad)
    with pytest.raises(error, match=message.format("x_test")):
        check_inputs(bad, "x_test")


@kernels
def test_points_of_two_shapes_are_refused(kernel):
    message = r"`x1` has points of shape \(5,\) but `x2` of \(4,\); pass points of one shape"
    with pytest.raises(ValueError, match=message):
        kernel(points(0, 3, 5), points(0, 3, 4))


def test_values_that_overflow_are_refused():
    kernel = ki.from_stax(stax.serial(stax.Dense(1), stax.Exp(), stax.Dense(1)))
    message = r"from_stax\(serial, kind='ntk'\) is NaN or infinite on these points; scale them"
    for evaluation in (kernel, kernel.diagonal):
        with pytest.raises(ValueError, match=message):
            evaluation(1e3 * points(0, 3, 2))


@pytest.mark.parametrize("size", [1e-20, 1e20])
def test_points_of_extreme_size_keep_their_digits(size):
    x = points(0, 6, 5)
    kernel = KERNELS["fcnn"]
    np.testing.assert_allclose(kernel(size * x) / size**2, kernel(x), rtol=1e-12)


def test_checked_points_keep_their_precision_and_are_not_copied():
    for dtype in (np.float32, np.float64):
        x = points(0, 3, 2).astype(dtype)
        checked = check_inputs(x, "x")
        assert checked.dtype == x.dtype
        assert np.shares_memory(checked, x)
    assert check_inputs([[1, 2]], "x").dtype == np.float64


@pytest.mark.parametrize("evaluate", [lambda k, x: k(x), lambda k, x: ki.gram(k, x).matrix])
def test_points_that_a_function_in_float32_has_seen_are_in_float64(evaluate):
    """JAX remembers arrays that a compiled function closes over as they are on its device."""
    x = np.random.default_rng(0).normal(size=(50, 3))
    expected = evaluate(ki.rbf(1.0), x.copy())
    compiled = jax.jit(lambda p: jnp.sum(x @ p))
    compiled(jnp.ones(3))
    np.testing.assert_array_equal(evaluate(ki.rbf(1.0), x), expected)
