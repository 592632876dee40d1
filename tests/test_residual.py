"""Removals from models that were stopped early, against retraining and in parameter space."""

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import oracles
from .strategies import LOSSES, fit, problems

FORMS = ("masked", "sliced", "grouped")
NAIVE = ki.NewtonStep(residual_correction=False)


def stopped(problem, steps=5, **changes):
    return fit(problem, solver=ki.KernelGradientDescent(steps), **changes)


def test_outputs(removal, problem):
    return removal.model.predict(problem.cross, offset=problem.test_offset)


test_outputs.__test__ = False


def distance(removal, truth, problem):
    gap = test_outputs(removal, problem) - test_outputs(truth, problem)
    return np.linalg.norm(gap) / np.linalg.norm(test_outputs(truth, problem))


@given(problems(losses=("squared",), shapes=("full",), blocks=("none", "full"), least_reg=1e-3))
def test_the_corrected_step_of_a_stopped_model_is_retraining(problem):
    model = stopped(problem)
    truth = ki.remove(model, problem.forget, method=ki.Retrain())
    assert distance(ki.remove(model, problem.forget), truth, problem) <= 1e-10


def test_the_naive_step_of_a_stopped_model_is_not_retraining():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 60)) / 60**0.5
    model = ki.fit(
        ki.gram(features @ features.T),
        rng.normal(size=(40, 2)),
        loss="squared",
        reg=1e-3,
        solver=ki.KernelGradientDescent(5),
    )
    truth, corrected, naive = (
        ki.remove(model, [0, 3, 5], method=method).model.outputs
        for method in (ki.Retrain(), ki.NewtonStep(), NAIVE)
    )
    size = np.linalg.norm(truth)
    assert np.linalg.norm(corrected - truth) <= 1e-10 * size
    assert np.linalg.norm(naive - truth) >= 0.05 * size


def test_the_correction_takes_off_four_fifths_of_the_error_of_a_softmax():
    ratios = []
    for seed in range(50):
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(44, 60)) / 60**0.5
        kernel, labels = features[:40] @ features[:40].T, rng.integers(3, size=40)
        model = ki.fit(ki.gram(kernel), labels, reg=1e-2, solver=ki.KernelGradientDescent(5))
        truth, corrected, naive = (
            ki.remove(model, [0, 3, 5], method=method).model.predict(
                features[40:] @ features[:40].T
            )
            for method in (ki.Retrain(), ki.NewtonStep(), NAIVE)
        )
        ratios.append(np.linalg.norm(corrected - truth) / np.linalg.norm(naive - truth))
    assert np.median(ratios) <= 0.2


@given(problems(blocks=("none", "full"), least_reg=1e-3))
def test_the_naive_step_follows_the_gradient_of_the_edit_alone(problem):
    model = stopped(problem)
    removal = ki.remove(model, problem.forget, method=NAIVE)
    primal, weights = problem.primal, problem.primal.removal_weights(problem.forget)
    theta = primal.theta(model.alpha)
    change = primal.gradient(theta, weights) - primal.gradient(theta, primal.ones())
    step = -np.linalg.solve(primal.hessian(theta, weights), change)
    expected = problem.test_outputs(theta + step)
    np.testing.assert_allclose(test_outputs(removal, problem), expected, rtol=1e-8, atol=1e-8)


@given(problems(blocks=("none",), least_reg=1e-2))
def test_a_trained_model_needs_no_correction(problem):
    model = fit(problem)
    plain, naive = (
        ki.remove(model, problem.forget, method=method) for method in (ki.NewtonStep(), NAIVE)
    )
    np.testing.assert_allclose(
        test_outputs(naive, problem), test_outputs(plain, problem), rtol=1e-6, atol=1e-6
    )


@given(problems(blocks=("none", "full"), least_reg=1e-2), st.sampled_from(FORMS))
def test_every_form_takes_the_same_naive_step(problem, form):
    model = stopped(problem)
    masked = ki.remove(model, problem.forget, method=NAIVE)
    other = ki.NewtonStep(form, residual_correction=False)
    changed = ki.remove(model, problem.forget, method=other)
    np.testing.assert_allclose(changed.model.alpha, masked.model.alpha, rtol=1e-8, atol=1e-8)
    (many,) = ki.remove_many(model, [problem.forget], method=other)
    np.testing.assert_allclose(many.model.alpha, masked.model.alpha, rtol=1e-8, atol=1e-8)


@given(problems(shapes=("full",), least_reg=1e-3))
def test_a_stopped_model_can_be_edited_again_and_again(problem):
    """A corrected step clears what a naive one left on the removed points."""
    model = stopped(problem)
    once = ki.remove(model, problem.forget, method=NAIVE).model
    again = ki.perturb(once, reweight=(problem.kept[:1], 1.0))
    np.testing.assert_array_equal(again.model.alpha[problem.forget], 0.0)
    if problem.loss == "squared":
        truth = ki.remove(model, problem.forget, method=ki.Retrain())
        assert distance(again, truth, problem) <= 1e-9


