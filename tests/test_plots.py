"""Figures: what is drawn, and what is refused."""

import sys

import kernelinf as ki
import matplotlib as mpl
import numpy as np
import pytest
from kernelinf import plots
from kernelinf.datasets import Dataset
from matplotlib import pyplot
from matplotlib.figure import Figure


@pytest.fixture(autouse=True)
def _no_window():
    """Draw without a display, and leave the global settings as they were."""
    pyplot.switch_backend("agg")
    before = dict(mpl.rcParams)
    yield
    assert dict(mpl.rcParams) == before
    pyplot.close("all")


def new_axes():
    return Figure().add_subplot()


def effects():
    rng = np.random.default_rng(0)
    truth = ki.Effect(rng.normal(size=(20, 3)), rng.normal(size=20))
    return ki.Effect(1.01 * truth.outputs, 0.9 * truth.losses), truth


def scores_of(data, seed=0):
    values = np.random.default_rng(seed).normal(size=(len(data.x_test), len(data.x_train)))
    return ki.InfluenceMatrix(values, ("test", "train"), "loss")


def data_of(shape, n=12, t=3):
    rng = np.random.default_rng(1)
    return Dataset(rng.random((n, *shape)), np.arange(n), rng.random((t, *shape)), np.arange(t))


def test_effect_draws_one_mark_a_test_point():
    predicted, truth = effects()
    ax = plots.effect(predicted, truth, unit="nats", ax=new_axes())
    (marks,) = ax.collections
    assert np.array_equal(marks.get_offsets(), np.stack([truth.losses, predicted.losses], axis=1))
    assert ax.get_xlabel() == "change of test loss on removal (nats), retrained"
    assert ax.get_ylabel() == "change of test loss on removal (nats), predicted"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["predicted = retrained", "predicted: error 10.0 %, r 1.0000"]
    assert ax.get_xlim() == ax.get_ylim()


def test_effect_compares_estimates_and_outputs():
    predicted, truth = effects()
    estimates = {"one": predicted, "two": truth}
    ax = plots.effect(estimates, truth, of="outputs", ax=new_axes())
    assert [len(marks.get_offsets()) for marks in ax.collections] == [60, 60]
    assert ax.get_xlabel() == "change of test outputs on removal, retrained"
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend[1:] == ["one: error 1.0 %, r 1.0000", "two: exact"]


def test_effect_makes_axes_of_its_own():
    predicted, truth = effects()
    ax = plots.effect(predicted, truth)
    ax.figure.canvas.draw()
    assert ax.figure.number in pyplot.get_fignums()


def test_effect_of_no_change():
    nothing = ki.Effect(np.zeros((1, 2)), np.zeros(1))
    ax = plots.effect(nothing, nothing, ax=new_axes())
    assert ax.get_legend().get_texts()[1].get_text() == "predicted: error -, r -"


def test_effect_refuses():
    predicted, truth = effects()
    with pytest.raises(ValueError, match=r"no losses; pass test labels to `Update.effect`"):
        plots.effect(ki.Effect(predicted.outputs), truth)
    fewer = ki.Effect(predicted.outputs[:5], predicted.losses[:5])
    with pytest.raises(ValueError, match=r"`predicted` \(few\) has 5 changes but `retrained` has"):
        plots.effect({"few": fewer}, truth)


@pytest.mark.parametrize("shape", [(5,), (4, 4), (4, 4, 1), (4, 4, 3), (4, 4, 2)])
def test_influential_shows_points_of_any_shape(shape):
    data = data_of(shape)
    scores = scores_of(data)
    figure = Figure()
    ax = plots.influential(scores, data, k=2, unit="nats", ax=figure.add_subplot())
    figure.canvas.draw()
    assert len(ax.images) == 3 * (1 + 2 + 2)
    text = [text.get_text() for text in ax.texts]
    top = scores.top(2)
    assert f"{top.helpful[0, 0]}\n{top.helpful_scores[0, 0]:+.2f}" in text
    assert f"{top.harmful[2, 1]}\n{top.harmful_scores[2, 1]:+.2f}" in text
    assert "help most: removing one raises the test loss (nats) by" in text


def test_influential_shows_pictures_as_they_are():
    data = data_of((4, 4, 3))
    low = min(data.x_train.min(), data.x_test.min())
    high = max(data.x_train.max(), data.x_test.max())
    ax = plots.influential(scores_of(data), data, k=1, ax=new_axes())
    shown = ax.images[0].get_array()
    assert shown.shape == (4, 4, 3)
    assert np.allclose(shown, (data.x_test[0] - low) / (high - low), rtol=0, atol=1e-12)


