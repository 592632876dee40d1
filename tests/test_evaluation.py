"""Estimates against retraining: everything here is compared with training in parameter space."""

import functools
import itertools
from functools import partial

import kernelinf as ki
import numpy as np
import pytest
import scipy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kernelinf import datasets
from kernelinf._agreement import rank_correlations_without
from kernelinf.evaluation import brittleness, lds, memorisation, removal_curve

from . import oracles
from .strategies import fit, problems

LAYOUTS = ("none", "full")
CLASSES = ("cross_entropy", "logistic")
RNG = np.random.default_rng(0)
X, Y, X_TEST = RNG.normal(size=(14, 4)), np.arange(14) % 3, RNG.normal(size=(5, 4))
Y_TEST = np.arange(5) % 3
REAL = RNG.normal(size=(14, 2))
GRAM = ki.gram(ki.linear(), X)
MODEL = ki.fit(GRAM, Y)

few = settings(max_examples=15)


@functools.cache
def digits(per_class, **options):
    """A model, the kernel of a hundred test points, and their labels."""
    data = datasets.digits().subset(per_class=per_class)
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train)
    return (
        ki.fit(gram, data.y_train, reg=1e-2, **options),
        gram.cross(data.x_test[:100]),
        data.y_test[:100],
    )


def trained_without(problem, forget):
    """Parameters after retraining, in the oracle."""
    return problem.primal.train(problem.primal.removal_weights(forget))


def outputs_without(problem, forget):
    return problem.test_outputs(trained_without(problem, forget))


def margin(outputs, targets):
    """Of one point, by sorting."""
    if len(outputs) == 1:
        return outputs[0] * targets[0]
    own = outputs[targets.argmax()]
    return own - max(np.delete(outputs, targets.argmax()))


def quantity(problem, outputs, of):
    """Losses or margins of the test points, (t,)."""
    if of == "loss":
        return oracles.VALUE[problem.loss](outputs, problem.test_targets)
    return np.array([margin(*pair) for pair in zip(outputs, problem.test_targets, strict=True)])


# --- audit -------------------------------------------------------------------------------------


@few
@given(problems(losses=("squared",), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2))
def test_the_newton_step_passes_the_audit_of_the_squared_loss(problem):
    report = ki.audit(
        fit(problem),
        problem.cross,
        problem.test_targets,
        forget_sets=[problem.forget, [0], range(problem.n - 1)],
        methods=[ki.NewtonStep()],
        offset=problem.test_offset,
    )
    assert report.output_errors.shape == report.loss_errors.shape == (1, 3)
    assert (report.output_errors <= 1e-9).all()
    assert (report.loss_errors <= 1e-9).all()
    row = report.rows()[0]
    assert max(row["output_error"], row["loss_error"], row["worst_error"]) <= 1e-9


