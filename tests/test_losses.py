"""Losses against optax, finite differences, and the library's own against the oracle's."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kernelinf._losses import named

from . import oracles
from .strategies import LOSSES


def points(loss, n=7, d=3, scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    d = 1 if loss == "logistic" else d
    outputs = scale * rng.normal(size=(n, d))
    if loss == "squared":
        return outputs, rng.normal(size=(n, d))
    if loss == "logistic":
        return outputs, rng.choice([-1.0, 1.0], size=(n, 1))
    return outputs, np.eye(d)[rng.integers(d, size=n)]


OPTAX = {
    "squared": lambda f, y: optax.squared_error(f, y).sum(axis=1) / 2,
    "cross_entropy": optax.softmax_cross_entropy,
    "logistic": lambda f, y: optax.sigmoid_binary_cross_entropy(f, (y + 1) / 2)[:, 0],
}


@pytest.mark.parametrize("loss", LOSSES)
def test_oracle_matches_optax(loss):
    outputs, targets = points(loss)
    with jax.enable_x64(True):
        f, y = jnp.asarray(outputs), jnp.asarray(targets)
        value = np.asarray(OPTAX[loss](f, y))
        gradient = np.asarray(jax.grad(lambda f: OPTAX[loss](f, y).sum())(f))
        one = lambda f, y: OPTAX[loss](f[None], y[None])[0]  # noqa: E731
        hessian = np.asarray(jax.vmap(jax.hessian(one))(f, y))
    np.testing.assert_allclose(oracles.VALUE[loss](outputs, targets), value, rtol=1e-13)
    np.testing.assert_allclose(oracles.GRADIENT[loss](outputs, targets), gradient, atol=1e-13)
    np.testing.assert_allclose(oracles.HESSIAN[loss](outputs, targets), hessian, atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_oracle_matches_finite_differences(loss):
    outputs, targets = points(loss)
    h = 1e-5
    for c in range(outputs.shape[1]):
        shift = h * np.eye(outputs.shape[1])[c]
        for function, derivative in (
            (oracles.VALUE, oracles.GRADIENT),
            (oracles.GRADIENT, oracles.HESSIAN),
        ):
            ahead = function[loss](outputs + shift, targets)
            behind = function[loss](outputs - shift, targets)
            expected = derivative[loss](outputs, targets)[..., c]
            np.testing.assert_allclose((ahead - behind) / (2 * h), expected, atol=1e-9)


def stacked(array):
    return array[:, :, None]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [2.0, 1e3])
def test_value_and_gradient(loss, scale):
    outputs, targets = points(loss, scale=scale)
    library = named(loss)
    value = library.value(outputs, targets)
    gradient = library.gradient(outputs, targets)
    np.testing.assert_allclose(value, oracles.VALUE[loss](outputs, targets), rtol=1e-12)
    np.testing.assert_allclose(gradient, oracles.GRADIENT[loss](outputs, targets), atol=1e-13)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_stack_of_problems_is_its_problems_one_by_one(loss):
    outputs, targets = points(loss)
    shifts = np.array([0.0, -1.5, 3.0])
    stack = stacked(outputs) * (1.0 + shifts)
    gradients = named(loss).gradient(stack, stacked(targets))
    for s, shift in enumerate(shifts):
        alone = named(loss).gradient(outputs * (1.0 + shift), targets)
        np.testing.assert_allclose(gradients[:, :, s], alone, rtol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [2.0, 1e3])
def test_root_squares_to_the_weighted_hessian(loss, scale):
    outputs, targets = points(loss, scale=scale)
    n, d = outputs.shape
    weights = np.linspace(0.0, 2.0, n)
    root = named(loss).root(outputs, weights)
    units = np.tile(np.eye(d), (n, 1, 1))
    hessian = root.apply(root.apply_transposed(units))
    expected = weights[:, None, None] * oracles.HESSIAN[loss](outputs, targets)
    np.testing.assert_allclose(hessian, expected, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_transposed_root_is_the_transpose(loss):
    outputs, _ = points(loss)
    n, d = outputs.shape
    root = named(loss).root(outputs, np.linspace(0.5, 2.0, n))
    units = np.tile(np.eye(d), (n, 1, 1))
    transposed = np.swapaxes(root.apply_transposed(units), 1, 2)
    np.testing.assert_allclose(root.apply(units), transposed, atol=1e-15)


@pytest.mark.parametrize("loss", LOSSES)
def test_curvature_bounds_the_hessian_and_is_attained(loss):
    outputs, targets = points(loss, n=200)
    steepest = np.linalg.eigvalsh(oracles.HESSIAN[loss](outputs, targets)).max()
    assert steepest <= named(loss).curvature * (1 + 1e-12)
    flat = oracles.HESSIAN[loss](np.zeros((1, 2 if loss != "logistic" else 1)), 1.0)
    assert np.linalg.eigvalsh(flat).max() == pytest.approx(named(loss).curvature)


@pytest.mark.parametrize("loss", LOSSES)
def test_jax_arrays_give_the_same(loss):
    outputs, targets = points(loss)
    with jax.enable_x64(True):
        f, y = jnp.asarray(outputs), jnp.asarray(targets)
        value = named(loss).value(f, y)
        gradient = named(loss).gradient(f, y)
        assert isinstance(value, jax.Array)
        value, gradient = np.asarray(value), np.asarray(gradient)
    np.testing.assert_allclose(value, named(loss).value(outputs, targets), rtol=1e-14)
    np.testing.assert_allclose(gradient, named(loss).gradient(outputs, targets), atol=1e-15)


def test_unknown_loss_lists_the_known_ones():
    with pytest.raises(ValueError, match=r"`loss` is 'hinge'; pass one of 'squared'"):
        named("hinge")
