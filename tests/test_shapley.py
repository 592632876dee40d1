"""Nearest-neighbour Shapley values against sums over all subsets."""

import itertools
import math
import tracemalloc

import kernelinf as ki
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelinf import _test_points, datasets
from kernelinf.evaluation import knn_shapley
from sklearn.neighbors import NearestNeighbors


@st.composite
def neighbourhoods(draw):
    """Features (n, d, p) of whole numbers, so that distances are exact and often tied."""
    n = draw(st.sampled_from((2, 5, 8)))
    d = draw(st.sampled_from((1, 2)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    features = rng.integers(-2, 3, size=(n + 3, d, 3)).astype(float)
    labels = np.concatenate([rng.permutation(np.arange(n) % 2), rng.integers(2, size=3)])
    return features, labels, draw(st.sampled_from((1, 2, 5, 9)))


def kernels(features, n):
    """Gram matrix of the first n points and the cross kernel of the rest."""
    blocks = np.einsum("icq,jeq->icje", features, features)
    if features.shape[1] == 1:
        blocks = blocks[:, 0, :, 0]
    return ki.gram(blocks[:n, ..., :n] if blocks.ndim == 2 else blocks[:n, :, :n]), (
        blocks[n:, :n] if blocks.ndim == 2 else blocks[n:, :, :n]
    )


def utility(subset, right, order, k):
    """Share of right labels among the k of a subset that come first in the order."""
    nearest = [i for i in order if i in subset][:k]
    return sum(right[i] for i in nearest) / k


def by_subsets(right, order, k):
    """The definition of the Shapley value, one subset at a time."""
    n = len(right)
    values = np.zeros(n)
    for i in range(n):
        others = [j for j in range(n) if j != i]
        for size in range(n):
            weight = 1 / (n * math.comb(n - 1, size))
            for subset in map(set, itertools.combinations(others, size)):
                gain = utility(subset | {i}, right, order, k) - utility(subset, right, order, k)
                values[i] += weight * gain
    return values


@given(neighbourhoods())
def test_values_are_those_of_all_subsets(drawn):
    features, labels, k = drawn
    n = len(features) - 3
    gram, cross = kernels(features, n)
    values = knn_shapley(gram, labels[:n], cross, labels[n:], k=k, per_test=True)
    for t in range(3):
        distances = np.sum((features[:n] - features[n + t]) ** 2, axis=(1, 2))
        order = sorted(range(n), key=lambda i: (distances[i], i))
        expected = by_subsets(labels[:n] == labels[n + t], order, k)
        np.testing.assert_allclose(values[t], expected, atol=1e-12)
    mean = knn_shapley(gram, labels[:n], cross, labels[n:], k=k)
    np.testing.assert_allclose(mean, values.mean(axis=0), atol=1e-14)


@given(st.integers(0, 2**32 - 1), st.sampled_from((1, 3, 20, 50)))
def test_values_add_up_to_the_utility_of_all_points(seed, k):
    """The utility of no points is zero."""
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(40, 4)), np.arange(40) % 3
    x_test, y_test = rng.normal(size=(6, 4)), rng.integers(3, size=6)
    values = knn_shapley(ki.gram(x @ x.T), y, x_test @ x.T, y_test, k=k, per_test=True)
    nearest = NearestNeighbors(n_neighbors=min(k, 40)).fit(x).kneighbors(x_test)[1]
    right = (y[nearest] == y_test[:, None]).sum(axis=1)
    np.testing.assert_allclose(values.sum(axis=1), right / k, atol=1e-12)


def digits():
    data = datasets.digits().subset(per_class=20)
    return ki.gram(ki.rbf(4.0), data.x_train), data


def test_flipped_labels_are_worth_least():
    gram, data = digits()
    rng = np.random.default_rng(0)
    wrong = rng.choice(200, 20, replace=False)
    y = data.y_train.copy()
    y[wrong] = (y[wrong] + rng.integers(1, 10, size=20)) % 10
    values = knn_shapley(gram, y, data.x_test, data.y_test)
    right = np.setdiff1d(np.arange(200), wrong)
    assert np.median(values[wrong]) < np.quantile(values[right], 0.05)
    assert "matrix" not in vars(gram)  # no kernel between training points but of each with itself


def test_labels_may_be_strings_or_one_hot():
    gram, data = digits()
    given = knn_shapley(gram, data.y_train, data.x_test, data.y_test)
    named = knn_shapley(gram, data.y_train.astype(str), data.x_test, data.y_test.astype(str))
    unit = np.eye(10)
    one_hot = knn_shapley(gram, unit[data.y_train], gram.cross(data.x_test), unit[data.y_test])
    assert (given == named).all()
    assert (given == one_hot).all()


def test_removed_points_are_nobody_s_neighbours():
    gram, data = digits()
    model = ki.fit(gram, data.y_train, loss="squared")
    kept = np.arange(5, 200)
    smaller = ki.remove(model, range(5)).model
    values = knn_shapley(smaller, data.y_train, data.x_test, data.y_test)
    alone = ki.gram(ki.rbf(4.0), data.x_train[kept])
    expected = knn_shapley(alone, data.y_train[kept], data.x_test, data.y_test)
    assert (values[:5] == 0).all()
    np.testing.assert_allclose(values[kept], expected, atol=1e-12)


def test_memory_does_not_grow_with_the_test_points(monkeypatch):
    monkeypatch.setattr(_test_points, "TILE_BYTES", 2e5)
    gram, data = digits()
    x_test, y_test = np.tile(data.x_test, (7, 1, 1, 1)), np.tile(data.y_test, 7)
    few = knn_shapley(gram, data.y_train, data.x_test, data.y_test)
    tracemalloc.start()
    many = knn_shapley(gram, data.y_train, x_test, y_test)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * len(x_test) * gram.n  # less than the cross kernel alone
    np.testing.assert_allclose(many, few, atol=1e-14)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"k": 0}, "`k` is 0; pass a number of neighbours, 1 or more"),
        ({"k": 2.5}, r"`k` is 2\.5; pass a number of neighbours"),
        ({"k": True}, "`k` is True"),
        ({"y": [0, 1]}, "`y` has 2 entries but there are 4 points"),
        ({"y": [0, 0, 0, 0]}, "`y` holds the single class"),
        ({"y": [[0.5, 0.5]] * 4}, "`y` holds class probabilities; pass one label a point"),
        ({"y_test": [0, 1, 0]}, "`y_test` has 3 entries but there are 2 in `x_test`"),
        ({"y_test": [0, 7]}, "`y_test` holds classes that training did not: 7"),
        ({"y_test": [[0.5, 0.5]] * 2}, "`y_test` holds class probabilities"),
        ({"x_test": np.zeros((0, 4))}, "`x_test` is empty"),
        ({"x_test": np.zeros((2, 3))}, r"`x_test` has shape \(2, 3\)"),
    ],
)
def test_bad_choices_are_named(changes, message):
    given = {"y": [0, 1, 0, 1], "x_test": np.eye(4)[:2], "y_test": [0, 1]} | changes
    with pytest.raises(ValueError, match=message):
        knn_shapley(ki.gram(np.eye(4)), **given)


def test_a_matrix_is_no_gram():
    with pytest.raises(TypeError, match=r"`gram` is a ndarray; pass ki\.gram"):
        knn_shapley(np.eye(4), [0, 1, 0, 1], np.eye(4), [0, 1, 0, 1])
