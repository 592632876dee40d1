"""Unlearning methods in dual coefficients against the same methods on the parameters."""

from dataclasses import replace

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf import unlearning as ul
from scipy.optimize import brentq

from . import oracles
from .strategies import LOSSES, fit, problems

LAYOUTS = ("none", "kron", "full")


def close(value, truth, tolerance=1e-8):
    assert np.linalg.norm(value - truth) <= tolerance * max(np.linalg.norm(truth), 1.0)


def outputs_after(update, problem):
    return update.model.predict(problem.cross, offset=problem.test_offset)


def weights_of(problem, forgotten, retained=1.0):
    """Weights of the signed objective, and the ridge that the removal leaves."""
    weights = retained * problem.primal.removal_weights(problem.forget)
    weights[problem.forget] = forgotten
    return weights, problem.primal.ridge(problem.primal.removal_weights(problem.forget))


def scale_of(problem, points):
    return 1 / len(points) if problem.reg_scale == "mean" else 1.0


def start(problem, model):
    return problem.primal.theta(model.alpha)


def relabelled(problem, targets):
    primal = problem.primal
    values = primal.targets.copy()
    values[np.sort(problem.forget)] = targets
    return replace(primal, targets=values)


def self_leverage(problem):
    """The largest eigenvalue of J_F (J_R^T J_R + mu)^-1 J_F^T, in parameter space."""
    _, ridge = weights_of(problem, 0.0)
    J = problem.jacobian
    forgot, kept = (J[rows].reshape(-1, J.shape[2]) for rows in (problem.forget, problem.kept))
    middle = np.linalg.solve(kept.T @ kept + ridge * np.eye(J.shape[2]), forgot.T)
    return np.linalg.eigvalsh(forgot @ middle)[-1]


# --- each method is that of the parameters -----------------------------------------------------


@given(problems(blocks=LAYOUTS))
def test_no_unlearning_keeps_the_model(problem):
    model = fit(problem)
    update = ki.remove(model, problem.forget, method=ul.NoUnlearning())
    assert np.array_equal(update.model.alpha, model.alpha)
    assert update.model.problem.points == problem.n - len(problem.forget)


@given(problems(blocks=LAYOUTS), st.sampled_from([0, 1, 4]))
def test_ascent_is_that_of_the_parameters(problem, steps):
    model, size = fit(problem), 0.1
    update = ki.remove(model, problem.forget, method=ul.GradientAscent(steps, size))
    weights, _ = weights_of(problem, -1.0, retained=0.0)
    options = {"rate": size * scale_of(problem, problem.forget), "steps": steps}
    theta = oracles.follow(problem.primal, start(problem, model), weights, 0.0, **options)
    close(outputs_after(update, problem), problem.test_outputs(theta))


@given(problems(blocks=LAYOUTS), st.sampled_from([1, 4]))
def test_projected_ascent_is_that_of_the_parameters(problem, steps):
    model, size = fit(problem), 0.1
    update = ki.remove(model, problem.forget, method=ul.ProjectedAscent(steps, size))
    weights, _ = weights_of(problem, -1.0, retained=0.0)
    options = {"rate": size * scale_of(problem, problem.forget), "steps": steps}
    off = oracles.off_span(problem.jacobian[problem.kept])
    theta = oracles.follow(
        problem.primal, start(problem, model), weights, 0.0, **options, projector=off
    )
    close(outputs_after(update, problem), problem.test_outputs(theta), 1e-6)
    close(update.model.outputs[problem.kept], model.outputs[problem.kept], 1e-6)


@given(problems(blocks=LAYOUTS), st.sampled_from([1, 6]))
def test_fine_tuning_is_that_of_the_parameters(problem, steps):
    model, size = fit(problem), 0.01
    update = ki.remove(model, problem.forget, method=ul.FineTuning(steps, size))
    weights, ridge = weights_of(problem, 0.0)
    options = {"rate": size * scale_of(problem, problem.kept), "steps": steps}
    theta = oracles.follow(problem.primal, start(problem, model), weights, ridge, **options)
    close(outputs_after(update, problem), problem.test_outputs(theta))


