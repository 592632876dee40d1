"""Influence against retraining with one weight moved, and against whole removals."""

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from kernelinf import _single

from . import oracles
from .strategies import fit, problems

LAYOUTS = ("none", "kron", "full")


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-3)


def influence(problem, of, labels=True):
    y_test = problem.test_labels if labels else None
    model = fit(problem)
    return ki.influence(model, problem.cross, y_test, of=of, offset=problem.test_offset)


def single(n, i):
    """The direction in which the weight of point i falls."""
    return -np.eye(n)[i]


@given(problems(blocks=LAYOUTS))
def test_oracle_derivative_is_that_of_retraining(problem):
    primal = problem.primal
    change = primal.first_order_removal(primal.train(), problem.forget)
    direction = primal.removal_weights(problem.forget) - 1.0
    slope = oracles.weight_derivative(primal, direction, primal.outputs)
    assert relative_error(primal.jacobian @ change, slope) <= 1e-6


@given(problems(blocks=LAYOUTS))
def test_rows_are_derivatives_of_the_test_loss(problem):
    scores = influence(problem, "loss").values
    primal, theta = problem.primal, problem.primal.train()
    slope = oracles.GRADIENT[problem.loss](problem.test_outputs(theta), problem.test_targets)
    expected = np.empty_like(scores)
    for i in range(problem.n):
        change = problem.test_jacobian @ primal.first_order_removal(theta, [i])
        expected[:, i] = np.sum(slope * change, axis=1)
    assert relative_error(scores, expected) <= 1e-7
    i = problem.forget[0]
    moved = oracles.weight_derivative(primal, single(problem.n, i), problem.test_losses)
    scale = np.abs(scores).max() + 1e-3
    np.testing.assert_allclose(scores[:, i], moved, atol=1e-5 * scale)


@given(problems(blocks=LAYOUTS))
def test_rows_are_derivatives_of_the_outputs(problem):
    scores = influence(problem, "outputs", labels=False).values
    primal, theta = problem.primal, problem.primal.train()
    expected = np.empty_like(scores)
    for i in range(problem.n):
        expected[:, :, i] = problem.test_jacobian @ primal.first_order_removal(theta, [i])
    assert relative_error(scores, expected) <= 1e-7
    i = problem.forget[0]
    moved = oracles.weight_derivative(primal, single(problem.n, i), problem.test_outputs)
    scale = np.abs(scores).max() + 1e-3
    np.testing.assert_allclose(scores[:, :, i], moved, atol=1e-5 * scale)


@given(problems(blocks=LAYOUTS))
def test_scores_add_up_to_the_first_order_effect(problem):
    model = fit(problem)
    removal = ki.remove(model, problem.forget, method=ki.FirstOrder())
    asked = {"offset": problem.test_offset}
    effect = removal.effect(problem.cross, problem.test_labels, loss_change="first_order", **asked)
    scores = ki.influence(model, problem.cross, problem.test_labels, **asked).values
    assert relative_error(scores[:, problem.forget].sum(axis=1), effect.losses) <= 1e-8
    outputs = ki.influence(model, problem.cross, of="outputs", **asked).values
    assert relative_error(outputs[:, :, problem.forget].sum(axis=2), effect.outputs) <= 1e-8


@given(problems(blocks=LAYOUTS, sizes=(8,)))
def test_removed_points_have_no_influence(problem):
    model = ki.remove(fit(problem), problem.forget, method=ki.Retrain()).model
    scores = ki.influence(
        model, problem.cross, problem.test_labels, offset=problem.test_offset
    ).values
    assert (scores[:, problem.forget] == 0).all()
    kept = problem.kept
    primal = problem.primal.keeping(kept)
    theta = primal.train()
    slope = oracles.GRADIENT[problem.loss](problem.test_outputs(theta), problem.test_targets)
    for column, i in enumerate(kept):
        change = problem.test_jacobian @ primal.first_order_removal(theta, [column])
        expected = np.sum(slope * change, axis=1)
        np.testing.assert_allclose(scores[:, i], expected, rtol=1e-6, atol=1e-7)


