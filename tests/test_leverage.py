"""The leverage audit against dense formulas in parameter space, and against the methods run."""

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from kernelinf import _newton, _response
from kernelinf import unlearning as ul
from kernelinf._leverage import _gaps, _spectral

from . import oracles
from .strategies import fit, problems
from .test_unlearning import FORGET, LAYOUTS, every_method, small


def close(value, truth, tolerance=1e-8):
    assert np.linalg.norm(value - truth) <= tolerance * max(np.linalg.norm(truth), 1.0)


def audit(problem, model, **options):
    return ki.leverage(model, problem.forget, problem.cross, **options)


def blocks_of(problem, model):
    """J_F, J_R, J_t as rows, the root of each forgotten Hessian, and the inverse of the Hessian."""
    J, outputs = problem.jacobian, model.outputs
    q, forget = J.shape[2], np.sort(problem.forget)
    hessians = oracles.HESSIAN[problem.loss](outputs, problem.targets)
    roots = []
    for hessian in hessians[forget]:
        values, vectors = np.linalg.eigh(hessian)
        roots.append(vectors * np.sqrt(values.clip(0.0)) @ vectors.T)
    retained = problem.primal.removal_weights(problem.forget)
    theta = problem.primal.theta(model.alpha)
    inverse = np.linalg.inv(problem.primal.hessian(theta, retained))
    root = oracles.block_diagonal(np.array(roots))
    rows = [j.reshape(-1, q) for j in (J[forget], J[problem.kept], problem.test_jacobian)]
    return rows, root, inverse


