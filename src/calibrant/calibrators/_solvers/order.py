"""The promise not to change a prediction, kept to the last bit."""

import torch
from torch import Tensor


def argmax_kept(logits: Tensor, calibrated: Tensor) -> Tensor:
    """Return the calibrated logits with the argmax of the logits.

    An increasing map keeps the order of two numbers or, by rounding, makes them equal; then the first of them would
    win. In such a row, and only there, the rightful largest is lifted by one rounding unit above the rest.
    """
    top = logits.argmax(1, keepdim=True)
    moved = calibrated.argmax(1, keepdim=True) != top
    best = calibrated.amax(1, keepdim=True)
    unit = torch.finfo(calibrated.dtype)
    lifted = best + (best.abs() * unit.eps).clamp(min=unit.tiny)
    mine = torch.arange(logits.shape[1], device=logits.device) == top
    return torch.where(moved & mine, lifted, calibrated)