@given(problems(blocks=LAYOUTS), st.sampled_from([1, 6]))
def test_steps_on_the_difference_are_those_of_the_parameters(problem, steps):
    model, size = fit(problem), 0.01
    method = ul.GradientDifference(0.3, steps=steps, step_size=size)
    update = ki.remove(model, problem.forget, method=method)
    weights, ridge = weights_of(problem, -0.3)
    options = {"rate": size * scale_of(problem, problem.kept), "steps": steps}
    theta = oracles.follow(problem.primal, start(problem, model), weights, ridge, **options)
    close(outputs_after(update, problem), problem.test_outputs(theta))


@given(problems(losses=("squared",), blocks=LAYOUTS, least_reg=1e-2), st.floats(0.05, 0.9))
def test_the_difference_rests_where_its_gradient_vanishes(problem, share):
    weight = share / max(self_leverage(problem), 0.1)
    update = ki.remove(fit(problem), problem.forget, method=ul.GradientDifference(weight))
    weights, ridge = weights_of(problem, -weight)
    theta = oracles.rest_of_squares(problem.primal, weights, ridge)
    assert update.converged
    close(outputs_after(update, problem), problem.test_outputs(theta))


@given(problems(losses=("cross_entropy", "logistic"), least_reg=1e-2))
def test_the_difference_of_other_losses_rests_at_a_minimum(problem):
    model = fit(problem)
    lev = ki.leverage(model, problem.forget)
    weight = 0.3 * min(lev.gamma_max, 1.0)
    update = ki.remove(model, problem.forget, method=ul.GradientDifference(weight))
    weights, ridge = weights_of(problem, -weight)
    theta = problem.primal.theta(update.model.alpha)
    size = np.abs(problem.jacobian).sum()
    gradient = oracles.signed_gradient(problem.primal, theta, weights, ridge)
    assert np.linalg.norm(gradient) <= 1e-9 * size
    assert np.linalg.eigvalsh(oracles.signed_hessian(problem.primal, theta, weights, ridge))[0] > 0


@given(problems(losses=("squared",), blocks=LAYOUTS), st.sampled_from([0.5, 1.0, 3.0]))
def test_labels_of_a_teacher_are_fitted(problem, weight):
    targets = np.random.default_rng(problem.seed).normal(size=(problem.n, problem.d))
    method = ul.TeacherLabels(targets, weight)
    update = ki.remove(fit(problem), problem.forget, method=method)
    primal = relabelled(problem, targets[np.sort(problem.forget)])
    weights, ridge = weights_of(problem, weight)
    theta = oracles.rest_of_squares(primal, weights, ridge)
    close(outputs_after(update, problem), problem.test_outputs(theta))


@given(problems(losses=("cross_entropy", "logistic"), least_reg=1e-3), st.sampled_from([0.5, 2.0]))
def test_random_labels_are_fitted_and_wrong(problem, weight):
    model = fit(problem)
    method = ul.RandomLabels(3, weight)
    update = ki.remove(model, problem.forget, method=method)
    forget = np.sort(problem.forget)
    plan = method.plan(model, update.model.problem)
    drawn = plan.objective.problem.targets[forget]
    assert not (drawn == problem.targets[forget]).all(axis=1).any()
    weights, ridge = weights_of(problem, weight)
    theta = problem.primal.theta(update.model.alpha)
    gradient = oracles.signed_gradient(relabelled(problem, drawn), theta, weights, ridge)
    assert np.linalg.norm(gradient) <= 1e-9 * np.abs(problem.jacobian).sum()


def small(loss="squared", n=12, d=3, reg=0.02, **options):
    rng = np.random.default_rng(4)
    features = rng.normal(size=(n, n + 2)) / np.sqrt(n)
    if loss == "squared":
        y = rng.normal(size=(n, d))
    else:
        y = np.arange(n) % (2 if loss == "logistic" else d)
    return ki.fit(ki.gram(features @ features.T), y, loss=loss, reg=reg, **options)


FORGET = [1, 4, 7]


def every_method(loss):
    teachers = [] if loss == "logistic" else [ul.TeacherLabels()]
    return [
        ul.NoUnlearning(),
        ul.GradientAscent(3),
        ul.ProjectedAscent(3),
        ul.GradientDifference(0.1),
        ul.GradientDifference(0.1, steps=3),
        ul.RandomLabels(0),
        ul.FineTuning(5),
        *teachers,
    ]


