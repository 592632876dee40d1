"""The setting of Sun & Valaee 2026: MNIST, an infinitely wide network, half forgotten."""

import kernelinf as ki
import numpy as np
import pytest

from .benchmarks.problems import half_of_each_class, mnist

REGS = (1e-1, 1e-4)


@pytest.fixture(scope="module")
def setting(data_folder):
    data = mnist(data_folder, per_class=200)
    kernel = ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, data.x_train)
    return data, gram, gram.cross(data.x_test), half_of_each_class(data.y_train)


@pytest.mark.parametrize("reg", REGS)
def test_training_and_retraining_converge(setting, reg):
    data, gram, _, forget = setting
    model = ki.fit(gram, data.y_train, reg=reg)
    retrained = ki.remove(model, forget, method=ki.Retrain())
    assert model.gradient_norm <= 1e-10
    assert retrained.gradient_norm <= 1e-10


def test_a_newton_step_predicts_what_forgetting_half_does(setting):
    data, gram, cross, forget = setting
    model = ki.fit(gram, data.y_train, reg=0.1)
    predicted, retrained = (
        ki.remove(model, forget, method=method).effect(cross, data.y_test)
        for method in (ki.NewtonStep(), ki.Retrain())
    )
    error = predicted.outputs - retrained.outputs
    assert np.linalg.norm(error) <= 1e-2 * np.linalg.norm(retrained.outputs)