@few
@given(problems(blocks=LAYOUTS, sizes=(8,), shapes=("full",), least_reg=1e-2))
def test_an_audit_reports_the_errors_of_each_forget_set(problem):
    """Against changes in parameter space, for the estimates and for retraining."""
    primal, theta = problem.primal, problem.primal.train()
    kinds = {"drawn": [problem.forget, [1, 2]], "single": [[3]]}
    sets = [*kinds["drawn"], *kinds["single"]]
    model, test = fit(problem), (problem.cross, problem.test_labels)
    report = ki.audit(model, *test, forget_sets=kinds, offset=problem.test_offset)
    before, loss = problem.test_outputs(theta), problem.test_losses(theta)
    truth = np.array([outputs_without(problem, forget) for forget in sets]) - before
    newton = [primal.newton_step(theta, primal.removal_weights(forget)) for forget in sets]
    first = [primal.first_order_removal(theta, forget) for forget in sets]
    second = [
        move + second_term(primal, theta, forget, move)
        for move, forget in zip(first, sets, strict=True)
    ]
    for number, moves in enumerate((first, second, newton)):
        predicted = np.array([problem.test_jacobian @ move for move in moves])
        np.testing.assert_allclose(
            report.estimates[number].effect.outputs, predicted, rtol=1e-6, atol=1e-9
        )
        errors = [norm(p - t) / norm(t) for p, t in zip(predicted, truth, strict=True)]
        np.testing.assert_allclose(report.output_errors[number], errors, rtol=1e-5, atol=1e-8)
        changes = [
            [quantity(problem, before + move, "loss") - loss for move in many]
            for many in (predicted, truth)
        ]
        errors = [norm(p - t) / norm(t) for p, t in zip(*map(np.array, changes), strict=True)]
        np.testing.assert_allclose(report.loss_errors[number], errors, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(report.retrained.effect.outputs, truth, rtol=1e-6, atol=1e-9)
    assert (report.retrained.gradient_norms <= 1e-10).all()
    assert report.kinds == ("drawn", "drawn", "single")


def second_term(primal, theta, forget, first):
    full = primal.hessian(theta, primal.ones())
    return np.linalg.solve(
        full, (full - primal.hessian(theta, primal.removal_weights(forget))) @ first
    )


def norm(values):
    return np.sqrt((np.asarray(values) ** 2).sum())


def test_rows_pool_the_sets_of_a_kind():
    model, x, y = digits(5)
    report = ki.audit(model, x, y)
    rows = report.rows()
    assert [row["kind"] for row in rows[::4]] == ["half", "tenth", "point", "class"]
    assert [row["method"] for row in rows[:4]] == [
        "FirstOrder()",
        "SecondOrder()",
        "NewtonStep()",
        "Retrain()",
    ]
    assert [(r["sets"], r["smallest"], r["largest"]) for r in rows[::4]] == [
        (5, 25, 25), (5, 5, 5), (10, 1, 1), (10, 5, 5)
    ]  # fmt: skip
    places = slice(10, 20)  # the single points
    assert set(report.kinds[places]) == {"point"}
    for number, row in enumerate(rows[8:11]):
        effects = report.estimates[number].effect, report.retrained.effect
        p, t = (effect.losses[places].ravel() for effect in effects)
        assert row["loss_error"] == pytest.approx(norm(p - t) / norm(t))
        assert row["pearson"] == pytest.approx(scipy.stats.pearsonr(p, t).statistic)
        assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(p, t).statistic)
        p, t = (effect.outputs[places] for effect in effects)
        assert row["output_error"] == pytest.approx(norm(p - t) / norm(t))
        own = report.loss_errors[number, places]
        assert (row["worst_set"], row["worst_error"]) == (10 + own.argmax(), own.max())
    assert rows[11]["loss_error"] is None  # retraining has no error
    assert rows[11]["gradient_norm"] == report.retrained.gradient_norms[places].max()


def test_forget_sets_by_default_are_drawn_from_the_seed():
    one, same, other = (
        ki.audit(MODEL, X_TEST, methods=[ki.FirstOrder()], seed=seed) for seed in (3, 3, 4)
    )
    sizes = {kind: [] for kind in one.kinds}
    for kind, forget in zip(one.kinds, one.forget_sets, strict=True):
        sizes[kind].append(len(forget))
    assert sizes == {"half": [7] * 5, "tenth": [1] * 5, "point": [1] * 10, "class": [5, 5, 4]}
    pairs = [list(zip(one.forget_sets, r.forget_sets, strict=True)) for r in (same, other)]
    assert all(np.array_equal(*pair) for pair in pairs[0])
    assert not all(np.array_equal(*pair) for pair in pairs[1][:10])
    for label, forget in enumerate(one.forget_sets[-3:]):
        assert np.array_equal(np.flatnonzero(label == Y), forget)


def test_real_targets_have_no_classes_to_forget():
    model = ki.fit(GRAM, REAL, loss="squared")
    assert "class" not in ki.audit(model, X_TEST, methods=[ki.NewtonStep()]).kinds


def test_points_that_are_gone_are_not_drawn():
    model = ki.remove(MODEL, range(0, 14, 2), method=ki.Retrain()).model
    sets = ki.audit(model, X_TEST, methods=[ki.FirstOrder()]).forget_sets
    assert (np.unique(np.concatenate(sets)) % 2 == 1).all()


