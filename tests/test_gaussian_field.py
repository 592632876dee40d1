"""Draws of a Gaussian process at points that come one after another."""

import kernelinf as ki
import numpy as np
import pytest
from kernelinf._gaussian_field import GaussianField

DRAWS = 1000


def points(seed=0):
    """Nine points of three features; two of the later ones repeat earlier ones."""
    x = np.random.default_rng(seed).normal(size=(9, 3))
    x[6], x[8] = x[1], x[5]
    return x


def drawn(field, x):
    return np.concatenate([field(x[:4]), field(x[4:7]), field(x[7:])])


def covariance(samples):
    """Second moments of the rows, and five standard errors of each."""
    second = samples.T @ samples / len(samples)
    variance = np.diagonal(second)
    return second, 5 * np.sqrt((np.outer(variance, variance) + second**2) / len(samples))


@pytest.mark.parametrize(
    "kernel", [ki.from_stax(ki.networks.fcnn(2)), ki.linear(), ki.rbf(1.0)], ids=repr
)
def test_points_that_come_later_are_of_the_same_functions(kernel):
    x = points()
    samples = np.concatenate([drawn(GaussianField(kernel, 2, key), x).T for key in range(DRAWS)])
    second, allowed = covariance(samples)
    assert (np.abs(second - kernel(x)) <= allowed).all()
    one, other = samples[::2], samples[1::2]
    assert (np.abs(one.T @ other / DRAWS) <= allowed * 2**0.5).all()  # outputs are independent


def test_a_point_keeps_its_value():
    field, x = GaussianField(ki.rbf(1.0), 2, 3), points()
    values = drawn(field, x)
    np.testing.assert_allclose(values[6], values[1], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(field(x[::-1]), values[::-1], rtol=1e-9, atol=1e-9)


def test_finitely_many_features_carry_finitely_many_draws():
    """A linear function of three features is known from three values."""
    field, x = GaussianField(ki.linear(), 1, 3), points()
    values = field(x[:5])
    weights = np.linalg.lstsq(x[:5], values, rcond=None)[0]
    later = np.random.default_rng(1).normal(size=(100, 3))
    np.testing.assert_allclose(field(later), later @ weights, rtol=1e-9, atol=1e-9)
    assert field._root.shape == (3, 3)


def test_zero_points_have_zero_noise():
    field = GaussianField(ki.linear(), 1, 3)
    np.testing.assert_array_equal(field(np.zeros((2, 3))), 0.0)
    assert np.isfinite(field(points())).all()


def test_the_same_key_and_calls_give_the_same_functions():
    one, other = (drawn(GaussianField(ki.rbf(1.0), 1, 7), points()) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (drawn(GaussianField(ki.rbf(1.0), 1, 8), points()) != one).all()


def test_full_blocks_couple_the_outputs():
    kernel = ki.empirical_ntk(lambda w, x: (x @ w[0]) @ w[1], _weights())
    x = points()
    square = kernel(x).reshape(18, 18)
    samples = np.stack([drawn(GaussianField(kernel, 2, key), x).ravel() for key in range(DRAWS)])
    second, allowed = covariance(samples)
    assert (np.abs(second - square) <= allowed).all()


def _weights():
    rng = np.random.default_rng(2)
    return [rng.normal(size=(3, 4)), rng.normal(size=(4, 2))]
