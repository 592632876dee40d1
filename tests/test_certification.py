"""Error bars, bounds and noise of removals, against parameter space and against an attack."""

import functools

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf._certification import _allowed
from kernelinf._losses import named
from scipy.special import expit
from scipy.stats import norm

from . import oracles
from .strategies import fit, problems

METHODS = (ki.NewtonStep(), ki.FirstOrder(), ki.NewtonStep(residual_correction=False))


# --- error bars --------------------------------------------------------------------------------


@given(problems(blocks=("none", "kron", "full")), st.sampled_from(METHODS), st.booleans())
def test_error_bars_hold_against_retraining(problem, method, early):
    solver = ki.KernelGradientDescent(5) if early else None
    model = fit(problem, solver=solver)
    estimate = ki.remove(model, problem.forget, method=method)
    truth = ki.remove(model, problem.forget, method=ki.Retrain())
    error = np.linalg.norm(
        estimate.model.predict(problem.cross, offset=problem.test_offset)
        - truth.model.predict(problem.cross, offset=problem.test_offset),
        axis=1,
    )
    # retraining has a bar of its own: both hold the same optimum
    bars = sum(
        update.output_bound(problem.cross, diagonal=problem.diagonal)
        for update in (estimate, truth)
    )
    assert (error <= bars).all()


@given(problems(losses=("cross_entropy", "logistic"), blocks=("none", "full")))
def test_the_residual_is_the_gradient_in_parameter_space(problem):
    removal = ki.remove(fit(problem), problem.forget, method=ki.FirstOrder())
    primal, weights = problem.primal, problem.primal.removal_weights(problem.forget)
    gradient = primal.gradient_norm(primal.theta(removal.model.alpha), weights)
    assert abs(removal.gradient_norm - gradient) <= 1e-10 * max(1.0, gradient)


def test_a_kernel_knows_its_own_diagonal():
    x = np.random.default_rng(0).normal(size=(12, 3))
    model = ki.fit(ki.gram(ki.linear(), x[:8]), np.arange(8) % 2)
    removal = ki.remove(model, [0])
    given_diagonal = ki.remove(ki.fit(ki.gram(x[:8] @ x[:8].T), np.arange(8) % 2), [0])
    bars = given_diagonal.output_bound(np.zeros((4, 8)), diagonal=np.sum(x[8:] ** 2, axis=1))
    np.testing.assert_allclose(removal.output_bound(x[8:]), bars, rtol=1e-6)
    with pytest.raises(TypeError, match="`x_test` is a Cross; pass the points"):
        removal.output_bound(model.gram.cross(x[8:]))
    with pytest.raises(ValueError, match="`diagonal` was given, but the kernel is known"):
        removal.output_bound(x[8:], diagonal=np.ones(4))
    with pytest.raises(ValueError, match="`diagonal` is missing; this Gram is precomputed"):
        given_diagonal.output_bound(np.zeros((4, 8)))
    with pytest.raises(
        ValueError, match=r"`diagonal` has shape \(3,\); pass k\(x, x\) of `x_test`, \(4,\)"
    ):
        given_diagonal.output_bound(np.zeros((4, 8)), diagonal=np.ones(3))
    with pytest.raises(ValueError, match="`diagonal` has a negative or infinite value"):
        given_diagonal.output_bound(np.zeros((4, 8)), diagonal=-np.ones(4))


def test_full_blocks_take_the_trace():
    weights = np.random.default_rng(0).normal(size=(3, 2))
    kernel = ki.empirical_ntk(lambda w, x: x @ w, weights)
    x = np.random.default_rng(1).normal(size=(10, 3))
    model = ki.fit(ki.gram(kernel, x[:8]), np.arange(8) % 2)
    removal = ki.remove(model, [0])
    size = removal.gradient_norm + removal.model.problem.rounding_norm(removal.model.alpha)
    expected = np.sqrt(2 * np.sum(x[8:] ** 2, axis=1)) * size / 1e-2
    np.testing.assert_allclose(removal.output_bound(x[8:]), expected, rtol=1e-9)


# --- bounds of Guo et al. ----------------------------------------------------------------------


