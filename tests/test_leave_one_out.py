"""Leaving each point out, against taking each point out."""

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from kernelinf import datasets

from .strategies import fit, problems

LAYOUTS = ("none", "kron", "full")
SMOOTH = ("cross_entropy", "logistic")


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-8)


def one_by_one(model, method, points=None):
    """Outputs at each point after its removal by some method."""
    points = range(model.gram.n) if points is None else points
    return np.array([ki.remove(model, [i], method=method).model.outputs[i] for i in points])


def condition(model):
    return 1 + model.gram.norm / model.problem.rho


@given(problems(losses=("squared",), blocks=LAYOUTS, sizes=(5, 8)))
def test_squared_loss_is_exact(problem):
    """Against training in parameter space without the point."""
    model = fit(problem)
    result = ki.leave_one_out(model)
    assert result.exact
    primal = problem.primal
    points = np.arange(problem.n)
    truth = np.array([primal.outputs(primal.train(points != i))[i] for i in points])
    size = np.linalg.norm(problem.targets)  # an output may be zero
    error = np.linalg.norm(result.outputs - truth) / size
    assert error <= max(1e-9, 1e-12 * condition(model))


@given(problems(losses=SMOOTH, blocks=LAYOUTS, sizes=(5, 8), least_reg=1e-3))
def test_other_losses_take_the_newton_step_of_each_removal(problem):
    model = fit(problem)
    result = ki.leave_one_out(model)
    assert not result.exact
    error = relative_error(result.outputs, one_by_one(model, ki.NewtonStep()))
    assert error <= max(1e-9, 1e-11 * condition(model))
    losses = model.problem.loss.value(result.outputs, problem.targets)
    np.testing.assert_allclose(result.losses, losses, rtol=1e-12)


@given(problems(losses=SMOOTH, sizes=(5, 8), least_reg=1e-2))
def test_an_unfinished_model_keeps_its_residual(problem):
    model = fit(problem, ki.KernelGradientDescent(3))
    result = ki.leave_one_out(model)
    error = relative_error(result.outputs, one_by_one(model, ki.NewtonStep()))
    assert error <= max(1e-9, 1e-11 * condition(model))


@given(problems(losses=SMOOTH, blocks=LAYOUTS, sizes=(5, 8), least_reg=1e-2))
def test_refinement_ends_at_retraining(problem):
    model = fit(problem)
    result = ki.leave_one_out(model, refine=8)
    assert relative_error(result.outputs, one_by_one(model, ki.Retrain())) <= 1e-6
    assert (result.gradient_norms <= 1e-7).all()


def digits_model(**options):
    data = datasets.digits().subset(per_class=20)
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train)
    return ki.fit(gram, data.y_train, reg=1e-2, **options)


def test_squared_loss_on_digits_is_two_hundred_retrainings():
    model = digits_model(loss="squared")
    truth = one_by_one(model, ki.Retrain())
    assert np.abs(ki.leave_one_out(model).outputs - truth).max() <= 1e-9


def test_cross_entropy_on_digits():
    """One step beats first order more than threefold; two steps more are retraining."""
    model = digits_model()
    points = np.arange(0, 200, 17)
    truth = one_by_one(model, ki.Retrain(), points)
    refined = ki.leave_one_out(model, points=points, refine=2)
    assert np.abs(refined.outputs - truth).max() <= 1e-8
    full = model.outputs[points]
    step = ki.leave_one_out(model, points=points).outputs
    first = one_by_one(model, ki.FirstOrder(), points)
    size = np.linalg.norm(truth - full, axis=1)
    of_step, of_first = (
        np.median(np.linalg.norm(found - truth, axis=1) / size) for found in (step, first)
    )
    assert of_step < of_first / 3


def test_points_are_answered_in_the_order_asked():
    model = digits_model()
    everything = ki.leave_one_out(model)
    some = ki.leave_one_out(model, points=[7, 3, 150])
    assert some.points.tolist() == [7, 3, 150]
    np.testing.assert_allclose(some.outputs, everything.outputs[[7, 3, 150]], rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_removed_points_are_no_longer_there_to_leave_out(loss):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4)), np.arange(12) % 3
    model = ki.fit(ki.gram(ki.linear(), x), y, loss=loss)
    smaller = ki.remove(model, [0, 5], method=ki.Retrain()).model
    kept = np.setdiff1d(np.arange(12), [0, 5])
    alone = ki.fit(ki.gram(ki.linear(), x[kept]), y[kept], loss=loss)
    result = ki.leave_one_out(smaller)
    assert (result.points == kept).all()
    np.testing.assert_allclose(result.outputs, ki.leave_one_out(alone).outputs, atol=1e-9)
    with pytest.raises(ValueError, match=r"`points` holds points that were removed before: \[5\]"):
        ki.leave_one_out(smaller, points=[5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": [3, 3]}, "`points` repeats 1 indices"),
        ({"points": [12]}, "`points` holds 12; pass indices from 0 to 11"),
        ({"points": []}, "`points` is empty"),
        ({"refine": -1}, "`refine` is -1; pass a number of Newton steps"),
        ({"refine": 1.5}, r"`refine` is 1\.5; pass a number of Newton steps"),
    ],
)
def test_bad_choices_are_named(options, message):
    x = np.random.default_rng(0).normal(size=(12, 4))
    model = ki.fit(ki.gram(ki.linear(), x), np.arange(12) % 3)
    with pytest.raises(ValueError, match=message):
        ki.leave_one_out(model, **options)


def test_a_single_point_cannot_be_left_out():
    model = ki.fit(ki.gram(np.eye(1)), [1.0], loss="squared")
    with pytest.raises(ValueError, match="single training point"):
        ki.leave_one_out(model)
    with pytest.raises(TypeError, match="`model` is a int"):
        ki.leave_one_out(3)
