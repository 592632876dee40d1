"""Data, networks and arguments that would be taken without a word and answered uselessly."""

import math
import re

import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from kernelinf import stax

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3
GRAM = ki.gram(ki.rbf(1.0), X)
MODEL = ki.fit(GRAM, Y)


# --- pixels -------------------------------------------------------------------------------------


def pixels(*shape, most=255):
    values = np.random.default_rng(0).integers(0, most, shape, endpoint=True)
    values.flat[0] = most
    return values


@pytest.mark.parametrize(
    "x",
    [
        pixels(3, 64),
        pixels(3, 4, 4, 1).astype(np.uint16),
        pixels(3, 64).tolist(),
        jnp.asarray(pixels(3, 8, 8), jnp.int32),
    ],
    ids=["int64", "uint16", "list", "jax"],
)
def test_whole_numbers_like_pixels_are_warned_of(x):
    with pytest.warns(UserWarning, match=r"`x` holds whole numbers up to 255, .* pass x / 255"):
        ki.gram(ki.linear(), x)


@pytest.mark.parametrize(
    "x",
    [
        pixels(3, 64) / 255,
        pixels(3, 64).astype(float),
        pixels(3, 64, most=16),
        pixels(3, 64, most=4000),
        pixels(3, 64) - 128,
        pixels(3, 5),
        pixels(3, 64) > 100,
    ],
    ids=["scaled", "meant", "small", "counts", "signed", "few", "bool"],
)
def test_other_numbers_are_not(x):
    ki.gram(ki.linear(), x)


@pytest.mark.parametrize(
    "x", [[np.zeros(4, np.uint8)] * 3, jnp.zeros((3, 4), jnp.uint8)], ids=["list", "jax"]
)
def test_bytes_are_refused_however_they_come(x):
    with pytest.raises(ValueError, match="`x` holds unscaled pixels"):
        ki.gram(ki.linear(), x)


# --- networks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_the_loop_is_the_chain(depth):
    layers = [stax.Dense(512, 1.3, 0.2), stax.Relu()] * depth
    chain = stax.serial(stax.Flatten(), *layers, stax.Dense(1, 1.3, 0.2))
    for kind in ("ntk", "nngp"):
        loop = ki.from_stax(ki.networks.fcnn(depth, 1.3, 0.2), kind)
        np.testing.assert_allclose(loop(X), ki.from_stax(chain, kind)(X), rtol=1e-13)
        np.testing.assert_allclose(loop.diagonal(X), np.diag(loop(X)), rtol=1e-13)


def test_two_thousand_layers_are_evaluated():
    # At the He scale each layer keeps |x|^2 / p, and adds as much to the tangent kernel.
    kernel = ki.from_stax(ki.networks.fcnn(2000))
    truth = 2001 * 2 * np.mean(X**2, axis=1)
    np.testing.assert_allclose(np.diag(kernel(X)), truth, rtol=1e-10)


@pytest.mark.parametrize(("depth", "w_std"), [(200, 0.1), (300, 6.0), (30, 1e6)])
def test_a_scale_beyond_float64_is_refused(depth, w_std):
    powers = depth * math.log10(w_std**2 / 2)
    said = rf"`w_std` .* and `depth` {depth} multiply .* by 1e{re.escape(f'{powers:+.0f}')}, beyond"
    for build in (ki.networks.fcnn, ki.networks.cnn):
        with pytest.raises(ValueError, match=said):
            build(depth, w_std)


def test_the_scale_is_the_kernels():
    with pytest.warns(UserWarning, match=r"`w_std` 3 and `depth` 20 multiply .* by 1e\+13; `reg`"):
        grown = ki.networks.fcnn(20, 3.0)
    growth = (ki.from_stax(grown, "nngp")(X) / ki.from_stax(ki.networks.fcnn(20), "nngp")(X))[0, 0]
    assert math.log10(growth / 4.5) == pytest.approx(20 * math.log10(4.5))  # and the readout's


def test_points_that_biases_make_alike_are_warned_of():
    with pytest.warns(UserWarning, match="all points look alike"):
        network = ki.networks.fcnn(200, 0.1, 0.5)
    values = ki.from_stax(network, "nngp")(X)
    np.testing.assert_allclose(values, values[0, 0], rtol=1e-14)


@pytest.mark.parametrize(
    ("depth", "w_std", "b_std"), [(1, 3.0, 0.0), (3, 0.5, 0.0), (50, 1.5, 0.1), (1000, 2**0.5, 0.0)]
)
def test_other_scales_pass(depth, w_std, b_std):
    ki.networks.fcnn(depth, w_std, b_std)


def test_no_network_is_endless():
    for depth in (10_001, 10**400):
        with pytest.raises(ValueError, match=r"`depth` is .*; pass 10,000 at most"):
            ki.networks.fcnn(depth)


@pytest.mark.parametrize("layer", [stax.Relu(), stax.Erf(), stax.Gelu(), stax.Sign()])
def test_points_of_zeros_have_a_kernel_of_zeros_and_not_nan(layer):
    x = X.copy()
    x[[1, 4]] = 0.0
    network = stax.serial(stax.Dense(1), layer, stax.Dense(1))
    for kind in ("ntk", "nngp"):
        assert (ki.from_stax(network, kind)(x)[[1, 4]] == 0).all()


# --- ridges -------------------------------------------------------------------------------------