def test_random_labels_of_real_targets_are_those_of_retained_points():
    model = small()
    method = ul.RandomLabels(0)
    drawn = method.plan(model, model.problem.without(np.array(FORGET))).objective.problem.targets
    kept = np.delete(model.problem.targets, FORGET, axis=0)
    assert all((row == kept).all(axis=1).any() for row in drawn[FORGET])


def test_the_untrained_network_teaches_its_outputs():
    model = small("cross_entropy")
    problem = model.problem.without(np.array(FORGET))
    taught = ul.TeacherLabels().plan(model, problem).objective.problem.targets[FORGET]
    assert np.allclose(taught, 1 / 3, rtol=0, atol=1e-15)
    offset = np.random.default_rng(0).normal(size=(12, 3))
    model = small(offset=offset)
    problem = model.problem.without(np.array(FORGET))
    taught = ul.TeacherLabels().plan(model, problem).objective.problem.targets[FORGET]
    assert np.array_equal(taught, offset[FORGET])


def test_a_model_teaches_as_its_outputs_do():
    model, teacher = small("cross_entropy"), small("cross_entropy", reg=1.0)
    odds = np.exp(teacher.outputs)
    by_model = ul.TeacherLabels(model=teacher)
    by_values = ul.TeacherLabels(odds / odds.sum(axis=1, keepdims=True))
    after = [ki.remove(model, FORGET, method=m).model.outputs for m in (by_model, by_values)]
    assert np.allclose(*after, rtol=0, atol=1e-10)
    assert ul.TeacherLabels(model=teacher) == by_model != ul.TeacherLabels(model=model)
    assert repr(by_model) != repr(ul.TeacherLabels(model=model))  # files tell them apart by it


def test_labels_of_classes_teach():
    model = small("cross_entropy")
    labels = (np.arange(12) + 1) % 3
    after = ki.remove(model, FORGET, method=ul.TeacherLabels(labels))
    same = ki.remove(model, FORGET, method=ul.TeacherLabels(np.eye(3)[labels]))
    assert np.allclose(after.model.outputs, same.model.outputs, rtol=0, atol=1e-10)


# --- what is left can be used as any update ----------------------------------------------------


@given(problems(blocks=LAYOUTS, least_reg=1e-3))
def test_gradient_norm_is_that_of_the_retained_risk(problem):
    update = ki.remove(fit(problem), problem.forget, method=ul.GradientAscent(2, 0.1))
    weights = problem.primal.removal_weights(problem.forget)
    theta = problem.primal.theta(update.model.alpha)
    truth = problem.primal.gradient_norm(theta, weights)
    assert abs(update.gradient_norm - truth) <= 1e-7 * max(truth, 1e-2)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_left_can_be_edited_again(loss):
    model = small(loss)
    direct = ki.remove(model, [*FORGET, 0], method=ki.Retrain())
    for method in every_method(loss):
        update = ki.remove(model, FORGET, method=method)
        again = ki.remove(update.model, [0], method=ki.Retrain())
        assert np.allclose(again.model.outputs, direct.model.outputs, rtol=0, atol=1e-8)
        if loss == "squared":
            step = ki.remove(update.model, [0])
            assert np.allclose(step.model.outputs, direct.model.outputs, rtol=0, atol=1e-10)
        twice = ki.remove(update.model, [0], method=method)  # the same method, once more
        assert np.isfinite(twice.gradient_norm)


@pytest.mark.parametrize("loss", LOSSES)
def test_many_removals_are_one_after_the_other(loss):
    model, sets = small(loss), [FORGET, [0], [2, 3]]
    for method in every_method(loss):
        updates = ki.remove_many(model, sets, method=method)
        for group, update in zip(sets, updates, strict=True):
            alone = ki.remove(model, group, method=method)
            assert np.allclose(update.model.alpha, alone.model.alpha, rtol=0, atol=1e-12)


