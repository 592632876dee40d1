"""Training on hard problems: small ridges and badly conditioned Gram matrices.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz:

    python -m tests.benchmarks.hard

Prints a table in Markdown. Every problem is trained four times: by plain conjugate gradients, by
preconditioned ones, by a factorisation in every step, and as the library does it, which starts with
the second and turns to the third when that has taken too long.
"""

import contextlib
import math
import warnings
from dataclasses import replace
from unittest import mock

import kernelinf as ki
import numpy as np
from kernelinf._newton import System
from kernelinf._patience import Patience
from kernelinf._problem import Problem

from tests.benchmarks.newton import seconds, warm_up
from tests.benchmarks.problems import data_folder, mnist

REGS = (1e-2, 1e-4, 1e-6, 1e-8)
REPEATS = 1


def images(n, loss):
    data = mnist(data_folder(), per_class=n // 10)
    kernel = ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1))
    labels = data.y_train % 2 if loss == "logistic" else data.y_train
    return ki.gram(kernel, data.x_train), labels


def points(n, loss, rng):
    """Points in five dimensions and noisy labels: five classes, or two."""
    x = rng.normal(size=(n, 5))
    labels = np.digitize(x[:, 0] + np.sin(3 * x[:, 1]) / 2, [-1, -0.3, 0.3, 1])
    labels = np.where(rng.random(n) < 0.1, rng.integers(5, size=n), labels)
    return x, labels % 2 if loss == "logistic" else labels


def smooth(n, loss, length_scale):
    """Hardly more than a few hundred eigenvalues above rounding when the length scale is large."""
    x, labels = points(n, loss, np.random.default_rng(0))
    return ki.gram(ki.rbf(length_scale), x), labels


def duplicates(n, loss):
    """Twenty features of n / 2 points, each of which is there twice."""
    rng = np.random.default_rng(0)
    _, labels = points(n, loss, rng)
    features = np.repeat(rng.normal(size=(n // 2, 20)), 2, axis=0)
    return ki.gram(features @ features.T), labels


PROBLEMS = {
    "MNIST, 500": (images, 500, "cross_entropy"),
    "MNIST, 1000": (images, 1000, "cross_entropy"),
    "MNIST, 2000": (images, 2000, "cross_entropy"),
    "MNIST, 2000, logistic": (images, 2000, "logistic"),
    "rbf of length 10, 1000": (smooth, 1000, "cross_entropy", 10.0),
    "rbf of length 10, 1000, logistic": (smooth, 1000, "logistic", 10.0),
    "rbf of length 1, 1000": (smooth, 1000, "cross_entropy", 1.0),
    "rbf of length 1, 1000, logistic": (smooth, 1000, "logistic", 1.0),
    "rank 20, all twice, 1000": (duplicates, 1000, "cross_entropy"),
}


@contextlib.contextmanager
def method(share, *, preconditioned=True):
    """Give every Newton step's system this much patience, and a preconditioner or none."""
    system = Problem.system

    def patched(self, outputs, patience=None):
        return replace(system(self, outputs), patience=Patience(share))

    with mock.patch.object(Problem, "system", patched), contextlib.ExitStack() as stack:
        if not preconditioned:
            plain = mock.PropertyMock(return_value=lambda v: v)
            stack.enter_context(mock.patch.object(System, "_preconditioner", plain))
        yield


METHODS = {
    "plain": lambda: method(math.inf, preconditioned=False),
    "preconditioned": lambda: method(math.inf),
    "factorised": lambda: method(0.0),
    "as it is": contextlib.nullcontext,
}


def cell(gram, labels, loss, reg, name):
    """Products, seconds and gradient norm of one training."""
    with METHODS[name](), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        time, model = seconds(lambda: ki.fit(gram, labels, loss=loss, reg=reg), REPEATS)
    warned = "" if model.converged else " (warned)" if caught else " (SILENT)"
    return f"{model.history.products[-1]} / {time:.2f} / {model.gradient_norm:.0e}{warned}"


def main():
    print("| problem | reg | " + " | ".join(METHODS) + " |\n|---|---|" + "---|" * len(METHODS))
    for name, (make, n, loss, *options) in PROBLEMS.items():
        gram, labels = make(n, loss, *options)
        warm_up(gram)
        for reg in REGS:
            cells = (cell(gram, labels, loss, reg, method) for method in METHODS)
            print(f"| {name} | {reg:g} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
