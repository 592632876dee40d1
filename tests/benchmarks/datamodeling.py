"""Linear datamodeling scores of every estimate, and what retraining on a hundred subsets takes.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz, or without it on the
digits of scikit-learn:

    python -m tests.benchmarks.datamodeling

Prints a table in Markdown. Models are retrained once for each reg and quantity, and every estimate
is scored on the same subsets.
"""

import os
import time

import kernelinf as ki
from kernelinf.evaluation import lds

from tests.benchmarks.problems import mnist

REGS = (1e-1, 1e-2, 1e-3)
SUBSETS = 100


def problem():
    """Training data, kernel and test points: n = 1000 and t = 200 of MNIST, or 500 digits."""
    folder = os.environ.get("KERNELINF_DATA")
    if folder is not None:
        data = mnist(folder, per_class=100, test_per_class=20)
    else:
        data = ki.datasets.digits().subset(per_class=50)
    gram = ki.gram(ki.from_stax(ki.networks.fcnn(depth=3, w_std=2.0, b_std=0.1)), data.x_train)
    return gram, data.y_train, gram.cross(data.x_test), data.y_test


def rows(model, x, y, of):
    """Score each estimate; time the retraining and the estimate together."""
    truth = None
    estimates = {
        "one Newton step without the rest": ki.NewtonStep,
        "sum of first-order scores": ki.FirstOrder,
        "sum of Newton scores": lambda: ki.influence(model, x, y, of=of, method=ki.NewtonStep()),
    }
    for name, method in estimates.items():
        start = time.perf_counter()
        subsets = SUBSETS if truth is None else truth
        score = lds(model, x, y, of=of, method=method(), subsets=subsets)
        seconds = time.perf_counter() - start
        truth = score if truth is None else truth
        yield (
            f"| {model.problem.reg:g} | {of} | {name} | {score.mean:.4f} | "
            f"{score.standard_error:.4f} | {score.scores.min():.3f} | {seconds:.1f} |"
        )


def main():
    gram, y_train, x, y = problem()
    print(f"{gram}, {len(x)} test points, {SUBSETS} subsets of half of the points\n")
    print("The first row of each quantity has the retraining in its seconds.\n")
    print("| reg | of | estimate | LDS | standard error | worst test point | s |")
    print("|---|---|---|---|---|---|---|")
    for reg in REGS:
        model = ki.fit(gram, y_train, reg=reg)
        for of in ("loss", "margin"):
            for row in rows(model, x, y, of):
                print(row, flush=True)


if __name__ == "__main__":
    main()
