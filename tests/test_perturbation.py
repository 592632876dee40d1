"""Edits of the training set against parameter-space training of the edited risk."""

from dataclasses import replace

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from .strategies import fit, problems

LAYOUTS = ("none", "kron", "full")
STEP = 1e-4  # of the central differences


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-8)


def as_labels(problem, targets):
    """Targets in the form that the loss takes labels in."""
    return targets[:, 0] if problem.loss == "logistic" else targets


def draw_edit(problem, seed):
    """New labels for the forget set, and weights from 0 to 2 for some points, not all zero."""
    rng = np.random.default_rng(seed)
    targets = problem.targets.copy()
    targets[problem.forget] = targets[rng.permutation(problem.n)[: len(problem.forget)]]
    points = rng.permutation(problem.n)[: rng.integers(1, problem.n)]
    weights = np.ones(problem.n)
    weights[points] = rng.choice([0.0, 0.3, 1.0, 2.0], size=len(points))
    return targets, points, weights


def edit(problem, model, drawn, **options):
    targets, points, weights = drawn
    labels = as_labels(problem, targets[problem.forget])
    pairs = {"relabel": (problem.forget, labels), "reweight": (points, weights[points])}
    return ki.perturb(model, **pairs, **options)


def trained_outputs(problem, targets, weights):
    primal = replace(problem.primal, targets=targets)
    return problem.test_outputs(primal.train(weights))


def predicted(problem, update):
    return update.model.predict(problem.cross, offset=problem.test_offset)


@given(problems(losses=("squared",), blocks=LAYOUTS), st.integers(0, 999))
def test_one_newton_step_is_retraining_for_the_squared_loss(problem, seed):
    drawn = draw_edit(problem, seed)
    update = edit(problem, fit(problem), drawn)
    truth = trained_outputs(problem, drawn[0], drawn[2])
    assert relative_error(predicted(problem, update), truth) <= 1e-9
    retrained = edit(problem, update.before, drawn, method=ki.Retrain())
    assert relative_error(predicted(problem, update), predicted(problem, retrained)) <= 1e-10


@given(problems(blocks=LAYOUTS), st.integers(0, 999))
def test_retraining_is_parameter_space_training(problem, seed):
    drawn = draw_edit(problem, seed)
    update = edit(problem, fit(problem), drawn, method=ki.Retrain())
    truth = trained_outputs(problem, drawn[0], drawn[2])
    assert relative_error(predicted(problem, update), truth) <= 1e-7
    assert update.gradient_norm <= 1e-10


@given(problems(losses=("cross_entropy", "logistic")), st.integers(0, 999))
def test_a_newton_step_is_the_parameter_space_newton_step(problem, seed):
    targets, _, weights = drawn = draw_edit(problem, seed)
    update = edit(problem, fit(problem), drawn)
    primal = problem.primal
    theta = primal.train()
    theta = theta + replace(primal, targets=targets).newton_step(theta, weights)
    assert relative_error(predicted(problem, update), problem.test_outputs(theta)) <= 1e-7


@given(problems(least_reg=1e-2), st.integers(0, 999))
def test_first_order_is_the_derivative_along_the_path(problem, seed):
    """The old losses give way to the new ones: both sets of points, with opposite weights."""
    targets, _, weights = drawn = draw_edit(problem, seed)
    update = edit(problem, fit(problem), drawn, method=ki.FirstOrder())
    primal = problem.primal
    twice = replace(
        primal,
        jacobian=np.concatenate([primal.jacobian] * 2),
        targets=np.concatenate([problem.targets, targets]),
        offset=None if primal.offset is None else np.concatenate([primal.offset] * 2),
    )
    start = np.repeat([1.0, 0.0], problem.n)
    direction = np.concatenate([-np.ones(problem.n), weights])
    ahead, behind = (
        problem.test_outputs(twice.train(start + sign * STEP * direction)) for sign in (1, -1)
    )
    derivative = (ahead - behind) / (2 * STEP)
    change = update.effect(problem.cross).outputs
    np.testing.assert_allclose(change, derivative, rtol=1e-4, atol=1e-5)


