"""Training against retraining in parameter space, and what `fit` accepts and refuses."""

import jax
import jax.numpy as jnp
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import oracles
from .strategies import LOSSES, fit, problems

EVERY_LAYOUT = ("none", "kron", "full")
CODES = np.array([2, 0, 1, 0, 2, 1])


def relative_error(value, truth):
    return np.linalg.norm(value - truth) / max(np.linalg.norm(truth), 1e-3)


def small_gram(n=6, p=8, seed=0):
    features = np.random.default_rng(seed).normal(size=(n, p)) / np.sqrt(p)
    return features @ features.T


# --- the optimum -------------------------------------------------------------------------------


@given(problems(blocks=EVERY_LAYOUT))
def test_fit_finds_the_optimum_of_the_risk(problem):
    model = fit(problem)
    primal = problem.primal
    theta = primal.theta(model.alpha)
    assert primal.gradient_norm(theta) <= 1e-10
    assert model.converged
    assert model.gradient_norm <= 1e-10
    best = primal.train()
    assert relative_error(model.outputs, primal.outputs(best)) <= 1e-8
    predicted = model.predict(problem.cross, offset=problem.test_offset)
    assert relative_error(predicted, problem.test_outputs(best)) <= 1e-8


@given(problems(blocks=EVERY_LAYOUT, least_reg=1e-2))
def test_solvers_agree(problem):
    newton = fit(problem, ki.Newton())
    descent = fit(problem, ki.KernelGradientDescent(steps=50_000, tol=1e-11))
    assert relative_error(descent.outputs, newton.outputs) <= 1e-8
    if problem.loss == "squared":
        closed = fit(problem, ki.ClosedForm())
        assert relative_error(closed.outputs, newton.outputs) <= 1e-8
        assert closed.gradient_norm <= 1e-10


@given(problems(losses=("squared",), blocks=EVERY_LAYOUT))
def test_closed_form_solves_ridge_regression(problem):
    model = fit(problem, ki.ClosedForm())
    n, d = problem.targets.shape
    offset = 0.0 if problem.offset is None else problem.offset
    ridge = problem.dual.rho(n) * np.eye(n * d)
    alpha = np.linalg.solve(problem.dual.matrix + ridge, (problem.targets - offset).reshape(-1))
    assert relative_error(model.alpha, alpha.reshape(n, d)) <= 1e-9


@given(problems(shapes=("full",)))
def test_trained_alpha_balances_the_gradient(problem):
    """rho alpha + g = 0 row by row if the kernel has full rank: what every removal starts from."""
    model = fit(problem)
    g = oracles.GRADIENT[problem.loss](model.outputs, problem.targets)
    np.testing.assert_allclose(problem.dual.rho(problem.n) * model.alpha, -g, atol=1e-8)


@given(problems(losses=("logistic",)))
def test_logistic_is_softmax_of_two_outputs_at_twice_the_reg(problem):
    """With f = f1 - f0 and theta0 = -theta1 at the softmax optimum, u = theta1 - theta0 has
    ||theta0||^2 + ||theta1||^2 = ||u||^2 / 2: softmax at reg is logistic at reg / 2, same kernel.
    """
    offset = None
    if problem.offset is not None:
        offset = np.concatenate([-problem.offset / 2, problem.offset / 2], axis=1)
    softmax = fit(problem, loss="cross_entropy", reg=2 * problem.reg, offset=offset)
    difference = softmax.outputs[:, 1:] - softmax.outputs[:, :1]
    assert relative_error(difference, fit(problem).outputs) <= 1e-8


@given(problems(blocks=EVERY_LAYOUT), st.integers(0, 5))
def test_stopped_early_the_reported_norms_are_those_of_parameter_space(problem, steps):
    model = fit(problem, ki.KernelGradientDescent(steps=steps))
    primal, ones = problem.primal, problem.primal.ones()
    theta = primal.theta(model.alpha)
    norm = primal.gradient_norm(theta)
    assert model.gradient_norm == pytest.approx(norm, rel=1e-6, abs=1e-10)
    assert model.history.gradient_norm[-1] == pytest.approx(norm, rel=1e-6, abs=1e-10)
    risk = primal.risk(theta, ones) * primal.scale(ones)
    assert model.history.risk[-1] == pytest.approx(risk, rel=1e-9, abs=1e-12)
    assert len(model.history) == steps