def told(message):
    return float(re.search(r"raise `reg` to (\S+) or more", str(message))[1])


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_a_lost_ridge_is_told_what_to_be(reg_scale):
    gram, y = ki.gram(ki.linear(), X), X[:, 0] + Y
    with pytest.raises(FloatingPointError, match="lost in rounding") as error:
        ki.fit(gram, y, loss="squared", reg=1e-30, reg_scale=reg_scale)
    reg = told(error.value)
    assert ki.fit(gram, y, loss="squared", reg=1.1 * reg, reg_scale=reg_scale).converged
    rho = reg * (12 if reg_scale == "mean" else 1)
    largest = np.linalg.eigvalsh(X @ X.T)[-1]
    assert 1e9 < largest / rho < 1.1e10


def test_too_few_steps_are_not_blamed_on_the_ridge():
    with pytest.warns(ki.ConvergenceWarning, match="raise `reg`, allow more steps"):
        ki.fit(GRAM, Y, solver=ki.Newton(max_steps=1))


# --- arguments ----------------------------------------------------------------------------------

ODD = {
    "str": "a",
    "nan": np.nan,
    "negative": -1,
    "complex": 1j,
    "empty": [],
    "strings": np.array(["a", "b"]),
    "object": object(),
    "dict": {},
    "ragged": [[1, 2], [3]],
    "nothing": [None] * 12,
    "scalar": np.array(2.5),
    "type": int,
}
SCORES = ki.influence(MODEL, X, Y)
DATA = ki.datasets.split(X, Y, 3)
EFFECT = ki.remove(MODEL, [0]).effect(X, Y)
E = ki.evaluation
CALLS = {
    "kind": lambda v: ki.from_stax(ki.networks.fcnn(1), v),
    "network": lambda v: ki.from_stax(v if v is not int else None),
    "length_scale": ki.rbf,
    "w_std": lambda v: ki.networks.fcnn(w_std=v),
    "pooling": lambda v: ki.networks.cnn(pooling=v),
    "depth": ki.networks.cnn,
    "x": lambda v: ki.gram(ki.linear(), v),
    "y": lambda v: ki.fit(GRAM, v),
    "loss": lambda v: ki.fit(GRAM, Y, loss=v),
    "reg": lambda v: ki.fit(GRAM, Y, reg=v),
    "reg_scale": lambda v: ki.fit(GRAM, Y, reg_scale=v),
    "solver": lambda v: ki.fit(GRAM, Y, solver=v),
    "progress": lambda v: ki.fit(GRAM, Y, progress=v),
    "form": ki.NewtonStep,
    "model": lambda v: ki.remove(v, [0]),
    "forget": lambda v: ki.remove(MODEL, v),
    "method": lambda v: ki.remove(MODEL, [0], method=v),
    "forget_sets": lambda v: ki.remove_many(MODEL, [v] if isinstance(v, list) else v),
    "out": lambda v: ki.remove_many(MODEL, [[0]], out=1 if isinstance(v, str) else v),
    "relabel": lambda v: ki.perturb(MODEL, relabel=v),
    "reweight": lambda v: ki.perturb(MODEL, reweight=([0], -1 if v is ODD["scalar"] else v)),
    "add": lambda v: ki.perturb(MODEL, add=(v, [1])),
    "x_test": MODEL.predict,
    "y_test": lambda v: ki.influence(MODEL, X, v),
    "loss_change": lambda v: ki.remove(MODEL, [0]).effect(X, Y, loss_change=v),
    "of": lambda v: ki.influence(MODEL, X, Y, of=v),
    "total": lambda v: ki.influence(MODEL, X, Y, total=v),
    "normalise": lambda v: ki.influence(MODEL, X, Y, normalise=v),
    "k": SCORES.top,
    "refine": lambda v: ki.leave_one_out(MODEL, refine=v),
    "points": lambda v: ki.leave_one_out(MODEL, points=v),
    "regs": lambda v: ki.reg_path(GRAM, Y, regs=v),
    "by": lambda v: ki.reg_path(GRAM, Y, by=v),
    "sizes": lambda v: E.removal_curve(MODEL, range(12), X, Y, sizes=v),
    "exhaustive": lambda v: E.brittleness(MODEL, X, exhaustive=v),
    "per_test": lambda v: E.knn_shapley(GRAM, Y, X, Y, per_test=v),
    "methods": lambda v: ki.audit(MODEL, X, Y, methods=v),
    "seed": lambda v: DATA.subset(1, seed=v),
    "labels": DATA.only,
    "folder": lambda v: ki.datasets.mnist(1 if isinstance(v, str) else v),
    "predicted": lambda v: ki.plots.effect(v, EFFECT),
    "retrained": lambda v: ki.plots.effect(EFFECT, v),
    "unit": lambda v: ki.plots.effect(EFFECT, EFFECT, unit=1 if isinstance(v, str) else v),
    "ax": lambda v: ki.plots.effect(EFFECT, EFFECT, ax=v),
    "scores": lambda v: ki.plots.influential(v, DATA),
    "data": lambda v: ki.plots.influential(SCORES, v),
    "effects": lambda v: ki.plots.page(v, SCORES, DATA),
}


@pytest.mark.parametrize("name", CALLS)
def test_odd_values_are_refused_by_the_name_of_their_argument(name):
    for kind, value in ODD.items():
        with pytest.raises((ValueError, TypeError)) as error:
            CALLS[name](value)
        assert f"`{name}`" in str(error.value), (kind, str(error.value))
