"""Products with a Gram matrix against the machine's own rates of multiplying and reading.

    python -m tests.benchmarks.products

The rate of a square matrix product bounds wide stacks; that of reading the matrix bounds thin ones.
"""

import kernelinf as ki
import numpy as np

from tests.benchmarks.newton import seconds

SIZES = (1000, 2000, 4000)
WIDTHS = (1, 10, 100, 1000)
REPEATS = 15


def row(n, width, multiply_rate, read_rate):
    """Seconds of a product with (n, width), and the shares of both rates that it reaches."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, n))
    gram = ki.gram(features @ features.T / n)
    v = rng.normal(size=(n, width))
    time, _ = seconds(lambda: gram @ v, REPEATS)
    multiplied, read = 2 * n**2 * width / time, 8 * n**2 / time
    return (
        f"| {n} | {width} | {time * 1e3:.2f} | {multiplied / 1e9:.0f} | "
        f"{multiplied / multiply_rate:.0%} | {read / read_rate:.0%} |"
    )


def rates():
    """Flops a second of a product of two square matrices, and bytes a second of a sum."""
    a = np.random.default_rng(0).normal(size=(3000, 3000))
    multiply, _ = seconds(lambda: a @ a, 5)
    read, _ = seconds(a.sum, REPEATS)
    return 2 * len(a) ** 3 / multiply, a.nbytes / read


def main():
    multiply_rate, read_rate = rates()
    print(f"square product {multiply_rate / 1e9:.0f} Gflop/s, sum {read_rate / 1e9:.1f} GB/s\n")
    print("| n | columns | ms | Gflop/s | of the square product | of the sum's reading |")
    print("|---|---|---|---|---|---|")
    for n in SIZES:
        for width in WIDTHS:
            print(row(n, width, multiply_rate, read_rate), flush=True)


if __name__ == "__main__":
    main()
