"""The path of regularisations, against one model at a time and dense hat matrices."""

import re
import sys
import warnings

import jax
import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from kernelinf import _reg_path
from kernelinf._gram import Dense, Gram
from sklearn.linear_model import RidgeCV

from . import oracles
from .strategies import problems

LAYOUTS = ("none", "kron", "full")
SMOOTH = ("cross_entropy", "logistic")
FACTORS = np.array([1.0, 30.0, 0.4])  # unsorted on purpose


def path(problem, **options):
    """The path of a drawn problem around its own reg."""
    given = {"loss": problem.loss, "reg_scale": problem.reg_scale, "offset": problem.offset}
    regs = problem.reg * FACTORS
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the best reg")
        gram = ki.gram(problem.kernel)
        return ki.reg_path(gram, problem.labels, regs=regs, **(given | options))


def fits(problem):
    """The models at the same regs, each on its own."""
    given = {"loss": problem.loss, "reg_scale": problem.reg_scale, "offset": problem.offset}
    gram = ki.gram(problem.kernel)
    return [ki.fit(gram, problem.labels, reg=reg, **given) for reg in problem.reg * FACTORS]


def hat(problem, reg, hessian):
    """Derivative of the fitted outputs in the targets, (n d, n d), and how many outputs that is."""
    kernel = oracles.kernel_blocks(problem.jacobian, problem.jacobian)
    side = problem.n * problem.d
    moved = kernel.reshape(side, side) @ oracles.block_diagonal(hessian)
    rho = reg * (problem.n if problem.reg_scale == "mean" else 1.0)
    return np.linalg.solve((rho * np.eye(side) + moved).T, moved.T).T


@given(problems(losses=("squared",), blocks=LAYOUTS))
def test_left_out_losses_are_those_of_each_model(problem):
    result = path(problem)
    expected = [ki.leave_one_out(model).losses.mean() for model in fits(problem)]
    size = np.mean(problem.targets**2)
    np.testing.assert_allclose(result.loo_losses, expected, rtol=1e-9, atol=1e-9 * size)
    assert result.exact
    assert result.loo_accuracies is None


@given(problems(losses=("squared",), blocks=LAYOUTS, offsets=(False,)))
def test_gcv_and_degrees_of_freedom_are_those_of_the_hat_matrix(problem):
    result = path(problem, by="gcv")
    targets = problem.targets.ravel()
    unit = oracles.squared_hessian(problem.targets, problem.targets)
    for i, reg in enumerate(result.regs):
        smoother = hat(problem, reg, unit)
        left = np.eye(len(targets)) - smoother
        training = 0.5 * np.sum((left @ targets) ** 2) / problem.n
        gcv = training / (np.trace(left) / len(targets)) ** 2
        size = np.mean(targets**2)
        assert result.degrees_of_freedom[i] == pytest.approx(np.trace(smoother), abs=1e-8)
        assert result.training_losses[i] == pytest.approx(training, rel=1e-8, abs=1e-9 * size)
        assert result.gcv[i] == pytest.approx(gcv, rel=1e-6, abs=1e-9 * size)


@given(problems(losses=SMOOTH, blocks=LAYOUTS, sizes=(5, 8), least_reg=1e-3))
def test_other_losses_are_trained_at_each_reg(problem):
    result = path(problem)
    models = fits(problem)
    left_out = [ki.leave_one_out(model) for model in models]
    expected = [each.losses.mean() for each in left_out]
    np.testing.assert_allclose(result.loo_losses, expected, rtol=1e-6, atol=1e-9)
    assert (result.loo_accuracies == [each.accuracy for each in left_out]).all()
    assert result.gcv is None
    assert not result.exact
    for i, model in enumerate(models):
        hessian = oracles.HESSIAN[problem.loss](model.outputs, problem.targets)
        smoother = hat(problem, result.regs[i], hessian)
        assert result.degrees_of_freedom[i] == pytest.approx(np.trace(smoother), abs=1e-6)
        losses = oracles.VALUE[problem.loss](model.outputs, problem.targets)
        assert result.training_losses[i] == pytest.approx(losses.mean(), rel=1e-6, abs=1e-9)


