"""Every calibrator fitted and called on a GPU agrees with the CPU; prints what does not, and the time of a temperature.

Run on a machine with a GPU: ``PYTHONPATH=src python benchmarks/gpu/calibrators.py``.
"""

import sys
import time
import warnings
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from test_calibrators import ROWS, called, refit, rows_of

from calibrant import Predictions
from calibrant.calibrators.temperature import Temperature


def differs(row):
    """Return the share of rows whose probabilities differ by more than 1e-3; a bin's edge may move a few."""
    rows, fresh = rows_of(300, dtype=torch.float32), rows_of(200, seed=1, dtype=torch.float32)
    on_cpu, on_gpu = refit(row, *rows), refit(row, *(x.cuda() for x in rows))
    logits, labels, features = (x.cuda() for x in fresh[:3])
    on_gpu.calibrate(Predictions(logits=logits, labels=labels, features=features))
    there = called(on_gpu, logits, features).softmax(1).cpu()
    return float(((called(on_cpu, fresh[0], fresh[2]).softmax(1) - there).abs().amax(1) > 1e-3).double().mean())


def main():
    warnings.simplefilter("ignore")
    print(torch.cuda.get_device_name(), f"torch {torch.__version__}")
    worst = {str(row): differs(row) for row in ROWS}
    bad = {name: share for name, share in worst.items() if share > 0.01}
    print(f"{len(ROWS) - len(bad)} of {len(ROWS)} calibrators agree with the CPU", bad or "")
    logits = 3 * torch.randn(50_000, 1000, device="cuda")
    labels = torch.multinomial((logits / 2).softmax(1), 1).squeeze(1)
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        cal = Temperature.fit(logits, labels)
        print(f"temperature, 50 000 x 1000: {time.perf_counter() - start:.4f} s, {cal.settings['passes']} passes")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
