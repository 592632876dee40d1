"""Ten kernels on all of scikit-learn's digits, and leave-one-out against retraining.

    python -m tests.benchmarks.compare

Prints the comparison, its time, and for each kernel how far the outputs at some left-out points
are from those of training without them, by a dense solve.
"""

import time

import kernelinf as ki
import numpy as np
from kernelinf import stax

POINTS = 20  # retrained without


def network(activation):
    """A fully connected network of depth 3."""
    hidden = [stax.Dense(512, W_std=2**0.5, b_std=0.1), activation()]
    return stax.serial(stax.Flatten(), *3 * hidden, stax.Dense(1))


def kernels():
    fcnn, cnn = ki.networks.fcnn, ki.networks.cnn
    return {
        **{f"fcnn, depth {depth}": ki.from_stax(fcnn(depth)) for depth in (1, 3, 5)},
        "fcnn, depth 3, nngp": ki.from_stax(fcnn(3), kind="nngp"),
        "fcnn, depth 3, erf": ki.from_stax(network(stax.Erf)),
        "fcnn, depth 3, gelu": ki.from_stax(network(stax.Gelu)),
        "cnn, depth 3": ki.from_stax(cnn(3)),
        "cnn, depth 3, nngp": ki.from_stax(cnn(3), kind="nngp"),
        "rbf": ki.rbf(2.0),
        "linear": ki.linear(),
    }


def retraining(kernel, entry, data):
    """The largest error of leave-one-out outputs, and whether the classes are the same."""
    matrix, y, n = kernel(data.x_train), np.eye(10)[data.y_train], len(data.y_train)
    points = np.random.default_rng(0).choice(n, POINTS, replace=False)
    truth = []
    for point in points:
        rest = np.delete(np.arange(n), point)
        system = matrix[np.ix_(rest, rest)] + entry.reg * (n - 1) * np.eye(n - 1)
        truth.append(matrix[point, rest] @ np.linalg.solve(system, y[rest]))
    found = entry.loo.outputs[points]
    same = np.array_equal(found.argmax(axis=1), np.argmax(truth, axis=1))
    return np.abs(found - truth).max(), same


def main():
    data, chosen = ki.datasets.digits(), kernels()
    start = time.perf_counter()
    found = ki.compare(chosen, data.x_train, data.y_train, data.x_test, data.y_test)
    seconds = time.perf_counter() - start
    print(found)
    print(f"\n{seconds:.1f} s in all\n")
    print("| kernel | largest error of a left-out output | same class |\n|---|---|---|")
    for name, kernel in chosen.items():
        error, same = retraining(kernel, found[name], data)
        print(f"| {name} | {error:.1e} | {'yes' if same else 'no'} |", flush=True)


if __name__ == "__main__":
    main()
