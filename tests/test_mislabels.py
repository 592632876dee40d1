"""Suspect labels: what they are ranked by, and how many wrong ones are found."""

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf import datasets
from kernelinf.evaluation import Detection, SuspectLabels, suspect_labels
from sklearn.metrics import roc_auc_score

from . import oracles

LOSSES = ("squared", "cross_entropy", "logistic")


def small(loss, n=12, **options):
    """A model of a few points in two or three classes."""
    rng = np.random.default_rng(3)
    y = np.arange(n) % (2 if loss == "logistic" else 3)
    return ki.fit(ki.gram(ki.rbf(2.0), rng.normal(size=(n, 4))), y, loss=loss, **options)


def margins(outputs, targets):
    """Output of the class minus the largest of the others, one point at a time."""
    if outputs.shape[1] == 1:
        return (targets * outputs)[:, 0]
    return np.array([f[y.argmax()] - max(f[y == 0]) for f, y in zip(outputs, targets, strict=True)])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("by", ["loo_loss", "loo_margin", "self_influence", "loss"])
def test_scores_are_what_they_are_called(loss, by):
    """Leaving a point out is removing it."""
    model = small(loss)
    targets = model.problem.targets
    without = np.array([ki.remove(model, [i]).model.outputs[i] for i in range(12)])
    expected = {
        "loo_loss": oracles.VALUE[loss](without, targets),
        "loo_margin": -margins(without, targets),
        "self_influence": ki.self_influence(model),
        "loss": oracles.VALUE[loss](model.outputs, targets),
    }[by]
    found = suspect_labels(model, by=by)
    assert (np.diff(found.scores) <= 0).all()
    assert sorted(found.points) == list(range(12))
    np.testing.assert_allclose(found.scores, expected[found.points], rtol=1e-7, atol=1e-9)
    suggested = (without[:, 0] > 0) * 1 if loss == "logistic" else without.argmax(axis=1)
    assert (found.suggested == suggested[found.points]).all()
    assert (found.labels == (np.arange(12) % (2 if loss == "logistic" else 3))[found.points]).all()


def test_self_influence_takes_a_method():
    model = small("cross_entropy")
    found = suspect_labels(model, by="self_influence", method=ki.NewtonStep())
    expected = ki.self_influence(model, method=ki.NewtonStep())
    assert (found.scores == expected[found.points]).all()


@given(
    st.lists(st.integers(0, 5), min_size=9, max_size=9),
    st.lists(st.booleans(), min_size=9, max_size=9).filter(lambda w: 0 < sum(w) < 9),
)
def test_the_auc_is_that_of_scikit_learn(scores, wrong):
    scores, wrong = np.array(scores, dtype=float), np.array(wrong)
    order = np.argsort(-scores, kind="stable")
    labels = np.zeros(9, dtype=int)
    found = SuspectLabels(order, scores[order], labels, labels, "loo_loss", 9).detection(wrong)
    assert found.auc == pytest.approx(roc_auc_score(wrong, scores), abs=1e-12)


def test_the_detection_curve_counts():
    found = Detection(np.array([True, True, False, True, False]), 0.8)
    np.testing.assert_allclose(found.inspected, [0, 0.2, 0.4, 0.6, 0.8, 1])
    np.testing.assert_allclose(found.found, [0, 1 / 3, 2 / 3, 2 / 3, 1, 1])
    assert [found.precision(k) for k in (1, 3, 5)] == [1, 2 / 3, 3 / 5]
    text = "3 of 5 labels wrong: AUC 0.8000, precision 66.7% at 3"
    assert repr(found) == f"Detection({text})"
    for k in (0, 6, 1.5):
        with pytest.raises(ValueError, match=r"`k` is .*; pass a number from 1 to 5"):
            found.precision(k)