def test_an_audit_prints_a_table():
    report = ki.audit(MODEL, X_TEST, Y_TEST, forget_sets=[[0, 1], [2, 3, 4]])
    head, columns, *lines = repr(report).splitlines()
    assert head == "Audit: 2 forget sets, 5 test points; correlations are of losses"
    assert columns.split()[:4] == ["forget", "sets", "points", "method"]
    assert len(lines) == 4
    assert lines[0].split()[:5] == ["given", "2", "to", "3", "FirstOrder()"]
    first = report.rows()[0]
    assert f"(set {first['worst_set']})" in lines[0]
    assert f"{first['spearman']:.4f}" in lines[0]
    assert "(set" not in lines[3]
    assert repr(report.retrained).startswith("Trial(Retrain(), 2 forget sets, ")


def test_an_audit_without_labels_is_of_outputs():
    report = ki.audit(MODEL, X_TEST, forget_sets=[[0], [1, 2]])
    assert report.loss_errors is None
    row = report.rows()[1]
    assert row["loss_error"] is None
    assert row["worst_error"] == report.output_errors[1].max()
    p, t = (trial.effect.outputs.ravel() for trial in (report.estimates[1], report.retrained))
    assert row["pearson"] == pytest.approx(np.corrcoef(p, t)[0, 1])
    assert "correlations are of outputs" in repr(report)


def test_an_audit_is_a_table_of_pandas():
    report = ki.audit(MODEL, X_TEST, Y_TEST, forget_sets=[[0], [1, 2]])
    frame = report.to_dataframe()
    assert frame.method.tolist() == [
        "FirstOrder()",
        "SecondOrder()",
        "NewtonStep()",
        "Retrain()",
    ]
    assert frame.loss_error[1] == report.rows()[1]["loss_error"]


def test_a_removal_that_changes_nothing_is_predicted_without_error():
    x = X.copy()
    x[0] = 0.0
    model = ki.fit(ki.gram(ki.linear(), x), Y, reg=1.0, reg_scale="sum")
    report = ki.audit(model, np.zeros((2, 4)), [0, 1], forget_sets=[[0]])
    assert (report.output_errors == 0).all()
    assert report.rows()[0]["pearson"] is None
    assert " -" not in repr(report)


# --- linear datamodeling score -----------------------------------------------------------------


@few
@given(problems(losses=("squared",), blocks=LAYOUTS, sizes=(13,), shapes=("full",), least_reg=1e-2))
def test_the_newton_step_ranks_models_of_the_squared_loss_perfectly(problem):
    model, test = fit(problem), (problem.cross, problem.test_targets)
    score = lds(model, *test, subsets=10, offset=problem.test_offset)
    assert score.scores.min() >= 1 - 1e-12
    assert score.standard_error <= 1e-12
    assert (score.gradient_norms <= 1e-10).all()