@given(problems(blocks=("none", "kron")))
def test_added_points_are_learned(problem):
    kept, added = problem.kept, problem.forget
    assume(all((problem.targets[kept] == row).all(axis=1).any() for row in problem.targets))
    assume(problem.offset is None)
    rows = np.concatenate([kept, added])
    kernel = problem.kernel[rows].take(rows, axis=problem.kernel.ndim // 2)
    m = len(kept)
    old = kernel[:m, :m] if kernel.ndim == 2 else kernel[:m, :, :m]
    y = as_labels(problem, problem.targets)
    options = {"loss": problem.loss, "reg": problem.reg, "reg_scale": problem.reg_scale}
    model = ki.fit(ki.gram(old), y[kept], **options)
    cross = problem.cross.take(rows, axis=problem.cross.ndim // 2)
    truth = problem.test_outputs(problem.primal.train())
    method = ki.NewtonStep() if problem.loss == "squared" else ki.Retrain()
    update = ki.perturb(model, add=(kernel[m:], y[added]), method=method)
    assert relative_error(update.model.predict(cross), truth) <= 1e-7
    assert update.effect(cross).outputs.shape == truth.shape


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_points_of_a_kernel_are_added_without_evaluating_the_old_ones(loss):
    rng = np.random.default_rng(0)
    x, y, x_test = rng.normal(size=(14, 3)), np.arange(14) % 3, rng.normal(size=(5, 3))
    kernel = ki.rbf(1.5)
    model = ki.fit(ki.gram(kernel, x[:11], block_size=4), y[:11], loss=loss)
    update = ki.perturb(model, add=(x[11:], y[11:]), method=ki.Retrain())
    whole = ki.fit(ki.gram(kernel, x), y, loss=loss)
    np.testing.assert_allclose(update.model.gram.matrix, whole.gram.matrix, rtol=1e-14)
    np.testing.assert_allclose(update.model.predict(x_test), whole.predict(x_test), atol=1e-9)
    np.testing.assert_allclose(
        update.effect(x_test).outputs, whole.predict(x_test) - model.predict(x_test), atol=1e-9
    )


@given(problems(losses=("squared",), blocks=LAYOUTS))
def test_removing_and_bringing_back_returns_the_model(problem):
    model = fit(problem)
    removed = ki.remove(model, problem.forget).model
    back = ki.perturb(removed, reweight=(problem.forget, 1.0)).model
    assert relative_error(back.outputs, model.outputs) <= 1e-9
    assert relative_error(back.alpha, model.alpha) <= 1e-8


@given(problems(blocks=LAYOUTS))
def test_removal_is_the_weight_zero(problem):
    model = fit(problem)
    for method in (ki.FirstOrder(), ki.NewtonStep(), ki.Retrain()):
        removal = ki.remove(model, problem.forget, method=method)
        update = ki.perturb(model, reweight=(problem.forget, 0.0), method=method)
        assert (update.delta_alpha == removal.delta_alpha).all()
        assert (update.forget == np.sort(problem.forget)).all()


def test_weight_two_is_the_point_twice():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(9, 4)), np.arange(9) % 3
    heavy = ki.perturb(ki.fit(ki.gram(ki.linear(), x), y), reweight=([2], 2), method=ki.Retrain())
    twice = ki.fit(ki.gram(ki.linear(), np.concatenate([x, x[[2]]])), np.append(y, y[2]))
    np.testing.assert_allclose(heavy.model.predict(x), twice.predict(x), atol=1e-9)


def model_of_nine(**options):
    x = np.random.default_rng(0).normal(size=(9, 4))
    return ki.fit(ki.gram(ki.linear(), x), np.arange(9) % 3, **options)


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({}, "nothing to change"),
        ({"relabel": [0, 1, 2]}, "`relabel` is list; pass a pair"),
        ({"relabel": ([0, 9], [1, 1])}, "`relabel` holds 9; pass indices from 0 to 8"),
        ({"relabel": ([0, 0], [1, 1])}, "`relabel` repeats 1 indices"),
        ({"relabel": ([0, 1], [1])}, "`relabel` has 1 entries but there are 2 points"),
        ({"relabel": ([0], [7])}, "`relabel` holds classes that training did not: 7"),
        ({"reweight": ([0], -1.0)}, "`reweight` has a negative or infinite weight"),
        ({"reweight": ([0], np.nan)}, "`reweight` has a negative or infinite weight"),
        ({"reweight": ([0], [1.0, 2.0])}, r"`reweight` has weights of shape \(2,\) for 1 points"),
        ({"reweight": (np.ones(9, bool), 0)}, "`reweight` leaves no point with a weight"),
        ({"reweight": (np.ones(5, bool), 0)}, "`reweight` is a mask of length 5"),
        ({"add": (np.zeros((2, 5)), [0, 1])}, r"`add` has points of shape \(5,\)"),
        ({"add": (np.zeros((2, 4)), [0, 1, 2])}, "`add` has 3 entries but there are 2 points"),
        ({"add": (np.full((1, 4), np.nan), [0])}, "`add`"),
    ],
)
def test_bad_edits_are_named(edits, message):
    with pytest.raises(ValueError, match=message):
        ki.perturb(model_of_nine(), **edits)


def test_precomputed_rows_that_do_not_fit_are_refused():
    model = ki.fit(ki.gram(np.eye(4)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"`add` has shape \(1, 4\); .* \(1, 5\)"):
        ki.perturb(model, add=(np.zeros((1, 4)), [0]))
    with pytest.raises(ValueError, match="not positive semidefinite"):
        ki.perturb(model, add=(np.array([[5.0, 0, 0, 0, 1]]), [0]))


def test_offsets_of_added_points_are_asked_for():
    model = model_of_nine(offset=np.ones((9, 3)))
    with pytest.raises(ValueError, match="`offset` is missing"):
        ki.perturb(model, add=(np.ones((1, 4)), [0]))
    update = ki.perturb(model, add=(np.ones((1, 4)), [0]), offset=np.ones((1, 3)))
    assert update.model.problem.points == 10
