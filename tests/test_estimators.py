"""scikit-learn's own checks of its estimators, and its models as referees of what they predict."""

import copy
import pickle
import subprocess
import sys

import kernelinf as ki
import numpy as np
import pytest
from joblib.externals.loky.backend.reduction import dumps  # what goes to other processes
from sklearn.base import clone
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

# One check skips itself, check_array_api_input: it needs SCIPY_ARRAY_API to be set before SciPy is
# imported, and is about arrays of other libraries in and out, which the estimators do not promise.
ESTIMATORS = [
    ki.NTKClassifier(),
    ki.NTKClassifier(ki.rbf(1.0), loss="logistic"),
    ki.NTKRegressor(),
]


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learn_finds_nothing_wrong(estimator, check):
    check(estimator)


def data(n=40, t=15, p=3, classes=3, seed=0):
    """Noisy classes: points and labels to train on, points and labels to predict."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n + t) % classes)
    points = rng.normal(size=(n + t, p)) + 2 * np.eye(p)[labels % p]
    return points[:n], labels[:n], points[n:], labels[n:]


# --- what they predict ------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [(), (2,)])
def test_the_regressor_is_kernel_ridge_regression(columns):
    x, _, x_test, _ = data()
    y = np.random.default_rng(1).normal(size=(len(x), *columns))
    ours = ki.NTKRegressor(ki.rbf(1.3), reg=0.1, reg_scale="sum").fit(x, y)
    theirs = KernelRidge(alpha=0.1, kernel="rbf", gamma=1 / (2 * 1.3**2)).fit(x, y)
    np.testing.assert_allclose(ours.predict(x_test), theirs.predict(x_test), rtol=1e-9, atol=1e-10)
    assert ours.score(x, y) == pytest.approx(theirs.score(x, y))


@pytest.mark.parametrize(
    ("loss", "classes"), [("cross_entropy", 3), ("cross_entropy", 2), ("logistic", 2)]
)
def test_the_classifier_is_regularised_logistic_regression(loss, classes):
    x, y, x_test, y_test = data(classes=classes)
    ours = ki.NTKClassifier(ki.linear(), loss=loss, reg=0.5, reg_scale="sum").fit(x, y)
    # of two classes scikit-learn penalises one vector, which stands for the two of the softmax
    weight = 0.25 if (loss, classes) == ("cross_entropy", 2) else 0.5
    theirs = LogisticRegression(C=1 / weight, fit_intercept=False, tol=1e-12, max_iter=10_000)
    theirs.fit(x, y)
    np.testing.assert_allclose(
        ours.predict_proba(x_test), theirs.predict_proba(x_test), rtol=1e-5, atol=1e-7
    )
    decision = ours.decision_function(x_test)
    expected = theirs.decision_function(x_test)
    if classes > 2:  # only differences of outputs matter
        decision, expected = (d - d.mean(axis=1, keepdims=True) for d in (decision, expected))
    np.testing.assert_allclose(decision, expected, rtol=1e-5, atol=1e-6)
    assert np.array_equal(ours.predict(x_test), theirs.predict(x_test))
    assert ours.score(x_test, y_test) == theirs.score(x_test, y_test)


def test_the_default_is_a_fully_connected_network_of_depth_3():
    x, y, x_test, _ = data()
    kernel = ki.from_stax(ki.networks.fcnn(depth=3))
    model = ki.fit(ki.gram(kernel, x), y, loss="cross_entropy", reg=1e-2)
    found = ki.NTKClassifier().fit(x, y).decision_function(x_test)
    np.testing.assert_allclose(found, model.predict(x_test), rtol=1e-9, atol=1e-12)


def test_the_squared_loss_gives_no_probabilities():
    x, y, *_ = data()
    classifier = ki.NTKClassifier(loss="squared").fit(x, y)
    assert not hasattr(classifier, "predict_proba")
    with pytest.raises(AttributeError, match="has no attribute 'predict_proba'"):
        classifier.predict_proba(x)
    assert hasattr(ki.NTKClassifier(), "predict_proba")


def test_images_keep_their_axes_and_their_kernels_go_to_other_processes():
    digits = ki.datasets.digits().subset(per_class=3)
    classifier = ki.NTKClassifier(ki.from_stax(ki.networks.cnn(depth=1)))
    classifier.fit(digits.x_train, digits.y_train)
    assert classifier.score(digits.x_test[:50], digits.y_test[:50]) > 0.5
    with pytest.raises(ValueError, match=r"points of shape \(8, 8\)"):
        classifier.predict(digits.x_test[..., 0])
    again, x = pickle.loads(dumps(classifier.kernel)), digits.x_train[:3]
    np.testing.assert_array_equal(again(x), classifier.kernel(x))


# --- the model behind them --------------------------------------------------------------------


@pytest.mark.parametrize("names", [np.array(["a", "b", "c"]), np.array(["a", "b", "c"], object)])
def test_the_model_has_the_labels_and_takes_removals_and_influence(names):
    x, y, x_test, y_test = data()
    classifier = ki.NTKClassifier(ki.rbf(1.5)).fit(x, names[y])
    model = classifier.model_
    assert model.classes.tolist() == ["a", "b", "c"]
    assert classifier.predict(x_test).dtype == names.dtype
    scores = ki.influence(model, x_test, names[y_test])
    by_number = ki.fit(ki.gram(ki.rbf(1.5), x), y)
    expected = ki.influence(by_number, x_test, y_test).values
    np.testing.assert_allclose(scores.values, expected, rtol=1e-7, atol=1e-12)

    removal = ki.remove(model, [0, 1, 2], method=ki.Retrain())
    classifier.model_ = removal.model
    fresh = clone(classifier).fit(x[3:], names[y[3:]])
    np.testing.assert_allclose(
        classifier.predict_proba(x_test), fresh.predict_proba(x_test), rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("labels", [np.array([1.0, -2.0, 7.0]), np.array([True, False])])
def test_any_labels_of_scikit_learn_are_given_back(labels):
    x, y, x_test, y_test = data(classes=len(labels))
    classifier = ki.NTKClassifier(ki.rbf(1.5)).fit(x, labels[y])
    assert set(classifier.predict(x_test)) <= set(labels)
    assert classifier.score(x_test, labels[y_test]) > 0.7
    assert ki.influence(classifier.model_, x_test, labels[y_test]).values.shape == (15, 40)


# --- inside scikit-learn ----------------------------------------------------------------------


def test_a_grid_search_over_kernels_and_regularisation_in_a_pipeline():
    x, y, x_test, y_test = data()
    kernels = [ki.from_stax(ki.networks.fcnn(depth=1)), ki.rbf(0.01)]  # the second sees no one near
    pipeline = make_pipeline(StandardScaler(), ki.NTKClassifier())
    grid = {"ntkclassifier__kernel": kernels, "ntkclassifier__reg": [1e-3, 1e-1]}
    search = GridSearchCV(pipeline, grid, cv=3, error_score="raise").fit(x, y)
    assert search.best_params_["ntkclassifier__kernel"] is kernels[0]
    assert search.score(x_test, y_test) > 0.6


def test_kernels_are_not_copied_so_that_each_is_compiled_once():
    kernel = ki.from_stax(ki.networks.fcnn(depth=2))
    classifier = ki.NTKClassifier(kernel)
    assert clone(classifier).kernel is kernel
    assert copy.deepcopy(classifier).kernel is kernel
    assert ki.NTKClassifier()._kernel is ki.NTKRegressor()._kernel


@pytest.mark.parametrize("how", [pickle.dumps, dumps])
def test_what_is_read_back_predicts_the_same_and_can_be_removed_from(how):
    x, y, x_test, _ = data()
    network = ki.from_stax(ki.networks.fcnn(depth=1))  # made of functions, for `dumps` alone
    for kernel in (None, ki.rbf(1.5) if how is pickle.dumps else network):
        for estimator in (ki.NTKClassifier(kernel), ki.NTKRegressor(kernel)):
            estimator.fit(x, y)
            again = pickle.loads(how(estimator))
            assert np.array_equal(again.predict(x_test), estimator.predict(x_test))
            changes = [ki.remove(e.model_, [3]).effect(x_test) for e in (again, estimator)]
            np.testing.assert_allclose(*(c.outputs for c in changes), rtol=1e-8, atol=1e-12)


# --- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "error", "message"),
    [
        (ki.NTKClassifier("rbf"), TypeError, "`kernel` is 'rbf'; pass a kernel such as"),
        (ki.NTKClassifier(np.eye(40)), TypeError, "`kernel` is array.*or None"),
        (ki.NTKClassifier(reg=-1), ValueError, "`reg` is -1; pass a positive number"),
        (ki.NTKClassifier(loss="hinge"), ValueError, "`loss` is 'hinge'; pass one of"),
        (ki.NTKClassifier(loss="logistic"), ValueError, "Only binary classification is supported"),
        (ki.NTKRegressor(solver="newton"), TypeError, "`solver` is 'newton'"),
        (ki.NTKRegressor(reg_scale="n"), ValueError, "`reg_scale` is 'n'"),
    ],
)
def test_parameters_are_refused_when_fitted(estimator, error, message):
    x, y, *_ = data()
    with pytest.raises(error, match=f"(?s){message}"):
        estimator.fit(x, y)


def test_a_single_class_is_refused():
    with pytest.raises(ValueError, match="`y` holds 1 class, 'a'; pass at least 2"):
        ki.NTKClassifier().fit(np.ones((3, 2)), np.array(["a"] * 3, dtype=object))


def test_other_names_are_unknown_and_the_estimators_are_listed():
    with pytest.raises(AttributeError, match="module 'kernelinf' has no attribute 'NTK'"):
        _ = ki.NTK
    assert {"NTKClassifier", "NTKRegressor", "fit"} <= set(dir(ki))


def test_without_scikit_learn_it_is_named():
    code = (
        "import sys\n"
        "for name in ('sklearn', 'sklearn.base'): sys.modules[name] = None\n"
        "import kernelinf\n"
        "try: kernelinf.NTKClassifier\n"
        "except ImportError as error: print(error)\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    message = 'NTKClassifier needs scikit-learn: pip install "kernelinf[data]"'
    assert shown.stdout.strip() == message
