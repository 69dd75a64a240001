"""Fits of calibrators on one thread, as they run, against torch's default number of threads.

    python benchmarks/speed/threads.py                # on an idle machine
    python benchmarks/speed/threads.py --load 4       # with four busy processes beside it

Prints the median seconds of each over interleaved rounds, and their ratio. `FEW` in calibrators/calibrator.py, the
number of logits up to which a fit runs on one thread, rests on this table.
"""

import argparse
import subprocess
import sys
import time
from contextlib import contextmanager
from statistics import median
from unittest.mock import patch

import torch

from calibrant.calibrators import calibrator
from calibrant.registry import CALIBRATORS

METHODS = ("temperature", "vector", "structured_matrix", "smart_proper", "dirichlet")
SIZES = ((539, 10), (5_000, 10), (5_000, 100), (50_000, 10), (10_000, 100))


@contextmanager
def busy(processes):
    """Keep so many processes busy beside the measurement."""
    running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for each in running:
            each.kill()


def seconds(name, logits, labels, few):
    began = time.perf_counter()
    with patch.object(calibrator, "FEW", few):
        CALIBRATORS[name].fit(logits, labels)
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--load", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {given.load} busy processes beside")
    torch.manual_seed(0)
    with busy(given.load):
        for n, k in SIZES:
            logits = 3 * torch.randn(n, k)
            labels = torch.distributions.Categorical(logits=logits / 2).sample()
            for name in METHODS:
                if name == "dirichlet" and k > 10:
                    continue  # as in autocalibrate
                found = [
                    (seconds(name, logits, labels, n * k), seconds(name, logits, labels, 0))
                    for _ in range(given.rounds)
                ]
                one, default = (median(side) for side in zip(*found, strict=True))
                print(f"{n:>6} x {k:<4} {name:<18} {one:8.3f} s {default:8.3f} s   {one / default:.2f}", flush=True)


if __name__ == "__main__":
    main()