# --- kernel gradient descent -------------------------------------------------------------------


@given(problems(losses=("squared",)), st.sampled_from((0, 1, 2, 7, 40, 300)))
def test_descent_on_the_squared_loss_is_its_closed_form_at_every_step(problem, steps):
    step_size = 0.5 / (problem.reg + np.linalg.eigvalsh(problem.kernel)[-1] / 2)
    model = fit(problem, ki.KernelGradientDescent(steps, step_size=step_size))
    offset = 0.0 if problem.offset is None else problem.offset
    rate = step_size * problem.primal.scale(problem.primal.ones())
    expected = oracles.squared_descent(
        problem.kernel, problem.targets - offset, problem.dual.rho(problem.n), rate, steps
    )
    np.testing.assert_allclose(model.alpha, expected, rtol=1e-9, atol=1e-12)


@given(
    problems(blocks=EVERY_LAYOUT), st.sampled_from((1, 2, 9, 30)), st.sampled_from((0.0, 0.5, 0.9))
)
def test_descent_is_that_of_the_parameters(problem, steps, momentum):
    step_size = 0.5 / (problem.reg + np.linalg.eigvalsh(problem.dual.matrix)[-1])
    solver = ki.KernelGradientDescent(steps, step_size=step_size, momentum=momentum)
    model = fit(problem, solver)
    theta = oracles.descend(problem.primal, step_size, steps, momentum)
    assert relative_error(problem.primal.theta(model.alpha), theta) <= 1e-10
    assert relative_error(model.outputs, problem.primal.outputs(theta)) <= 1e-10


@given(problems(blocks=EVERY_LAYOUT))
def test_the_chosen_step_size_never_raises_the_risk(problem):
    risk = fit(problem, ki.KernelGradientDescent(steps=60)).history.risk
    assert (np.diff(risk) <= 1e-12 * (1 + np.abs(risk[:-1]))).all()


@pytest.mark.parametrize(("loss", "curvature"), [("squared", 1.0), ("cross_entropy", 0.5)])
@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_the_chosen_step_size_is_two_over_the_extreme_curvatures(loss, curvature, reg_scale):
    kernel, y = small_gram(), CODES
    top = curvature * np.linalg.eigvalsh(kernel)[-1] / (6 if reg_scale == "mean" else 1)
    options = {"loss": loss, "reg": 0.1, "reg_scale": reg_scale}
    chosen, given_ = (
        ki.fit(ki.gram(kernel), y, solver=ki.KernelGradientDescent(1, step_size=size), **options)
        for size in (None, 2 / (top + 2 * 0.1))
    )
    np.testing.assert_allclose(chosen.alpha, given_.alpha, rtol=5e-3)


def test_descent_that_diverges_says_so():
    gram = ki.gram(small_gram())
    solver = ki.KernelGradientDescent(steps=5000, step_size=1e3)
    with pytest.raises(FloatingPointError, match=r"diverged.*lower `step_size`"):
        ki.fit(gram, np.arange(6.0), loss="squared", reg=0.1, solver=solver)


def test_descent_short_of_its_tolerance_warns():
    solver = ki.KernelGradientDescent(steps=3, tol=1e-10)
    gram = ki.gram(small_gram())
    with pytest.warns(ki.ConvergenceWarning, match="stopped at gradient norm .* after 3 steps"):
        model = ki.fit(gram, np.arange(6) % 2, reg=0.01, solver=solver)
    assert not model.converged


def test_descent_that_only_swings_is_not_taken_for_trained():
    """The gradient of a softmax is bounded: too large a step oscillates and never overflows."""
    gram = ki.gram(small_gram())
    solver = ki.KernelGradientDescent(steps=500, step_size=50.0, tol=1e-8)
    with pytest.warns(ki.ConvergenceWarning, match="short of its tolerance"):
        model = ki.fit(gram, np.arange(6) % 2, reg=0.01, solver=solver)
    assert not model.converged


def test_newton_is_patient_with_slow_steps():
    """Damped steps far from the optimum gain less than half each before the fast ones come."""
    features = np.random.default_rng(765008378).normal(size=(8, 2)) / np.sqrt(2)
    y = np.array([1, 0, 0, 1, 1, 1, 1, 1])
    model = ki.fit(ki.gram(features @ features.T), y, reg=2e-4)
    assert model.converged
    assert model.gradient_norm <= 1e-11


