"""A large problem with its Gram matrix in float32, on disk, or nowhere: seconds and memory.

Run with KERNELINF_DATA naming a folder that holds mnist/t10k-*-ubyte.gz:

    python -m tests.benchmarks.storage
    python -m tests.benchmarks.storage 4000

n = 20,000: the images of the MNIST test file and copies of them moved by a pixel; ten classes,
depth 3, cross-entropy, reg 0.1; half of every class is forgotten. Every way in a process of its
own. Memory is that of the process alone, without the pages of a file that it maps, and with them.
Prints Markdown.
"""

import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import kernelinf as ki
import numpy as np

from tests.benchmarks.problems import data_folder, half_of_each_class, read

WAYS = ("memory", "float32", "disk", "disk float32", "none")
REG, DEPTH, TESTS = 0.1, 3, 100


def problem(n):
    images, labels = read(data_folder())
    moved = np.roll(images, 1, axis=2)
    x, y = np.concatenate([images, moved]), np.concatenate([labels, labels])
    rows = np.random.default_rng(0).permutation(len(x))
    train, test = rows[:n], rows[:TESTS]
    return x[train], y[train], np.roll(x[test], 1, axis=1), y[test]


def own_memory():
    """Bytes of this process that are of no file."""
    text = Path("/proc/self/status").read_text()
    return sum(
        1024 * int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon")
    )


class Watch:
    """The largest memory of this process, looked at every twentieth of a second."""

    def __init__(self):
        self.largest = 0
        threading.Thread(target=self.look, daemon=True).start()

    def look(self):
        while True:
            self.largest = max(self.largest, own_memory())
            time.sleep(0.05)


def timed(call):
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def one(way, n, folder):
    watch = Watch()
    x, y, x_test, y_test = problem(n)
    options = {"block_size": 500}
    if "disk" in way:
        options["store"] = folder
    if "float32" in way:
        options["dtype"] = "float32"
    if way == "none":
        options["store"] = "none"
    kernel = ki.from_stax(ki.networks.fcnn(depth=DEPTH, w_std=2.0, b_std=0.1))
    gram = ki.gram(kernel, x, **options)
    _, built = timed(lambda: gram.storage)
    model, fitted = timed(lambda: ki.fit(gram, y, reg=REG, progress=True))
    forget = half_of_each_class(y)
    removal, removed = timed(lambda: ki.remove(model, forget))
    effect, seen = timed(lambda: removal.effect(x_test, y_test))
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"| {way} | {built:.1f} | {fitted:.1f} | {removed:.1f} | {seen:.1f} | "
        f"{watch.largest / 1e9:.2f} | {peak / 1e9:.2f} | {model.gradient_norm:.0e} | "
        f"{removal.residual:.0e} | {np.abs(effect.outputs).mean():.10f} |"
    )


def main(n):
    print(
        f"n = {n}\n\n| kept | Gram (s) | fit (s) | remove half (s) | effect (s) | own (GB) | "
        "with mapped files (GB) | gradient norm | residual | mean output change |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )
    for way in WAYS:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            command = [sys.executable, "-m", "tests.benchmarks.storage", str(n), way, folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.stdout.strip() or f"| {way} | {done.stderr.splitlines()[-1]} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        one(sys.argv[2], int(sys.argv[1]), sys.argv[3])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