@given(problems(blocks=("none", "full"), least_reg=1e-2))
def test_the_bounds_of_guo_are_above_the_residual(problem):
    model = fit(problem)
    bounds = ki.gradient_bounds(ki.remove(model, problem.forget))
    rounding = model.problem.rounding_norm(model.alpha)
    assert bounds.exact <= bounds.data_dependent + 2 * rounding
    assert bounds.data_dependent <= bounds.worst_case * (1 + 1e-6) + rounding
    assert problem.loss != "squared" or bounds.worst_case == 0.0


def test_the_bounds_are_those_of_the_paper_for_rows_of_unit_length():
    """Guo et al. 2020: 4 gamma m^2 C^2 / (lambda^2 (n - m)), gamma ||X|| ||d|| ||X d||."""
    rng = np.random.default_rng(0)
    features, n, m, reg = rng.normal(size=(30, 4)), 30, 3, 0.1
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    model = ki.fit(
        ki.gram(ki.linear(), features), rng.integers(2, size=n), loss="logistic", reg=reg
    )
    removal = ki.remove(model, np.arange(m))
    bounds, gamma = ki.gradient_bounds(removal), 1 / (6 * 3**0.5)
    worst = 4 * gamma * m**2 / (reg**2 * (n - m))
    assert bounds.worst_case * (n - m) == pytest.approx(worst, rel=1e-6)
    step = features.T @ removal.delta_alpha
    moved = np.linalg.norm(features[m:] @ step)
    stretch = np.linalg.norm(features, 2)
    expected = gamma * stretch * np.linalg.norm(step) * moved
    assert bounds.data_dependent * (n - m) == pytest.approx(expected, rel=2e-3)
    assert bounds.exact * (n - m) < 0.1 * expected < 0.01 * worst


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
def test_no_third_derivative_is_above_the_constant(loss):
    rng = np.random.default_rng(0)
    d, highest = (1, 0.0) if loss == "logistic" else (3, 0.0)
    for _ in range(2000):
        f, u = rng.normal(size=(1, d)) * rng.choice([0.3, 1, 3]), rng.normal(size=(1, d))
        u *= 1e-5 / np.linalg.norm(u)
        first, second = (oracles.HESSIAN[loss](f + s * u, None)[0] for s in (1, -1))
        highest = max(highest, np.linalg.norm(first - second, 2) / 2e-5)
    lipschitz = named(loss).lipschitz
    assert 0.25 * lipschitz <= highest <= lipschitz * (1 + 1e-6)


def test_bounds_are_of_newton_steps_alone():
    model = ki.fit(ki.gram(np.eye(4)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match=r"`removal` is by FirstOrder\(\); the bounds are of"):
        ki.gradient_bounds(ki.remove(model, [0], method=ki.FirstOrder()))
    with pytest.raises(ValueError, match="`removal` changes labels, weights or points"):
        ki.gradient_bounds(ki.perturb(model, relabel=([1], [0])))
    with pytest.raises(TypeError, match=r"`removal` is a Model; pass the result of ki\.remove"):
        ki.gradient_bounds(model)


def test_bounds_of_a_removal_that_was_saved(tmp_path):
    model = ki.fit(ki.gram(np.eye(4)), [0, 1, 0, 1])
    removal = ki.remove(model, [0])
    removal.save(tmp_path / "removal.npz")
    loaded = ki.load(tmp_path / "removal.npz", model.gram)
    assert ki.gradient_bounds(loaded) == ki.gradient_bounds(removal)


# --- calibration of the noise ------------------------------------------------------------------


def shift(epsilon, delta, calibration="analytic"):
    """The residual that noise of one covers."""
    certificate = ki.certify(
        linear_model(0), None, epsilon=epsilon, delta=delta, noise=1.0, key=0,
        calibration=calibration,
    )  # fmt: skip
    return certificate.limit


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 20.0, 500.0])
@pytest.mark.parametrize("delta", [1e-10, 1e-5, 0.1])
def test_the_analytic_calibration_is_the_trade_off_of_two_gaussians(epsilon, delta):
    """The best test of N(r, 1) against N(0, 1) at the ratio e^epsilon: Phi at both, exactly."""
    r = shift(epsilon, delta)
    threshold = epsilon / r + r / 2  # where the ratio of the densities is e^epsilon
    gain = norm.sf(threshold - r) - np.exp(epsilon) * norm.sf(threshold)
    assert gain == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-300, 1e6, 1e300])
