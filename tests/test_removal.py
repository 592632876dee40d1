"""Removals against retraining in parameter space."""

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf import _methods

from . import oracles
from .strategies import LOSSES, fit, problems

LAYOUTS = ("none", "kron", "full")
METHODS = (ki.FirstOrder(), ki.SecondOrder(), ki.NewtonStep(), ki.Retrain())


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-3)


def outputs_after(removal, problem):
    """Outputs at the test points after a removal."""
    return removal.model.predict(problem.cross, offset=problem.test_offset)


def retrained(problem):
    """Parameters of the retained model, in the oracle."""
    return problem.primal.train(problem.primal.removal_weights(problem.forget))


# --- against the truth -------------------------------------------------------------------------


@given(problems(losses=("squared",), blocks=LAYOUTS))
def test_one_newton_step_is_retraining_for_the_squared_loss(problem):
    model = fit(problem)
    step = ki.remove(model, problem.forget, method=ki.NewtonStep())
    truth = ki.remove(model, problem.forget, method=ki.Retrain())
    theta = retrained(problem)
    for removal in (step, truth):
        assert relative_error(outputs_after(removal, problem), problem.test_outputs(theta)) <= 1e-9
        assert relative_error(removal.model.outputs, problem.primal.outputs(theta)) <= 1e-9
    assert relative_error(step.model.outputs, truth.model.outputs) <= 1e-10
    if problem.shape == "full":  # a kernel of lower rank leaves alpha free in its null space
        assert relative_error(step.model.alpha, truth.model.alpha) <= 1e-10


@pytest.mark.parametrize("seed", [103, 138])
def test_one_newton_step_is_retraining_for_coefficients_of_thousands(seed):
    """Where the kernel cannot fit the labels alpha is of size 1 / reg, and rounding with it."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(5, 2)) / np.sqrt(2)
    y = rng.normal(size=5)
    model = ki.fit(ki.gram(features @ features.T), y, loss="squared", reg=1e-4)
    step = ki.remove(model, [0], method=ki.NewtonStep())
    truth = ki.remove(model, [0], method=ki.Retrain())
    assert relative_error(step.model.outputs, truth.model.outputs) <= 1e-10


@pytest.mark.parametrize("seed", [6, 15])
def test_retraining_to_the_limit_of_rounding_has_converged(seed):
    """Coefficients of 1e4 leave a gradient norm of 5e-11 after rounding, whatever the steps."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(13, 4)) / 2
    y = 3 * rng.normal(size=13)
    gram = ki.gram(features @ features.T)
    model = ki.fit(gram, y, loss="squared", reg=1e-4, reg_scale="sum")
    removal = ki.remove(model, [0], method=ki.Retrain())
    assert removal.converged
    assert removal.gradient_norm <= 1e-10


@given(problems(blocks=LAYOUTS))
def test_retraining_is_that_of_the_parameters(problem):
    removal = ki.remove(fit(problem), problem.forget, method=ki.Retrain())
    primal, weights = problem.primal, problem.primal.removal_weights(problem.forget)
    assert primal.gradient_norm(primal.theta(removal.model.alpha), weights) <= 1e-10
    assert removal.gradient_norm <= 1e-10
    assert removal.converged
    truth = problem.test_outputs(retrained(problem))
    assert relative_error(outputs_after(removal, problem), truth) <= 1e-8


@given(problems(blocks=LAYOUTS))
def test_retraining_is_fitting_the_retained_points_alone(problem):
    removal = ki.remove(fit(problem), problem.forget, method=ki.Retrain())
    kept = problem.kept
    kernel, cross = problem.kernel, problem.cross
    if problem.blocks == "none":
        kernel, cross = kernel[np.ix_(kept, kept)], cross[:, kept]
    else:
        kernel, cross = kernel[kept][:, :, kept], cross[:, :, kept]
    offset = None if problem.offset is None else problem.offset[kept]
    labels = problem.targets[kept]  # one-hot: a class may have lost all of its points
    if problem.loss == "logistic":
        labels = problem.labels[kept]
        if len(set(labels.tolist())) < 2:  # a logistic model cannot be fitted to one class
            return
    alone = ki.fit(
        ki.gram(kernel),
        labels,
        loss=problem.loss,
        reg=problem.reg,
        reg_scale=problem.reg_scale,
        offset=offset,
    )
    predicted = alone.predict(cross, offset=problem.test_offset)
    assert relative_error(outputs_after(removal, problem), predicted) <= 1e-8