def eigenvalues(matrix, like):
    """Eigenvalues, as many times as there are outputs that share them, descending."""
    values = np.linalg.eigvalsh(matrix)
    return np.sort(np.repeat(values, like // len(values)))[::-1]


# --- the diagnostics ---------------------------------------------------------------------------


@given(problems(blocks=LAYOUTS, least_reg=1e-3))
def test_leverages_are_those_of_the_parameters(problem):
    model = fit(problem)
    lev = audit(problem, model, refine=0)
    (own, _, _), root, inverse = blocks_of(problem, model)
    truth = root @ own @ inverse @ own.T @ root
    size = max(1.0, np.linalg.norm(truth))
    values = np.sort(np.linalg.eigvalsh(truth))[::-1]
    H, h = lev.self_leverage, lev.full_leverage
    assert np.allclose(eigenvalues(H, len(truth)), values, rtol=0, atol=1e-8 * size)
    full = np.linalg.solve(np.eye(len(truth)) + truth, truth)
    assert lev.trace == pytest.approx(np.trace(full), abs=1e-8 * size)
    m = len(problem.forget)
    shares = np.diagonal(full).reshape(m, -1).sum(axis=1)
    assert np.allclose(lev.per_point, shares, rtol=0, atol=1e-8 * size)
    assert lev.largest == pytest.approx(values[0] / (1 + values[0]), abs=1e-8)
    assert np.allclose(h, np.linalg.solve(np.eye(len(H)) + H, H), rtol=0, atol=1e-9)
    if values[0] > 1e-6:
        assert lev.gamma_max == pytest.approx(1 / values[0], rel=1e-6)


@given(problems(losses=("squared",), blocks=LAYOUTS, least_reg=1e-3))
def test_matrices_of_the_squared_loss(problem):
    """H, X and X at test points as they are, and h as a block of K (K + mu)^-1."""
    model = fit(problem)
    lev = audit(problem, model)
    (own, kept, tests), _, inverse = blocks_of(problem, model)
    outputs = np.eye(own.shape[0] // lev.self_leverage.shape[0])
    for matrix, rows in (
        (lev.self_leverage, own),
        (lev.cross_leverage, kept),
        (lev.test_leverage, tests),
    ):
        close(np.kron(matrix, outputs), rows @ inverse @ own.T)
    K = problem.dual.matrix
    mu = problem.primal.ridge(problem.primal.removal_weights(problem.forget))
    d, forget = problem.d, np.sort(problem.forget)
    rows = (d * forget[:, None] + np.arange(d)).ravel()
    full = np.linalg.solve(K + mu * np.eye(len(K)), K)[np.ix_(rows, rows)]
    close(np.kron(lev.full_leverage, outputs), full)


@given(problems(losses=("squared",), blocks=LAYOUTS, least_reg=1e-3))
def test_errors_shrink_by_the_leverage(problem):
    """e = (I + H)^-1 e_r where the ridge stays, and e is what the model misses."""
    assume(problem.reg_scale == "sum")
    model = fit(problem)
    lev = audit(problem, model)
    forget = np.sort(problem.forget)
    truth = ki.remove(model, forget, method=ki.Retrain()).model
    close(lev.errors, (problem.targets - model.outputs)[forget])
    close(lev.retrained_errors, (problem.targets - truth.outputs)[forget])
    H = lev.self_leverage
    shrunk = np.linalg.solve(np.eye(len(H)) + H, lev.retrained_errors.reshape(len(H), -1))
    close(shrunk.reshape(lev.errors.shape), lev.errors)
    X = lev.cross_leverage
    moved = [np.linalg.norm(a @ lev.errors.reshape(len(H), -1)) for a in (X, H)]
    if moved[1] > 1e-6:
        assert lev.entanglement == pytest.approx(moved[0] / moved[1], rel=1e-6)


# --- the gaps ----------------------------------------------------------------------------------


def measured(problem, model, truth, method):
    """Outputs of the method minus those of retraining, on forgotten, retained and test points."""
    update = ki.remove(model, problem.forget, method=method)
    forget = np.sort(problem.forget)
    tests = [m.predict(problem.cross, offset=problem.test_offset) for m in (update.model, truth)]
    outputs = update.model.outputs - truth.outputs
    return outputs[forget], outputs[problem.kept], tests[0] - tests[1]


def methods_for(lev):
    return [
        *every_method("squared"),
        ul.GradientAscent(200, 0.01),
        ul.GradientDifference(min(0.8 * lev.gamma_max, 2.0)),
        ul.GradientDifference(3.0, steps=5),
        ul.FineTuning(200),
        ul.RandomLabels(1, weight=3.0),
        ki.FirstOrder(),
        ki.SecondOrder(),
        ki.NewtonStep(),
        ki.Retrain(),
    ]


@given(problems(losses=("squared",), blocks=LAYOUTS, least_reg=1e-3))
def test_gaps_of_the_squared_loss_are_those_of_the_methods(problem):
    model = fit(problem)
    lev = audit(problem, model)
    truth = ki.remove(model, problem.forget, method=ki.Retrain()).model
    for method in methods_for(lev):
        if getattr(method, "steps", 1) is None and method.weight >= lev.gamma_max:
            continue
        gap = lev.gap(method)
        parts = measured(problem, model, truth, method)
        size = max(1.0, *map(np.linalg.norm, parts))
        for predicted, run in zip((gap.forget, gap.retained, gap.test), parts, strict=True):
            assert np.abs(predicted - run).max() <= 1e-8 * size, method


@given(problems(losses=("squared",), least_reg=1e-2), st.sampled_from([3, 12]))
def test_gaps_of_a_model_that_was_stopped_early(problem, steps):
    """Nothing is assumed of the residual: ranges of a half-trained model are exact, too."""
    model = fit(problem, ki.KernelGradientDescent(steps))
    lev = audit(problem, model)
    truth = ki.remove(model, problem.forget, method=ki.Retrain()).model
    for method in (ul.NoUnlearning(), ul.FineTuning(9), ul.RandomLabels(0), ki.FirstOrder()):
        gap = lev.gap(method)
        parts = measured(problem, model, truth, method)
        for predicted, run in zip((gap.forget, gap.retained, gap.test), parts, strict=True):
            close(predicted, run)


@pytest.mark.parametrize("reg_scale", ["mean", "sum"])
def test_gaps_are_the_closed_forms(reg_scale):
    """The table of the documentation, with dense matrices."""
    rng = np.random.default_rng(2)
    features, y = rng.normal(size=(14, 20)) / 4, rng.normal(size=(14, 2))
    K = features @ features.T
    model = ki.fit(ki.gram(K), y, loss="squared", reg=0.3, reg_scale=reg_scale)
    lev = ki.leverage(model, FORGET)
    F, R = np.array(FORGET), np.delete(np.arange(14), FORGET)
    mu = 0.3 * (len(R) if reg_scale == "mean" else 1.0)
    X = np.linalg.solve(K[np.ix_(R, R)] + mu * np.eye(len(R)), K[np.ix_(R, F)])
    H = (K[np.ix_(F, F)] - K[np.ix_(F, R)] @ X) / mu
    unit, retrained = np.eye(3), K[:, R] @ np.linalg.solve(K[np.ix_(R, R)] + mu * np.eye(11), y[R])
    error = y[F] - retrained[F]
    for weight, targets, method in (
        (-0.2, y[F], ul.GradientDifference(0.2)),
        (0.7, np.full((3, 2), 5.0), ul.TeacherLabels(np.full((14, 2), 5.0), 0.7)),
    ):
        pull = weight * np.linalg.solve(unit + weight * H, targets - retrained[F])
        close(lev.gap(method).forget, H @ pull)
        close(lev.gap(method).retained, X @ pull)
    if reg_scale == "sum":
        e = np.linalg.solve(unit + H, error)
        h = np.linalg.solve(unit + H, H)
        close(lev.gap(ul.NoUnlearning()).forget, H @ e)
        close(lev.gap(ul.NoUnlearning()).retained, X @ e)
        close(lev.gap(ki.FirstOrder()).forget, H @ h @ e)
        close(lev.gap(ki.FirstOrder()).retained, X @ h @ e)
        step = 1e-6
        ascent = lev.gap(ul.GradientAscent(1, step))
        close((ascent.forget - H @ e) / step, -K[np.ix_(F, F)] @ e, 1e-5)
        close((ascent.retained - X @ e) / step, -K[np.ix_(R, F)] @ e, 1e-5)


@given(problems(least_reg=1e-2))
def test_without_matrices_all_is_the_same(problem):
    """Large forget sets and many points go other ways to the same numbers."""
    model = fit(problem)
    dense = audit(problem, model)
    assert dense.dense
    methods = [*every_method(problem.loss), ki.FirstOrder()]
    methods = [m for m in methods if not isinstance(m, ul.GradientDifference)]
    gaps = [dense.gap(method) for method in methods]
    limits = {_gaps: "DENSE_BYTES", _response: "DENSE_SIDE", _spectral: "SPECTRAL_SIDE"}
    with pytest.MonkeyPatch.context() as patch:
        for module, name in limits.items():
            patch.setattr(module, name, 0 if module is not _response else 2)
        lev = audit(problem, model)
        assert not lev.dense
        for name in ("largest", "trace", "entanglement"):
            assert getattr(lev, name) == pytest.approx(getattr(dense, name), rel=1e-6, abs=1e-8)
        assert np.allclose(lev.per_point, dense.per_point, rtol=0, atol=1e-8)
        with pytest.raises(ValueError, match=r"`self_leverage` is not formed"):
            _ = lev.self_leverage
        for gap in gaps:
            close(lev.gap(gap.method).test, gap.test, 1e-7)
        if lev.gamma_max > 0.1:
            method = ul.GradientDifference(0.05)
            close(lev.gap(method).test, dense.gap(method).test, 1e-7)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
@pytest.mark.parametrize("refine", [0, 3])
def test_errors_of_other_losses_are_of_second_order(loss, refine):
    """Forgetting a quarter of the weight leaves about a sixteenth of the error."""
    errors = []
    for weight in (0.1, 0.05, 0.025):
        model = small(loss, n=30, reg=2.0, reg_scale="sum")
        model = ki.perturb(model, reweight=(FORGET, weight), method=ki.Retrain()).model
        truth = ki.remove(model, FORGET, method=ki.Retrain()).model
        lev = ki.leverage(model, FORGET, refine=refine)
        found = []
        for method in (
            ul.NoUnlearning(),
            ul.FineTuning(6),
            ul.GradientAscent(4, 0.2),
            ul.GradientDifference(0.5),
            ul.GradientDifference(0.5, steps=4),
            ul.RandomLabels(0),
            ki.FirstOrder(),
        ):
            run = ki.remove(model, FORGET, method=method).model.outputs - truth.outputs
            gap = lev.gap(method)
            found.append(np.linalg.norm(gap.forget - run[FORGET]) + 1e-12)
        errors.append(found)
    ratios = np.array(errors[0]) / errors[2]
    small_already = np.array(errors[0]) < 1e-8
    assert ((ratios > 12) | small_already).all(), ratios


def test_refining_helps_most_where_a_class_goes():
    data = ki.datasets.digits().subset(per_class=10)
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train)
    model = ki.fit(gram, data.y_train, reg=1e-2)
    for kind, forget in digits_sets(data.y_train).items():
        truth = ki.remove(model, forget, method=ki.Retrain()).model.outputs
        run = np.linalg.norm(model.outputs - truth)
        errors = []
        for refine in (0, 3):
            gap = ki.leverage(model, forget, refine=refine).gap(ul.NoUnlearning())
            errors.append(abs(gap.norm - run) / run)
        assert errors[0] < (0.02 if kind == "random" else 0.5)
        assert errors[1] < 1e-3


# --- digits: the ranking -----------------------------------------------------------------------


def digits_sets(labels):
    rng = np.random.default_rng(0)
    size = np.count_nonzero(labels == 3)
    return {
        "class": np.flatnonzero(labels == 3),
        "random": np.sort(rng.choice(len(labels), size, replace=False)),
    }


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_ranking_of_methods_is_the_measured_one(loss):
    data = ki.datasets.digits().subset(per_class=10)
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train)
    model = ki.fit(gram, data.y_train, loss=loss, reg=1e-2)
    for forget in digits_sets(data.y_train).values():
        truth = ki.remove(model, forget, method=ki.Retrain()).model.outputs
        gaps = ki.leverage(model, forget).gaps()
        run = [ki.remove(model, forget, method=gap.method).model.outputs for gap in gaps]
        sizes = [np.linalg.norm(outputs - truth) for outputs in run]
        assert sizes == sorted(sizes)


# --- many candidates ---------------------------------------------------------------------------


@given(problems(blocks=LAYOUTS, least_reg=1e-2))
def test_a_scan_is_the_audit_of_each(problem):
    model = fit(problem)
    sets = [problem.forget, [0], [problem.n - 1], [1, 2]]
    scan = ki.leverage_scan(model, sets)
    assert len(scan) == 4
    for i, group in enumerate(sets):
        lev = ki.leverage(model, group, refine=0)
        assert scan.largest[i] == pytest.approx(lev.largest, abs=1e-8)
        assert scan.trace[i] == pytest.approx(lev.trace, abs=1e-7)
        assert scan.entanglement[i] == pytest.approx(lev.entanglement, rel=1e-5, abs=1e-8)
        if lev.gamma_max < 1e6:
            assert scan.gamma_max[i] == pytest.approx(lev.gamma_max, rel=1e-6)
        for gap, norms in (
            (lev.gap(ul.NoUnlearning()), scan.no_unlearning[i]),
            (lev.gap(ki.FirstOrder()), scan.first_order[i]),
        ):
            assert np.allclose(norms, [gap.forget_norm, gap.retained_norm], rtol=1e-6, atol=1e-8)


def test_a_scan_factorises_once_for_each_ridge(monkeypatch):
    made = []
    original = _newton.factorize
    monkeypatch.setattr(_newton, "factorize", lambda *args: made.append(args[2]) or original(*args))
    sets = [[i, i + 1] for i in range(5)] + [[i] for i in range(5)]
    for reg_scale, ridges in (("sum", 1), ("mean", 3)):  # and the model's own, for first order
        model = small("squared", reg_scale=reg_scale)
        made.clear()
        scan = ki.leverage_scan(model, sets)
        assert len(set(made)) == ridges
    rows = scan.rows()
    assert [row["points"] for row in rows] == [2] * 5 + [1] * 5
    assert rows[3]["largest"] == scan.largest[3]
    shares = [np.hypot(r["first_order_forget"], r["first_order_retained"]) for r in rows]
    shares /= np.linalg.norm(scan.no_unlearning, axis=1)
    assert (np.diff(shares[scan.hardest]) <= 0).all()
    assert repr(scan).startswith("LeverageScan(10 forget sets: largest leverages 0.")
    assert list(scan.to_dataframe()["points"]) == [2] * 5 + [1] * 5


# --- what is printed, and bad input ------------------------------------------------------------


def test_the_table_ranks_the_methods():
    lev = ki.leverage(small("cross_entropy"), FORGET, small("cross_entropy").gram.matrix)
    rows = lev.rows()
    sizes = [np.hypot(row["forget"], row["retained"]) for row in rows]
    assert sizes == sorted(sizes)
    assert {row["method"] for row in rows} > {"NoUnlearning()", "FineTuning(steps=10)"}
    nothing = next(row for row in rows if row["method"] == "NoUnlearning()")
    assert nothing["share"] == 1.0
    table = lev.table()
    assert table.splitlines()[0].split() == ["gap", "forget", "retained", "test", "share"]
    assert len(table.splitlines()) == len(rows) + 1
    assert str(lev).startswith("Leverage(3 of 12 points: largest ")
    assert lev.recommendation in str(lev)
    assert list(lev.to_dataframe().columns) == ["method", "forget", "retained", "test", "share"]
    two = lev.gaps([ki.NewtonStep(), ul.NoUnlearning()])
    assert [gap.method for gap in two] == [ki.NewtonStep(), ul.NoUnlearning()]
    assert repr(two[1]).startswith("Gap(NoUnlearning(): forget ")


def test_recommendations():
    def said(model, forget, **options):
        return ki.leverage(model, forget, **options).recommendation

    assert said(small(), FORGET).startswith("NewtonStep(): it is exact, where first order leaves")
    assert said(small(reg=500.0, reg_scale="sum"), FORGET).startswith("FirstOrder(): it leaves")
    alone = np.eye(12)
    alone[5, 5] = 1e-9  # a point that the model can do nothing about
    model = ki.fit(ki.gram(alone), np.arange(12) % 3, reg=0.1, reg_scale="sum")
    assert said(model, [5]).startswith("NoUnlearning(): retraining without these points")
    far = small("cross_entropy", reg=1e-5)
    assert "of the gap, for the change is too large" in said(far, [0, 3, 6, 9])
    assert "of the gradient, for the change is too" in said(far, [0, 3, 6, 9], refine=0)


def test_a_point_without_features_has_no_leverage():
    kernel = np.eye(6)
    kernel[0, 0] = 0.0
    model = ki.fit(ki.gram(kernel), np.arange(6.0), loss="squared", reg=0.1)
    lev = ki.leverage(model, [0])
    assert (lev.largest, lev.trace, lev.entanglement) == (0, 0, 0)
    assert lev.gamma_max == np.inf
    ki.remove(model, [0], method=ul.GradientDifference(100.0))
    assert lev.gap(ul.GradientDifference(100.0)).forget_norm == 0
    scan = ki.leverage_scan(ki.fit(ki.gram(kernel), np.arange(6) % 3, reg=0.1), [[0], [1]])
    assert (scan.largest[0], scan.gamma_max[0]) == (0, np.inf)
    assert scan.gamma_max[1] < np.inf


def test_gaps_that_overflow_are_refused():
    lev = ki.leverage(small("cross_entropy"), [0, 3])
    with pytest.raises(FloatingPointError, match="pass fewer `steps`, a lower `step_size`"):
        lev.gap(ul.GradientAscent(3, 1e200))


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        (range(12), "`forget` is the whole training set; keep at least one point"),
        ([], "`forget` is empty"),
        ([12], "`forget` holds 12"),
        ([1, 1], "`forget` repeats 1 indices"),
    ],
)
def test_forget_is_checked(forget, message):
    with pytest.raises(ValueError, match=message):
        ki.leverage(small(), list(forget))
    with pytest.raises(ValueError, match=f"`forget_sets`, set 1: {message}"):
        ki.leverage_scan(small(), [[0], list(forget)])