@pytest.mark.parametrize("delta", [1e-300, 0.5, 1 - 1e-16])
def test_extreme_guarantees_have_a_limit(epsilon, delta):
    """For a huge epsilon it is sqrt(2 epsilon), whatever delta is."""
    with np.errstate(all="ignore"):  # as in what is public
        r = _allowed(epsilon, delta, "analytic")
    assert 0 < r < np.inf
    if epsilon == 1e300:
        assert r == pytest.approx((2 * epsilon) ** 0.5)


def test_the_classic_calibration_is_that_of_guo_and_below_the_analytic_one():
    c = (2 * np.log(1.5 / 1e-4)) ** 0.5
    assert shift(0.5, 1e-4, "classic") == pytest.approx(0.5 / c)
    assert shift(0.5, 1e-4, "classic") < shift(0.5, 1e-4)


# --- the mechanism against parameter space ------------------------------------------------------


def linear_model(seed, *, n=12, p=3, loss="logistic", reg=0.05, reg_scale="mean", offset=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p))
    y = rng.integers(2, size=n) if loss == "logistic" else rng.normal(size=(n, 2))
    y[:2] = (0, 1) if loss == "logistic" else y[:2]
    gram = ki.gram(ki.linear(), x)
    return ki.fit(gram, y, loss=loss, reg=reg, reg_scale=reg_scale, offset=offset)


def primal_of(model, offset):
    problem = model.problem
    jacobian = oracles.jacobian_of_features(model.gram.x, problem.targets.shape[1])
    return oracles.Primal(
        jacobian, problem.targets, problem.loss.name, problem.reg, problem.reg_scale, offset
    )


def perturbed_optimum(primal, b, weights):
    """Minimise the summed risk plus b . theta by Newton steps."""
    theta = np.zeros(len(b))
    for _ in range(60):
        theta = theta - np.linalg.solve(
            primal.hessian(theta, weights), primal.gradient(theta, weights) + b
        )
    return theta


def initial_outputs(outputs, x):
    return 0.3 * x[:, :outputs]


@pytest.mark.parametrize("loss", ["logistic", "squared"])
@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
@pytest.mark.parametrize("with_offset", [False, True])
def test_the_release_is_that_of_the_perturbed_parameters(loss, reg_scale, with_offset):
    """The noise is read off the field, and the mechanism run in parameter space with it."""
    outputs = 1 if loss == "logistic" else 2
    offset = functools.partial(initial_outputs, outputs) if with_offset else None
    for seed in range(3):
        model = linear_model(seed, loss=loss, reg_scale=reg_scale, offset=offset)
        x = model.gram.x
        certificate = ki.certify(model, [1, 4], key=seed, noise=2.0)
        field = certificate._field.draws[0]
        p, d = x.shape[1], model.problem.targets.shape[1]
        b = 2.0 * field(np.eye(p)).reshape(-1)  # (p, d): jacobian_of_features orders (p, d)
        primal = primal_of(model, None if offset is None else offset(x))
        theta = perturbed_optimum(primal, b, primal.ones())
        query = np.random.default_rng(seed).normal(size=(5, p))
        jacobian = oracles.jacobian_of_features(query, d)
        initial = 0.0 if offset is None else offset(query)
        for forget in ([1, 4], [1, 4, 7]):
            weights = primal.removal_weights(forget)
            theta = theta - np.linalg.solve(
                primal.hessian(theta, weights), primal.gradient(theta, weights) + b
            )
            np.testing.assert_allclose(
                certificate.predict(query), initial + jacobian @ theta, rtol=1e-8, atol=1e-8
            )
            left = np.linalg.norm(primal.gradient(theta, weights) + b)
            assert certificate.model.gradient_norm / certificate.model.problem.scale == (
                pytest.approx(left, rel=1e-6, abs=1e-9)
            )
            certificate = ki.certify(certificate, [7]) if forget == [1, 4] else certificate


