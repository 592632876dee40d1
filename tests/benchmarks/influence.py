"""Influence of all test points at once against one solve a test point, and its memory.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz, or without it on random
features:

    python -m tests.benchmarks.influence

Prints tables in Markdown. Times are medians of three runs in one process, the factorisation
included; memory is the peak of what Python and NumPy allocate in a call, beside the kernel.
"""

import os
import statistics
import time
import tracemalloc

import kernelinf as ki
import numpy as np
from kernelinf._gram import Cross
from kernelinf._single import STACK_BYTES

from tests.benchmarks.problems import mnist

REGS = (1e-1, 1e-2, 1e-3)
STACKS = 12  # alive at once, as the documentation of `influence` has it
K = 10


def problem():
    """Gram matrix, labels, cross kernel and test labels: n = 2000, t = 100, ten classes."""
    folder = os.environ.get("KERNELINF_DATA")
    if folder is not None:
        data = mnist(folder, per_class=200, test_per_class=10)
        gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1)), data.x_train)
        return gram, data.y_train, gram.cross(data.x_test), data.y_test
    rng = np.random.default_rng(0)
    labels = np.arange(2100) % 10
    x = rng.normal(size=(10, 50))[labels] + 1.5 * rng.normal(size=(2100, 50))
    gram = ki.gram(ki.rbf(10.0), x[:2000])
    return gram, labels[:2000], gram.cross(x[2000:]), labels[2000:]


def seconds(function, repeats=3):
    """Median seconds of a call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def peak(function):
    """Most bytes that a call holds."""
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def one_by_one(model, cross, y_test):
    """One solve a test point."""
    rows = [
        ki.influence(model, Cross(cross.matrix[i : i + 1]), y_test[i : i + 1]).values
        for i in range(len(cross))
    ]
    return np.concatenate(rows)


def planned(model, scores):
    """Bytes that the documentation of `influence` promises."""
    n, d = model.alpha.shape
    factor = 8 * (d + 3) * n**2 if model.problem.loss.name == "cross_entropy" else 16 * n**2
    return scores + STACKS * STACK_BYTES + factor


def speed_row(gram, y, cross, y_test, reg):
    model = ki.fit(gram, y, reg=reg)
    together = seconds(lambda: ki.influence(model, cross, y_test))
    apart = seconds(lambda: one_by_one(model, cross, y_test), 1)
    whole = ki.influence(model, cross, y_test).values
    difference = np.abs(whole - one_by_one(model, cross, y_test)).max() / np.abs(whole).max()
    return f"| {reg:g} | {together:.2f} | {apart:.2f} | {apart / together:.1f} | {difference:.0e} |"


def calls(model, cross, y_test):
    """Every way of asking, its call, and the bytes of its result."""
    step, t, n = ki.NewtonStep(), *cross.matrix.shape
    asked = model, cross, y_test
    return {
        "influence": (lambda: ki.influence(*asked), 8 * t * n),
        "influence, NewtonStep": (lambda: ki.influence(*asked, method=step), 8 * t * n),
        "influence, relatif": (lambda: ki.influence(*asked, normalise="relatif"), 8 * t * n),
        "influence, total": (lambda: ki.influence(*asked, total=True), 8 * n),
        "top_influence": (lambda: ki.top_influence(*asked, K), 32 * t * K),
        "self_influence": (lambda: ki.self_influence(model), 8 * n),
        "self_influence, NewtonStep": (lambda: ki.self_influence(model, method=step), 8 * n),
    }


def call_rows(model, cross, y_test):
    for name, (call, result) in calls(model, cross, y_test).items():
        plan = planned(model, result)
        held = peak(call)
        yield (
            f"| {name} | {model.problem.loss.name} | {seconds(call):.2f} | {held / 1e6:.0f} | "
            f"{plan / 1e6:.0f} | {held / plan:.2f} |"
        )


def main():
    gram, y, cross, y_test = problem()
    print(f"{gram}, {len(cross)} test points\n")
    print("| reg | all at once (s) | one by one (s) | ratio | difference |\n|---|---|---|---|---|")
    for reg in REGS:
        print(speed_row(gram, y, cross, y_test, reg), flush=True)
    print("\n| call | loss | s | peak (MB) | plan (MB) | ratio |\n|---|---|---|---|---|---|")
    for loss in ("cross_entropy", "squared"):
        for row in call_rows(ki.fit(gram, y, loss=loss, reg=1e-2), cross, y_test):
            print(row, flush=True)


if __name__ == "__main__":
    main()
