"""Other libraries as referees: scikit-learn, statsmodels and neural-tangents' own predictions."""

import warnings

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given, settings
from neural_tangents import predict
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression, RidgeCV
from statsmodels.regression.linear_model import OLS

from . import oracles
from .strategies import fit, problems

SMOOTH = ("cross_entropy", "logistic")
RNG = np.random.default_rng(0)
X, X_TEST = RNG.normal(size=(30, 5)), RNG.normal(size=(7, 5))
CODES = np.arange(30) % 3


def close(value, truth, tolerance=1e-9):
    """Agree relative to the size of the whole."""
    assert np.abs(value - truth).max() <= tolerance * max(np.abs(truth).max(), 1.0)


def ridge_without(problem, removed):
    """The ridge that a removal of so many points leaves."""
    return problem.reg * (problem.n - removed if problem.reg_scale == "mean" else 1.0)


# --- scikit-learn ------------------------------------------------------------------------------


@settings(max_examples=30)
@given(problems(losses=("squared",), offsets=(False,), least_reg=1e-3))
def test_kernel_ridge_regression(problem):
    """Coefficients and predictions, of all the points and without the forget set."""
    model = fit(problem)
    theirs = KernelRidge(alpha=ridge_without(problem, 0), kernel="precomputed")
    theirs.fit(problem.kernel, problem.targets)
    close(model.alpha, theirs.dual_coef_)
    close(model.predict(problem.cross), theirs.predict(problem.cross))

    kept = problem.kept
    theirs.set_params(alpha=ridge_without(problem, len(problem.forget)))
    theirs.fit(problem.kernel[np.ix_(kept, kept)], problem.targets[kept])
    smaller = ki.remove(model, problem.forget).model
    close(smaller.alpha[kept], theirs.dual_coef_)
    close(smaller.predict(problem.cross), theirs.predict(problem.cross[:, kept]))


def test_kernel_ridge_regression_with_weights():
    weights = RNG.uniform(0.1, 3.0, size=30)
    kernel, y = X @ X.T + np.eye(30), RNG.normal(size=(30, 2))
    model = ki.fit(ki.gram(kernel), y, loss="squared", reg=0.5, reg_scale="sum")
    theirs = KernelRidge(alpha=0.5, kernel="precomputed").fit(kernel, y, sample_weight=weights)
    weighted = ki.perturb(model, reweight=(range(30), weights)).model
    close(weighted.outputs, theirs.predict(kernel))


@settings(max_examples=30)
@given(problems(losses=("squared",), offsets=(False,), least_reg=1e-3))
def test_leaving_out_ridge_regression(problem):
    """RidgeCV's predictions of left-out points; its ridge is that of the sum without one point."""
    x, y = problem.features, problem.targets
    model = ki.fit(
        ki.gram(ki.linear(), x), y, loss="squared", reg=problem.reg, reg_scale=problem.reg_scale
    )
    theirs = RidgeCV(
        alphas=[ridge_without(problem, 1)],
        fit_intercept=False,
        store_cv_results=True,
        scoring="neg_mean_squared_error",  # with a score it stores predictions, not their errors
    )
    predictions = theirs.fit(x, y).cv_results_[..., 0].reshape(y.shape)
    ours = ki.leave_one_out(model)
    close(ours.outputs, predictions)
    close(ours.losses, oracles.squared_value(predictions, y))


def logistic_regression(ridge, x, y, weights=None):
    """scikit-learn's C is one over the ridge that goes with the sum of the losses."""
    theirs = LogisticRegression(
        C=1 / ridge, fit_intercept=False, solver="newton-cholesky", tol=1e-12, max_iter=1000
    )
    return theirs.fit(x, y, sample_weight=weights)


def decisions(theirs, x):
    outputs = theirs.decision_function(x)
    return outputs.reshape(len(x), -1)


def has_every_class(problem, kept):
    return len(np.unique(problem.labels[kept])) == len(np.unique(problem.labels))


