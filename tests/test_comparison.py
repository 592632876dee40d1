"""Kernels side by side: each number against one computed otherwise, and what goes wrong named."""

import itertools
import sys
import warnings
from dataclasses import dataclass

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf import _comparison, _inspection
from kernelinf._kernels import Kernel
from scipy.spatial.distance import cdist
from scipy.stats import spearmanr

from . import oracles

REGS = (1e-4, 1e-2, 1.0)


def data(n=24, t=5, classes=3, seed=0):
    """Noisy classes of which every one is there."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n + t) % classes)
    points = rng.normal(size=(n + t, 4)) + np.eye(4)[labels]
    return points[:n], labels[:n], points[n:], labels[n:]


def rbf(x1, x2, length_scale=1.5):
    return np.exp(-cdist(x1, x2, "sqeuclidean") / (2 * length_scale**2))


KERNELS = {"rbf": ki.rbf(1.5), "linear": ki.linear()}
MATRICES = {"rbf": rbf, "linear": lambda x1, x2: x1 @ x2.T}


def retrained(kernel, y, reg):
    """Kernel ridge regression, outputs as a function of the rows of the kernel."""
    alpha = np.linalg.solve(kernel + reg * len(y) * np.eye(len(y)), y)
    return lambda rows: rows @ alpha


def left_out(kernel, y, reg):
    """Outputs at each point of a model trained without it, by training n models."""
    outputs = []
    for i in range(len(y)):
        rest = np.delete(np.arange(len(y)), i)
        outputs.append(retrained(kernel[np.ix_(rest, rest)], y[rest], reg)(kernel[i, rest]))
    return np.array(outputs)


def squared(outputs, targets):
    return 0.5 * np.sum((outputs - targets) ** 2, axis=1)


# --- the numbers of one kernel ------------------------------------------------------------------


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_what_training_without_each_point_makes_of_it(name):
    x, y, x_test, y_test = data()
    kernel, cross = MATRICES[name](x, x), MATRICES[name](x_test, x)
    targets, test_targets = np.eye(3)[y], np.eye(3)[y_test]
    losses = [squared(left_out(kernel, targets, reg), targets).mean() for reg in REGS]
    best = REGS[int(np.argmin(losses))]
    found = ki.compare(KERNELS, x, y, x_test, y_test, reg=REGS)[name]
    assert found.reg == best

    out = left_out(kernel, targets, best)
    np.testing.assert_allclose(found.loo.outputs, out, rtol=1e-8, atol=1e-10)
    assert found.loo.exact
    assert found.loo.accuracy == np.mean(out.argmax(axis=1) == y)
    model = retrained(kernel, targets, best)
    own = squared(out, targets) - squared(model(kernel), targets)
    np.testing.assert_allclose(found.own_effects, own, rtol=1e-7, atol=1e-10)
    outputs = model(cross)
    np.testing.assert_allclose(found.test_losses, squared(outputs, test_targets), rtol=1e-8)
    assert found.test_accuracy == np.mean(outputs.argmax(axis=1) == y_test)
    without = np.array(
        [
            retrained(kernel[np.ix_(rest, rest)], targets[rest], best)(cross[:, rest])
            for rest in (np.delete(np.arange(len(y)), i) for i in range(len(y)))
        ]
    )
    slopes = np.einsum("td,itd->it", outputs - test_targets, without - outputs)
    np.testing.assert_allclose(found.test_effects, slopes.mean(axis=1), rtol=1e-7, atol=1e-10)

    ridge = best * len(y) * np.eye(len(y))
    assert found.effective_dimension == pytest.approx(
        np.trace(np.linalg.solve(kernel + ridge, kernel))
    )
    np.testing.assert_allclose(found.eigenvalues, np.linalg.eigvalsh(kernel), atol=1e-12)
    singular = name == "linear"  # of rank 4
    assert found.condition_number == (np.inf if singular else pytest.approx(np.linalg.cond(kernel)))
    assert 0 < found.kernel_seconds < found.seconds


def test_leave_one_out_on_the_digits_is_that_of_retraining():
    digits = ki.datasets.digits().subset(per_class=6)
    kernels = {
        "ntk": ki.from_stax(ki.networks.fcnn(depth=3)),
        "cnn": ki.from_stax(ki.networks.cnn(depth=1)),
        "rbf": ki.rbf(2.0),
    }
    arguments = digits.x_train, digits.y_train, digits.x_test[:20], digits.y_test[:20]
    found = ki.compare(kernels, *arguments, reg=1e-3)
    assert found.exact
    for name, kernel in kernels.items():
        out = left_out(kernel(digits.x_train), np.eye(10)[digits.y_train], 1e-3)
        np.testing.assert_allclose(found[name].loo.outputs, out, rtol=0, atol=1e-8)
        assert found[name].loo.accuracy == np.mean(out.argmax(axis=1) == digits.y_train)


@pytest.mark.parametrize(("loss", "classes"), [("cross_entropy", 3), ("logistic", 2)])
def test_other_losses_are_refined_to_retraining(loss, classes):
    x, y, x_test, y_test = data(n=12, classes=classes)
    arguments = KERNELS, x, y, x_test, y_test
    found = ki.compare(*arguments, loss=loss, reg=1e-2, refine=8)["linear"]
    targets = np.eye(classes)[y] if loss == "cross_entropy" else 2.0 * y[:, None] - 1
    jacobian = oracles.jacobian_of_features(x, targets.shape[1])
    primal = oracles.Primal(jacobian, targets, loss, 1e-2)
    for i in range(12):
        theta = primal.keeping(np.delete(np.arange(12), i)).train()
        np.testing.assert_allclose(found.loo.outputs[i], jacobian[i] @ theta, rtol=1e-6, atol=1e-7)
    step = ki.compare(*arguments, loss=loss, reg=1e-2)["linear"]
    assert not step.loo.exact
    assert np.abs(step.loo.outputs - found.loo.outputs).max() > 1e-4


def test_real_targets_have_losses_and_no_accuracies():
    x, _, x_test, _ = data()
    y, y_test = x.sum(axis=1), x_test.sum(axis=1)
    found = ki.compare(KERNELS, x, y, x_test, y_test, reg=1e-6)
    assert found["linear"].test_accuracy is None
    assert found["linear"].test_losses.max() < 1e-6
    assert found.rows()[0]["loo_accuracy"] is None


@dataclass(frozen=True, eq=False)
class Blocks(Kernel):
    """A kernel with full blocks, the same as a smaller one for each of its outputs."""

    inner: Kernel

    @property
    def outputs(self):
        return 3

    def _evaluate(self, x1, x2):
        values = self.inner._evaluate(x1, x2)
        return values[:, None, :, None] * np.eye(3)[None, :, None, :]


def test_full_blocks_are_compared_with_other_kernels():
    arguments = data(n=10)
    found = ki.compare({"blocks": Blocks(ki.rbf(1.5)), **KERNELS}, *arguments, reg=1e-2)
    blocks, plain = found["blocks"], found["rbf"]
    np.testing.assert_allclose(blocks.own_effects, plain.own_effects, rtol=1e-8)
    assert blocks.alignment == pytest.approx(plain.alignment)
    assert blocks.effective_dimension == pytest.approx(3 * plain.effective_dimension)


def test_spectra_of_large_matrices_are_not_known(monkeypatch):
    monkeypatch.setattr(_inspection, "EXACT_SIDE", 0)
    found = ki.compare(KERNELS, *data(), reg=1e-2)
    assert found["rbf"].eigenvalues.shape == (1,)
    assert found["rbf"].effective_dimension is None
    assert found["rbf"].condition_number is None
    with pytest.raises(ValueError, match="has no spectra: the matrices are too large"):
        ki.plots.comparison(found, of="spectrum")


# --- the best ridge ---------------------------------------------------------------------------


def test_the_best_reg_at_an_end_is_marked_and_not_warned_of():
    arguments = data()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high, one = (
            ki.compare({"rbf": KERNELS["rbf"]}, *arguments, reg=regs)
            for regs in ([1e3, 1e4], [1e-12, 1e-13], [1e-2])
        )
    assert [c["rbf"].reg_at_end for c in (low, high, one)] == [-1, 1, 0]
    assert "<=1.0e+03" in str(low)
    assert ">=1.0e-12" in str(high)
    assert "  1.0e-02" in str(one)


def test_by_default_each_kernel_has_a_path_of_its_own_size():
    x, y, x_test, y_test = data()
    small = ki.compare({"one": ki.linear()}, x, y, x_test, y_test)["one"]
    large = ki.compare({"one": ki.linear()}, 100 * x, y, 100 * x_test, y_test)["one"]
    assert large.reg == pytest.approx(1e4 * small.reg)
    np.testing.assert_allclose(large.loo.losses, small.loo.losses, rtol=1e-7)


# --- alignment --------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.sampled_from((3, 8)),
    d=st.sampled_from((1, 3)),
    scale=st.sampled_from((1e-150, 1.0, 1e150)),
)
def test_alignment_is_the_cosine_of_centred_matrices(seed, n, d, scale):
    rng = np.random.default_rng(seed)
    features, targets = rng.normal(size=(n, 4)), rng.normal(size=(n, d))
    kernel = features @ features.T
    centring = np.eye(n) - np.ones((n, n)) / n
    first, second = (centring @ m @ centring for m in (kernel, targets @ targets.T))
    cosine = np.sum(first * second) / (np.linalg.norm(first) * np.linalg.norm(second))
    found = _comparison.alignment(scale * kernel, targets / scale)
    assert found == pytest.approx(cosine, abs=1e-9)
    assert -1e-9 <= found <= 1 + 1e-9  # both matrices are positive semidefinite
    moved = _comparison.alignment(kernel + 7.0, targets + 3.0)
    assert moved == pytest.approx(cosine, abs=1e-7)


def test_alignment_of_the_targets_with_themselves():
    targets = np.eye(3)[[0, 1, 1, 2]]
    assert _comparison.alignment(targets @ targets.T, targets) == pytest.approx(1.0)
    assert _comparison.alignment(np.ones((4, 4)), targets) is None
    assert _comparison.alignment(np.zeros((4, 4)), targets) is None
    assert _comparison.alignment(np.eye(4), np.ones((4, 2))) is None


# --- agreement --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def comparison():
    kernels = {"rbf": ki.rbf(1.5), "wide": ki.rbf(15.0), "linear": ki.linear()}
    return ki.compare(kernels, *data(n=30), reg=REGS)


@pytest.mark.parametrize("on", ["test", "own"])
def test_agreement_is_of_ranks_and_of_the_top(comparison, on):
    found = comparison.agreement(on, k=7)
    assert found.names == ("rbf", "wide", "linear")
    effects = [getattr(entry, f"{on}_effects") for entry in comparison.entries]
    for i, j in itertools.product(range(3), repeat=2):
        assert found.spearman[i, j] == pytest.approx(spearmanr(effects[i], effects[j]).statistic)
        common = set(np.argsort(effects[i])[-7:]) & set(np.argsort(effects[j])[-7:])
        assert found.overlap[i, j] == len(common) / 7
    assert "share of the top 7 in common (by chance 0.23)" in str(found)
    table = found.to_dataframe()
    assert table[["first", "second"]].to_numpy().tolist() == [
        ["rbf", "wide"],
        ["rbf", "linear"],
        ["wide", "linear"],
    ]
    assert table["overlap"].tolist() == found.overlap[[0, 0, 1], [1, 2, 2]].tolist()


def test_agreement_without_an_order_is_undefined():
    x, y, x_test, y_test = data()
    zeros = np.zeros_like(x)
    with pytest.warns(UserWarning, match="zeros failed"):
        found = ki.compare({"rbf": ki.rbf(1.5), "zeros": Failing()}, x, y, x_test, y_test)
    assert found.agreement().spearman == pytest.approx(1.0)
    flat = ki.compare({"linear": ki.linear()}, zeros, y, x_test, y_test, reg=1e-2)
    assert flat["linear"].alignment is None
    assert np.isnan(flat.agreement().spearman).all()
    assert "nan" in str(flat.agreement())


def test_agreement_refuses(comparison):
    with pytest.raises(ValueError, match="`on` is 'train'; pass 'test' or 'own'"):
        comparison.agreement("train")
    with pytest.raises(ValueError, match="`k` is 31; pass a number from 1 to 30"):
        comparison.agreement(k=31)


# --- the table --------------------------------------------------------------------------------


def test_it_prints_as_a_table_and_becomes_a_dataframe(comparison):
    lines = str(comparison).splitlines()
    assert "30 training and 5 test points, squared loss, leave-one-out exact" in lines[0]
    assert lines[1].split()[:3] == ["kernel", "test", "accuracy"]
    assert [line.split()[0] for line in lines[2:]] == ["rbf", "wide", "linear"]
    table = comparison.to_dataframe()
    assert table["kernel"].tolist() == ["rbf", "wide", "linear"]
    assert table["loo_loss"].tolist() == [e.loo.losses.mean() for e in comparison.entries]
    assert f"{table['test_loss'][1]:.4f}" in lines[3]
    assert "'wide': reg " in repr(comparison["wide"])
    with pytest.raises(KeyError, match="cubic"):
        comparison["cubic"]


def test_names_may_be_settings():
    kernels = {length_scale: ki.rbf(length_scale) for length_scale in (1, 2)}
    found = ki.compare(kernels, *data(), reg=1e-2)
    assert found.names == (1, 2)
    assert found[2].name == 2
    assert [line.split()[0] for line in str(found).splitlines()[2:]] == ["1", "2"]
    assert "[2]  2" in str(found.agreement())


def test_progress_is_shown_when_asked_for(capfd):
    ki.compare(KERNELS, *data(), reg=1e-2)
    assert not capfd.readouterr().err
    ki.compare(KERNELS, *data(), reg=1e-2, progress=True)
    shown = capfd.readouterr().err
    assert "Comparison" in shown
    assert "2/2" in shown


# --- what goes wrong --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Failing(Kernel):
    """A kernel that takes points and then has no values."""

    def _evaluate(self, x1, x2):
        return ki.linear()._evaluate(x1, x2) * np.nan


def test_a_kernel_that_fails_is_named_and_the_others_are_kept():
    kernels = {"rbf": ki.rbf(1.5), "broken": Failing(), "linear": ki.linear()}
    with pytest.warns(UserWarning, match="broken failed: "):
        found = ki.compare(kernels, *data())
    assert found.names == ("rbf", "linear")
    assert list(found.failures) == ["broken"]
    assert str(found).splitlines()[-1].startswith("broken: ")
    assert found.agreement().names == ("rbf", "linear")


def test_nothing_to_compare_is_an_error():
    with (
        pytest.warns(UserWarning, match="broken failed"),
        pytest.raises(RuntimeError, match=r"no kernel could be compared: \{'broken'"),
    ):
        ki.compare({"broken": Failing()}, *data())


def test_warnings_have_the_name_of_the_kernel(monkeypatch):
    def noisy_fit(*args, **options):
        warnings.warn("stopped short", ki.ConvergenceWarning, stacklevel=2)
        return ki.fit(*args, **options)

    monkeypatch.setattr(_comparison, "fit", noisy_fit)
    with pytest.warns(ki.ConvergenceWarning, match="^linear: stopped short$") as caught:
        ki.compare({"linear": ki.linear()}, *data(), reg=1e-2)
    assert caught[0].filename == __file__


X, Y, X_TEST, Y_TEST = data()
IMAGES = ki.from_stax(ki.networks.cnn(depth=1))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"kernels": [ki.linear()]}, TypeError, "`kernels` is a list; pass kernels by name"),
        ({"kernels": {}}, ValueError, "`kernels` is empty"),
        ({"kernels": {"a": ki.networks.fcnn()}}, TypeError, "`kernels`, 'a', is a tuple; pass"),
        ({"kernels": {"cnn": IMAGES}}, ValueError, "`kernels`, 'cnn': .*points of shape"),
        ({"x": X[:1], "y": Y[:1]}, ValueError, "`x` has a single point"),
        ({"x": X[0]}, ValueError, r"`x` has shape \(4,\)"),
        ({"x_test": X_TEST[:, :3]}, ValueError, r"`x_test` has points of shape \(3,\)"),
        ({"y": Y[1:]}, ValueError, "`y` has 23 entries but there are 24 points"),
        ({"y_test": Y_TEST + 1}, ValueError, "`y_test` holds classes that training did not: 3"),
        ({"y_test": Y_TEST[1:]}, ValueError, "`y_test` has 4 entries"),
        ({"reg": 0.0}, ValueError, "`reg` is 0.0; pass a positive number, several, or None"),
        ({"reg": "best"}, ValueError, "`reg` is 'best'; pass a positive number, several, or None"),
        ({"reg": [1e-2, -1.0]}, ValueError, "`reg` holds -1.0; pass positive numbers"),
        ({"loss": "hinge"}, ValueError, "`loss` is 'hinge'; pass one of"),
        ({"loss": "logistic"}, ValueError, "the logistic loss takes two"),
        ({"refine": -1}, ValueError, "`refine` is -1; pass a number of Newton steps"),
    ],
)
def test_arguments_are_refused_before_any_kernel_is_evaluated(changes, error, message, monkeypatch):
    monkeypatch.setattr(_comparison, "_compared", None)  # the work
    arguments = {"kernels": KERNELS, "x": X, "y": Y, "x_test": X_TEST, "y_test": Y_TEST}
    with pytest.raises(error, match=message):
        ki.compare(**(arguments | changes))


def test_blocks_of_another_number_of_outputs_are_refused():
    arguments = data(classes=2)
    with pytest.raises(ValueError, match="`kernels`, 'blocks', has 3 outputs but `y` gives 2"):
        ki.compare({"blocks": Blocks(ki.linear())}, *arguments)


def test_tables_show_as_html_in_notebooks(monkeypatch):
    x = np.random.default_rng(0).normal(size=(12, 3))
    y = np.arange(12) % 3
    gram = ki.gram(ki.rbf(1.0), x)
    model = ki.fit(gram, y)
    comparison = ki.compare({"<rbf>": ki.rbf(1.0)}, x, y, x, y, reg=1e-2)
    lev = ki.leverage(model, [0, 1])
    tables = {
        "Comparison": comparison,
        "Audit": ki.audit(model, x, y, forget_sets=[[0], [1]]),
        "Leverage": lev,
        "RegPath": ki.reg_path(gram, x[:, 0], regs=[1e-2]),
    }
    for name, table in tables.items():
        html = table._repr_html_()
        assert html.startswith(f"<p>{name}")
        assert html.count("<tr") == len(table.to_dataframe()) + 1 + (name == "RegPath")
    assert "&lt;rbf&gt;" in comparison._repr_html_()
    assert lev.recommendation.split(":", maxsplit=1)[0] in lev._repr_html_()
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert comparison._repr_html_().startswith("<pre>Comparison")
