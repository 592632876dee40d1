"""What the first call costs, compilation included, beside the same call once more.

    python -m tests.benchmarks.cold

Random points of 784 features, or MNIST with KERNELINF_DATA naming a folder that holds
mnist/t10k-*-ubyte.gz; 500 of them, ten classes, cross-entropy, the tangent kernel of depth 3. Every
run is a process of its own; prints medians in Markdown.
"""

import json
import os
import statistics
import subprocess
import sys
import time

RUNS = 3
N, CLASSES, FEATURES, TESTS = 500, 10, 784, 100
TARGETS = {"fit": 2.0, "remove 250 points": 1.5, "remove 100 points": 0.5}


def points():
    """Training points and labels, test points and labels."""
    import numpy as np  # noqa: PLC0415  (the first import is measured)

    folder = os.environ.get("KERNELINF_DATA")
    if folder is not None:
        from tests.benchmarks.problems import mnist  # noqa: PLC0415

        data = mnist(folder, per_class=N // CLASSES, test_per_class=TESTS // CLASSES)
        return (
            data.x_train.reshape(N, -1),
            data.y_train,
            data.x_test.reshape(TESTS, -1),
            data.y_test,
        )
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(N + TESTS, FEATURES)), np.arange(N + TESTS) % CLASSES
    return x[:N], y[:N], x[N:], y[N:]


def measure():
    """Seconds of every step, cold and warm, in this process."""
    start = time.perf_counter()
    import kernelinf as ki  # noqa: PLC0415

    seconds = {"import kernelinf": [time.perf_counter() - start, None]}
    x, y, x_test, y_test = points()
    kernel = ki.from_stax(ki.networks.fcnn(depth=3))
    made = {}

    def step(name, call):
        """Time a call and the same call again; both start from the results of those before."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            made[name] = call()
            times.append(time.perf_counter() - start)
        seconds[name] = times

    def evaluated():
        gram = ki.gram(kernel, x)
        return gram, gram.matrix

    step("gram.matrix", evaluated)
    gram, _ = made["gram.matrix"]
    step("fit", lambda: ki.fit(gram, y, reg=1e-2))
    model = made["fit"]
    step("remove 250 points", lambda: ki.remove(model, range(0, N, 2)))
    step("remove 100 points", lambda: ki.remove(model, range(0, N, 5)))
    step("effect on 100 points", lambda: made["remove 250 points"].effect(x_test, y_test))
    step("influence on 100 points", lambda: ki.influence(model, x_test, y_test))
    step("leave_one_out", lambda: ki.leave_one_out(model))
    return seconds


def in_a_process_of_its_own():
    command = [sys.executable, "-m", "tests.benchmarks.cold", "measure"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def row(name, runs):
    cold, warm = zip(*(run[name] for run in runs), strict=True)
    target = f"{TARGETS[name]:g}" if name in TARGETS else ""
    first = statistics.median(cold)
    if None in warm:
        return f"| {name} | {first:.3f} | | | {target} |"
    again = statistics.median(warm)
    return f"| {name} | {first:.3f} | {again:.4f} | {first / again:.1f} | {target} |"


def main():
    runs = [in_a_process_of_its_own() for _ in range(RUNS)]
    print("| step | first (s) | again (s) | ratio | target (s) |\n|---|---|---|---|---|")
    for name in runs[0]:
        print(row(name, runs), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        print(json.dumps(measure()))
    else:
        main()
