"""Linear datamodeling scores of every estimate.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz, or without it on the
digits of scikit-learn:

    python -m tests.benchmarks.datamodeling

Prints a table in Markdown: means over the test points, with standard errors over the draw of the
subsets.
"""

import os

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


def scores(model, x, y, of):
    """Yield the score of each estimate, all on the same subsets and retrained models."""
    newton = lds(model, x, y, of=of, subsets=SUBSETS)
    yield newton
    summed = ki.influence(model, x, y, of=of, method=ki.NewtonStep())
    for method in (ki.SecondOrder(), ki.FirstOrder(), summed):
        yield lds(model, x, y, of=of, subsets=newton, method=method)


def main():
    gram, y_train, x, y = problem()
    print(f"{gram}, {len(x)} test points, {SUBSETS} subsets of half of the points\n")
    print("| reg | of | Newton step | second order | first order | Newton scores, summed |")
    print("|---|---|---|---|---|---|")
    for reg in REGS:
        model = ki.fit(gram, y_train, reg=reg)
        for of in ("loss", "margin"):
            cells = [f"{s.mean:.4f} ± {s.standard_error:.4f}" for s in scores(model, x, y, of)]
            print(f"| {reg:g} | {of} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