@settings(max_examples=30)
@given(problems(losses=SMOOTH, outputs=(3,), offsets=(False,), least_reg=1e-3))
def test_logistic_regression(problem):
    """Outputs with all the points, and without the forget set once retrained."""
    x, labels = problem.features, problem.labels
    model = ki.fit(
        ki.gram(ki.linear(), x),
        labels,
        loss=problem.loss,
        reg=problem.reg,
        reg_scale=problem.reg_scale,
    )
    theirs = logistic_regression(ridge_without(problem, 0), x, labels)
    close(model.predict(problem.test_features), decisions(theirs, problem.test_features))
    kept = problem.kept
    if has_every_class(problem, kept):  # scikit-learn has no output for a class without points
        ridge = ridge_without(problem, len(problem.forget))
        theirs = logistic_regression(ridge, x[kept], labels[kept])
        smaller = ki.remove(model, problem.forget, method=ki.Retrain()).model
        close(smaller.predict(problem.test_features), decisions(theirs, problem.test_features))


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
@pytest.mark.parametrize("loss", SMOOTH)
def test_leaving_out_logistic_regression(loss, reg_scale):
    labels = CODES if loss == "cross_entropy" else CODES % 2
    model = ki.fit(ki.gram(ki.linear(), X), labels, loss=loss, reg=0.05, reg_scale=reg_scale)
    ridge = 0.05 * (29 if reg_scale == "mean" else 1)
    kept = ~np.eye(30, dtype=bool)
    truth = [
        decisions(logistic_regression(ridge, X[rows], labels[rows]), X[i : i + 1])[0]
        for i, rows in enumerate(kept)
    ]
    close(ki.leave_one_out(model, refine=4).outputs, np.array(truth))


@pytest.mark.parametrize("loss", SMOOTH)
def test_logistic_regression_with_weights(loss):
    labels = CODES if loss == "cross_entropy" else CODES % 2
    weights = RNG.uniform(0.1, 3.0, size=30)
    model = ki.fit(ki.gram(ki.linear(), X), labels, loss=loss, reg=0.5, reg_scale="sum")
    weighted = ki.perturb(model, reweight=(range(30), weights), method=ki.Retrain()).model
    theirs = logistic_regression(0.5, X, labels, weights)
    close(weighted.predict(X_TEST), decisions(theirs, X_TEST))


# --- statsmodels -------------------------------------------------------------------------------
#
# Ridge regression is ordinary least squares with a row sqrt(rho) e_k and a target of zero more for
# each parameter, so the deletion diagnostics of that regression, at the rows of the data, are those
# of the ridge.


def deletions(x, y, ridge):
    """Diagnostics of the augmented regression."""
    p = x.shape[1]
    rows = np.concatenate([x, ridge**0.5 * np.eye(p)])
    return OLS(np.concatenate([y, np.zeros(p)]), rows).fit().get_influence()


def regression(reg, reg_scale="sum", seed=0):
    """A regression, its model, and what statsmodels says at the ridge without one point."""
    rng = np.random.default_rng(seed)
    y = X @ rng.normal(size=5) + rng.normal(size=30)
    model = ki.fit(ki.gram(ki.linear(), X), y, loss="squared", reg=reg, reg_scale=reg_scale)
    ridge = reg * (29 if reg_scale == "mean" else 1)
    return y, model, deletions(X, y, ridge)


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_deletion_residuals(reg, reg_scale):
    y, model, theirs = regression(reg, reg_scale)
    close(y - ki.leave_one_out(model).outputs[:, 0], theirs.resid_press[:30])


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_leverage_is_what_leaving_out_takes_from_the_residual(reg):
    y, model, theirs = regression(reg)
    residuals = y - model.outputs[:, 0]
    left_out = y - ki.leave_one_out(model).outputs[:, 0]
    close(1 - residuals / left_out, theirs.hat_matrix_diag[:30])


def test_with_almost_no_ridge_the_leverage_is_that_of_least_squares():
    """A ridge of 1e-6 moves the answers by 1e-7; rounding in a kernel of rank 5 as much again."""
    y, model, _ = regression(1e-6)
    left_out = y - ki.leave_one_out(model).outputs[:, 0]
    theirs = OLS(y, X).fit().get_influence()
    close(left_out, theirs.resid_press, 1e-6)
    close(1 - (y - model.outputs[:, 0]) / left_out, theirs.hat_matrix_diag, 1e-6)


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_self_influence_is_made_of_residual_and_leverage(reg):
    """e^2 h to first order; e^2 h / (1 - h) by a Newton step."""
    _, model, theirs = regression(reg)
    e, h = theirs.resid[:30], theirs.hat_matrix_diag[:30]
    close(ki.self_influence(model), e**2 * h)
    close(ki.self_influence(model, method=ki.NewtonStep()), e * theirs.influence[:30])


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_cooks_distance_is_self_influence_rescaled(reg):
    _, model, theirs = regression(reg)
    newton, first = (ki.self_influence(model, method=m) for m in (ki.NewtonStep(), None))
    share_left = first / newton  # 1 - h
    cooks = newton / share_left / (5 * theirs.scale)
    close(cooks, theirs.cooks_distance[0][:30])


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_studentized_deletion_residuals_and_dffits(reg):
    """The variance without a point is twice the risk of the model without it, a degree of freedom.

    The augmented regression has 30 + 5 rows, one of them deleted, and 5 parameters.
    """
    y, model, theirs = regression(reg)
    left_out = y - ki.leave_one_out(model).outputs[:, 0]
    residuals = y - model.outputs[:, 0]
    risks = [ki.remove(model, [i]).model.history.risk[-1] for i in range(30)]
    deviations = np.sqrt(2 * np.array(risks) / 29)
    studentized = residuals / deviations / np.sqrt(residuals / left_out)
    close(studentized, theirs.resid_studentized_external[:30])
    leverage = 1 - residuals / left_out
    close(studentized * np.sqrt(leverage / (1 - leverage)), theirs.dffits[0][:30])


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_influence_on_outputs_moves_the_parameters_as_deletion_does(reg_scale):
    """Against the parameters that statsmodels refits without each point."""
    _, model, theirs = regression(0.1, reg_scale)
    scores = ki.influence(model, X_TEST, of="outputs", method=ki.NewtonStep()).values[:, 0]
    without = theirs.params_not_obsi[:30] @ X_TEST.T
    close(scores, (without - model.predict(X_TEST)[:, 0]).T)


