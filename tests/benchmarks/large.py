"""Time, memory and share of the machine's matrix-multiply rate of a large removal.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz:

    python -m tests.benchmarks.large

9,500 training points, 500 test points, ten classes, cross-entropy, reg 0.1; half of every class is
forgotten. `python -m tests.benchmarks.large 1000` takes as many points a class at most. Prints
Markdown. Memory is the process's largest resident set so far.
"""

import resource
import sys
import time

import kernelinf as ki

from tests.benchmarks.problems import data_folder, half_of_each_class, mnist_split
from tests.benchmarks.products import rates

REG, TESTS, DEPTH = 0.1, 500, 3
ALLOWED_COPIES, ALLOWED_REST = 2, 500e6  # of Sigma in float64, and bytes besides


def resident():
    """Largest resident set of this process so far, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Flops:
    """Counts the multiplications and additions of products with kernel matrices."""

    def __init__(self):
        self.count = 0
        for kind in (ki.Gram, ki.Cross):
            kind.__matmul__ = self.counted(kind.__matmul__)

    def counted(self, product):
        def multiply(left, right):
            self.count += 2 * left.matrix.size * right.size // len(right)
            return product(left, right)

        return multiply

    def taken(self):
        count, self.count = self.count, 0
        return count


def inner_products(rows, columns, features):
    """Operations of the inner products between points, which the kernel is made of."""
    return 2 * rows * columns * features


class Table:
    """Prints a line a stage."""

    def __init__(self, rate, base):
        self.rate, self.base, self.flops = rate, base, Flops()
        print(
            "| stage | s | peak (MB) | since import (MB) | Gflop | of the machine's rate |\n"
            "|---|---|---|---|---|---|"
        )

    def stage(self, name, call, operations=0):
        start = time.perf_counter()
        result = call()
        seconds, peak = time.perf_counter() - start, resident()
        operations += self.flops.taken()
        print(
            f"| {name} | {seconds:.2f} | {peak / 1e6:.0f} | {(peak - self.base) / 1e6:.0f} | "
            f"{operations / 1e9:.0f} | {operations / seconds / self.rate:.0%} |",
            flush=True,
        )
        return result


def main():
    base = resident()
    per_class = int(sys.argv[1]) if len(sys.argv) > 1 else None
    data = mnist_split(data_folder(), n_test=TESTS, per_class=per_class)
    rate, _ = rates()
    n, t, features = len(data.x_train), len(data.x_test), data.x_train[0].size
    kernel = ki.from_stax(ki.networks.fcnn(depth=DEPTH, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, data.x_train)
    forget = half_of_each_class(data.y_train)
    print(f"{gram}, {t} test points, {len(forget)} forgotten, {rate / 1e9:.0f} Gflop/s\n")
    table = Table(rate, base)
    table.stage("Gram", lambda: gram.matrix, inner_products(n, n, features) // 2)
    model = table.stage("fit", lambda: ki.fit(gram, data.y_train, reg=REG))
    removal = table.stage("remove half", lambda: ki.remove(model, forget))
    table.stage(
        "effect",
        lambda: removal.effect(data.x_test, data.y_test),
        inner_products(t, n, features),
    )
    peak, sigma = resident() - base, 8 * n**2
    allowed = ALLOWED_COPIES * sigma + ALLOWED_REST
    print(
        f"\n{model}\n{removal}\n\npeak {peak / 1e6:.0f} MB since import, {peak / sigma:.2f} copies "
        f"of Sigma; allowed {allowed / 1e6:.0f} MB"
    )


if __name__ == "__main__":
    main()