def test_other_bad_input():
    model = small()
    lev = ki.leverage(model, FORGET)
    with pytest.raises(TypeError, match=r"`model` is a Gram; pass the result of ki\.fit"):
        ki.leverage(model.gram, FORGET)
    with pytest.raises(TypeError, match=r"`model` is a Gram; pass the result of ki\.fit"):
        ki.leverage_scan(model.gram, [FORGET])
    with pytest.raises(ValueError, match="`forget_sets` is empty"):
        ki.leverage_scan(model, [])
    with pytest.raises(ValueError, match=r"`refine` is 0\.5; pass a number of Newton steps"):
        ki.leverage(model, FORGET, refine=0.5)
    with pytest.raises(ValueError, match=r"`x_test` has shape \(2, 3\)"):
        ki.leverage(model, FORGET, np.zeros((2, 3)))
    with pytest.raises(TypeError, match=r"`method` is 'ascent'; pass one of ki\.unlearning"):
        lev.gap("ascent")
    gamma = lev.gamma_max
    with pytest.raises(ValueError, match=f"from gamma_max = {gamma:.3g} on the difference"):
        lev.gap(ul.GradientDifference(1.001 * gamma))
    assert np.isfinite(lev.gap(ul.GradientDifference(0.999 * gamma)).norm)
    for other in (lev, ki.leverage(small("cross_entropy"), FORGET, refine=0)):
        with pytest.raises(FloatingPointError, match=r"diverged to NaN .* fewer `steps`"):
            other.gap(ul.FineTuning(5000, 1000.0))
    with pytest.raises(ValueError, match="removed before"):
        ki.leverage(ki.remove(model, FORGET).model, [1])
    assert lev.test_leverage is None


