"""How far the tangent kernel of a finite network is from that of infinite width.

    python -m tests.benchmarks.finite

Relative distance of the Gram matrices of eight points in Frobenius norm, the mean over three drawn
networks, and the slope of its logarithm over that of the width. Prints Markdown.
"""

import time

import jax
import kernelinf as ki
import numpy as np

WIDTHS, DEPTHS, DRAWS = (64, 256, 1024, 4096), (1, 2, 3), 3


def distance(width, depth, x, infinite):
    errors = []
    for seed in range(DRAWS):
        init, apply, _ = ki.networks.fcnn(depth=depth, b_std=0.1, width=width)
        params = init(jax.random.key(seed), (-1, x.shape[1]))[1]
        kernel = ki.empirical_ntk(apply, params, full=False)(x)
        errors.append(np.linalg.norm(kernel - infinite) / np.linalg.norm(infinite))
    return np.mean(errors)


def main():
    x = np.random.default_rng(0).normal(size=(8, 10))
    print("| depth | " + " | ".join(f"width {width}" for width in WIDTHS) + " | slope | s |")
    print("|---|" + "---|" * (len(WIDTHS) + 2))
    for depth in DEPTHS:
        start = time.perf_counter()
        infinite = ki.from_stax(ki.networks.fcnn(depth=depth, b_std=0.1))(x)
        away = [distance(width, depth, x, infinite) for width in WIDTHS]
        slope = np.polyfit(np.log(WIDTHS), np.log(away), 1)[0]
        cells = " | ".join(f"{value:.4f}" for value in away)
        print(f"| {depth} | {cells} | {slope:.2f} | {time.perf_counter() - start:.0f} |")


if __name__ == "__main__":
    main()