# --- neural-tangents ---------------------------------------------------------------------------


@pytest.fixture
def in_double_precision():
    """neural-tangents computes in the precision of its arrays, and warns of JAX's habits."""
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def wide_network():
    kernel = ki.from_stax(ki.networks.fcnn(depth=2, b_std=0.1))
    gram = ki.gram(kernel, X)
    return gram, gram.cross(X_TEST).matrix


@pytest.mark.usefixtures("in_double_precision")
@pytest.mark.parametrize("solver", [ki.ClosedForm(), ki.Newton()])
def test_inference_with_the_kernel_of_a_wide_network(solver):
    gram, cross = wide_network()
    y = RNG.normal(size=(30, 2))
    model = ki.fit(gram, y, loss="squared", reg=0.5, reg_scale="sum", solver=solver)
    options = {"diag_reg": 0.5, "diag_reg_absolute_scale": True}
    posterior = predict.gp_inference(gram.matrix, y, **options)("ntk", cross)
    trained = predict.gradient_descent_mse(gram.matrix, y, **options)
    _, at_the_end = trained(None, 0 * y, np.zeros((7, 2)), cross)
    ours = model.predict(X_TEST)
    close(ours, posterior)
    close(ours, at_the_end)


def small_steps(time, steps, fitted):
    """Outputs of gradient descent as its step vanishes, by Richardson extrapolation.

    The error of `steps` steps is a power series in one over their number.
    """
    table = [fitted(ki.KernelGradientDescent(k, step_size=time / k)) for k in steps]
    for order in range(1, len(steps)):
        ratio = [steps[i + order] / steps[i] for i in range(len(table) - 1)]
        table = [
            (r * fine - coarse) / (r - 1)
            for r, coarse, fine in zip(ratio, table, table[1:], strict=False)
        ]
    return table[0]


@pytest.mark.usefixtures("in_double_precision", "unfinished")
@pytest.mark.parametrize("time", [0.3, 3.0, 30.0])
def test_gradient_flow_on_the_squared_loss(time):
    """Their risk is a mean over points and outputs too, so that their clock runs d times slower."""
    gram, cross = wide_network()
    y = RNG.normal(size=(30, 2))

    def fitted(solver):
        model = ki.fit(gram, y, loss="squared", reg=0.5, reg_scale="mean", solver=solver)
        return model.predict(X_TEST)

    flow = predict.gradient_descent_mse(
        gram.matrix, y, diag_reg=0.5 * 30, diag_reg_absolute_scale=True
    )
    theirs = flow(2 * time, None, np.zeros((7, 2)), cross)
    steps = [int(20 * max(time, 1.0)) * 2**k for k in range(5)]
    close(small_steps(time, steps, fitted), theirs)


@pytest.fixture
def unfinished():
    """A few steps of gradient descent warn that they have not converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ki.ConvergenceWarning)
        yield


@pytest.mark.usefixtures("in_double_precision", "unfinished")
def test_gradient_flow_on_the_cross_entropy():
    """To the tolerance of their solver of differential equations, 1.5e-8 a step."""
    gram, cross = wide_network()
    targets = np.eye(3)[CODES]

    def risk(outputs, y):
        return -(y * jax.nn.log_softmax(outputs)).sum(axis=1).mean()

    def fitted(solver):
        return ki.fit(gram, targets, reg=1e-14, solver=solver).predict(X_TEST)

    flow = predict.gradient_descent(risk, gram.matrix, targets)
    _, theirs = flow(3.0, 0 * targets, np.zeros((7, 3)), cross)
    close(small_steps(3.0, [60 * 2**k for k in range(4)], fitted), theirs, 1e-6)
