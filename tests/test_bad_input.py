"""Input at the edge of float64, and input of the wrong kind: an answer or an error by name."""

import warnings

import kernelinf as ki
import numpy as np
import pytest
from kernelinf._text import correlation

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3
GRAM = ki.gram(ki.linear(), X)


def test_scores_that_are_not_numbers_never_leave():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.simplefilter("ignore", ki.ConvergenceWarning)
        model = ki.fit(GRAM, Y, reg=1e-200)
        for method in (ki.FirstOrder(), ki.NewtonStep()):
            for call in (
                lambda method: ki.influence(model, X, Y, method=method),
                lambda method: ki.influence(model, X, Y, method=method, normalise="relatif"),
                lambda method: ki.influence(model, X, Y, method=method, total=True),
                lambda method: ki.top_influence(model, X, Y, 1, method=method),
                lambda method: ki.self_influence(model, method=method),
            ):
                with pytest.raises(FloatingPointError, match="raise"):
                    call(method)


def test_shares_that_are_not_numbers_never_leave():
    model = ki.fit(ki.gram(X @ X.T), 1e9 * Y, loss="squared", reg=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match="outputs are NaN or infinite"):
            ki.representer(model, np.full((1, len(Y)), 1e308))


def test_a_ridge_lost_in_rounding_is_named():
    model = ki.fit(GRAM, Y.astype(float), loss="squared", reg=1e-3)
    with pytest.raises(FloatingPointError, match="the ridge is lost in rounding beside the kernel"):
        ki.fit(GRAM, Y.astype(float), loss="squared", reg=1e-30)
    assert model.converged


def test_a_kernel_too_large_for_float64_is_named():
    gram = ki.gram(1e200 * (X @ X.T))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        with pytest.raises(FloatingPointError, match="scale the kernel or the targets down"):
            ki.fit(gram, Y)


def test_weights_too_large_for_float64_are_named():
    model = ki.fit(GRAM, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(FloatingPointError, match="raise `reg`"):
            ki.perturb(model, reweight=(range(12), 1e308))


def test_gradient_descent_on_a_kernel_of_zeros_stays_at_zero():
    model = ki.fit(ki.gram(np.zeros((5, 5))), [0, 1, 0, 1, 0], solver=ki.KernelGradientDescent(3))
    assert (model.outputs == 0).all()


@pytest.mark.parametrize("tol", [-1.0, 0.0, np.nan, np.inf, "a", None])
def test_tolerances_are_positive_numbers(tol):
    for make in (ki.Newton, ki.Retrain):
        with pytest.raises(ValueError, match=r"`tol` is .*; pass a positive number"):
            make(tol=tol)


@pytest.mark.parametrize("steps", [2.5, -1, np.inf, "a"])
def test_steps_are_counted(steps):
    with pytest.raises(ValueError, match=r"`steps` is .*; pass a whole number"):
        ki.KernelGradientDescent(steps)
    with pytest.raises(ValueError, match=r"`max_steps` is .*; pass a whole number"):
        ki.Newton(max_steps=steps)


def test_complex_numbers_and_strings_are_no_kernels_or_offsets():
    model = ki.fit(ki.gram(X @ X.T), Y)
    for cross in (1j * (X @ X.T), (X @ X.T).astype(str)):
        with pytest.raises(TypeError, match=r"`x_test` has dtype .*; pass real numbers"):
            model.predict(cross)
    with pytest.raises(TypeError, match="`offset` has dtype complex128; pass real numbers"):
        ki.fit(GRAM, Y, offset=1j * np.ones((12, 3)))
    with pytest.raises(TypeError, match="`reweight` has dtype <U1; pass real numbers"):
        ki.perturb(model, reweight=([3], "a"))


def test_offset_functions_return_outputs_of_points():
    with pytest.raises(ValueError, match="`offset` returned None"):
        ki.fit(GRAM, Y, offset=lambda x: None)
    with pytest.raises(ValueError, match="`offset` is a function, but"):
        ki.fit(ki.gram(X @ X.T), Y, offset=lambda x: np.zeros((12, 3)))


def test_what_is_no_kernel_is_named():
    with pytest.raises(TypeError, match="`kernel` is 'rbf'; pass a kernel"):
        ki.gram("rbf", X)
    with pytest.raises(ValueError, match="`block_size` was given with a precomputed matrix"):
        ki.gram(X @ X.T, block_size=3)


def test_labels_are_refused_before_the_kernel_is_evaluated(monkeypatch):
    model = ki.fit(GRAM, Y)

    def never(*_):
        raise AssertionError("the kernel was evaluated")

    removal = ki.remove(model, [0])
    monkeypatch.setattr(ki.Gram, "cross", never)
    monkeypatch.setattr(ki.Gram, "extend", never)
    for call in (
        lambda: removal.effect(X, Y[:3]),
        lambda: ki.influence(model, X, Y[:3]),
        lambda: ki.perturb(model, add=(X, Y[:3])),
    ):
        with pytest.raises(ValueError, match="has 3 entries but there are 12 points"):
            call()


def test_plots_refuse_what_they_cannot_show():
    effect = ki.remove(ki.fit(GRAM, Y), [0]).effect(X, Y)
    with pytest.raises(ValueError, match="`of` is 'x'; pass 'losses' or 'outputs'"):
        ki.plots.effect(effect, effect, of="x")
    with pytest.raises(ValueError, match="`predicted` has 5 estimates; pass 4 at most"):
        ki.plots.effect(dict.fromkeys("abcde", effect), effect)


def test_splits_need_one_label_a_point():
    with pytest.raises(ValueError, match=r"`y` has shape \(12, 3\); pass one label a point"):
        ki.datasets.split(X, np.eye(3)[Y], 3)


def test_a_correlation_below_float64_is_undefined():
    tiny = np.array([1.0, 2.0, 4.0]) * 1e-300
    assert correlation(tiny, tiny) == "-"


def test_an_index_beyond_the_machine_is_a_usage_error(capsys):
    from kernelinf.__main__ import main  # noqa: PLC0415  (imports all that the demo needs)

    assert main(["demo", "--forget", "9" * 30]) == 2
    assert "--forget" in capsys.readouterr().err
