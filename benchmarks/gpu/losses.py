"""Losses and penalties on a GPU: the values and gradients of the CPU, for every row of tests/test_losses.py.

    python benchmarks/gpu/losses.py

needs calibrant, torch with CUDA and the test folder; prints what disagrees, and exits with 1 if anything does.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from test_losses import ROWS, batch, made, named

SIZES = [(6, 3), (64, 10), (300, 7), (128, 400), (1, 5)]  # small and large batches, more and fewer classes than rows


def value_and_slope(row, n, k, device):
    logits, labels = batch(n, k, seed=n)
    logits = logits.to(device).requires_grad_()
    method = made(row, k)
    if isinstance(method, torch.nn.Module):
        method = method.to(device)
    value = method(logits, labels.to(device))
    (slope,) = torch.autograd.grad(value.sum(), logits)
    return value.detach().cpu(), slope.cpu()


def main():
    wrong = 0
    for row in ROWS:
        if row.name == "correctness_ranking":  # the test holds its state on the CPU
            continue
        for n, k in SIZES:
            found = [value_and_slope(row, n, k, device) for device in ("cpu", "cuda")]
            far = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
            if not far < 1e-9:
                wrong += 1
                print(f"{named(row)} at {n} x {k}: {far:.1e}")
    print(
        f"{len(ROWS) - 1} rows at {len(SIZES)} sizes, {torch.cuda.get_device_name()}: {wrong} disagree by 1e-9 or more"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