def test_an_edited_model_can_be_audited():
    """Points removed before count no more, wherever their coefficients are left."""
    model = small()
    before = ki.remove(model, [2, 3], method=ul.GradientAscent(2)).model
    lev = ki.leverage(before, FORGET)
    truth = ki.remove(before, FORGET, method=ki.Retrain()).model
    for method in every_method("squared"):
        run = ki.remove(before, FORGET, method=method).model.outputs - truth.outputs
        gap = lev.gap(method)
        close(gap.forget, run[FORGET])
        close(gap.retained, np.delete(run, [*FORGET, 2, 3], axis=0))


def test_a_matrix_that_is_nowhere_can_be_audited():
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) % 3
    lev = {}
    for store in (None, "none"):
        model = ki.fit(ki.gram(ki.rbf(1.0), x, store=store), y, reg=0.1)
        lev[store] = ki.leverage(model, FORGET, x[:2])
    assert lev["none"].trace == pytest.approx(lev[None].trace, rel=1e-9)
    names = [gap.method for gap in lev["none"].gaps()]
    assert not any(isinstance(method, ul.ProjectedAscent) for method in names)
    for gap in lev["none"].gaps():
        close(gap.test, lev[None].gap(gap.method).test)
    with pytest.raises(ValueError, match="needs the Gram matrix as one array"):
        ki.leverage_scan(model, [FORGET])
    with pytest.raises(ValueError, match="needs the Gram matrix as one array"):
        lev["none"].gap(ul.ProjectedAscent(1))


def test_weights_are_those_of_the_losses():
    """A point of weight two has the leverage of two points."""
    rng = np.random.default_rng(1)
    features, y = rng.normal(size=(9, 12)) / 3, rng.normal(size=(9, 2))
    twice, kernel = [*range(9), 4, 7], features @ features.T
    doubled = ki.fit(ki.gram(kernel[np.ix_(twice, twice)]), y[twice], loss="squared", reg=0.1)
    model = ki.fit(ki.gram(kernel), y, loss="squared", reg=0.1)
    model = ki.perturb(model, reweight=([4, 7], 2.0)).model
    one, two = ki.leverage(model, [2, 4]), ki.leverage(doubled, [2, 4, 9])
    assert one.largest == pytest.approx(two.largest, rel=1e-9)
    assert one.trace == pytest.approx(two.trace, rel=1e-9)
    for method in (ul.NoUnlearning(), ul.GradientDifference(0.1), ul.FineTuning(4, 0.1)):
        close(one.gap(method).forget, two.gap(method).forget[:2])
