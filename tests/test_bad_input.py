"""Input at the edge of float64, and input of the wrong kind: an answer or an error by name."""

import warnings

import kernelinf as ki
import numpy as np
import pytest
from kernelinf._text import correlation

X = np.random.default_rng(0).normal(size=(12, 4))
Y = np.arange(12) % 3
GRAM = ki.gram(ki.linear(), X)


def numbers_or_refused(call):
    """Whether a call ends in numbers, or in an error that says what to do; which, rounding says."""
    try:
        result = call()
    except FloatingPointError as error:
        return "raise `reg`" in str(error)
    arrays = [getattr(result, "values", None), getattr(result, "helpful_scores", None), result]
    return np.isfinite(next(array for array in arrays if isinstance(array, np.ndarray))).all()


def test_scores_that_are_not_numbers_never_leave():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ki.ConvergenceWarning)
        model = ki.fit(GRAM, Y, reg=1e-30)
        for method in (ki.FirstOrder(), ki.NewtonStep()):
            for call in (
                lambda method: ki.influence(model, X, Y, method=method),
                lambda method: ki.influence(model, X, Y, method=method, normalise="relatif"),
                lambda method: ki.influence(model, X, Y, method=method, total=True),
                lambda method: ki.top_influence(model, X, Y, 1, method=method),
                lambda method: ki.self_influence(model, method=method),
            ):
                assert numbers_or_refused(lambda call=call, method=method: call(method))


def test_shares_that_are_not_numbers_never_leave():
    model = ki.fit(ki.gram(X @ X.T), 1e9 * Y, loss="squared", reg=1.0)
    with pytest.raises(FloatingPointError, match="outputs are NaN or infinite"):
        ki.representer(model, np.full((1, len(Y)), 1e308))


def test_a_ridge_lost_in_rounding_is_named():
    model = ki.fit(GRAM, Y.astype(float), loss="squared", reg=1e-3)
    with pytest.raises(FloatingPointError, match="the ridge is lost in rounding beside the kernel"):
        ki.fit(GRAM, Y.astype(float), loss="squared", reg=1e-30)
    assert model.converged


def test_values_too_large_for_float64_are_named():
    gram = ki.gram(X @ X.T)
    with pytest.raises(FloatingPointError, match="scale the kernel or the targets down"):
        ki.fit(gram, 1e200 * Y, loss="squared")
    model = ki.fit(gram, 1e9 * Y, loss="squared", reg=1.0)
    far = np.full((1, len(Y)), 1e308)
    with pytest.raises(FloatingPointError, match="outputs at `x_test` are NaN or infinite"):
        model.predict(far)
    with pytest.raises(FloatingPointError, match="changes at `x_test` are NaN or infinite"):
        ki.remove(model, [0]).effect(far)


def test_a_kernel_that_drowns_the_ridge_is_warned_of():
    with pytest.warns(ki.ConvergenceWarning, match="raise `reg`"):
        model = ki.fit(ki.gram(1e200 * (X @ X.T)), Y)
    assert not model.converged


def test_weights_too_large_for_float64_are_named():
    model = ki.fit(GRAM, Y)
    with pytest.raises(FloatingPointError, match="raise `reg`"):
        ki.perturb(model, reweight=(range(12), 1e308))


def test_gradient_descent_on_a_kernel_of_zeros_stays_at_zero():
    model = ki.fit(ki.gram(np.zeros((5, 5))), [0, 1, 0, 1, 0], solver=ki.KernelGradientDescent(3))
    assert (model.outputs == 0).all()


def test_weights_too_small_for_a_ridge_are_named():
    model = ki.fit(GRAM, Y)
    with pytest.raises(FloatingPointError, match="the ridge, `reg` times the total weight"):
        ki.perturb(model, reweight=(range(12), 5e-324))