@given(problems(blocks=LAYOUTS))
def test_the_newton_step_solves_the_dense_system(problem):
    model = fit(problem)
    removal = ki.remove(model, problem.forget, method=ki.NewtonStep())
    residual = problem.dual.removal_residual(model.alpha, problem.forget, removal.delta_alpha)
    assert residual <= 1e-10
    np.testing.assert_array_equal(removal.delta_alpha[problem.forget], -model.alpha[problem.forget])


@given(problems(blocks=LAYOUTS), st.integers(0, 20))
def test_the_newton_step_is_that_of_the_parameters_from_any_model(problem, steps):
    """A model stopped early too: the step keeps the residual that training has left."""
    model = fit(problem, ki.KernelGradientDescent(steps=steps))
    removal = ki.remove(model, problem.forget, method=ki.NewtonStep())
    primal = problem.primal
    theta = primal.theta(model.alpha)
    theta = theta + primal.newton_step(theta, primal.removal_weights(problem.forget))
    assert relative_error(outputs_after(removal, problem), problem.test_outputs(theta)) <= 1e-8


@given(problems(blocks=LAYOUTS))
def test_first_order_is_the_derivative_of_retraining(problem):
    removal = ki.remove(fit(problem), problem.forget, method=ki.FirstOrder())
    effect = removal.effect(problem.cross)
    primal = problem.primal
    change = primal.first_order_removal(primal.train(), problem.forget)
    assert relative_error(effect.outputs, problem.test_jacobian @ change) <= 1e-7
    direction = primal.removal_weights(problem.forget) - 1.0
    slope = oracles.weight_derivative(primal, direction, problem.test_outputs)
    assert relative_error(effect.outputs, slope) <= 1e-5


@given(problems(blocks=LAYOUTS))
def test_first_order_solves_the_dense_system(problem):
    model = fit(problem)
    removal = ki.remove(model, problem.forget, method=ki.FirstOrder())
    expected = problem.dual.first_order(model.alpha, problem.forget)
    assert relative_error(removal.delta_alpha, expected) <= 1e-9


@given(problems(blocks=LAYOUTS, least_reg=1e-3))
def test_second_order_is_the_next_term_of_the_newton_step(problem):
    """H'^-1 = H^-1 + H^-1 (H - H') H^-1 + ..., in parameter space."""
    primal, forget = problem.primal, problem.forget
    theta, weights = primal.train(), primal.removal_weights(forget)
    first = primal.first_order_removal(theta, forget)
    before, after = primal.hessian(theta, primal.ones()), primal.hessian(theta, weights)
    second = np.linalg.solve(before, (before - after) @ first)
    effect = ki.remove(fit(problem), forget, method=ki.SecondOrder()).effect(problem.cross)
    assert relative_error(effect.outputs, problem.test_jacobian @ (first + second)) <= 1e-7


@pytest.mark.parametrize("loss", LOSSES)
def test_the_orders_come_closer_in_turn(loss):
    rng = np.random.default_rng(3)
    features = rng.normal(size=(40, 12)) / np.sqrt(12)
    model = ki.fit(ki.gram(features @ features.T), rng.integers(2, size=40), loss=loss, reg=1e-2)
    forget = np.arange(8)
    truth = ki.remove(model, forget, method=ki.Retrain()).model.outputs - model.outputs
    errors = [
        relative_error(ki.remove(model, forget, method=method).model.outputs - model.outputs, truth)
        for method in (ki.FirstOrder(), ki.SecondOrder(), ki.NewtonStep())
    ]
    assert errors == sorted(errors, reverse=True)


