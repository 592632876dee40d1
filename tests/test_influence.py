"""Influence against retraining with one weight moved, and against whole removals."""

import sys
import tracemalloc

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from kernelinf import _single, _test_points

from . import oracles
from .strategies import fit, problems

LAYOUTS = ("none", "kron", "full")
METHODS = (ki.FirstOrder(), ki.NewtonStep())


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


def margins(problem, outputs):
    """The output of the true class minus the best of the others, or y f."""
    if problem.loss == "logistic":
        return (problem.test_targets * outputs)[:, 0]
    others = np.where(problem.test_targets == 1, -np.inf, outputs)
    return np.sum(problem.test_targets * outputs, axis=1) - others.max(axis=1)


@given(problems(losses=("cross_entropy", "logistic"), blocks=LAYOUTS))
def test_rows_are_derivatives_of_the_margin(problem):
    primal, theta = problem.primal, problem.primal.train()
    gaps = np.sort(problem.test_outputs(theta), axis=1)
    if (np.diff(gaps) < 1e-2).any():  # the rival class would change along the way
        return
    scores = influence(problem, "margin").values
    i = problem.forget[0]
    moved = oracles.weight_derivative(
        primal, single(problem.n, i), lambda theta: margins(problem, problem.test_outputs(theta))
    )
    scale = np.abs(scores).max() + 1e-3
    np.testing.assert_allclose(scores[:, i], moved, atol=1e-5 * scale)


def test_squared_loss_with_classes_has_the_margin_of_the_classes():
    y, kernel = np.array([4, 2, 7, 2, 4, 2]), small_kernel()
    model = ki.fit(ki.gram(kernel), y, loss="squared", reg=0.05)
    outputs = ki.influence(model, kernel, of="outputs").values
    scores = ki.influence(model, kernel, y, of="margin").values
    for t, label in enumerate([1, 0, 2, 0, 1, 0]):
        others = np.delete(model.outputs[t], label)
        rival = np.flatnonzero(model.outputs[t] == others.max())[0]
        np.testing.assert_allclose(scores[t], outputs[t, label] - outputs[t, rival], atol=1e-13)


# --- one Newton step, point by point -----------------------------------------------------------


def brute_force(model, method, cross):
    """Changes of test outputs (t, d, n), of own outputs (n, d) and of alpha (n, n, d), in turn."""
    n, d = model.alpha.shape
    tests, own, moves = np.zeros((len(cross), d, n)), np.zeros((n, d)), np.zeros((n, n, d))
    for i in np.flatnonzero(model.problem.weights):
        removal = ki.remove(model, [i], method=method)
        tests[:, :, i] = removal.effect(cross).outputs
        own[i] = (removal.model.outputs - model.outputs)[i]
        moves[i] = removal.delta_alpha
    return tests, own, moves


@pytest.mark.parametrize("method", METHODS, ids=repr)
@given(problem=problems(blocks=LAYOUTS))
def test_columns_are_the_removal_of_one_point(method, problem):
    model, asked = fit(problem), {"offset": problem.test_offset}
    tests, _, _ = brute_force(model, method, problem.cross)
    outputs = ki.influence(model, problem.cross, of="outputs", method=method, **asked).values
    assert relative_error(outputs, tests) <= 1e-8
    before = model.predict(problem.cross, **asked)
    slope = oracles.GRADIENT[problem.loss](before, problem.test_targets)
    scores = ki.influence(model, problem.cross, problem.test_labels, method=method, **asked).values
    assert relative_error(scores, np.einsum("td,tdn->tn", slope, tests)) <= 1e-8


@given(problems(losses=("squared",), blocks=LAYOUTS))
def test_newton_columns_are_retraining_for_the_squared_loss(problem):
    scores = ki.influence(
        fit(problem),
        problem.cross,
        of="outputs",
        method=ki.NewtonStep(),
        offset=problem.test_offset,
    ).values
    primal, i = problem.primal, problem.forget[0]
    weights = primal.removal_weights([i])
    change = problem.test_jacobian @ (primal.train(weights) - primal.train())
    scale = np.abs(scores).max() + 1e-3
    np.testing.assert_allclose(scores[:, :, i], change, atol=1e-7 * scale)