def test_updates_are_saved_with_their_method(tmp_path):
    model = small("cross_entropy")
    teacher = ul.TeacherLabels(np.arange(12) % 3)
    for method in (*every_method("cross_entropy"), teacher):
        update = ki.remove(model, FORGET, method=method)
        update.save(tmp_path / "update.npz")
        loaded = ki.load(tmp_path / "update.npz", model.gram)
        assert loaded.method == method
        assert np.array_equal(loaded.model.alpha, update.model.alpha)


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_weighted_points_count_by_their_weight(reg_scale):
    """A point of weight two is two points, before and after it is forgotten."""
    rng = np.random.default_rng(0)
    features, y = rng.normal(size=(9, 12)) / 3, rng.normal(size=(9, 2))
    twice = [*range(9), 4, 7]
    kernel = features @ features.T
    options = {"loss": "squared", "reg": 0.1, "reg_scale": reg_scale}
    doubled = ki.fit(ki.gram(kernel[np.ix_(twice, twice)]), y[twice], **options)
    model = ki.fit(ki.gram(kernel), y, **options)
    model = ki.perturb(model, reweight=([4, 7], 2.0)).model
    for method in (
        ul.GradientAscent(3, 0.05),  # the default size depends on the largest weight
        ul.ProjectedAscent(3, 0.05),
        ul.GradientDifference(0.1),
        ul.GradientDifference(0.1, 3, 0.05),
        ul.TeacherLabels(weight=0.5),
        ul.FineTuning(5, 0.05),
    ):
        weighted = ki.remove(model, [2, 4], method=method).model.outputs
        repeated = ki.remove(doubled, [2, 4, 9], method=method).model.outputs
        assert np.allclose(weighted, repeated[:9], rtol=0, atol=1e-9)


def test_loss_is_not_behaviour():
    """A step of ascent can be chosen to leave the forget loss of retraining, and other outputs."""
    model = small("cross_entropy", n=30)
    truth = ki.remove(model, FORGET, method=ki.Retrain()).model
    targets = model.problem.targets[FORGET]

    def forget_loss(outputs):
        return oracles.cross_entropy_value(outputs[FORGET], targets).mean()

    def ascended(size):
        return ki.remove(model, FORGET, method=ul.GradientAscent(1, size)).model.outputs

    size = brentq(lambda s: forget_loss(ascended(s)) - forget_loss(truth.outputs), 1e-3, 1e3)
    outputs = ascended(size)
    assert forget_loss(outputs) == pytest.approx(forget_loss(truth.outputs), rel=1e-9)
    kept = np.delete(np.arange(30), FORGET)
    moved = np.linalg.norm((model.outputs - truth.outputs)[kept])
    assert np.linalg.norm((outputs - truth.outputs)[kept]) > 0.5 * moved


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ul.GradientAscent(1.5), r"`steps` is 1\.5; pass a whole number"),
        (lambda: ul.FineTuning(-1), r"`steps` is -1; pass a whole number"),
        (lambda: ul.ProjectedAscent(True), r"`steps` is True; pass a whole number"),
        (lambda: ul.GradientDifference(0.1, steps=2.0), r"`steps` is 2\.0; pass a whole"),
        (lambda: ul.GradientAscent(1, 0.0), r"`step_size` is 0\.0; pass a positive number"),
        (lambda: ul.ProjectedAscent(1, -1.0), r"`step_size` is -1\.0; pass a positive"),
        (lambda: ul.FineTuning(1, np.nan), r"`step_size` is nan; pass a positive number"),
        (lambda: ul.GradientDifference(0.0), r"`weight` is 0\.0; pass a positive number"),
        (lambda: ul.GradientDifference(0.1, step_size=1.0), r"without `steps`; pass both"),
        (lambda: ul.RandomLabels(0.5), r"`seed` is 0\.5; pass a whole number"),
        (lambda: ul.RandomLabels(0, weight=-1), r"`weight` is -1; pass a positive number"),
        (lambda: ul.TeacherLabels(weight=np.inf), r"`weight` is inf; pass a positive number"),
        (lambda: ul.TeacherLabels([0], model=small()), r"were both given; pass one teacher"),
    ],
)
def test_settings_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_teacher_is_a_model():
    with pytest.raises(TypeError, match=r"`model` is a str; pass the result of ki.fit"):
        ul.TeacherLabels(model="network")
    with pytest.raises(ValueError, match="logistic loss takes two labels and no outputs"):
        ki.remove(small("logistic"), FORGET, method=ul.TeacherLabels())
    with pytest.raises(ValueError, match="`targets` has 3 entries but there are 12 points"):
        ki.remove(small(), FORGET, method=ul.TeacherLabels([0.0, 1.0, 2.0]))