@given(problems(blocks=LAYOUTS))
def test_all_forms_of_the_newton_step_are_one(problem):
    model = fit(problem)
    masked, *others = (
        ki.remove(model, problem.forget, method=ki.NewtonStep(form)).model.alpha
        for form in ("masked", "sliced", "grouped")
    )
    # The systems are solved to a relative residual of 1e-12; the condition number does the rest.
    condition = 1 + model.gram.norm / model.problem.without(problem.forget).rho
    for other in others:
        change = relative_error(model.gram @ masked, model.gram @ other)
        assert change <= max(1e-9, 1e-12 * condition)
        assert relative_error(masked, other) <= max(1e-8, 1e-11 * condition)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_cheaper_form_is_taken_by_the_share_forgotten(loss, monkeypatch):
    """The choice between them is one of cost and never of results."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(8, 9)) / 3
    y = rng.integers(2, size=8)
    model = ki.fit(ki.gram(features @ features.T), y, loss=loss, reg=1e-2)
    results = []
    for share in (0.0, 2.0):
        monkeypatch.setattr(_methods, "SLICE_FROM", share)
        results.append(ki.remove(model, [1, 5]).model.outputs)
    np.testing.assert_allclose(*results, rtol=1e-10)


@given(problems(blocks=LAYOUTS))
def test_gradient_norm_is_that_of_the_retained_risk(problem):
    primal, weights = problem.primal, problem.primal.removal_weights(problem.forget)
    model = fit(problem)
    for method in METHODS:
        removal = ki.remove(model, problem.forget, method=method)
        norm = primal.gradient_norm(primal.theta(removal.model.alpha), weights)
        assert removal.gradient_norm == pytest.approx(norm, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("size", [1, 30, 59])
def test_ten_classes(loss, size):
    """A size at which conjugate gradients have something to do."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 20)) / np.sqrt(20)
    labels = rng.permutation(np.arange(60) % 10)
    kernel = (1 + features @ features.T) ** 2
    forget = rng.permutation(60)[:size]
    model = ki.fit(ki.gram(kernel), labels, loss=loss, reg=1e-3)
    blocks = np.einsum("ij,ce->icje", kernel, np.eye(10))
    dual = oracles.Dual(blocks, np.eye(10)[labels], loss, 1e-3)
    step = ki.remove(model, forget, method=ki.NewtonStep())
    assert dual.removal_residual(model.alpha, forget, step.delta_alpha) <= 1e-10
    first = ki.remove(model, forget, method=ki.FirstOrder())
    assert relative_error(first.delta_alpha, dual.first_order(model.alpha, forget)) <= 1e-9
    truth = ki.remove(model, forget, method=ki.Retrain())
    assert truth.gradient_norm <= 1e-10


def test_one_of_two_points():
    kernel = np.array([[2.0, 1.0], [1.0, 3.0]])
    model = ki.fit(ki.gram(kernel), [1.0, -1.0], loss="squared", reg=0.5)
    for method in (ki.NewtonStep(), ki.Retrain()):
        removal = ki.remove(model, [0], method=method)
        alpha = -1.0 / (3.0 + 0.5)
        np.testing.assert_allclose(removal.model.alpha, [[0.0], [alpha]], rtol=1e-12)


# --- effects -----------------------------------------------------------------------------------


@given(problems(blocks=LAYOUTS))
def test_effects_are_after_minus_before(problem):
    model = fit(problem)
    for method in METHODS:
        removal = ki.remove(model, problem.forget, method=method)
        before = model.predict(problem.cross, offset=problem.test_offset)
        after = outputs_after(removal, problem)
        effect = removal.effect(problem.cross, problem.test_labels, offset=problem.test_offset)
        scale = 1 + np.abs(before).max() + np.abs(after).max()
        np.testing.assert_allclose(effect.outputs, after - before, atol=1e-11 * scale)
        value = oracles.VALUE[problem.loss]
        losses = value(after, problem.test_targets) - value(before, problem.test_targets)
        np.testing.assert_allclose(effect.losses, losses, atol=1e-10 * scale**2)


