"""Kernels of convolutional networks against those of neural-tangents, whole matrices through gram.

Run with KERNELINF_DATA naming a folder that holds cifar2.npz, 32 x 32 x 3 images in the arrays of
`kernelinf.datasets.npz`:

    python -m tests.benchmarks.convolutional

Prints Markdown. Compilation is timed apart, as what a first call takes beyond a second one; both
sides of a ratio run one after the other, in one process.
"""

import time
from functools import partial
from pathlib import Path

import kernelinf as ki
import numpy as np

from tests.benchmarks.newton import seconds
from tests.benchmarks.problems import data_folder

REPEATS = 3
CNNS = {pooling: ki.networks.cnn(3, pooling=pooling) for pooling in (None, "avg", "global")}


def plain(network):
    """The same kernel function under another name: evaluated by neural-tangents."""
    return ki.from_stax(partial(network[2]))


def timed(kernel, x, block_size):
    """Seconds of compilation and of a matrix, and the matrix; a new Gram each time."""

    def matrix():
        return ki.gram(kernel, x, block_size=block_size).matrix

    start = time.perf_counter()
    matrix()
    first = time.perf_counter() - start
    median, values = seconds(matrix, REPEATS)
    return max(first - median, 0.0), median, values


def row(name, network, x, theirs):
    """Ours on all images; neural-tangents on `theirs` of them, since it may take hours."""
    ours = timed(ki.from_stax(network), x, None)
    other = timed(plain(network), x[:theirs], min(theirs, 512))
    both = ours[2][:theirs, :theirs]
    error = np.max(np.abs(both / other[2] - 1))
    cells = []
    for compile_time, median, matrix in (ours, other):
        cells += [f"{len(matrix)}", f"{compile_time:.1f}", f"{median:.2f}"]
    per_entry = [1e3 * median / len(m) ** 2 for _, median, m in (ours, other)]
    cells += [f"{t:.3g}" for t in per_entry]
    return [name, *cells, f"{per_entry[1] / per_entry[0]:.1f}", f"{error:.0e}"]


def main():
    """Print the table."""
    digits = ki.datasets.digits().x_train.reshape(-1, 8, 8, 1)[:300]
    cifar = ki.datasets.npz(Path(data_folder()) / "cifar2.npz").x_train
    print(
        "| network, images | n | compile (s) | ours (s) | n | compile (s) | neural-tangents (s) | "
        "ours (ms/entry) | neural-tangents (ms/entry) | ratio | difference |"
    )
    print("|" + "---|" * 11)
    cases = [
        ("cnn(3, pooling=None), digits", CNNS[None], digits, 300),
        ('cnn(3, pooling="avg"), digits', CNNS["avg"], digits, 100),
        ('cnn(3, pooling="global"), digits', CNNS["global"], digits, 50),
        ("cnn(3, pooling=None), CIFAR-10", CNNS[None], cifar[:200], 200),
        ('cnn(3, pooling="avg"), CIFAR-10', CNNS["avg"], cifar[:48], 6),
        ('cnn(3, pooling="global"), CIFAR-10', CNNS["global"], cifar[:10], 4),
        ("myrtle(5), CIFAR-10", ki.networks.myrtle(5), cifar[:10], 4),
    ]
    for case in cases:
        print("| " + " | ".join(row(*case)) + " |", flush=True)


if __name__ == "__main__":
    main()
