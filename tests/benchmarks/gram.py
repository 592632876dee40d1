"""Time and memory of a whole Gram matrix, against neural-tangents on the same network and points.

    python -m tests.benchmarks.gram
    python -m tests.benchmarks.gram 1000

n = 4,000 points of 784 features, depth 3, float64: `ki.gram`, one compiled call of neural-tangents'
`kernel_fn` on all points, and its `batch`. Medians, one after the other in one process, compiled
before. Memory is the growth of the largest resident set in a process that evaluates `ki.gram`
alone. Prints Markdown.
"""

import resource
import statistics
import subprocess
import sys
import time

import jax
import kernelinf as ki
import neural_tangents
import numpy as np

FEATURES, DEPTH, ROUNDS, BATCH = 784, 3, 3, 500
ALLOWED_COPIES, ALLOWED_REST = 1.25, 300e6


def points(n):
    return np.random.default_rng(0).normal(size=(n, FEATURES))


def network():
    return ki.networks.fcnn(depth=DEPTH)


def ways(n):
    x, (_, _, kernel_fn) = points(n), network()
    one_call = jax.jit(lambda x: kernel_fn(x, None, "ntk"))
    batched = neural_tangents.batch(kernel_fn, batch_size=BATCH, device_count=0)
    kernel = ki.from_stax(network())
    return {
        "ki.gram": lambda: ki.gram(kernel, x).matrix,
        "one call": lambda: np.asarray(one_call(x)),
        "nt.batch": lambda: np.asarray(batched(x, None, "ntk")),
    }


def resident():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(n):
    """Print the bytes that evaluating the matrix adds to the largest resident set."""
    x, kernel = points(n), ki.from_stax(network())
    before = resident()
    _ = ki.gram(kernel, x).matrix
    print(resident() - before)


def main(n):
    # first: a process starts with the largest memory that the one which starts it has had
    command = [sys.executable, "-m", "tests.benchmarks.gram", "memory", str(n)]
    peak = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    calls, taken = ways(n), {}
    with jax.enable_x64(True):
        results = {name: call() for name, call in calls.items()}
        for _ in range(ROUNDS):
            for name, call in calls.items():
                start = time.perf_counter()
                call()
                taken.setdefault(name, []).append(time.perf_counter() - start)
    ours = statistics.median(taken["ki.gram"])
    print(f"n = {n}\n\n| evaluation | s | ours over it | largest difference |\n|---|---|---|---|")
    for name, seconds in taken.items():
        median = statistics.median(seconds)
        away = np.abs(results[name] - results["ki.gram"]).max() / results["ki.gram"].max()
        print(f"| {name} | {median:.2f} | {ours / median:.2f} | {away:.0e} |")
    allowed = ALLOWED_COPIES * 8 * n**2 + ALLOWED_REST
    print(f"\nmemory {peak / 1e6:.0f} MB beside what was loaded; allowed {allowed / 1e6:.0f} MB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["memory"]:
        memory(int(sys.argv[2]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 4000)
