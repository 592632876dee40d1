"""Hypothesis strategies that draw small removal problems.

A problem is drawn as a seed and a few discrete choices, so that a failing example shrinks to a
small seed and small sizes. Training and test points share one feature map: their joint kernel is
positive semidefinite, as that of any real kernel.
"""

from dataclasses import dataclass, field

import kernelinf as ki
import numpy as np
from hypothesis import strategies as st

from . import oracles

LOSSES = ("squared", "cross_entropy", "logistic")
SIZES = (5, 8, 13)
TESTS = 4


@dataclass(frozen=True)
class Problem:
    """One training set, its test points, and what to forget."""

    seed: int
    shape: str
    loss: str
    reg: float
    reg_scale: str
    blocks: str  # "none": Sigma; "kron": Sigma (x) I in full; "full": blocks without structure
    forget: np.ndarray
    features: np.ndarray = field(repr=False)  # (n, p)
    test_features: np.ndarray = field(repr=False)  # (t, p)
    labels: np.ndarray = field(repr=False)
    test_labels: np.ndarray = field(repr=False)
    targets: np.ndarray = field(repr=False)  # (n, d), as the loss wants them
    test_targets: np.ndarray = field(repr=False)
    offset: np.ndarray | None = field(repr=False)
    test_offset: np.ndarray | None = field(repr=False)
    mixing: np.ndarray = field(repr=False)  # (p, d, p d): what full blocks make of the features

    def _repr_pretty_(self, printer, cycle):
        printer.text(repr(self))  # the seed and the choices, instead of every array

    @property
    def n(self):
        return len(self.features)

    @property
    def d(self):
        return self.targets.shape[1]

    @property
    def kept(self):
        return np.setdiff1d(np.arange(self.n), self.forget)

    @property
    def jacobian(self):
        return self._jacobian(self.features)

    @property
    def test_jacobian(self):
        return self._jacobian(self.test_features)

    @property
    def kernel(self):
        return self._kernel(self.features)

    @property
    def cross(self):
        return self._kernel(self.test_features)

    @property
    def diagonal(self):
        """k(x, x) of the test points: (t,) or (t, d, d)."""
        if self.blocks == "none":
            return np.sum(self.test_features**2, axis=1)
        return np.einsum("icq,ieq->ice", self.test_jacobian, self.test_jacobian)

    @property
    def primal(self):
        return oracles.Primal(
            self.jacobian, self.targets, self.loss, self.reg, self.reg_scale, self.offset
        )

    @property
    def dual(self):
        kernel = oracles.kernel_blocks(self.jacobian, self.jacobian)
        return oracles.Dual(kernel, self.targets, self.loss, self.reg, self.reg_scale, self.offset)

    def test_outputs(self, theta):
        return (0.0 if self.test_offset is None else self.test_offset) + self.test_jacobian @ theta

    def test_losses(self, theta):
        return oracles.VALUE[self.loss](self.test_outputs(theta), self.test_targets)

    def _jacobian(self, features):
        if self.blocks == "full":
            return np.einsum("np,pcq->ncq", features, self.mixing)
        return oracles.jacobian_of_features(features, self.d)

    def _kernel(self, rows):
        if self.blocks == "none":
            return rows @ self.features.T
        return oracles.kernel_blocks(self._jacobian(rows), self.jacobian)


def _features(rng, n, p, shape):
    """Rows of unit size; the odd shapes are the degenerate cases that real data brings."""
    features = rng.normal(size=(n + TESTS, p)) / np.sqrt(p)
    if shape == "duplicates":
        features[1] = features[0]
        features[n - 1] = features[n - 2]
    if shape == "zeros":
        features[[0, n - 1]] = 0.0
    features[n] = features[0]  # one test point is a training point
    return features


def _class_labels(rng, n, classes):
    """Every class at least once, in any order."""
    extra = rng.integers(classes, size=n - classes)
    return rng.permutation(np.concatenate([np.arange(classes), extra]))


def _labels(rng, n, d, loss):
    """Labels and targets of n training and TESTS test points."""
    if loss == "squared":
        labels = rng.normal(size=(n + TESTS, d))
        return labels, labels
    if loss == "logistic":
        signs = 2 * np.concatenate([_class_labels(rng, n, 2), rng.integers(2, size=TESTS)]) - 1
        return signs, signs[:, None].astype(float)
    labels = np.concatenate([_class_labels(rng, n, d), rng.integers(d, size=TESTS)])
    return labels, np.eye(d)[labels]


def fit(problem, solver=None, **changes):
    """The library's model of a problem."""
    options = {
        "loss": problem.loss,
        "reg": problem.reg,
        "reg_scale": problem.reg_scale,
        "offset": problem.offset,
    }
    gram = ki.gram(problem.kernel)
    return ki.fit(gram, problem.labels, solver=solver, **(options | changes))


@st.composite
def problems(
    draw,
    *,
    losses=LOSSES,
    sizes=SIZES,
    outputs=(1, 2, 3),
    blocks=("none",),
    offsets=(False, True),
    shapes=("full", "low_rank", "duplicates", "zeros"),
    least_reg=1e-4,
):
    """A problem with any forget set that leaves something to train on."""
    loss = draw(st.sampled_from(losses))
    n = draw(st.sampled_from(sizes))
    d = _draw_outputs(draw, loss, outputs)
    shape = draw(st.sampled_from(shapes))
    layout = draw(st.sampled_from(blocks))
    reg = 10.0 ** draw(st.floats(np.log10(least_reg), 0.0))
    reg_scale = draw(st.sampled_from(("mean", "sum")))
    with_offset = draw(st.sampled_from(offsets))
    forget = draw(forget_sets(n))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)

    p = max(2, n // 3) if shape == "low_rank" else n + 2
    features = _features(rng, n, p, shape)
    labels, targets = _labels(rng, n, d, loss)
    offset = rng.normal(size=(n + TESTS, d)) if with_offset else None
    return Problem(
        seed=seed,
        shape=shape,
        features=features[:n],
        test_features=features[n:],
        labels=labels[:n],
        test_labels=labels[n:],
        targets=targets[:n],
        test_targets=targets[n:],
        loss=loss,
        reg=reg,
        reg_scale=reg_scale,
        offset=None if offset is None else offset[:n],
        test_offset=None if offset is None else offset[n:],
        forget=forget,
        blocks=layout,
        mixing=rng.normal(size=(p, d, p * d)) / np.sqrt(p * d),
    )


def _draw_outputs(draw, loss, outputs):
    if loss == "logistic":
        return 1
    if loss == "cross_entropy":  # one class has nothing to learn
        outputs = [d for d in outputs if d > 1]
    return draw(st.sampled_from(outputs))


@st.composite
def forget_sets(draw, n):
    """Any subset of 1 to n - 1 points, in any order."""
    size = draw(st.sampled_from(range(1, n)))
    return np.array(draw(st.permutations(range(n)))[:size])