@given(problems(blocks=LAYOUTS))
def test_kinds_of_loss_change(problem):
    model = fit(problem)
    removal = ki.remove(model, problem.forget)
    asked = (problem.cross, problem.test_labels)
    first, regularised = (
        removal.effect(*asked, loss_change=kind, offset=problem.test_offset).losses
        for kind in ("first_order", "regularised")
    )
    before = model.predict(problem.cross, offset=problem.test_offset)
    slope = oracles.GRADIENT[problem.loss](before, problem.test_targets)
    change = removal.effect(problem.cross).outputs
    scale = 1 + np.abs(before).max() ** 2 + np.abs(change).max() ** 2
    np.testing.assert_allclose(first, np.sum(slope * change, axis=1), atol=1e-11 * scale)
    theta = problem.primal.theta(model.alpha)
    ridge = problem.reg * theta @ problem.primal.theta(removal.delta_alpha)
    np.testing.assert_allclose(regularised - first, ridge, atol=1e-9 * scale, rtol=1e-9)


def test_a_helpful_point_has_a_positive_effect():
    """Two points of one class side by side: without the first, the loss of the second rises."""
    kernel = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
    model = ki.fit(ki.gram(kernel), np.array([0, 0, 1]), reg=0.1)
    for method in METHODS:
        effect = ki.remove(model, [0], method=method).effect(kernel[[1]], np.array([0]))
        assert effect.losses[0] > 0


# --- removing again ----------------------------------------------------------------------------


@given(problems(blocks=LAYOUTS, sizes=(8,)))
def test_removing_twice_is_removing_the_union(problem):
    model = fit(problem)
    together = ki.remove(model, problem.forget, method=ki.Retrain()).model
    if len(problem.forget) == 1:
        return
    first, second = np.array_split(problem.forget, 2)
    halfway = ki.remove(model, first, method=ki.Retrain()).model
    one_by_one = ki.remove(halfway, second, method=ki.Retrain()).model
    assert relative_error(one_by_one.outputs, together.outputs) <= 1e-8
    assert (one_by_one.alpha[problem.forget] == 0).all()


@given(problems(losses=("squared",), blocks=LAYOUTS, sizes=(8,)))
def test_newton_steps_on_the_squared_loss_chain(problem):
    model = fit(problem)
    truth = ki.remove(model, problem.forget, method=ki.Retrain()).model
    for point in problem.forget:
        model = ki.remove(model, point, method=ki.NewtonStep()).model
    assert relative_error(model.outputs, truth.outputs) <= 1e-8


def test_a_point_is_not_removed_twice():
    model = ki.remove(small_model(), [1, 2]).model
    with pytest.raises(ValueError, match=r"`forget` holds points that were removed before: \[2\]"):
        ki.remove(model, [2, 3])


def test_what_is_left_cannot_all_be_removed():
    model = ki.remove(small_model(), [0, 1, 2]).model
    with pytest.raises(ValueError, match="`forget` is the whole training set"):
        ki.remove(model, [3, 4, 5])


def test_the_model_before_is_left_alone():
    model = small_model()
    alpha, outputs = model.alpha.copy(), model.outputs.copy()
    for method in METHODS:
        ki.remove(model, [0, 3], method=method)
    np.testing.assert_array_equal(model.alpha, alpha)
    np.testing.assert_array_equal(model.outputs, outputs)


# --- labels and forget sets --------------------------------------------------------------------


def small_kernel(n=6):
    features = np.random.default_rng(0).normal(size=(n, 8)) / 3
    return features @ features.T


def small_model(**options):
    y = np.array(["ant", "bee", "cat", "bee", "ant", "bee"])
    return ki.fit(ki.gram(small_kernel()), y, **({"reg": 0.05} | options))


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_a_class_that_vanishes_keeps_its_column(method):
    model = small_model()
    removal = ki.remove(model, [2], method=method)  # the only cat
    assert removal.model.outputs.shape == (6, 3)
    assert removal.model.classes.tolist() == ["ant", "bee", "cat"]
    effect = removal.effect(small_kernel()[[2]], np.array(["cat"]))
    assert effect.losses[0] > 0


