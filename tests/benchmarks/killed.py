"""Kill an evaluation on disk at random moments, start it again, and compare it with a whole one.

    python -m tests.benchmarks.killed
    python -m tests.benchmarks.killed 1000

n = 3,000 points, ten kills. Prints what was found; fails if a block was evaluated twice, or a bit
differs.
"""

import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import kernelinf as ki
import numpy as np
from kernelinf._gram._tiles import Tiles

KILLS, BLOCK = 10, 100


def evaluate(n, folder):
    """Evaluate on disk, and print the numbers of each block as soon as it is recorded."""
    evaluated = Tiles.block

    def noted(self, i, j):
        with Path(folder + ".log").open("a") as log:
            log.write(f"{i} {j}\n")
        return evaluated(self, i, j)

    Tiles.block = noted
    x = np.random.default_rng(0).normal(size=(n, 784))
    kernel = ki.from_stax(ki.networks.fcnn(depth=3))
    _ = ki.gram(kernel, x, block_size=BLOCK, store=folder).storage


def started(n, folder):
    return subprocess.Popen([sys.executable, "-m", "tests.benchmarks.killed", str(n), folder])


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


def wait_for_a_block(process, record, before):
    """Wait until it has begun: loading takes most of the time."""
    while len(lines(record)) == before and process.poll() is None:
        time.sleep(0.002)


def main(n):
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as root:
        whole, killed = (str(Path(root) / name) for name in ("whole", "killed"))
        process = started(n, whole)
        wait_for_a_block(process, Path(whole) / "blocks.txt", 0)
        begun = time.perf_counter()
        assert process.wait() == 0
        seconds, finished = time.perf_counter() - begun, []
        record = Path(killed) / "blocks.txt"
        while len(finished) <= KILLS:
            process = started(n, killed)
            if len(finished) < KILLS:
                wait_for_a_block(process, record, len(lines(record)))
                time.sleep(draw.uniform(0, seconds / KILLS))
                process.send_signal(signal.SIGKILL)
            assert process.wait() in (0, -signal.SIGKILL)
            finished.append(len(lines(record)))
        begun_blocks = lines(Path(killed + ".log"))
        blocks = len(lines(Path(whole) / "blocks.txt"))
        again = len(begun_blocks) - len(set(begun_blocks))
        files = [(Path(folder) / "matrix.npy").read_bytes() for folder in (whole, killed)]
        same = files[0] == files[1]
        recorded = lines(record)
        print(f"n = {n}, {blocks} blocks; recorded after each start: {finished}")
        print(
            f"begun twice, because killed within: {again}; recorded twice: "
            f"{len(recorded) - len(set(recorded))}; identical files: {same}"
        )
        assert same
        assert again <= KILLS
        assert len(recorded) == len(set(recorded)) == blocks


if __name__ == "__main__":
    if len(sys.argv) > 2:
        evaluate(int(sys.argv[1]), sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 3000)