def test_scikit_learn_chooses_the_same():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 8))
    y = x @ rng.normal(size=8) + 2 * rng.normal(size=30)
    regs = np.logspace(-2, 3, 21)
    ridge = RidgeCV(alphas=regs, fit_intercept=False, store_cv_results=True).fit(x, y)
    result = ki.reg_path(ki.gram(ki.linear(), x), y, regs=regs, reg_scale="sum")
    assert result.best == ridge.alpha_
    np.testing.assert_allclose(2 * result.loo_losses, ridge.cv_results_.mean(axis=0), rtol=1e-9)
    mean = ki.reg_path(ki.gram(ki.linear(), x), y, regs=regs / 30, reg_scale="mean")
    # "mean" leaves a looser ridge to the 29 others, so it is no fixed ridge over 30
    assert not np.allclose(mean.loo_losses, result.loo_losses, rtol=1e-4)
    np.testing.assert_allclose(mean.gcv, result.gcv, rtol=1e-9)


def noisy(n=40, classes=3):
    """Points whose labels are partly noise, so that the best reg is neither end."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 5))
    y = (x[:, :classes] + 0.8 * rng.normal(size=(n, classes))).argmax(axis=1)
    return ki.gram(ki.rbf(3.0), x), y


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
def test_the_best_reg_is_found_and_fitted(loss):
    gram, y = noisy()
    result = ki.reg_path(gram, y, loss=loss)
    assert result.best == result.regs[result.loo_losses.argmin()]
    model = result.fit()
    assert model.problem.reg == result.best
    assert model.problem.loss.name == loss
    assert ki.leave_one_out(model).accuracy == result.loo_accuracies[result.loo_losses.argmin()]


def test_gcv_may_choose_another_reg():
    gram, y = noisy()
    result = ki.reg_path(gram, y, by="gcv")
    assert result.best == result.regs[result.gcv.argmin()]


def test_of_equal_losses_the_largest_reg_is_best():
    with pytest.warns(UserWarning, match=r"the best reg, 1, is the largest of `regs`"):
        result = ki.reg_path(ki.gram(np.zeros((6, 6))), np.arange(6) % 2)
    assert result.best == result.regs.max() == 1.0
    assert (result.degrees_of_freedom == 0).all()


@pytest.mark.parametrize(
    ("regs", "end"), [([1e-1, 1.0, 1e1], "smallest"), ([1e-4, 1e-6], "largest")]
)
def test_an_end_of_the_path_is_reported_where_it_was_asked_for(regs, end):
    gram, y = noisy()
    with pytest.warns(UserWarning, match=f"is the {end} of `regs`: the optimum may") as caught:
        ki.reg_path(gram, y, regs=regs)
    assert caught[0].filename == __file__
    ki.reg_path(gram, y, regs=regs[:1])  # nothing to choose from, nothing to report


def test_unfinished_training_is_reported_where_it_was_asked_for(monkeypatch):
    gram, y = noisy()
    monkeypatch.setattr(_reg_path, "Newton", lambda: ki.Newton(max_steps=1))
    with pytest.warns(ki.ConvergenceWarning, match="training stopped") as caught:
        ki.reg_path(gram, y, loss="cross_entropy", regs=[1e-3])
    assert caught[0].filename == __file__


def test_the_default_path_has_the_kernel_s_scale():
    gram, y = noisy()
    plain = ki.reg_path(gram, y).regs
    np.testing.assert_allclose(plain, 10.0 ** (np.arange(-12, 1) / 2), rtol=1e-12)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the best reg")
        larger = ki.reg_path(ki.gram(1e4 * gram.matrix), y).regs
        summed = ki.reg_path(gram, y, reg_scale="sum").regs
    np.testing.assert_allclose(larger, 1e4 * plain, rtol=1e-12)
    np.testing.assert_allclose(summed, 1e2 * plain, rtol=1e-12)  # 40 points are next to 10^2


def count_products(monkeypatch, gram, y, **options):
    """Products with the Gram matrix that training takes along a path."""
    products = []

    class Counted(ki.Newton):
        def train(self, *args, **kwargs):
            trained = super().train(*args, **kwargs)
            products.append(trained.history.products[-1])
            return trained

    monkeypatch.setattr(_reg_path, "Newton", Counted)
    ki.reg_path(gram, y, **options)
    return sum(products)


@pytest.mark.parametrize("loss", SMOOTH)
def test_training_starts_where_the_path_points(monkeypatch, loss):
    given = {"loss": loss, "regs": 10.0 ** (np.arange(-9, 1) / 2)}
    gram, y = noisy(classes=2)
    warm = count_products(monkeypatch, gram, y, **given)
    monkeypatch.setattr(_reg_path, "_start", lambda path, problem: 0 * problem.targets)
    cold = count_products(monkeypatch, gram, y, **given)
    assert warm < 0.75 * cold


def test_one_eigendecomposition_serves_all(monkeypatch):
    calls = []
    eigh = np.linalg.eigh
    monkeypatch.setattr(np.linalg, "eigh", lambda a: calls.append(a.shape) or eigh(a))
    ki.reg_path(*noisy())
    assert calls == [(40, 40)]


def test_arrays_of_an_accelerator_give_the_same():
    gram, y = noisy()
    with jax.enable_x64(True):
        there = Gram.of(Dense(jax.numpy.asarray(gram.matrix)))
    regs = [1e-4, 1e-2, 1.0]
    ours, theirs = (ki.reg_path(each, y, regs=regs) for each in (gram, there))
    assert type(theirs.loo_losses) is np.ndarray
    for name in ("loo_losses", "loo_accuracies", "gcv", "degrees_of_freedom", "training_losses"):
        np.testing.assert_allclose(getattr(theirs, name), getattr(ours, name), rtol=1e-9)


def test_a_path_is_read_as_a_table():
    gram, y = noisy()
    result = ki.reg_path(gram, y, regs=[1e-4, 1e-2, 1.0])
    best = ", leave-one-out loss 0.2[0-9]*, accuracy [0-9.]*%"
    pattern = rf"RegPath\(3 regs, exact: best reg 0.01 by loo{best}\)"
    assert re.fullmatch(pattern, repr(result))
    lines = str(result).splitlines()
    names = ("reg", "loo loss", "loo accuracy", "gcv", "degrees of freedom", "training loss")
    assert lines[0].split() == " ".join(names).split()
    assert [line.endswith("best") for line in lines[1:]] == [False, True, False]
    assert float(lines[1].split()[1]) == pytest.approx(result.loo_losses[0], rel=1e-3)


def test_a_path_becomes_a_data_frame(monkeypatch):
    gram, y = noisy()
    result = ki.reg_path(gram, y, loss="cross_entropy", regs=[1e-4, 1e-2, 1.0])
    frame = result.to_dataframe()
    assert frame.index.name == "reg"
    assert list(frame) == ["loo_loss", "loo_accuracy", "degrees_of_freedom", "training_loss"]
    assert (frame["loo_loss"].to_numpy() == result.loo_losses).all()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="`to_dataframe` needs pandas"):
        result.to_dataframe()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regs": []}, r"`regs` has shape \(0,\); pass the coefficients to try"),
        ({"regs": [[1.0]]}, r"`regs` has shape \(1, 1\)"),
        ({"regs": [0.1, -1.0]}, r"`regs` holds -1.0; pass positive numbers"),
        ({"regs": [np.nan]}, "`regs` holds nan; pass positive numbers"),
        ({"by": "aic"}, "`by` is 'aic'; pass 'loo' or 'gcv'"),
        ({"by": "gcv", "loss": "logistic"}, "`by` is 'gcv' but the loss is 'logistic'"),
        ({"loss": "hinge"}, "`loss` is 'hinge'; pass one of"),
    ],
)
def test_bad_choices_are_named(options, message):
    gram, y = noisy()
    with pytest.raises(ValueError, match=message):
        ki.reg_path(gram, y, **options)
    assert "matrix" not in vars(gram)  # refused before it is evaluated


def test_a_single_point_leaves_nothing():
    with pytest.raises(ValueError, match="`gram` has a single training point"):
        ki.reg_path(ki.gram(np.eye(1)), [1.0])
    with pytest.raises(TypeError, match="`gram` is a ndarray"):
        ki.reg_path(np.eye(3), [1.0, 2.0, 3.0])


def test_a_ridge_lost_in_rounding_is_named():
    x = np.random.default_rng(0).normal(size=(12, 3))  # of rank 3
    with pytest.raises(FloatingPointError, match="`regs` goes down to 1e-20, a ridge that is lost"):
        ki.reg_path(ki.gram(x @ x.T), x[:, 0], regs=[1e-20, 1.0])