def test_releases_have_the_distribution_of_the_perturbed_parameters():
    """With the squared loss both are Gaussian, here at points asked for in turn."""
    model, draws, sigma = linear_model(0, loss="squared"), 1500, 3.0
    x, y = model.gram.x, model.problem.targets
    query = np.random.default_rng(5).normal(size=(4, 3))
    samples = np.empty((draws, 4, 2))
    for key in range(draws):
        certificate = ki.certify(model, [0, 3], key=key, noise=sigma)
        samples[key, :2] = certificate.predict(query[:2])
        samples[key, 2:] = certificate.predict(query[2:])
    kept = np.setdiff1d(np.arange(12), [0, 3])
    hessian = x[kept].T @ x[kept] + 0.05 * 10 * np.eye(3)
    response = query @ np.linalg.inv(hessian)
    mean, covariance = response @ x[kept].T @ y[kept], sigma**2 * response @ response.T
    error = np.sqrt(np.diag(covariance) / draws)[:, None]
    assert (np.abs(samples.mean(axis=0) - mean) <= 5 * error).all()
    for c in range(2):
        centred = samples[:, :, c] - mean[:, c]
        spread = np.sqrt((np.outer(*2 * (np.diag(covariance),)) + covariance**2) / draws)
        assert (np.abs(centred.T @ centred / draws - covariance) <= 5 * spread).all()


# --- an attack ---------------------------------------------------------------------------------


def newton(features, labels, reg, b, theta):
    """One Newton step for many draws of b at once: theta and b are (s, p)."""
    margins = labels * (theta @ features.T)
    pull = -(labels * expit(-margins)) @ features + reg * len(features) * theta + b
    curvature = expit(margins) * expit(-margins)
    outer = (features[:, :, None] * features[:, None]).reshape(len(features), -1)
    hessian = (curvature @ outer).reshape(*theta.shape, theta.shape[1])
    hessian += reg * len(features) * np.eye(features.shape[1])
    return theta - np.linalg.solve(hessian, pull[..., None])[..., 0], np.linalg.norm(pull, axis=1)


def released(features, labels, *, reg, sigma, limit, seed, draws):
    """Scalar releases after unlearning point 0, and after retraining without it, (draws,) each.

    The retained residual is measured, and where it is above the limit, the mechanism retrains.
    """
    rng = np.random.default_rng(seed)
    b = sigma * rng.normal(size=(draws, features.shape[1]))
    theta = 0 * b
    for _ in range(8):
        theta, _ = newton(features, labels, reg, b, theta)
    unlearned, _ = newton(features[1:], labels[1:], reg, b, theta)
    exact = unlearned
    for _ in range(8):
        exact, _ = newton(features[1:], labels[1:], reg, b, exact)
    _, left = newton(features[1:], labels[1:], reg, b, unlearned)
    return np.where(left[:, None] <= limit, unlearned, exact), left


def advantage(one, other, epsilon):
    """P(S) - e^epsilon Q(S) of the set S that half of the draws say is best, and its error."""
    halves = len(one) // 2
    edges = np.quantile(
        np.concatenate([one[:halves], other[:halves]]), np.linspace(0, 1, 101)[1:-1]
    )
    p, q = (
        np.bincount(np.searchsorted(edges, v), minlength=100)
        for v in (one[:halves], other[:halves])
    )
    chosen = p > np.exp(epsilon) * q
    p, q = (chosen[np.searchsorted(edges, v[halves:])].mean() for v in (one, other))
    error = ((p * (1 - p) + np.exp(2 * epsilon) * q * (1 - q)) / halves) ** 0.5
    return p - np.exp(epsilon) * q, error


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0])
def test_no_attack_on_an_output_beats_the_guarantee(epsilon):
    """Neyman and Pearson's test of unlearned against retrained outputs, from 1e5 draws of each."""
    rng, draws, delta = np.random.default_rng(3), 100_000, 0.01
    features = rng.normal(size=(12, 2))
    features[0] *= 6  # a point that matters
    labels = np.where(rng.normal(size=12) > 0, 1.0, -1.0)
    setting = {"features": features, "labels": labels, "reg": 0.02}
    _, left = released(**setting, sigma=0.5, limit=np.inf, seed=0, draws=2000)
    limit = np.quantile(left, 0.9)  # a budget that is nearly spent
    sigma = limit / shift(epsilon, delta)
    query = rng.normal(size=2)
    unlearned, _ = released(**setting, sigma=sigma, limit=limit, seed=1, draws=draws)
    retrained, _ = released(**setting, sigma=sigma, limit=-1.0, seed=2, draws=draws)
    for one, other in ((unlearned, retrained), (retrained, unlearned)):
        gain, error = advantage(one @ query, other @ query, epsilon)
        assert gain <= delta + 4 * error
    weak = sigma / 100  # what the test must be able to see
    unlearned, _ = released(**setting, sigma=weak, limit=np.inf, seed=1, draws=draws)
    retrained, _ = released(**setting, sigma=weak, limit=-1.0, seed=2, draws=draws)
    assert advantage(unlearned @ query, retrained @ query, epsilon)[0] > 10 * delta


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_an_output_that_shows_the_whole_shift_gains_delta(epsilon):
    """With one parameter the residual nearly spends the limit in every draw: the bound is tight."""
    draws, delta = 100_000, 0.05
    features = np.array([[3.0], [0.3], [0.4], [0.1], [0.2], [0.5]])
    setting = {"features": features, "labels": np.array([1, 1, 1, 1, -1, -1.0]), "reg": 0.2}
    sigma = 1e-3
    for _ in range(5):  # the residual hardly depends on the noise
        _, left = released(**setting, sigma=sigma, limit=np.inf, seed=0, draws=2000)
        sigma = left.max() * 1.001 / shift(epsilon, delta)
    limit = sigma * shift(epsilon, delta)
    unlearned, left = released(**setting, sigma=sigma, limit=limit, seed=1, draws=draws)
    assert 0.98 * limit < left.min()
    assert (left <= limit).mean() > 0.99
    retrained, _ = released(**setting, sigma=sigma, limit=-1.0, seed=2, draws=draws)
    for one, other in ((unlearned, retrained), (retrained, unlearned)):
        gain, error = advantage(one[:, 0], other[:, 0], epsilon)
        assert 0.6 * delta <= gain <= delta + 4 * error


