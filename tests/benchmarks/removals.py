"""Many removals at once against one at a time, and the three forms of a Newton step.

    KERNELINF_DATA=FOLDER python -m tests.benchmarks.removals

FOLDER holds mnist/t10k-*-ubyte.gz. Prints tables in Markdown; times are medians of three rounds, in
each of which all columns of a row are timed one after the other.
"""

import statistics
import time

import kernelinf as ki
import numpy as np

from tests.benchmarks.problems import data_folder, mnist

REGS = (1e-1, 1e-2)
SIZES = (1, 100, 500)
SUBSETS = 100
ROUNDS = 3


def problem(per_class=100):
    """Gram matrix and labels of the paper's network on MNIST images."""
    data = mnist(data_folder(), per_class)
    kernel = ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, data.x_train)
    assert len(gram.matrix) == 10 * per_class
    return gram, data.y_train


def forget_sets(n, m, count, seed=0):
    rng = np.random.default_rng(seed)
    return [np.sort(rng.choice(n, m, replace=False)) for _ in range(count)]


def fits(gram, y, sets, reg):
    """Train on what each forget set leaves, one after the other, as without the library's help."""
    for group in sets:
        kept = np.setdiff1d(np.arange(gram.n), group)
        ki.fit(gram.take(kept), y[kept], reg=reg)


def one_by_one(model, sets, method):
    for group in sets:
        ki.remove(model, group, method=method)


def medians(calls):
    """Median seconds of each call, over rounds of all of them."""
    times = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken) for taken in times]


def retrain_row(gram, y, m, reg):
    model = ki.fit(gram, y, reg=reg)
    sets, few = forget_sets(gram.n, m, SUBSETS), forget_sets(gram.n, m, SUBSETS // 5)
    retrain = ki.Retrain()
    loop, single, many = medians(
        [
            lambda: fits(gram, y, few, reg),
            lambda: one_by_one(model, few, retrain),
            lambda: ki.remove_many(model, sets, method=retrain),
        ]
    )
    loop, single, many = 1e3 * loop / len(few), 1e3 * single / len(few), 1e3 * many / len(sets)
    norm = ki.remove_many(model, sets, method=retrain).gradient_norms.max()
    return (
        f"| {m} | {reg:g} | {loop:.1f} | {single:.1f} | {many:.1f} | {loop / many:.1f} | "
        f"{single / many:.1f} | {norm:.1e} |"
    )


def step_row(gram, y, m, reg, count):
    model, sets = ki.fit(gram, y, reg=reg), forget_sets(gram.n, m, count)
    few = sets[: max(1, count // 10)]
    methods = [ki.NewtonStep(form) for form in ("masked", "sliced", "grouped")]
    calls = [lambda: one_by_one(model, few, ki.NewtonStep())] + [
        lambda method=method: ki.remove_many(model, sets, method=method)
        for method in [*methods, ki.NewtonStep(), ki.FirstOrder()]
    ]
    times = medians(calls)
    each = [times[0] / len(few), *(taken / len(sets) for taken in times[1:])]
    return f"| {m} | {count} | {reg:g} | " + " | ".join(f"{1e3 * t:.1f}" for t in each) + " |"


def main():
    gram, y = problem()
    print("Retraining, milliseconds a set\n")
    print(
        "| forgotten | reg | loop of fit | loop of remove | remove_many | ratio to fit | ", end=""
    )
    print("ratio to remove | gradient norm |\n|---|---|---|---|---|---|---|---|")
    for m in SIZES:
        for reg in REGS:
            print(retrain_row(gram, y, m, reg), flush=True)
    print("\nNewton steps, milliseconds a set\n")
    print(
        "| forgotten | sets | reg | loop of remove | masked | sliced | grouped | chosen | ", end=""
    )
    print("first order |\n|---|---|---|---|---|---|---|---|---|")
    for m, count in ((1, 20), (1, 200), (10, 20), (10, 200), (100, 20), (500, 20)):
        print(step_row(gram, y, m, 1e-2, count), flush=True)


if __name__ == "__main__":
    main()