@pytest.mark.parametrize("number", [True, "a", None, np.nan, 1j, [1.0], 10**400])
def test_numbers_are_real_numbers(number):
    for call, message in (
        (lambda: ki.fit(GRAM, Y, reg=number), "`reg` is .*; pass a positive number"),
        (lambda: ki.rbf(number), "`length_scale` is .*; pass a positive, finite number"),
        (lambda: ki.networks.fcnn(w_std=number), "`w_std` is .*; pass a positive, finite number"),
        (lambda: ki.networks.cnn(b_std=number), "`b_std` is .*; pass 0 or a positive, finite"),
        (lambda: ki.Newton(tol=number), "`tol` is .*; pass a positive number"),
        (lambda: ki.Retrain(number), "`tol` is .*; pass a positive number"),
        (
            lambda: ki.KernelGradientDescent(3, momentum=number),
            r"`momentum` is .*; pass a number in \[0, 1\)",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    if number is not None:
        with pytest.raises(ValueError, match=r"`step_size` is .*; pass a positive number, or None"):
            ki.KernelGradientDescent(3, step_size=number)


@pytest.mark.parametrize("count", [True, "a", 1.5, np.float64(2.0), None])
def test_counts_are_whole_numbers(count):
    model = ki.fit(GRAM, Y)
    scores = ki.influence(model, X, Y)
    data = ki.datasets.split(X, Y, 3)
    for call, message in (
        (lambda: scores.top(count), "`k` is .*; pass a number from 1 to 12"),
        (lambda: ki.top_influence(model, X, Y, count), "`k` is .*; pass a number from 1 to 12"),
        (lambda: ki.networks.fcnn(count), "`depth` is .*; pass a positive integer"),
        (lambda: ki.leave_one_out(model, refine=count), "`refine` is .*; pass a number of Newton"),
        (lambda: ki.Newton(max_steps=count), "`max_steps` is .*; pass a whole number"),
        (lambda: ki.KernelGradientDescent(count), "`steps` is .*; pass a whole number"),
        (lambda: ki.datasets.split(X, Y, count), "`n_test` is .*; pass a number from 1 to 11"),
        (lambda: data.subset(count), "`per_class` is .*; class 0 has 3 training points"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    if count is not None:
        with pytest.raises(ValueError, match=r"`output` is .*; pass a number from 0 to 2, or None"):
            ki.representer(model, X, output=count)
        with pytest.raises(ValueError, match=r"`block_size` is .*; pass a positive number of rows"):
            ki.gram(ki.linear(), X, block_size=count)


def test_numpy_numbers_are_numbers():
    assert ki.fit(GRAM, Y, reg=np.float32(0.5)).problem.reg == 0.5
    assert ki.Newton(np.float64(1e-9), np.int32(5)) == ki.Newton(1e-9, 5)
    ki.influence(ki.fit(GRAM, Y), X, Y).top(np.int64(3))


@pytest.mark.parametrize(
    "builder", [ki.networks.fcnn, ki.networks.cnn, ki.stax.Dense, ki.stax.Relu]
)
def test_a_network_that_was_not_built_is_refused(builder):
    message = rf"`network` is the function {builder.__name__}; pass what it returns"
    with pytest.raises(TypeError, match=message):
        ki.from_stax(builder)


def test_masked_values_are_not_looked_under():
    masked = np.ma.masked_array(X, X > 1)
    hidden = np.ma.masked_array(Y, np.arange(12) == 3)
    model = ki.fit(GRAM, Y)
    given = ki.fit(ki.gram(X @ X.T), Y)
    for name, call in {
        "x": lambda: ki.gram(ki.linear(), masked),
        "kernel": lambda: ki.gram(np.ma.masked_array(X @ X.T, np.eye(12))),
        "x1": lambda: ki.linear()(masked),
        "y": lambda: ki.fit(GRAM, hidden),
        "offset": lambda: ki.fit(GRAM, Y, offset=masked[:, :3]),
        "forget": lambda: ki.remove(model, hidden[:4]),
        "points": lambda: ki.leave_one_out(model, points=hidden[:4]),
        "x_test": lambda: given.predict(np.ma.masked_array(X @ X.T, np.eye(12))),
        "y_test": lambda: ki.influence(model, X, hidden),
        "relabel": lambda: ki.perturb(model, relabel=(range(12), hidden)),
        "reweight": lambda: ki.perturb(model, reweight=(range(12), hidden)),
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` has masked values; remove those points"):
            call()
    whole = np.ma.masked_array(X, np.zeros(X.shape, dtype=bool))
    np.testing.assert_array_equal(ki.linear()(whole), ki.linear()(X))


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
        with pytest.raises(ValueError, match="has 3 entries but there are 12"):
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