def test_forget_takes_indices_lists_and_masks():
    model = small_model()
    mask = np.zeros(6, bool)
    mask[[1, 4]] = True
    expected = ki.remove(model, np.array([1, 4]))
    for forget in ([4, 1], (1, 4), mask, mask.tolist(), np.array([1, 4], np.uint8)):
        removal = ki.remove(model, forget)
        assert removal.forget.tolist() == [1, 4]
        np.testing.assert_array_equal(removal.model.alpha, expected.model.alpha)
    assert ki.remove(model, 3).forget.tolist() == [3]


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        ([1, 4, 1], "`forget` repeats 1 indices; pass each point once"),
        ([1, 6], "`forget` holds 6; pass indices from 0 to 5"),
        ([1, -1], "`forget` holds -1; pass indices from 0 to 5"),
        ([True, False, True], "`forget` is a mask of length 3 but there are 6 training points"),
        (np.ones(7, bool), "`forget` is a mask of length 7 but there are 6 training points"),
        ([], "`forget` is empty; pass at least one training point"),
        (np.zeros(6, bool), "`forget` is empty; pass at least one training point"),
        (range(6), "`forget` is the whole training set; keep at least one point"),
        (np.ones(6, bool), "`forget` is the whole training set; keep at least one point"),
        ([1.0, 2.0], "`forget` has dtype float64; pass integer indices or a boolean mask"),
        (["ant"], "`forget` has dtype"),
        ([[1, 2]], r"`forget` has shape \(1, 2\)"),
    ],
)
def test_forget_is_checked(forget, message):
    with pytest.raises(ValueError, match=message):
        ki.remove(small_model(), forget)


def test_remove_refuses_what_is_no_model_and_no_method():
    with pytest.raises(TypeError, match=r"`model` is a ndarray; pass the result of ki\.fit"):
        ki.remove(small_kernel(), [1])
    with pytest.raises(TypeError, match=r"`method` is 'newton'; pass ki\.NewtonStep"):
        ki.remove(small_model(), [1], method="newton")


@pytest.mark.parametrize(
    ("cross", "labels", "message"),
    [
        (np.ones((2, 6)), ["ant"], "`y_test` has 1 entries but there are 2 in `x_test`"),
        (np.ones((2, 6)), ["ant", "dog"], "`y_test` holds classes that training did not: 'dog'"),
        (np.ones((2, 6)), [0, 1], "`y_test` has dtype int64 but the training labels"),
        (np.ones((2, 5)), ["ant", "bee"], r"`x_test` has shape \(2, 5\)"),
        (np.full((2, 6), np.nan), ["ant", "bee"], r"`x_test` \(the cross kernel\) holds NaN"),
    ],
)
def test_effect_checks_its_test_points(cross, labels, message):
    removal = ki.remove(small_model(), [1])
    with pytest.raises(ValueError, match=message):
        removal.effect(cross, labels)


def test_effect_refuses_unknown_loss_changes_and_missing_offsets():
    removal = ki.remove(small_model(offset=np.ones((6, 3))), [1])
    with pytest.raises(ValueError, match="`loss_change` is 'exact'; pass 'plug_in'"):
        removal.effect(small_kernel(), loss_change="exact")
    with pytest.raises(ValueError, match="`offset` is missing"):
        removal.effect(small_kernel(), ["ant"] * 6)


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_results_are_numpy_float64(method):
    removal = ki.remove(small_model(), [1, 4], method=method)
    effect = removal.effect(small_kernel(), ["ant"] * 6)
    for array in (removal.delta_alpha, removal.model.outputs, effect.outputs, effect.losses):
        assert type(array) is np.ndarray
        assert array.dtype == np.float64
    assert not jax.config.jax_enable_x64
