"""Rows to try a calibrator on where there are no real ones."""

import contextlib
import copy

import torch
from torch import Tensor

from calibrant.calibrators.calibrator import Calibrator


def probe(calibrator: Calibrator, n: int) -> tuple[Tensor, ...]:
    """Return n random rows that the calibrator can be called with, always the same: small logits first, then large."""
    source = torch.Generator().manual_seed(0)
    logits = torch.randn(n, calibrator.fitted.k, generator=source) * torch.logspace(-1, 2, n)[:, None]
    if not calibrator.needs_features:
        return (logits,)
    return logits, torch.randn(n, width(calibrator), generator=source)


def width(calibrator: Calibrator) -> int:
    """Return the number of features: of the sizes of the calibrator's tensors, the one that its map accepts."""
    cal = copy.deepcopy(calibrator).cpu()
    sizes = {size for value in cal.buffers() for size in value.shape}
    for size in sorted(sizes, reverse=True):  # not upwards: a single column would be stretched to any number
        with contextlib.suppress(RuntimeError, ValueError), torch.no_grad():
            cal.map(torch.zeros(2, cal.fitted.k), torch.zeros(2, size))
            return size
    raise ValueError(f"{calibrator.name} fits no number of features.")
