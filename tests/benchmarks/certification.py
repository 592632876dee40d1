"""Residual gradients of removals, their bounds, error bars and budgets.

    KERNELINF_DATA=FOLDER python -m tests.benchmarks.certification [FIGURE.png]

FOLDER holds mnist/t10k-*-ubyte.gz. Prints tables in Markdown; draws the figure of Guo et al. 2020
if it is named.
"""

import sys
import time

import kernelinf as ki
import matplotlib.pyplot as plt
import numpy as np

from tests.benchmarks.problems import data_folder, read

REMOVALS = 1000
SHOWN = (1, 10, 100, 1000)
LOSSES = ("squared", "cross_entropy", "logistic")


def threes_and_eights(n_test=384, seed=0):
    """Images of both digits as rows of at most unit length, and what is left for tests."""
    images, labels = read(data_folder())
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(np.isin(labels, (3, 8))))
    x = images[rows].reshape(len(rows), -1)
    x /= np.linalg.norm(x, axis=1).max()
    return x[n_test:], labels[rows][n_test:], x[:n_test], labels[rows][:n_test]


def guo(reg):
    """Remove a thousand points one at a time by Newton steps; the bounds of every step."""
    x, y, x_test, y_test = threes_and_eights()
    model = ki.fit(ki.gram(ki.linear(), x), y, loss="logistic", reg=reg)
    accuracy = np.mean(model.classes[(model.predict(x_test)[:, 0] > 0).astype(int)] == y_test)
    bounds, start = [], time.perf_counter()
    for i in np.random.default_rng(1).permutation(len(x))[:REMOVALS]:
        removal = ki.remove(model, [i])
        bounds.append(ki.gradient_bounds(removal))
        model = removal.model
    seconds = time.perf_counter() - start
    print(f"n {len(x)}, reg {reg:g}: test accuracy {accuracy:.3f}, {seconds:.0f} s", flush=True)
    return bounds


def sums(bounds, name):
    return np.cumsum([getattr(bound, name) for bound in bounds])


def print_bounds(bounds):
    print("| removals | exact | data-dependent | worst case |\n|---|---|---|---|")
    for shown in SHOWN:
        values = (
            sums(bounds, name)[shown - 1] for name in ("exact", "data_dependent", "worst_case")
        )
        print(f"| {shown} | " + " | ".join(f"{value:.1e}" for value in values) + " |")


def print_budget(noise=1.0):
    """Certify removals one at a time until the budget refuses, and recount."""
    x, y, _, _ = threes_and_eights()
    model = ki.fit(ki.gram(ki.linear(), x), y, loss="logistic", reg=1e-2)
    free = ki.certify(model, None, key=0, noise=noise, epsilon=100.0)
    order = np.random.default_rng(1).permutation(len(x))[:REMOVALS]
    spent = [free.spent]
    for i in order:
        free = ki.certify(free, [i])
        spent.append(free.spent)
    print(
        "\n| epsilon | noise in outputs | covered | certified | by the sums |"
        "\n|---|---|---|---|---|"
    )
    for epsilon in (1e-4, 1e-3, 1e-2, 1e-1):
        certificate, certified = (
            ki.certify(model, None, key=0, noise=noise, epsilon=epsilon, delta=1e-6),
            0,
        )
        try:
            for i in order:
                certificate = ki.certify(certificate, [i])
                certified += 1
        except ki.BudgetSpentError:
            pass
        expected = int(np.searchsorted(spent, certificate.limit, side="right")) - 1
        print(
            f"| {epsilon:g} | {certificate.output_noise:.2g} | {certificate.limit:.2e} "
            f"| {certified} | {expected} |",
            flush=True,
        )


def print_tightness(problems=200):
    """Error bars over errors at ten test points each, of Newton steps and first order."""
    print("\n| loss | method | bars that failed | median of bar / error |\n|---|---|---|---|")
    for loss in LOSSES:
        for method in (ki.NewtonStep(), ki.FirstOrder()):
            ratios = np.concatenate([ratio(loss, method, seed) for seed in range(problems)])
            failed = np.count_nonzero(ratios < 1)
            print(f"| {loss} | {method} | {failed} of {len(ratios)} | {np.median(ratios):.1f} |")


def ratio(loss, method, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(10, 60))
    x = rng.normal(size=(n + 10, 5))
    y = (
        rng.normal(size=(n, 2))
        if loss == "squared"
        else np.arange(n) % (2 if loss == "logistic" else 3)
    )
    gram = ki.gram(x[:n] @ x[:n].T)
    model = ki.fit(gram, y, loss=loss, reg=10.0 ** rng.uniform(-3, 0))
    forget = rng.choice(n, rng.integers(1, n // 2), replace=False)
    cross, diagonal = x[n:] @ x[:n].T, np.sum(x[n:] ** 2, axis=1)
    one, truth = (ki.remove(model, forget, method=m) for m in (method, ki.Retrain()))
    error = np.linalg.norm(one.model.predict(cross) - truth.model.predict(cross), axis=1)
    bar = sum(update.output_bound(cross, diagonal=diagonal) for update in (one, truth))
    return bar / np.maximum(error, 1e-300)


def main():
    bounds = guo(1e-3)
    print_bounds(bounds)
    if len(sys.argv) > 1:
        figure, ax = plt.subplots(figsize=(6, 4), layout="constrained")
        ki.plots.gradient_bounds(bounds, ax=ax)
        figure.savefig(sys.argv[1], dpi=150)
    print_budget()
    print_tightness()


if __name__ == "__main__":
    main()