def test_newton_short_of_its_tolerance_warns():
    gram = ki.gram(small_gram())
    with pytest.warns(ki.ConvergenceWarning, match="short of its tolerance"):
        model = ki.fit(gram, np.arange(6) % 2, reg=1e-3, solver=ki.Newton(max_steps=1))
    assert not model.converged


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_one_point_is_enough_to_regress_on(reg_scale):
    model = ki.fit(ki.gram([[2.0]]), [3.0], loss="squared", reg=0.5, reg_scale=reg_scale)
    np.testing.assert_allclose(model.outputs, [[2.0 * 3.0 / 2.5]], rtol=1e-14)


# --- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["cross_entropy", "squared"])
@pytest.mark.parametrize(
    "names",
    [
        np.array([-7, 3, 1000]),
        np.array(["ant", "bee", "cat"]),
        np.array(["ant", "bee", "cat"], dtype=object),
        np.array([0, 1, 200], dtype=np.uint8),
    ],
    ids=["int", "str", "object", "uint8"],
)
def test_class_labels_of_any_kind(names, loss):
    gram = ki.gram(small_gram())
    model = ki.fit(gram, names[CODES], loss=loss, reg=0.1)
    expected = ki.fit(gram, np.eye(3)[CODES], loss=loss, reg=0.1)
    np.testing.assert_array_equal(model.outputs, expected.outputs)
    assert model.classes.tolist() == names.tolist()


def test_lists_and_whole_floats_are_labels_too():
    gram = ki.gram(small_gram())
    expected = ki.fit(gram, CODES, reg=0.1).outputs
    np.testing.assert_array_equal(ki.fit(gram, CODES.tolist(), reg=0.1).outputs, expected)
    np.testing.assert_array_equal(ki.fit(gram, CODES.astype(float), reg=0.1).outputs, expected)


def test_one_hot_may_have_a_class_without_points():
    model = ki.fit(ki.gram(small_gram()), np.eye(4)[CODES], reg=0.1)
    assert model.outputs.shape == (6, 4)
    assert model.classes.tolist() == [0, 1, 2, 3]


def test_real_targets():
    gram = ki.gram(small_gram())
    y = np.linspace(-1, 1, 6)
    flat = ki.fit(gram, y, loss="squared", reg=0.1)
    column = ki.fit(gram, y[:, None], loss="squared", reg=0.1)
    assert flat.outputs.shape == (6, 1)
    assert flat.classes is None
    np.testing.assert_array_equal(flat.outputs, column.outputs)


@pytest.mark.parametrize(
    "names", [(-1, 1), (0, 1), (False, True), ("ham", "spam"), (3, 8)], ids=repr
)
def test_logistic_takes_any_two_labels(names):
    gram = ki.gram(small_gram())
    bits = np.array([0, 1, 1, 0, 1, 0])
    model = ki.fit(gram, np.array(names)[bits], loss="logistic", reg=0.1)
    expected = ki.fit(gram, 2 * bits - 1, loss="logistic", reg=0.1)
    np.testing.assert_array_equal(model.outputs, expected.outputs)
    assert model.classes.tolist() == list(names)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.arange(5) % 2, {}, "`y` has 5 entries but there are 6 points"),
        (np.zeros((6, 2, 2)), {}, "`y` has shape"),
        (np.array([0.0, 1, 2, np.nan, 1, 0]), {"loss": "squared"}, "`y` holds NaN or infinite"),
        (np.array([0.0, 1, 2, np.inf, 1, 0]), {"loss": "squared"}, "`y` holds NaN or infinite"),
        (np.zeros(6, int), {}, "`y` holds the single class"),
        (np.zeros(6, int), {"loss": "logistic"}, "`y` holds the single class"),
        (CODES, {"loss": "logistic"}, "`y` holds 3 classes; the logistic loss takes two"),
        (np.linspace(0, 1, 6), {}, "`y` holds real numbers but loss 'cross_entropy' takes classes"),
        (np.ones((6, 3)), {}, "`y` is no one-hot matrix"),
        (np.ones((6, 1)), {}, "`y` has one column"),
        (np.array([1, "a", 2, "b", 1, 2], dtype=object), {}, "`y` is an object array"),
        (CODES + 1j, {}, "`y` has dtype complex128"),
        (CODES, {"loss": "hinge"}, "`loss` is 'hinge'"),
        (CODES, {"reg": 0.0}, "`reg` is 0.0; pass a positive number"),
        (CODES, {"reg": -1.0}, "`reg` is -1.0; pass a positive number"),
        (CODES, {"reg": np.nan}, "`reg` is nan; pass a positive number"),
        (CODES, {"reg": np.inf}, "`reg` is inf; pass a positive number"),
        (CODES, {"reg_scale": "max"}, "`reg_scale` is 'max'; pass 'mean' or 'sum'"),
        (CODES, {"offset": np.zeros((6, 2))}, "`offset` has shape"),
        (CODES, {"offset": np.full((6, 3), np.nan)}, "`offset` holds NaN or infinite"),
        (CODES, {"solver": ki.ClosedForm()}, "`solver` is ClosedForm but the loss is"),
    ],
)
def test_fit_refuses(y, options, message):
    with pytest.raises(ValueError, match=message):
        ki.fit(ki.gram(small_gram()), y, **({"reg": 0.1} | options))


