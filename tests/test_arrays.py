"""The code on JAX arrays, as it runs on an accelerator, gives the answers of NumPy arrays."""

import jax
import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from kernelinf._gram import Cross, Dense, Gram

N, T, D = 12, 4, 3


def kernel_matrices():
    features = np.random.default_rng(0).normal(size=(N + T, 9)) / 3
    kernel = features @ features.T
    return kernel[:N, :N], kernel[N:, :N]


def on_device(sigma, cross):
    """Hold the matrices as JAX arrays, which public functions do for an accelerator's alone."""
    with jax.enable_x64(True):
        return Gram.of(Dense(jnp.asarray(sigma))), Cross(jnp.asarray(cross))


def answers(gram, cross, loss, y, y_test):
    model = ki.fit(gram, y, loss=loss, reg=1e-2)
    removals = [
        ki.remove(model, forget, method=method)
        for forget in ([3], [0, 2, 5, 7])
        for method in (ki.FirstOrder(), ki.NewtonStep(), ki.Retrain())
    ]
    effects = [removal.effect(cross, y_test) for removal in removals]
    descent = ki.fit(gram, y, loss=loss, solver=ki.KernelGradientDescent(20))
    scores = ki.influence(model, cross, y_test).values
    step = ki.NewtonStep()
    points = [
        ki.influence(model, cross, y_test, method=step, normalise="relatif").values,
        ki.influence(model, cross, y_test, of="margin", total=True).values,
        ki.top_influence(model, cross, y_test, 2).helpful_scores,
        ki.self_influence(model, method=step),
        ki.representer(model, cross).values,
    ]
    return [
        *points,
        model.alpha,
        descent.alpha,
        model.predict(cross),
        scores,
        *(e.outputs for e in effects),
        *(e.losses for e in effects),
    ]


@pytest.mark.parametrize("loss", ["squared", "cross_entropy", "logistic"])
def test_jax_arrays_give_the_answers_of_numpy(loss):
    sigma, cross = kernel_matrices()
    rng = np.random.default_rng(1)
    classes = 2 if loss == "logistic" else D
    y, y_test = np.arange(N) % classes, rng.integers(0, classes, T)
    host = answers(ki.gram(sigma), cross, loss, y, y_test)
    device = answers(*on_device(sigma, cross), loss, y, y_test)
    assert not jax.config.jax_enable_x64
    for expected, result in zip(host, device, strict=True):
        assert isinstance(result, np.ndarray)
        assert result.dtype == np.float64
        np.testing.assert_allclose(result, expected, rtol=1e-8, atol=1e-10)