# --- the budget --------------------------------------------------------------------------------


def test_the_budget_refuses_exactly_when_the_sum_passes_its_limit():
    model = linear_model(1, n=120, p=5, reg=0.02)
    open_end = ki.certify(model, None, key=0, noise=1.0, epsilon=100.0)
    spent, total = [open_end.spent], open_end
    for i in range(60):
        total = ki.certify(total, [i])
        spent.append(total.spent)
    lefts = np.diff(spent)
    assert (lefts > 0).all()
    assert total.removals == 60
    assert total.remaining == pytest.approx(total.limit - total.spent)
    r = 0.5 * (spent[30] + spent[31])  # a limit between two sums, of the same noise
    delta = norm.sf(1 - r / 2) - np.exp(r) * norm.sf(1 + r / 2)
    certificate = ki.certify(model, None, key=0, noise=1.0, epsilon=r, delta=delta)
    assert certificate.limit == pytest.approx(r)
    for i in range(30):
        certificate = ki.certify(certificate, [i])
    with pytest.raises(ki.BudgetSpentError, match="retrain without them") as refused:
        ki.certify(certificate, [30])
    assert refused.value.certificate is certificate
    fresh = certificate.retrain([30], key=1)
    assert fresh.spent < 1e-6
    assert fresh.model.problem.points == 120 - 31
    assert ki.certify(fresh, [31]).removals == 31


def test_a_retrained_certificate_is_a_model_of_the_remaining_points():
    model = linear_model(2)
    certificate = ki.certify(model, [0], key=0, noise=1.0).retrain([3], key=5)
    primal = primal_of(model, None)
    b = certificate.noise * certificate._field.draws[0](np.eye(3)).reshape(-1)
    theta = perturbed_optimum(primal, b, primal.removal_weights([0, 3]))
    query = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(certificate.predict(query), query @ theta[:, None], atol=1e-8)


def test_the_squared_loss_needs_next_to_no_noise():
    model = linear_model(0, loss="squared")
    certificate = ki.certify(model, [0, 1], key=0)
    truth = ki.remove(model, [0, 1], method=ki.Retrain()).model
    query = np.random.default_rng(0).normal(size=(4, 3))
    np.testing.assert_allclose(certificate.predict(query), truth.predict(query), atol=1e-7)
    assert certificate.output_noise < 1e-8


def test_the_default_noise_moves_outputs_by_a_tenth():
    certificate = ki.certify(linear_model(0, n=40, reg=0.5), [0], key=0)
    assert certificate.output_noise == pytest.approx(0.1, rel=0.05)
    assert "1 removals, 39 points left" in repr(certificate)