@pytest.mark.parametrize("seed", [0, 6, 8, 10, 16, 18])
def test_stacked_steps_do_not_stop_at_what_float32_solves(seed):
    """The residual of a stopped model is large beside the ridge, and float32 loses it."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(8, 10)) / 10**0.5
    labels = np.concatenate([[0, 1], rng.integers(2, size=6)])
    gram = ki.gram(features @ features.T)
    model = ki.fit(gram, labels, reg=1e-4, solver=ki.KernelGradientDescent(5))
    one = ki.remove(model, [0, 1, 2], method=ki.NewtonStep("sliced")).model
    (many,) = ki.remove_many(model, [[0, 1, 2]], method=ki.NewtonStep("masked"))
    assert many.residual <= 1e-11
    np.testing.assert_allclose(many.model.outputs, one.outputs, rtol=1e-9, atol=1e-9)


# --- calibration -------------------------------------------------------------------------------


@given(problems(losses=LOSSES, shapes=("full",), least_reg=1e-2), st.sampled_from((True, False)))
def test_calibration_is_gradient_descent_in_parameter_space(problem, corrected):
    model = stopped(problem)
    options = {"residual_correction": corrected}
    start = ki.remove(model, problem.forget, method=ki.NewtonStep(**options)).model
    method = ki.NewtonStep(**options, calibration_steps=3)
    removal = ki.remove(model, problem.forget, method=method)
    primal, weights = problem.primal, problem.primal.removal_weights(problem.forget)
    theta, ridge = primal.theta(start.alpha), primal.ridge(weights)
    top = np.linalg.eigvalsh(
        oracles.kernel_blocks(primal.jacobian, primal.jacobian).reshape(
            2 * (problem.n * problem.d,)
        )
    )[-1]
    curvature = {"squared": 1.0, "cross_entropy": 0.5, "logistic": 0.25}[problem.loss]
    rate = 2 / (curvature * top + 2 * ridge)
    for _ in range(3):
        theta = theta - rate * primal.gradient(theta, weights)
    expected = problem.test_outputs(theta)
    # the library bounds the largest eigenvalue to a few thousandths
    np.testing.assert_allclose(test_outputs(removal, problem), expected, rtol=0.02, atol=0.02)
    assert removal.gradient_norm <= start.gradient_norm + 1e-12


@given(problems(shapes=("full",), least_reg=1e-2))
def test_calibration_makes_up_for_a_naive_step(problem):
    model = stopped(problem)
    naive = ki.remove(model, problem.forget, method=NAIVE)
    remedied = ki.NewtonStep(residual_correction=False, calibration_steps=500)
    removal = ki.remove(model, problem.forget, method=remedied)
    assert removal.gradient_norm <= 0.5 * naive.gradient_norm + 1e-9


@given(problems(sizes=(8, 13)), st.sampled_from((0.3, 0.7)))
def test_calibration_on_a_sample_is_that_of_the_sample_alone(problem, fraction):
    model, seed = stopped(problem), 4
    method = ki.NewtonStep(
        calibration_steps=2, calibration_fraction=fraction, calibration_seed=seed
    )
    removal = ki.remove(model, problem.forget, method=method)
    step = ki.remove(model, problem.forget)
    size = max(1, round(fraction * len(problem.kept)))
    # coefficients outside of the sample only shrink, and by the same share
    before, after = step.model.alpha[problem.kept], removal.model.alpha[problem.kept]
    shares = np.unique(np.round(after / np.where(before == 0, np.nan, before), 9).ravel())
    outside = [np.allclose(a, s * b) for s in shares for a, b in zip(after, before, strict=True)]
    assert len(problem.kept) == size or any(outside)
    (many,) = ki.remove_many(model, [problem.forget], method=method)
    np.testing.assert_allclose(many.model.alpha, removal.model.alpha, rtol=1e-8, atol=1e-10)


# --- arguments ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"residual_correction": 1}, "`residual_correction` is 1; pass True or False"),
        ({"calibration_steps": 1.5}, "`calibration_steps` is 1.5; pass a whole number"),
        ({"calibration_steps": -1}, "`calibration_steps` is -1; pass a whole number"),
        ({"calibration_fraction": 0}, r"`calibration_fraction` is 0; pass a number in \(0, 1\]"),
        ({"calibration_fraction": 2.0}, r"`calibration_fraction` is 2.0; pass a number in"),
        ({"calibration_seed": "a"}, "`calibration_seed` is 'a'; pass a whole number"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        ki.NewtonStep(**options)


def test_scores_of_single_points_take_the_step_itself_alone():
    model = ki.fit(ki.gram(np.eye(4)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="single points are removed by the Newton step itself"):
        ki.influence(model, np.eye(4), [0, 1, 0, 1], method=NAIVE)


def test_what_is_chosen_shows():
    assert repr(ki.NewtonStep()) == "NewtonStep()"
    assert repr(NAIVE) == "NewtonStep(residual_correction=False)"