# --- the record --------------------------------------------------------------------------------


def small_kernel(n=6):
    features = np.random.default_rng(0).normal(size=(n, 8)) / 3
    return features @ features.T


def small_model(**options):
    y = np.array(["ant", "bee", "cat", "bee", "ant", "bee"])
    return ki.fit(ki.gram(small_kernel()), y, **({"reg": 0.05} | options))


LABELS = np.array(["ant", "bee", "cat", "ant", "ant", "bee"])


def test_blocks_of_test_points_change_nothing(monkeypatch):
    model, kernel = small_model(), small_kernel()
    whole = ki.influence(model, kernel, LABELS).values
    for rows in (1, 4, 5):
        monkeypatch.setattr(_single, "STACK_BYTES", rows * 8 * 6 * 3)
        blocked = ki.influence(model, kernel, LABELS).values
        np.testing.assert_allclose(blocked, whole, rtol=1e-8, atol=1e-12)


def test_axes_are_named():
    model, kernel = small_model(), small_kernel()[:4]
    scores = ki.influence(model, kernel, LABELS[:4])
    assert scores.dims == ("test", "train")
    assert scores.values.shape == (4, 6)
    outputs = ki.influence(model, kernel, of="outputs")
    assert outputs.dims == ("test", "output", "train")
    assert outputs.values.shape == (4, 3, 6)
    assert "test: 4" in repr(scores)
    assert "output: 3" in repr(outputs)


def test_top_ranks_by_sign():
    scores = ki.influence(small_model(), small_kernel(), LABELS)
    top = scores.top(2)
    for t, row in enumerate(scores.values):
        order = np.argsort(row)
        assert top.harmful[t].tolist() == order[:2].tolist()
        assert top.helpful[t].tolist() == order[::-1][:2].tolist()
        np.testing.assert_array_equal(top.helpful_scores[t], row[top.helpful[t]])
        np.testing.assert_array_equal(top.harmful_scores[t], row[top.harmful[t]])


def test_a_training_point_helps_itself():
    """Removing a point raises its own loss: its self-influence is positive."""
    for loss in ("cross_entropy", "squared"):
        y = np.array(["ant", "bee", "cat", "bee", "ant", "bee"])
        scores = ki.influence(small_model(loss=loss, reg_scale="sum"), small_kernel(), y).values
        assert (np.diag(scores) > 0).all()


def test_results_are_numpy_float64():
    values = ki.influence(small_model(), small_kernel(), LABELS).values
    assert type(values) is np.ndarray
    assert values.dtype == np.float64
    assert not jax.config.jax_enable_x64


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`y_test` is missing; scores of the loss need test labels"),
        ({"of": "accuracy"}, "`of` is 'accuracy'; pass 'loss', 'outputs' or 'margin'"),
        ({"y_test": LABELS[:5]}, "`y_test` has 5 entries but there are 6 points"),
        ({"y_test": ["dog"] * 6}, "`y_test` holds classes that training did not: 'dog'"),
        ({"y_test": np.zeros((6, 2)) + 0.5}, "`y_test` has 2 columns but the model has 3"),
    ],
)
def test_influence_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        ki.influence(small_model(), small_kernel(), **options)


def test_influence_refuses_what_is_no_model():
    with pytest.raises(TypeError, match=r"`model` is a ndarray; pass the result of ki\.fit"):
        ki.influence(small_kernel(), small_kernel(), LABELS)


def test_influence_needs_the_offset_that_the_model_has():
    model = small_model(offset=np.ones((6, 3)))
    with pytest.raises(ValueError, match="`offset` is missing"):
        ki.influence(model, small_kernel(), LABELS)


def test_top_refuses_outputs_and_impossible_sizes():
    model, kernel = small_model(), small_kernel()
    with pytest.raises(ValueError, match="`top` ranks scores of the loss"):
        ki.influence(model, kernel, of="outputs").top(1)
    for k in (0, 7):
        with pytest.raises(ValueError, match=f"`k` is {k}; pass a number from 1 to 6"):
            ki.influence(model, kernel, LABELS).top(k)