def test_influential_of_constant_points_and_real_targets():
    data = Dataset(np.ones((4, 3)), np.linspace(0, 1, 8).reshape(4, 2), np.ones((1, 3)), np.ones(1))
    ax = plots.influential(scores_of(data), data, k=4, ax=new_axes())
    assert ax.texts[0].get_text() == "1"
    assert any(text.get_text().startswith("0, 0.143\n") for text in ax.texts)


def test_influential_refuses():
    data = data_of((3,))
    with pytest.raises(
        ValueError, match=r"`scores` has shape \(3, 12\) but `data` \(4, 12\) points"
    ):
        plots.influential(scores_of(data), data_of((3,), t=4))
    with pytest.raises(ValueError, match="`k` is 13"):
        plots.influential(scores_of(data), data, k=13)


def test_page_has_a_panel_for_every_forget_set():
    predicted, truth = effects()
    data = data_of((4, 4))
    sets = [(title, {"one": predicted}, truth) for title in ("first", "second", "third")]
    page = plots.page(sets, scores_of(data), data, k=2, unit="nats")
    page.canvas.draw()
    assert [ax.get_title() for ax in page.axes] == ["first", "second", "third", ""]
    assert pyplot.get_fignums() == []


def audited():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(15, 20)) / 4
    kernel = features[:12] @ features[:12].T
    model = ki.fit(ki.gram(kernel), rng.normal(size=(12, 2)), loss="squared", reg=0.1)
    return ki.leverage(model, [0, 1], features[12:] @ features[:12].T)


def test_leverage_has_a_row_a_method():
    lev = audited()
    ax = plots.leverage(lev, ax=new_axes())
    gaps = lev.gaps()
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert names == [repr(gap.method) for gap in gaps]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "forget set",
        "retained points",
        "test points",
    ]
    sizes = [marks.get_offsets()[1:, 0] for marks in ax.collections]
    for drawn, part in zip(sizes, ("forget", "retained", "test"), strict=True):
        values = [np.sqrt(np.mean(getattr(gap, part) ** 2)) for gap in gaps[1:]]
        assert np.allclose(drawn, values, rtol=1e-12, atol=0)
    assert [text.get_text() for text in ax.texts] == ["exact"]  # the Newton step, in the first row
    assert ax.get_ylim() == (len(gaps) - 0.5, -0.5)


def test_leverage_of_chosen_methods_and_no_test_points():
    lev = audited()
    method = ki.unlearning.FineTuning(3)
    ax = plots.leverage(ki.leverage(lev._geometry.model, [0]), methods=[method])
    assert len(ax.collections) == 2
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["FineTuning(steps=3)"]


