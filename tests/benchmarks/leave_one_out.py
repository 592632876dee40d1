"""All leave-one-out outputs of the squared loss against one factorisation and one inverse.

    python -m tests.benchmarks.leave_one_out

Prints seconds of LAPACK's Cholesky factor and inverse from it, and of `leave_one_out`.
"""

import kernelinf as ki
import numpy as np
import scipy.linalg

from tests.benchmarks.newton import seconds

SIZES = (1000, 2000, 4000)
REPEATS = 3


def factor_and_invert(matrix):
    """Invert a positive definite matrix the usual way."""
    factor, _ = scipy.linalg.cho_factor(matrix, lower=True)
    return scipy.linalg.lapack.dpotri(factor, lower=True)


def row(n):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(n, n // 2)) / np.sqrt(n)
    kernel, y = features @ features.T, rng.normal(size=n)
    model = ki.fit(ki.gram(kernel), y, loss="squared", reg=1e-3)
    shifted = kernel + np.eye(n)
    lapack, _ = seconds(lambda: factor_and_invert(shifted), REPEATS)
    ours, _ = seconds(lambda: ki.leave_one_out(model), REPEATS)
    return f"| {n} | {lapack:.3f} | {ours:.3f} | {ours / lapack:.2f} |"


def main():
    print("| n | factor and inverse (s) | leave-one-out (s) | ratio |\n|---|---|---|---|")
    for n in SIZES:
        print(row(n), flush=True)


if __name__ == "__main__":
    main()