def test_a_difference_without_a_minimum_is_refused():
    for loss in LOSSES:
        model = small(loss)
        gamma = ki.leverage(model, FORGET, refine=0).gamma_max
        with pytest.raises(ValueError, match=r"`weight` is .*gamma_max = .* has no minimum"):
            ki.remove(model, FORGET, method=ul.GradientDifference(3 * gamma))
    model = small()
    gamma = ki.leverage(model, FORGET).gamma_max
    ki.remove(model, FORGET, method=ul.GradientDifference(0.99 * gamma))
    with pytest.raises(ValueError, match=f"gamma_max = {gamma:.3g}"):
        ki.remove(model, FORGET, method=ul.GradientDifference(1.01 * gamma))
    steps = ki.remove(model, FORGET, method=ul.GradientDifference(3 * gamma, steps=2))
    assert np.isfinite(steps.gradient_norm)


def test_a_saddle_is_no_minimum():
    """A point that is fitted exactly pulls on nothing, and the difference bends down there."""
    y = np.arange(6.0)
    model = ki.fit(ki.gram(np.eye(6)), y, loss="squared", reg=0.1, reg_scale="sum")
    assert model.alpha[0] == 0
    ki.remove(model, [0], method=ul.GradientDifference(0.09))
    with pytest.raises(ValueError, match=r"gamma_max = 0\.1 on the difference of the risks"):
        ki.remove(model, [0], method=ul.GradientDifference(0.11))


def test_methods_are_audited_like_estimates():
    model = small("cross_entropy")
    methods = every_method("cross_entropy")
    report = ki.audit(model, model.gram.matrix[:3], forget_sets=[FORGET, [2]], methods=methods)
    nothing = report.output_errors[0]  # leaving the model alone predicts no change at all
    assert np.allclose(nothing, 1.0, rtol=0, atol=1e-12)
    assert report.output_errors.shape == (len(methods), 2)


def test_steps_that_diverge_are_refused():
    model = small()
    with pytest.raises(FloatingPointError, match=r"`step_size` is 50\.0: fine-tuning diverges"):
        ki.remove(model, FORGET, method=ul.FineTuning(10, 50.0))
    with pytest.raises(FloatingPointError, match=r"diverged to NaN or infinite .* fewer `steps`"):
        ki.remove(model, FORGET, method=ul.GradientAscent(1000, 100.0))


def test_the_named_stable_step_is_stable():
    model = small()
    with pytest.raises(FloatingPointError) as refused:
        ki.remove(model, FORGET, method=ul.FineTuning(10, 50.0))
    stable = float(str(refused.value).split("pass less than ")[1].split(",")[0])
    ki.remove(model, FORGET, method=ul.FineTuning(1000, 0.99 * stable))


@pytest.mark.parametrize(
    "edit",
    [{"relabel": ([0], [[1.0, 0.0, 0.0]])}, {"reweight": ([0], 2.0)}, {"reweight": ([0], 0.5)}],
)
def test_edits_that_forget_nothing_are_refused(edit):
    with pytest.raises(ValueError, match="forgets points and makes no other edit"):
        ki.perturb(small(), **edit, method=ul.FineTuning(1))


def test_a_weight_of_zero_is_a_removal():
    model, method = small(), ul.FineTuning(3)
    edited = ki.perturb(model, reweight=(FORGET, 0.0), method=method)
    removed = ki.remove(model, FORGET, method=method)
    assert np.array_equal(edited.model.alpha, removed.model.alpha)


def test_projection_takes_a_matrix_in_memory():
    x = np.random.default_rng(0).normal(size=(8, 3))
    gram = ki.gram(ki.rbf(1.0), x, store="none")
    model = ki.fit(gram, np.arange(8) % 2, reg=0.1)
    with pytest.raises(ValueError, match="needs the Gram matrix as one array"):
        ki.remove(model, [0], method=ul.ProjectedAscent(1))
    assert np.isfinite(ki.remove(model, [0], method=ul.GradientAscent(1)).gradient_norm)