def test_points_without_features_need_no_noise():
    for loss in ("cross_entropy", "squared"):
        model = ki.fit(ki.gram(ki.linear(), np.zeros((4, 2))), [0, 1, 0, 1], loss=loss)
        certificate = ki.certify(model, [0], key=0)
        assert certificate.output_noise == certificate.spent == 0


def test_a_released_point_keeps_its_output():
    certificate = ki.certify(linear_model(0), [0], key=0, noise=1.0)
    query = np.random.default_rng(0).normal(size=(4, 3))
    first = certificate.predict(query)
    np.testing.assert_allclose(certificate.predict(query[::-1])[::-1], first, rtol=1e-12)


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0}, "`epsilon` is 0; pass a positive number"),
        ({"epsilon": float("inf")}, "`epsilon` is inf; pass a positive number"),
        ({"delta": 0}, "`delta` is 0; pass a number between 0 and 1"),
        ({"delta": 1.0}, "`delta` is 1.0; pass a number between 0 and 1"),
        ({"noise": -1}, "`noise` is -1; pass a positive number"),
        ({"key": None}, "`key` is missing: the model was trained without noise"),
        ({"key": 1.5}, "`key` is 1.5; pass a whole number"),
        ({"calibration": "best"}, "`calibration` is 'best'; pass 'analytic' or 'classic'"),
        (
            {"calibration": "classic", "epsilon": 2},
            "`epsilon` is 2, and the classic calibration holds up to 1",
        ),
        ({"forget": np.arange(12)}, "`forget` is the whole training set"),
        ({"forget": [99]}, "`forget` holds 99; pass indices from 0 to 11"),
        ({"noise": 1e-30}, "`noise` is 1e-30 and covers .* but training alone leaves"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    options = {"forget": [0], "key": 0} | options
    with pytest.raises(ValueError, match=message):
        ki.certify(linear_model(0), options.pop("forget"), **options)


def test_models_that_noise_cannot_be_drawn_for_are_refused():
    precomputed = ki.fit(ki.gram(np.eye(4)), [0, 1, 0, 1])
    with pytest.raises(ValueError, match="`model` has a precomputed Gram"):
        ki.certify(precomputed, [0], key=0)
    x = np.random.default_rng(0).normal(size=(6, 2))
    nowhere = ki.fit(ki.gram(ki.linear(), x, store="none"), [0, 1, 0, 1, 0, 1])
    with pytest.raises(ValueError, match="not one array in memory"):
        ki.certify(nowhere, [0], key=0)
    shifted = ki.fit(ki.gram(ki.linear(), x), [0, 1] * 3, offset=np.ones((6, 2)))
    with pytest.raises(ValueError, match="`offset` a function of points"):
        ki.certify(shifted, [0], key=0)
    with pytest.raises(TypeError, match=r"`model` is a Update; pass the result of ki\.fit, or of"):
        ki.certify(ki.remove(precomputed, [0]), [1], key=0)


def test_a_certificate_keeps_its_settings():
    certificate = ki.certify(linear_model(0), [0], key=0, noise=1.0)
    with pytest.raises(ValueError, match=r"`epsilon` is 3.0, but a certificate keeps its own, 1.0"):
        ki.certify(certificate, [1], epsilon=3.0)
    with pytest.raises(ValueError, match="`key` is another than the certificate's"):
        ki.certify(certificate, [1], key=4)
    with pytest.raises(ValueError, match="`forget` is None; pass the points to remove"):
        ki.certify(certificate, None)
    with pytest.raises(ValueError, match="`forget` holds points that were removed before"):
        ki.certify(certificate, [0])
    with pytest.raises(ValueError, match="`calibration` is 'classic', but a certificate keeps its"):
        ki.certify(certificate, [1], calibration="classic")
    with pytest.raises(ValueError, match="`key` is 0, that of noise drawn before; pass a new one"):
        certificate.retrain([1], key=0)
    with pytest.raises(ValueError, match="`key` is 0, that of noise drawn before; pass a new one"):
        certificate.retrain([1], key=5).retrain([2], key=0)  # its releases would give away [1, 2]
    assert ki.certify(certificate, [1], epsilon=1.0, key=0, calibration="analytic").removals == 2
    with pytest.raises(TypeError, match="`x_test` is a Cross; pass the points"):
        certificate.predict(certificate.model.gram.cross(np.ones((2, 3))))