@pytest.mark.parametrize("method", METHODS, ids=repr)
@given(problem=problems(blocks=LAYOUTS))
def test_self_influence_is_the_diagonal(method, problem):
    model = fit(problem)
    scores = ki.self_influence(model, method=method)
    _, own, _ = brute_force(model, method, problem.cross)
    slope = oracles.GRADIENT[problem.loss](model.outputs, problem.targets)
    assert relative_error(scores, np.sum(slope * own, axis=1)) <= 1e-8
    whole = ki.influence(
        model, problem.kernel, problem.labels, method=method, offset=problem.offset
    )
    assert relative_error(scores, np.diag(whole.values)) <= 1e-8


@pytest.mark.parametrize("method", METHODS, ids=repr)
@given(problem=problems(blocks=LAYOUTS))
def test_relative_influence_is_over_the_move_of_the_parameters(method, problem):
    model, asked = fit(problem), {"offset": problem.test_offset}
    scores, relative = (
        ki.influence(
            model, problem.cross, of="outputs", method=method, normalise=normalise, **asked
        ).values
        for normalise in (None, "relatif")
    )
    _, _, moves = brute_force(model, method, problem.cross)
    norms = np.array([np.linalg.norm(problem.primal.theta(move)) for move in moves])
    clear = norms > 1e-6 * norms.max()  # a square root halves the digits that are left
    assert relative_error(relative[..., clear], scores[..., clear] / norms[clear]) <= 1e-6
    most = np.linalg.norm(problem.test_jacobian, axis=2)[:, :, None]  # by Cauchy and Schwarz
    assert (np.abs(relative[..., clear]) <= most * (1 + 1e-6)).all()


EDITS = {
    "removed": lambda model: ki.remove(model, [0, 3], method=ki.Retrain()).model,
    "extrapolated": lambda model: ki.remove(model, [0, 3], method=ki.FirstOrder()).model,
    "weighted": lambda model: ki.perturb(model, reweight=([1, 2, 5], [0.5, 3.0, 2.0])).model,
    "relabelled": lambda model: ki.perturb(model, relabel=([1], ["ant"])).model,
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_edited_models_have_scores_too(edit, reg_scale, method, loss):
    """Some points have no weight or another one, and coefficients are no longer trained."""
    model = EDITS[edit](small_model(loss=loss, reg_scale=reg_scale))
    tests, own, _ = brute_force(model, method, small_kernel())
    scores = ki.influence(model, small_kernel(), of="outputs", method=method).values
    np.testing.assert_allclose(scores, tests, atol=1e-12)
    slope = model.problem.loss.gradient(model.outputs, model.problem.targets)
    itself = ki.self_influence(model, method=method)
    np.testing.assert_allclose(itself, np.sum(slope * own, axis=1), atol=1e-12)
    gone = model.problem.weights == 0
    relative = ki.influence(model, small_kernel(), LABELS, method=method, normalise="relatif")
    for values in (scores, itself, relative.values):
        assert (values[..., gone] == 0).all()


@pytest.mark.parametrize("size", [30.0, 300.0, 5000.0])
@pytest.mark.parametrize("blocks", [False, True])
def test_probabilities_of_zero(size, blocks):
    """Outputs of thousands make every probability 0 or 1, and their curvature 0."""
    offset = size * np.random.default_rng(1).normal(size=(6, 3))
    kernel = np.einsum("ij,ce->icje", small_kernel(), np.eye(3)) if blocks else small_kernel()
    y = np.array([0, 1, 2, 1, 0, 1])
    model = ki.fit(ki.gram(kernel), y, reg=1.0, offset=offset, solver=ki.KernelGradientDescent(3))
    for method in METHODS:
        tests, own, _ = brute_force(model, method, kernel)
        scores = ki.influence(model, kernel, of="outputs", method=method, offset=offset).values
        np.testing.assert_allclose(scores, tests, atol=1e-12)
        slope = oracles.cross_entropy_gradient(model.outputs, model.problem.targets)
        itself = ki.self_influence(model, method=method)
        np.testing.assert_allclose(itself, np.sum(slope * own, axis=1), rtol=1e-9, atol=1e-10)


# --- without the whole matrix ------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS, ids=repr)
@given(problem=problems(blocks=LAYOUTS))
def test_totals_are_sums_over_test_points(method, problem):
    model = fit(problem)
    asked = {"offset": problem.test_offset, "method": method}
    for of in ("loss", "outputs"):
        each, total = (
            ki.influence(model, problem.cross, problem.test_labels, of=of, total=total, **asked)
            for total in (False, True)
        )
        assert total.dims == each.dims[1:]
        assert relative_error(total.values, each.values.sum(axis=0)) <= 1e-8


def shrink(monkeypatch, size):
    """Make every stack and tile as small as can be."""
    monkeypatch.setattr(_single, "STACK_BYTES", size)
    monkeypatch.setattr(_test_points, "TILE_BYTES", size)
    monkeypatch.setattr(_test_points, "LEAST_TILE", 1)


def points_model(n=20, **options):
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(n, 5)), np.arange(n) % 3
    return ki.fit(ki.gram(ki.rbf(2.0), x), y, **({"reg": 0.02} | options))