@pytest.fixture(scope="module")
def flipped():
    """500 digits, a tenth of whose labels are another class: Gram, labels, truth, mask."""
    data = datasets.digits().subset(per_class=50)
    rng = np.random.default_rng(0)
    wrong = np.zeros(500, dtype=bool)
    wrong[rng.choice(500, 50, replace=False)] = True
    y = np.where(wrong, (data.y_train + rng.integers(1, 10, size=500)) % 10, data.y_train)
    return ki.gram(ki.from_stax(ki.networks.fcnn(depth=3)), data.x_train), y, data.y_train, wrong


@pytest.mark.parametrize("loss", ["squared", "cross_entropy"])
@pytest.mark.parametrize("by", ["loo_loss", "self_influence"])
def test_flipped_digits_are_found(flipped, loss, by):
    gram, y, truth, wrong = flipped
    found = suspect_labels(ki.fit(gram, y, loss=loss, reg=1e-2), by=by)
    detection = found.detection(wrong)
    assert detection.auc > 0.95
    assert detection.found[100] >= 0.9  # a fifth inspected
    doubted = wrong[found.points]
    assert (found.suggested[doubted] == truth[found.points][doubted]).mean() > 0.85
    assert (found.suggested[~doubted] == truth[found.points][~doubted]).mean() > 0.9


def test_leaving_out_is_best_under_a_light_and_a_heavy_ridge(flipped):
    gram, y, _, wrong = flipped

    def auc(reg, by):
        model = ki.fit(gram, y, loss="squared", reg=reg)
        return suspect_labels(model, by=by).detection(wrong).auc

    assert auc(1e-6, "loo_loss") > 0.999 > auc(1e-6, "loss")
    assert auc(1e-1, "loo_loss") > 0.98 > 0.02 + auc(1e-1, "self_influence")


def test_labels_are_the_users_own():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(10, 2)) + 3, rng.normal(size=(10, 2)) - 3])
    y = np.array(["up"] * 10 + ["down"] * 10)
    y[4] = "down"
    for loss in ("squared", "logistic"):
        found = suspect_labels(ki.fit(ki.gram(ki.rbf(2.0), x), y, loss=loss))
        assert (found.points[0], found.labels[0], found.suggested[0]) == (4, "down", "up")
        text = "1 with another label suggested; first point 4, down or rather up"
        assert repr(found) == f"SuspectLabels(20 points by loo_loss, {text})"


def test_removed_points_are_no_longer_suspect():
    smaller = ki.remove(small("squared"), [0, 5]).model
    found = suspect_labels(smaller)
    assert sorted(found.points) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    assert len(found.detection([0, 1]).hits) == 10
    with pytest.raises(ValueError, match="`wrong` has 0 of 10 points; pass some, but not all"):
        found.detection([0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (np.ones(12, dtype=bool), "`wrong` has 12 of 12 points; pass some, but not all"),
        (np.zeros(12, dtype=bool), "`wrong` is empty"),
        (np.ones(3, dtype=bool), "`wrong` is a mask of length 3 but there are 12"),
        ([12], "`wrong` holds 12; pass indices from 0 to 11"),
    ],
)
def test_a_bad_mask_is_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        suspect_labels(small("squared")).detection(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "entropy"}, "`by` is 'entropy'; pass one of 'loo_loss', 'loo_margin'"),
        ({"method": ki.NewtonStep()}, "`method` is NewtonStep.* but `by` is 'loo_loss'"),
    ],
)
def test_bad_choices_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        suspect_labels(small("squared"), **options)


def test_a_model_without_labels_has_none_to_doubt():
    gram = ki.gram(np.eye(4))
    for model in (
        ki.fit(gram, [0.1, 0.2, 0.3, 0.4], loss="squared"),
        ki.fit(gram, [[0.5, 0.5]] * 4),
    ):
        with pytest.raises(ValueError, match="`model` was not trained on one class label a point"):
            suspect_labels(model)
    with pytest.raises(TypeError, match="`model` is a int"):
        suspect_labels(3)