def test_fit_refuses_what_is_no_gram_and_no_solver():
    with pytest.raises(TypeError, match=r"`gram` is a ndarray; pass ki\.gram"):
        ki.fit(small_gram(), CODES)
    with pytest.raises(TypeError, match=r"`solver` is 'newton'; pass ki\.Newton"):
        ki.fit(ki.gram(small_gram()), CODES, solver="newton")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": -1}, "`steps` is -1"),
        ({"steps": 5, "step_size": 0.0}, "`step_size` is 0.0"),
        ({"steps": 5, "step_size": -1.0}, "`step_size` is -1.0"),
        ({"steps": 5, "momentum": 1.0}, "`momentum` is 1.0"),
        ({"steps": 5, "momentum": -0.1}, "`momentum` is -0.1"),
    ],
)
def test_descent_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        ki.KernelGradientDescent(**options)


def test_an_offset_at_fit_must_come_again_at_predict():
    kernel = small_gram()
    model = ki.fit(ki.gram(kernel), CODES, reg=0.1, offset=np.ones((6, 3)))
    with pytest.raises(ValueError, match="`offset` is missing"):
        model.predict(kernel)
    with pytest.raises(ValueError, match=r"`offset` has shape \(6, 2\)"):
        model.predict(kernel, offset=np.ones((6, 2)))
    np.testing.assert_allclose(model.predict(kernel, offset=np.ones((6, 3))), model.outputs)


def test_full_blocks_must_have_as_many_outputs_as_the_labels():
    blocks = np.einsum("ij,ce->icje", small_gram(), np.eye(2))
    with pytest.raises(ValueError, match="`y` gives 3 outputs but the Gram has blocks of 2"):
        ki.fit(ki.gram(blocks), CODES)


# --- arrays in and out -------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_results_are_numpy_float64_and_jax_keeps_its_setting(loss):
    assert not jax.config.jax_enable_x64
    kernel = small_gram()
    model = ki.fit(ki.gram(kernel), CODES % 2, loss=loss, reg=0.1)
    arrays = (model.alpha, model.outputs, model.predict(kernel), model.history.risk)
    for array in arrays:
        assert type(array) is np.ndarray
        assert array.dtype == np.float64
    assert not jax.config.jax_enable_x64


@pytest.mark.parametrize("double", [False, True])
def test_jax_arrays_are_taken(double):
    with jax.enable_x64(double):
        kernel = jnp.asarray(small_gram())
        offset = jnp.ones((6, 3))
        cross = kernel[:2]
    host = np.asarray(kernel)
    model = ki.fit(ki.gram(kernel), jnp.asarray(CODES), reg=0.1, offset=offset)
    expected = ki.fit(ki.gram(host), CODES, reg=0.1, offset=np.ones((6, 3)))
    np.testing.assert_array_equal(model.outputs, expected.outputs)
    predicted = model.predict(cross, offset=offset[:2])
    np.testing.assert_array_equal(predicted, expected.outputs[:2])
    assert predicted.dtype == np.float64