@pytest.mark.parametrize("method", METHODS, ids=repr)
@pytest.mark.parametrize("of", ["loss", "margin"])
def test_small_blocks_change_nothing(monkeypatch, method, of):
    model = points_model(offset=lambda x: np.asarray(x)[:, :3])
    x = np.random.default_rng(3).normal(size=(11, 5))
    y = np.arange(11) % 3

    def answers():
        whole = ki.influence(model, x, y, of=of, method=method, normalise="relatif")
        total = ki.influence(model, x, y, of=of, method=method, total=True)
        top = ki.top_influence(model, x, y, 4, of=of, method=method)
        itself = ki.self_influence(model, method=method)
        return whole.values, total.values, top.helpful_scores, top.harmful_scores, itself

    once = answers()
    for size in (1, 3 * 8 * 20 * 3, 7 * 8 * 20 * 3):
        shrink(monkeypatch, size)
        for expected, result in zip(once, answers(), strict=True):
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("of", ["loss", "margin"])
def test_top_influence_is_the_top_of_the_matrix(of):
    model, y = points_model(), np.arange(11) % 3
    x = np.random.default_rng(3).normal(size=(11, 5))
    whole = ki.influence(model, x, y, of=of).top(4)
    top = ki.top_influence(model, x, y, 4, of=of)
    for name in ("helpful", "harmful"):
        np.testing.assert_array_equal(getattr(top, name), getattr(whole, name))
        scores = f"{name}_scores"
        np.testing.assert_allclose(getattr(top, scores), getattr(whole, scores), rtol=1e-10)


def test_top_influence_and_totals_hold_no_matrix(monkeypatch):
    t, n = 5000, 60
    model = points_model(n=n)
    x, y = np.random.default_rng(3).normal(size=(t, 5)), np.arange(t) % 3
    shrink(monkeypatch, 3e4)
    monkeypatch.setattr(_test_points, "LEAST_TILE", 64)
    for call in (
        lambda: ki.top_influence(model, x, y, 2),
        lambda: ki.influence(model, x, y, total=True),
    ):
        call()  # compiles
        tracemalloc.start()
        try:
            call()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 8 * t * n / 2


# --- representer values ------------------------------------------------------------------------


@given(problems(blocks=LAYOUTS))
def test_representer_values_add_up_to_the_outputs(problem):
    model = fit(problem)
    shares = ki.representer(model, problem.cross)
    outputs = model.predict(problem.cross, offset=problem.test_offset)
    initial = 0.0 if problem.test_offset is None else problem.test_offset
    scale = 1 + np.abs(shares.values).sum(axis=2).max()
    np.testing.assert_allclose(shares.values.sum(axis=2), outputs - initial, atol=1e-12 * scale)
    assert shares.dims == ("test", "output", "train")
    kernel = oracles.kernel_blocks(problem.test_jacobian, problem.jacobian)
    i = problem.forget[0]
    expected = np.einsum("tae,e->ta", kernel[:, :, i], model.alpha[i])
    np.testing.assert_allclose(shares.values[:, :, i], expected, atol=1e-12 * scale)
    for output in range(problem.d):
        one = ki.representer(model, problem.cross, output=output)
        np.testing.assert_array_equal(one.values, shares.values[:, output])
        assert one.dims == ("test", "train")


# --- the model after removals ------------------------------------------------------------------


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
TRAIN_LABELS = ["ant", "bee", "cat", "bee", "ant", "bee"]


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