def test_without_matplotlib(monkeypatch):
    audit = audited()
    for module in ("matplotlib.pyplot", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    predicted, truth = effects()
    data = data_of((3,))
    for draw in (
        lambda: plots.effect(predicted, truth),
        lambda: plots.influential(scores_of(data), data),
        lambda: plots.leverage(audit),
        lambda: plots.page([("one", {"one": predicted}, truth)], scores_of(data), data),
    ):
        with pytest.raises(ImportError, match=r'pip install "kernelinf\[plot\]"'):
            draw()


# --- kernels side by side ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def kernels():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 3)), np.arange(30) % 3
    chosen = {"rbf": ki.rbf(1.0), "linear": ki.linear()}
    return ki.compare(chosen, x[:24], labels[:24], x[24:], labels[24:], reg=1e-2)


def test_comparison_of_accuracies(kernels):
    ax = plots.comparison(kernels, ax=new_axes())
    _, left_out, tested = ax.collections
    rows = kernels.rows()
    assert left_out.get_offsets().tolist() == [
        [100 * row["loo_accuracy"], i] for i, row in enumerate(rows)
    ]
    assert tested.get_offsets()[:, 0].tolist() == [100 * row["test_accuracy"] for row in rows]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["rbf", "linear"]
    assert ax.get_xlabel() == "classified rightly (%)"


def test_comparison_of_real_targets_is_of_losses():
    x = np.random.default_rng(0).normal(size=(20, 3))
    y = x[:, 0]
    found = ki.compare({"linear": ki.linear()}, x[:15], y[:15], x[15:], y[15:], reg=1e-2)
    ax = plots.comparison(found, ax=new_axes())
    assert ax.get_xlabel() == "mean squared loss"
    assert ax.collections[2].get_offsets()[0, 0] == found["linear"].test_losses.mean()


def test_comparison_of_spectra(kernels):
    ax = plots.comparison(kernels, of="spectrum", ax=new_axes())
    rbf, rbf_mark, linear, _ = ax.lines
    values = kernels["rbf"].eigenvalues[::-1]
    np.testing.assert_allclose(rbf.get_ydata(), values / values.mean())
    (last,) = rbf_mark.get_xdata()
    assert values[last - 1] > 1e-2 * 24 > values[last]  # the ridge is between the two
    assert len(linear.get_ydata()) == 3  # its other eigenvalues are zero
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")


def test_comparison_of_what_they_learn_from(kernels):
    figure = Figure()
    ax = plots.comparison(kernels, of="agreement", on="own", ax=figure.add_subplot())
    figure.canvas.draw()
    spearman = kernels.agreement("own").spearman
    assert np.array_equal(ax.images[0].get_array(), spearman)
    assert ax.texts[1].get_text() == f"{spearman[0, 1]:.2f}"
    assert "own loss" in figure.axes[1].get_ylabel()


def test_comparison_refuses(kernels):
    with pytest.raises(ValueError, match="`of` is 'loss'; pass 'accuracy', 'spectrum' or"):
        plots.comparison(kernels, of="loss")
    with pytest.raises(ValueError, match="`on` is 'train'"):
        plots.comparison(kernels, of="agreement", on="train")
    assert pyplot.get_fignums() == []


# --- kernels, training, labels, influence maps ---------------------------------------------------


def trained(n=12):
    x = np.random.default_rng(0).normal(size=(n, 3))
    return ki.fit(ki.gram(ki.rbf(1.0), x), np.arange(n) % 3)


def test_influence_map_sorts_both_kinds_of_points_by_class():
    values = np.random.default_rng(0).normal(size=(4, 6))
    scores = ki.InfluenceMatrix(values, ("test", "train"), "loss")
    y_train, y_test = np.array(list("bababa")), np.array(list("baab"))
    ax = plots.influence_map(scores, y_train, y_test, unit="nats", ax=new_axes())
    rows, columns = np.argsort(y_test, kind="stable"), np.argsort(y_train, kind="stable")
    np.testing.assert_array_equal(ax.images[0].get_array(), values[np.ix_(rows, columns)])
    assert [text.get_text() for text in ax.get_xticklabels()] == ["a", "b"]
    assert ax.images[0].norm.vmin == -ax.images[0].norm.vmax
    assert ax.images[0].colorbar.ax.get_ylabel() == "change of the loss on removal (nats)"
    by_class = plots.influence_map(scores, y_train, y_test, by_class=True, ax=new_axes())
    expected = values[np.ix_(y_test == "a", y_train == "b")].sum(axis=1).mean()
    assert by_class.images[0].get_array()[0, 1] == pytest.approx(expected)


def test_gram_matrix_sorts_by_class_and_thins():
    model = trained()
    ax = plots.gram_matrix(model.gram, np.arange(12) % 3, ax=new_axes())
    order = np.argsort(np.arange(12) % 3, kind="stable")
    np.testing.assert_array_equal(ax.images[0].get_array(), model.gram.matrix[np.ix_(order, order)])
    large = ki.gram(ki.linear(), np.random.default_rng(0).normal(size=(1500, 2)))
    ax = plots.gram_matrix(large, ax=new_axes())
    assert ax.images[0].get_array().shape == (750, 750)
    assert ax.get_title() == "750 of 1,500 points"


def test_gram_matrix_of_full_blocks_is_the_mean_of_the_outputs():
    blocks = np.einsum("ij,ce->icje", np.eye(3), np.diag([1.0, 3.0]))
    ax = plots.gram_matrix(ki.gram(blocks), ax=new_axes())
    np.testing.assert_allclose(ax.images[0].get_array(), 2 * np.eye(3))


def test_spectrum_draws_eigenvalues_and_the_ridge():
    gram = trained().gram
    ax = plots.spectrum({"one": gram}, reg=0.1, ax=new_axes())
    line, ridge = ax.lines
    np.testing.assert_allclose(line.get_ydata(), np.linalg.eigvalsh(gram.matrix)[::-1])
    assert ridge.get_ydata()[0] == pytest.approx(1.2)
    dimension = ki.inspect(gram).effective_dimension(0.1)
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == [f"one: effective dimension {dimension:.3g}", "ridge 1.2"]


@pytest.mark.parametrize("of", ["gradient_norm", "risk"])
def test_history_draws_the_course_over_its_cost(of):
    model = trained()
    ax = plots.history({"Newton": model, "other": model}, of=of, ax=new_axes())
    expected = getattr(model.history, of)
    expected = expected - expected.min() if of == "risk" else expected
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), expected)
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), model.history.products + 1)
    assert plots.history(model, ax=new_axes()).get_legend() is None