@few
@given(
    problems(sizes=(13,), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2),
    st.sampled_from(("loss", "margin")),
)
def test_the_score_is_that_of_a_slow_computation(problem, of):
    """Retraining and derivatives in parameter space, ranks by SciPy."""
    if problem.loss == "squared":
        of = "loss"
    theta = problem.primal.train()
    before = problem.test_outputs(theta)
    test = problem.cross, problem.test_labels
    options = {"of": of, "subsets": 6, "fraction": 0.6, "offset": problem.test_offset}
    score = lds(fit(problem), *test, method=ki.FirstOrder(), **options)
    assert score.subsets.shape == (6, 8)
    retrained, predicted = np.empty((2, 6, len(before)))
    for row, subset in enumerate(score.subsets):
        forget = np.setdiff1d(range(13), subset)
        retrained[row] = quantity(problem, outputs_without(problem, forget), of)
        change = problem.test_jacobian @ problem.primal.first_order_removal(theta, forget)
        predicted[row] = quantity(problem, before, of) + along(problem, before, change, of)
    np.testing.assert_allclose(score.retrained, retrained, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(score.predicted, predicted, rtol=1e-6, atol=1e-8)
    columns = zip(predicted.T, retrained.T, strict=True)
    truth = [scipy.stats.spearmanr(*pair).statistic for pair in columns]
    np.testing.assert_allclose(score.scores, truth, atol=1e-12)
    assert score.mean == pytest.approx(np.mean(truth))


def along(problem, outputs, change, of):
    """Derivative of the losses or margins in the outputs, along a change."""
    if of == "loss":
        return (oracles.GRADIENT[problem.loss](outputs, problem.test_targets) * change).sum(axis=1)
    ahead, behind = (quantity(problem, outputs + h * change, of) for h in (1e-7, -1e-7))
    return (ahead - behind) / 2e-7


def test_estimates_on_digits_rank_retrained_models():
    model, x, y = digits(20)
    newton = lds(model, x, y, subsets=30)
    first = lds(model, x, y, subsets=newton, method=ki.FirstOrder())
    single = lds(model, x, y, subsets=newton, method=ki.influence(model, x, y))
    assert newton.mean > 0.99 > first.mean - 0.01 > 0.9
    assert newton.mean > first.mean
    np.testing.assert_allclose(single.predicted, first.predicted, rtol=1e-9, atol=1e-12)
    assert first.retrained is newton.retrained


def test_other_methods_predict_each_subset_at_once():
    score = lds(MODEL, X_TEST, Y_TEST, subsets=5, of="margin", seed=7)
    for subset, predicted, retrained in zip(
        score.subsets, score.predicted, score.retrained, strict=True
    ):
        forget = np.setdiff1d(range(14), subset)
        for method, row in ((ki.NewtonStep(), predicted), (ki.Retrain(), retrained)):
            outputs = ki.remove(MODEL, forget, method=method).model.predict(X_TEST)
            truth = [margin(*pair) for pair in zip(outputs, np.eye(3)[Y_TEST], strict=True)]
            np.testing.assert_allclose(row, truth, atol=1e-9)


def test_the_standard_error_is_that_of_the_jackknife():
    score = lds(MODEL, X_TEST, Y_TEST, subsets=8, method=ki.FirstOrder())
    rows = itertools.combinations(range(8), 7)
    columns = list(zip(score.predicted.T, score.retrained.T, strict=True))
    means = [
        np.mean([scipy.stats.spearmanr(p[list(row)], r[list(row)]).statistic for p, r in columns])
        for row in rows
    ]
    variance = 7 / 8 * np.sum((np.array(means) - np.mean(means)) ** 2)
    assert score.standard_error == pytest.approx(np.sqrt(variance))
    shown = f"{score.mean:.4f} +- {score.standard_error:.4f}, FirstOrder(); 8 subsets of 7 points"
    assert repr(score) == f"DatamodelingScore({shown}, 5 test points)"


def test_correlations_without_each_row_count_ties_as_scipy_does():
    a, b = RNG.integers(4, size=(2, 9, 3))
    found = rank_correlations_without(a, b)
    for row, column in itertools.product(range(9), range(3)):
        kept = np.arange(9) != row
        truth = scipy.stats.spearmanr(a[kept, column], b[kept, column]).statistic
        assert found[row, column] == pytest.approx(truth)


def test_scores_without_an_order_predict_none():
    flat = ki.InfluenceMatrix(np.zeros((5, 14)), ("test", "train"), "loss")
    assert (lds(MODEL, X_TEST, Y_TEST, subsets=4, method=flat).scores == 0).all()


def test_a_test_point_that_nothing_moves_has_no_score():
    x = X_TEST.copy()
    x[3] = 0.0
    with pytest.raises(ValueError, match=r"same whatever the subset: \[3\]; leave them out"):
        lds(MODEL, x, Y_TEST, subsets=4)


# --- removal curves ----------------------------------------------------------------------------


@few
@given(problems(sizes=(8,), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2))
def test_a_removal_curve_retrains_without_the_first_points(problem):
    order = np.random.default_rng(problem.seed).permutation(8)
    curve = removal_curve(
        fit(problem), order, problem.cross, problem.test_labels, sizes=[0, 2, 5],
        offset=problem.test_offset,
    )  # fmt: skip
    outputs = [problem.test_outputs(problem.primal.train())]
    outputs += [outputs_without(problem, order[:k]) for k in (2, 5)]
    losses = [quantity(problem, values, "loss") for values in outputs]
    np.testing.assert_allclose(curve.losses, losses, rtol=1e-6, atol=1e-8)
    assert (curve.gradient_norms <= 1e-9).all()
    if problem.loss == "squared":
        assert curve.accuracy is None
    else:
        right = [
            [margin(*p) > 0 for p in zip(o, problem.test_targets, strict=True)] for o in outputs
        ]
        np.testing.assert_allclose(curve.accuracy, np.mean(right, axis=1))


def test_scores_are_removed_from_the_largest():
    scores = RNG.normal(size=14)
    order = removal_curve(MODEL, scores, X_TEST, Y_TEST, sizes=[1]).order
    assert (np.diff(scores[order]) < 0).all()
    influence = ki.influence(MODEL, X_TEST, Y_TEST)
    total = ki.influence(MODEL, X_TEST, Y_TEST, total=True)
    for ranking in (influence, total, influence.values.sum(axis=0)):
        order = removal_curve(MODEL, ranking, X_TEST, Y_TEST, sizes=[1]).order
        assert (order == np.argsort(-total.values)).all()
    margins = ki.influence(MODEL, X_TEST, Y_TEST, of="margin", total=True)
    order = removal_curve(MODEL, margins, X_TEST, Y_TEST, sizes=[1]).order
    assert (order == np.argsort(margins.values)).all()  # helpful points raise it: first to go


def test_sizes_by_default_go_up_to_half():
    curve = removal_curve(MODEL, np.arange(14), X_TEST, Y_TEST)
    assert curve.sizes.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    short = removal_curve(MODEL, np.array([3, 1, 2]), X_TEST, Y_TEST)
    assert short.sizes.tolist() == [0, 1, 2, 3]
    assert repr(short).startswith("RemovalCurve(0 to 3 points removed, Retrain(): mean loss")


def test_helpful_points_matter_more_than_random_ones():
    model, x, y = digits(10)
    helpful, random = (
        removal_curve(model, ranking, x, y, sizes=[0, 30])
        for ranking in (
            ki.influence(model, x, y, total=True),
            np.random.default_rng(0).permutation(100),
        )
    )
    assert helpful.losses[0].mean() == random.losses[0].mean()
    assert helpful.losses[1].mean() > random.losses[1].mean() + 0.05
    estimate = removal_curve(model, helpful.order, x, y, sizes=[30], method=ki.NewtonStep())
    outputs = ki.remove(model, helpful.order[:30]).model.predict(x)
    losses = oracles.cross_entropy_value(outputs, np.eye(10)[y])
    np.testing.assert_allclose(estimate.losses[0], losses, rtol=1e-8)


# --- brittleness -------------------------------------------------------------------------------


@few
@given(
    problems(losses=CLASSES, sizes=(8,), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2),
    st.booleans(),
)
def test_brittleness_is_what_brute_force_finds(problem, exhaustive):
    model = fit(problem)
    orders = np.array([np.random.default_rng((problem.seed, t)).permutation(8) for t in range(4)])
    most = 6
    result = brittleness(
        model, problem.cross, ranking=orders, most=most, exhaustive=exhaustive,
        offset=problem.test_offset,
    )  # fmt: skip
    before = problem.test_outputs(problem.primal.train())
    for t, order in enumerate(orders):
        label = predicted_as(before[t])
        path = [margin(outputs_without(problem, order[:k])[t], label) for k in range(1, most + 1)]
        path = np.array([margin(before[t], label), *path])
        assume(np.abs(path).min() > 1e-9)  # classes without a point left tie, to rounding
        np.testing.assert_allclose(result.margins[t], path[result.sizes[t]], rtol=1e-5, atol=1e-7)
        changed = np.flatnonzero(path < 0)
        count = result.counts[t]
        if exhaustive:
            assert count == (changed[0] if len(changed) else most + 1)
        elif count <= most:
            assert path[count] < 0 <= path[count - 1]
        else:
            assert path[most] >= 0
        if len(changed) and (path[changed[0] :] < 0).all():  # changed once and for all
            assert count == changed[0]
    assert result.gradient_norm <= 1e-9


def predicted_as(outputs):
    """Target of the class that the outputs of one point predict."""
    if len(outputs) == 1:
        return np.where(outputs < 0, -1.0, 1.0)
    return np.eye(len(outputs))[outputs.argmax()]


def test_brittleness_removes_what_helps_the_prediction():
    model, x, _ = digits(10)
    tests = ki.Cross(x.matrix[:6])
    result = brittleness(model, tests)
    labels = model.predict(tests).argmax(axis=1)
    assert (result.labels == labels).all()
    margins = ki.influence(model, tests, labels, of="margin")
    losses = ki.influence(model, tests, labels)
    assert (result.orders == np.argsort(margins.values, axis=1)).all()
    for ranking in (margins, -margins.values):
        same = brittleness(model, tests, ranking=ranking)
        assert (same.counts == result.counts).all()
    other = brittleness(model, tests, ranking=losses)
    assert (other.orders == np.argsort(-losses.values, axis=1)).all()
    assert result.most == 50
    flips = result.counts[result.counts <= 50]
    assert f"{len(flips)} of 6 predictions change within 50 points: {flips.min()} at least" in repr(
        result
    )
    far = [set(sizes) for sizes, k in zip(result.sizes, result.counts, strict=True) if k > 4]
    assert far
    assert all({0, 1, 2, 4} <= sizes for sizes in far)
    for t, k in enumerate(result.counts):
        after = ki.remove(model, result.orders[t, :k], method=ki.Retrain()).model
        assert after.predict(tests)[t].argmax() != labels[t]


def test_a_prediction_that_stays_needs_more_points_than_were_tried():
    result = brittleness(MODEL, X_TEST, most=1)
    stays = [margins[-1] >= 0 for margins in result.margins]
    assert (result.counts == np.where(stays, 2, 1)).all()
    assert any(stays)


# --- memorisation ------------------------------------------------------------------------------


@few
@given(
    problems(losses=CLASSES, sizes=(5, 8), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2),
    st.sampled_from(("accuracy", "probability")),
)
def test_memorisation_is_retraining_without_each_point(problem, of):
    result = memorisation(fit(problem), of=of, refine=8)
    primal = problem.primal
    full = known(problem, primal.outputs(primal.train()), of)
    without = [
        known(problem, primal.outputs(trained_without(problem, [i])), of)[i]
        for i in range(problem.n)
    ]
    np.testing.assert_allclose(result.included, full, atol=1e-7)
    np.testing.assert_allclose(result.left_out, without, atol=1e-7)
    np.testing.assert_allclose(result.values, full - np.array(without), atol=1e-7)


def known(problem, outputs, of):
    """Whether each training label is the predicted one, or its probability, (n,)."""
    if of == "probability":
        return np.exp(-oracles.VALUE[problem.loss](outputs, problem.targets))
    pairs = zip(outputs, problem.targets, strict=True)
    return np.array([float((predicted_as(f) == y).all()) for f, y in pairs])


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_memorisation_on_digits_is_a_hundred_retrainings(loss):
    model, _, _ = digits(10, loss=loss)
    result = memorisation(model)
    labels = model.problem.targets.argmax(axis=1)
    without = [
        ki.remove(model, [i], method=ki.Retrain()).model.outputs[i].argmax() for i in range(100)
    ]
    right = (model.outputs.argmax(axis=1) == labels).astype(float)
    assert (result.values == right - (without == labels)).all()
    assert set(result.values) == {0.0, 1.0}
    assert repr(result) == (
        f"Memorisation(100 points, accuracy, leave-one-out: mean {result.values.mean():.3g}, "
        f"{int(result.values.sum())} above 0.5)"
    )


@few
@given(
    problems(losses=CLASSES, sizes=(5,), blocks=LAYOUTS, shapes=("full",), least_reg=1e-2),
    st.sampled_from(("accuracy", "probability")),
)
def test_memorisation_by_subsets_compares_models_with_and_without(problem, of):
    result = memorisation(fit(problem), subsets=20, fraction=0.6, of=of)
    assert result.subsets.shape == (20, 3)
    held = [[], [], [], [], []]
    other = [[], [], [], [], []]
    for subset, row in zip(result.subsets, result.outcomes, strict=True):
        theta = trained_without(problem, np.setdiff1d(range(5), subset))
        outcome = known(problem, problem.primal.outputs(theta), of)
        np.testing.assert_allclose(row, outcome, atol=1e-7)
        for i in range(5):
            (held if i in subset else other)[i].append(outcome[i])
    for i in range(5):
        value = np.mean(held[i]) - np.mean(other[i])
        assert result.values[i] == pytest.approx(value, abs=1e-7)
        error = sum(np.var(part, ddof=1) / len(part) for part in (held[i], other[i])) ** 0.5
        assert result.standard_errors[i] == pytest.approx(error, abs=1e-6)
    assert (result.gradient_norms <= 1e-10).all()


def test_points_that_are_gone_are_not_memorised():
    model = ki.remove(MODEL, [0, 5], method=ki.Retrain()).model
    kept = np.setdiff1d(range(14), [0, 5])
    alone = ki.fit(ki.gram(ki.linear(), X[kept]), Y[kept])
    for options in ({}, {"subsets": 30, "of": "probability"}):
        result, truth = memorisation(model, **options), memorisation(alone, **options)
        assert (result.points == kept).all()
        np.testing.assert_allclose(result.values, truth.values, atol=1e-9)


# --- bad input ---------------------------------------------------------------------------------


AUDIT = partial(ki.audit, MODEL, X_TEST, Y_TEST)
LDS = partial(lds, MODEL, X_TEST, Y_TEST)
BRITTLE = partial(brittleness, MODEL, X_TEST)
SCORES = ki.influence(MODEL, X_TEST, Y_TEST)


def curve(ranking, **options):
    return removal_curve(MODEL, ranking, X_TEST, Y_TEST, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (partial(AUDIT, forget_sets=[]), "`forget_sets` is empty"),
        (partial(AUDIT, forget_sets={"a": []}), "`forget_sets` is empty"),
        (partial(AUDIT, forget_sets=[[0], [20]]), "`forget_sets`, set 1: `forget` holds 20"),
        (
            partial(AUDIT, forget_sets=[range(14)]),
            "`forget_sets`, set 0: .* whole training set",
        ),
        (partial(AUDIT, methods=[]), "`methods` is empty"),
        (partial(AUDIT, seed=-1), "`seed` is -1; pass a whole number of 0 or more"),
        (partial(ki.audit, MODEL, X_TEST, Y_TEST[:3]), "`y_test` has 3 entries"),
        (partial(LDS, subsets=2), "`subsets` is 2; pass a whole number of 3 or more"),
        (partial(LDS, subsets=10.5), r"`subsets` is 10\.5; pass a whole number"),
        (partial(LDS, fraction=1.0), r"`fraction` is 1\.0; pass a number between 0 and 1"),
        (partial(LDS, fraction="half"), "`fraction` is 'half'; pass a number between 0 and 1"),
        (partial(LDS, of="outputs"), "`of` is 'outputs'; pass 'loss' or 'margin'"),
        (partial(LDS, method=SCORES, of="margin"), r"`method` has scores \(5, 14\) of the loss"),
        (partial(lds, MODEL, X_TEST, None), "`y_test` is missing"),
        (partial(curve, RNG.normal(size=3)), r"`ranking` has scores of shape \(3,\) for 14"),
        (partial(curve, np.full(14, np.nan)), "`ranking` holds NaN or infinite scores"),
        (partial(curve, np.ma.masked_less(SCORES.values[0], 0)), "`ranking` has masked values"),
        (partial(curve, [0, 0]), "`ranking` repeats 1 indices"),
        (
            partial(curve, ki.influence(MODEL, X_TEST, of="outputs")),
            "`ranking` has scores of the out",
        ),
        (partial(curve, range(14), sizes=[14]), "`sizes` is 14; pass a whole number from 0 to 13"),
        (partial(curve, range(3), sizes=[4]), "`sizes` is 4; pass a whole number from 0 to 3"),
        (partial(curve, range(14), sizes=[3, 3]), r"`sizes` is \[3, 3\]; pass ascending numbers"),
        (partial(curve, range(14), sizes=[0]), r"`sizes` is \[0\]; pass ascending numbers"),
        (partial(BRITTLE, ranking=RNG.normal(size=14)), r"`ranking`.*\(14,\); pass a row for each"),
        (partial(BRITTLE, ranking=SCORES.values[:2]), r"`ranking`.*\(2, 14\); pass a row for each"),
        (partial(BRITTLE, most=14), "`most` is 14; pass a whole number from 1 to 13"),
        (partial(memorisation, MODEL, of="loss"), "`of` is 'loss'; pass 'accuracy' or 'prob"),
        (partial(memorisation, MODEL, subsets=3), "`subsets` is 3; pass a whole number of 4"),
        (partial(memorisation, MODEL, subsets=4), "`subsets` is 4: fewer than 2 of them hold"),
        (partial(memorisation, MODEL, refine=-1), "`refine` is -1"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_file_keeps_the_retrained_models(tmp_path):
    out = tmp_path / "subsets.npy"
    score = lds(MODEL, X_TEST, Y_TEST, subsets=5, out=out)
    assert len(np.load(out)) == 5
    again = lds(MODEL, X_TEST, Y_TEST, subsets=5, out=out)
    assert (again.retrained == score.retrained).all()
    with pytest.raises(ValueError, match="is of another model, method or forget sets"):
        lds(MODEL, X_TEST, Y_TEST, subsets=5, out=out, seed=1)


def test_things_of_the_wrong_kind_are_named():
    for call in (
        lambda: ki.audit(3, X_TEST),
        lambda: lds(3, X_TEST, Y_TEST),
        lambda: removal_curve(3, [0], X_TEST, Y_TEST),
        lambda: brittleness(3, X_TEST),
        lambda: memorisation(3),
    ):
        with pytest.raises(TypeError, match="`model` is a int"):
            call()
    with pytest.raises(TypeError, match="`methods` is 'newton'; pass a list such as"):
        AUDIT(methods="newton")
    with pytest.raises(TypeError, match="`method` is 'newton'; pass a method such as"):
        LDS(method="newton")
    with pytest.raises(TypeError, match="`method` is 'newton'"):
        curve(range(14), method="newton")


def test_earlier_results_of_other_test_points_are_refused():
    earlier = lds(MODEL, X_TEST[:3], Y_TEST[:3], subsets=4)
    with pytest.raises(ValueError, match="`subsets` is an earlier result of the loss at 3 test"):
        LDS(subsets=earlier)


def test_models_without_classes_are_refused():
    model = ki.fit(GRAM, REAL, loss="squared")
    for call in (memorisation, partial(brittleness, x_test=X_TEST)):
        with pytest.raises(ValueError, match="`model` was trained on real targets"):
            call(model)
    with pytest.raises(ValueError, match="`of` is 'margin' but the model was trained on real"):
        lds(model, X_TEST, REAL[:5], of="margin")
    squared = ki.fit(GRAM, Y, loss="squared")
    with pytest.raises(ValueError, match="`of` is 'probability' but the squared loss has none"):
        memorisation(squared, of="probability")
    soft = ki.fit(GRAM, np.full((14, 2), 0.5))
    with pytest.raises(ValueError, match="`model` was trained on class probabilities"):
        memorisation(soft)


def test_a_single_point_cannot_be_removed():
    model = ki.fit(ki.gram(np.eye(1)), [1.0], loss="squared")
    with pytest.raises(ValueError, match="`model` has a single training point"):
        ki.audit(model, np.ones((1, 1)))


def test_progress_is_shown_when_asked(capsys):
    AUDIT(forget_sets=[[0]], progress=True)
    BRITTLE(progress=True)
    assert "Audit" in (shown := capsys.readouterr().err)
    assert "Brittleness" in shown