def test_top_of_a_margin_and_of_a_total():
    model, kernel = small_model(), small_kernel()
    margin = ki.influence(model, kernel, LABELS, of="margin")
    top = margin.top(1)
    np.testing.assert_array_equal(top.helpful[:, 0], margin.values.argmin(axis=1))
    np.testing.assert_array_equal(top.harmful[:, 0], margin.values.argmax(axis=1))
    total = ki.influence(model, kernel, LABELS, total=True)
    top = total.top(2)
    assert top.helpful.shape == (2,)
    assert top.helpful[0] == total.values.argmax()
    assert top.harmful_scores[0] == total.values.min()


def test_xarray_has_named_axes_and_labels():
    model, kernel = small_model(), small_kernel()[:4]
    scores = ki.influence(model, kernel, of="outputs")
    array = scores.to_xarray()
    assert array.dims == ("test", "output", "train")
    assert array.name == "influence"
    assert array.attrs["meaning"] == "change of the outputs on removal"
    assert array.coords["output"].values.tolist() == ["ant", "bee", "cat"]
    assert array.coords["train_label"].values.tolist() == TRAIN_LABELS
    picked = array.sel(output="bee", test=2).groupby("train_label").sum()
    bees = scores.values[2, 1, [1, 3, 5]].sum()
    assert picked.sel(train_label="bee").item() == pytest.approx(bees)
    shares = ki.representer(model, kernel, output=1).to_xarray()
    assert shares.dims == ("test", "train")
    assert shares.name == "representer"
    total = ki.influence(model, kernel, LABELS[:4], total=True).to_xarray()
    assert total.dims == ("train",)


def test_dataframe_has_named_axes_and_labels():
    model, kernel = small_model(), small_kernel()[:4]
    scores = ki.influence(model, kernel, LABELS[:4])
    frame = scores.to_dataframe()
    np.testing.assert_array_equal(frame.to_numpy(), scores.values)
    assert frame.index.name == "test"
    assert frame.columns.names == ["train", "label"]
    assert frame.columns.get_level_values("label").tolist() == TRAIN_LABELS
    outputs = ki.influence(model, kernel, of="outputs")
    frame = outputs.to_dataframe()
    assert frame.index.names == ["test", "output"]
    assert frame.loc[(3, "cat"), (5, "bee")] == outputs.values[3, 2, 5]
    total = ki.influence(model, kernel, LABELS[:4], total=True)
    np.testing.assert_array_equal(total.to_dataframe().to_numpy(), total.values[None])


def test_tables_without_classes():
    y = np.random.default_rng(0).normal(size=(6, 2))
    model = ki.fit(ki.gram(small_kernel()), y, loss="squared", reg=0.1)
    scores = ki.influence(model, small_kernel(), of="outputs")
    assert "train_label" not in scores.to_xarray().coords
    assert scores.to_xarray().coords["output"].values.tolist() == [0, 1]
    assert scores.to_dataframe().columns.name == "train"
    binary = ki.fit(ki.gram(small_kernel()), np.array(list("nynyyn")), loss="logistic", reg=0.1)
    array = ki.influence(binary, small_kernel(), of="outputs").to_xarray()
    assert array.coords["train_label"].values.tolist() == list("nynyyn")
    assert array.coords["output"].values.tolist() == [0]


@pytest.mark.parametrize(
    ("method", "library"), [("to_xarray", "xarray"), ("to_dataframe", "pandas")]
)
def test_tables_name_the_package_that_is_missing(monkeypatch, method, library):
    scores = ki.influence(small_model(), small_kernel(), LABELS)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=f"`{method}` needs {library}: pip install"):
        getattr(scores, method)()


def test_results_are_numpy_float64():
    model, kernel = small_model(), small_kernel()
    results = (
        ki.influence(model, kernel, LABELS).values,
        ki.influence(model, kernel, LABELS, method=ki.NewtonStep()).values,
        ki.influence(model, kernel, LABELS, total=True, normalise="relatif").values,
        ki.top_influence(model, kernel, LABELS, 2).helpful_scores,
        ki.self_influence(model),
        ki.representer(model, kernel).values,
    )
    for values in results:
        assert type(values) is np.ndarray
        assert values.dtype == np.float64
    assert not jax.config.jax_enable_x64


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`y_test` is missing; scores of the loss need test labels"),
        ({"of": "accuracy"}, "`of` is 'accuracy'; pass 'loss', 'outputs' or 'margin'"),
        ({"y_test": LABELS[:5]}, "`y_test` has 5 entries but there are 6 in `x_test`"),
        ({"y_test": ["dog"] * 6}, "`y_test` holds classes that training did not: 'dog'"),
        ({"y_test": np.zeros((6, 2)) + 0.5}, "`y_test` has 2 columns but the model has 3"),
        ({"of": "margin"}, "`y_test` is missing; scores of the margin need test labels"),
        (
            {"of": "margin", "y_test": np.full((6, 3), 1 / 3)},
            "`y_test` holds no single class a point, which a margin takes",
        ),
        ({"y_test": []}, "`y_test` has 0 entries but there are 6 in `x_test`"),
        ({"y_test": LABELS, "normalise": "l2"}, "`normalise` is 'l2'; pass 'relatif' or None"),
        ({"y_test": LABELS, "offset": np.ones((5, 3))}, r"`offset` has shape \(5, 3\); pass"),
    ],
)
def test_influence_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        ki.influence(small_model(), small_kernel(), **options)