def test_reg_path_marks_the_best():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1))
    y = np.sin(2 * x[:, 0]) + 0.3 * rng.normal(size=40)
    path = ki.reg_path(ki.gram(ki.rbf(1.0), x), y, regs=[1e2, 1e-3, 1e-9])
    ax = plots.reg_path(path, ax=new_axes())
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), [1e-9, 1e-3, 1e2])
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), path.loo_losses[[2, 1, 0]])
    assert ax.lines[-1].get_xdata()[0] == path.best


def test_removal_curve_draws_mean_losses():
    model = trained()
    x = model.gram.x
    curve = ki.evaluation.removal_curve(model, np.arange(12), x, np.arange(12) % 3, sizes=[1, 2, 4])
    ax = plots.removal_curve({"first": curve}, unit="nats", ax=new_axes())
    np.testing.assert_array_equal(ax.lines[0].get_xdata(), curve.sizes)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), curve.losses.mean(axis=1))
    assert ax.get_ylabel() == "mean test loss (nats)"
    with pytest.raises(TypeError, match="`curves` is a int; pass a RemovalCurve"):
        plots.removal_curve(1)


def test_influence_maps_of_many_points_are_thinned():
    scores = ki.InfluenceMatrix(np.zeros((3, 1500)), ("test", "train"), "margin")
    ax = plots.influence_map(scores, np.arange(1500) % 2, [0, 1, 0], ax=new_axes())
    assert ax.images[0].get_array().shape == (3, 750)
    assert ax.get_title() == "3 of 3 test and 750 of 1,500 training points"
    assert ax.images[0].colorbar.ax.get_ylabel() == "change of the margin on removal"


def test_detection_draws_the_curve_between_chance_and_the_best():
    found = ki.evaluation.Detection(np.array([True, True, False, True, False]), 0.8)
    ax = plots.detection({"one": found}, ax=new_axes())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), 100 * found.found)
    np.testing.assert_allclose(ax.lines[1].get_xdata(), [0, 60, 100])
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["one: AUC 0.800", "at best", "at random"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.gram_matrix(3), "`gram` is a int; pass a Gram"),
        (lambda: plots.gram_matrix(trained().gram, [1, 2]), "`y` has shape"),
        (lambda: plots.spectrum([]), "`grams` is a list; pass a Gram"),
        (lambda: plots.spectrum({}), "`grams` is empty"),
        (lambda: plots.spectrum(trained().gram, reg=-1), "`reg` is -1; pass a positive number"),
        (
            lambda: plots.spectrum(ki.gram(ki.linear(), np.eye(5), store="none")),
            "`grams` has no spectrum: it is too large, or not in memory",
        ),
        (lambda: plots.history("a"), "`trained` is a str; pass a Model"),
        (lambda: plots.history({}), "`trained` is empty"),
        (lambda: plots.history(trained(), of="x"), "`of` is 'x'; pass 'gradient_norm' or 'risk'"),
        (lambda: plots.reg_path(1), "`path` is a int; pass a RegPath"),
        (lambda: plots.detection(1), "`found` is a int; pass a Detection"),
        (lambda: plots.detection({}), "`found` is empty"),
        (
            lambda: plots.influence_map(
                ki.InfluenceMatrix(np.zeros((2, 3)), ("test", "train"), "loss"), [0, 1], [0, 1]
            ),
            r"`y_train` has shape \(2,\); pass one label a point, \(3,\)",
        ),
        (
            lambda: plots.influence_map(
                ki.InfluenceMatrix(np.zeros(3), ("train",), "loss"), [0, 1, 1], [0]
            ),
            "`scores` has axes",
        ),
    ],
)
def test_what_cannot_be_drawn_is_named(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
