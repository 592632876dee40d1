"""One Newton step on all rows, the forget set masked, against one on a copy of the retained rows.

    python -m tests.benchmarks.slicing

Prints seconds of both for growing forget sets: where the ratio passes one is `SLICE_FROM`.
"""

import kernelinf as ki
import numpy as np

from tests.benchmarks.newton import seconds

SIZES = (500, 1000, 2000, 4000)
SHARES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
REPEATS = 7


def trained(n, d=10, features=784, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(n, features))
    kernel = ki.from_stax(ki.networks.fcnn(depth=3))
    return ki.fit(ki.gram(kernel, x), rng.integers(0, d, n), reg=1e-2)


def row(model, share):
    n = model.gram.n
    forget = np.arange(max(1, round(share * n)))
    masked, sliced = (
        seconds(lambda form=form: ki.remove(model, forget, method=ki.NewtonStep(form)), REPEATS)[0]
        for form in ("masked", "sliced")
    )
    return (
        f"| {n} | {share:.1%} | {masked * 1e3:.1f} | {sliced * 1e3:.1f} | {masked / sliced:.2f} |"
    )


def main():
    print("| n | forgotten | masked (ms) | sliced (ms) | ratio |\n|---|---|---|---|---|")
    for n in SIZES:
        model = trained(n)
        for share in SHARES:
            print(row(model, share), flush=True)


if __name__ == "__main__":
    main()