@pytest.mark.parametrize(
    "call",
    [
        lambda kernel: ki.influence(kernel, kernel, LABELS),
        lambda kernel: ki.top_influence(kernel, kernel, LABELS, 2),
        ki.self_influence,
        lambda kernel: ki.representer(kernel, kernel),
    ],
)
def test_influence_refuses_what_is_no_model(call):
    with pytest.raises(TypeError, match=r"`model` is a ndarray; pass the result of ki\.fit"):
        call(small_kernel())


@pytest.mark.parametrize("method", [ki.Retrain(), "newton"], ids=repr)
def test_influence_refuses_other_methods(method):
    with pytest.raises(TypeError, match=r"`method` is .*; pass ki\.FirstOrder\(\) or ki\.Newton"):
        ki.influence(small_model(), small_kernel(), LABELS, method=method)
    with pytest.raises(TypeError, match=r"`method` is .*; pass ki\.FirstOrder\(\) or ki\.Newton"):
        ki.self_influence(small_model(), method=method)


@pytest.mark.parametrize("of", ["loss", "outputs"])
@pytest.mark.parametrize("total", [False, True])
def test_influence_refuses_no_test_points(of, total):
    with pytest.raises(ValueError, match="`x_test` is empty; pass at least one test point"):
        ki.influence(small_model(), np.empty((0, 6)), LABELS[:0], of=of, total=total)


def test_real_targets_have_no_margin():
    y = np.random.default_rng(0).normal(size=6)
    model = ki.fit(ki.gram(small_kernel()), y, loss="squared", reg=0.1)
    with pytest.raises(ValueError, match="`of` is 'margin' but the model was trained on real"):
        ki.influence(model, small_kernel(), y, of="margin")


def test_a_newton_step_needs_another_point():
    model = ki.remove(small_model(), [0, 1, 2, 3, 4]).model
    with pytest.raises(ValueError, match="the model has a single training point"):
        ki.self_influence(model, method=ki.NewtonStep())
    assert np.isfinite(ki.self_influence(model)).all()


def test_top_influence_refuses():
    model, kernel = small_model(), small_kernel()
    for k in (0, 7, 1.5):
        with pytest.raises(ValueError, match=f"`k` is {k}; pass a number from 1 to 6"):
            ki.top_influence(model, kernel, LABELS, k)
    with pytest.raises(ValueError, match="`of` is 'outputs'; pass 'loss' or 'margin'"):
        ki.top_influence(model, kernel, LABELS, 1, of="outputs")


@pytest.mark.parametrize("output", [-1, 3, "bee"])
def test_representer_refuses_outputs_that_there_are_not(output):
    with pytest.raises(ValueError, match=r"`output` is .*; pass a number from 0 to 2, or None"):
        ki.representer(small_model(), small_kernel(), output=output)


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


@pytest.mark.parametrize("ridge", [1e-3, 1e-5, 1e-6])
def test_self_influence_keeps_its_digits_at_small_ridges(ridge):
    """A structured factorisation loses twice as many as the condition number of the system."""
    x = np.random.default_rng(0).normal(size=(30, 5))
    x[3] = x[4] = x[2]
    kernel, y = x @ x.T + 1, np.arange(30) % 3
    model = ki.fit(ki.gram(kernel), y, reg=30 * ridge, reg_scale="sum")
    diagonal = ki.influence(model, kernel, y).values.diagonal()
    np.testing.assert_allclose(ki.self_influence(model), diagonal, rtol=2e-9)
