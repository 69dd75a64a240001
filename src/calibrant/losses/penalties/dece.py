"""DECE: differentiable expected calibration error."""

import torch
from torch import Tensor

from calibrant.losses.functional import top, true_nll
from calibrant.predictions.types import Labels, Logits, Scalar, widened
from calibrant.registry import PENALTIES


@PENALTIES.register()
def dece(logits: Logits, labels: Labels, *, bins: int = 15, sharpness: float = 100.0, width: float = 0.01) -> Scalar:
    r"""DECE: expected calibration error, differentiable in bins and in accuracy.

    .. math:: \sum_b \frac{n_b}{n} |A_b - C_b|, \qquad
              a_i = \mathrm{relu}(2 - R_i), \quad R_i = \tfrac12 + \sum_k \sigma\bigl(t\,(p_{ik} - p_{iy})\bigr)

    R is a soft rank of the label, 1 where it leads clearly. Row i belongs to bin b by the softmax over b of
    :math:`(b\, r_i - \sum_{m < b} \frac mB) / w`, plus 1e-6 and normalised, with r its confidence, whose gradient goes
    to the first of equal classes. ``sharpness`` is t, ``width`` is w.

    Unlike other penalties it has a gradient through the accuracy, which vanishes unless two classes are close. The
    reference tunes other losses with it on a second set; here it is a penalty like the others.

    Reference: Bohdal, Yang & Hospedales, TMLR 2023.

    Example:
        >>> dece(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3808)
    """
    if bins < 1 or sharpness <= 0 or width <= 0:
        raise ValueError(f"bins must be at least 1, sharpness and width positive; got {bins}, {sharpness} and {width}.")
    confidence, _ = top(logits, labels)
    true = (-true_nll(logits, labels)).exp()
    correct = (1.5 - torch.sigmoid(sharpness * (widened(logits).softmax(1) - true[:, None])).sum(1)).relu()
    share = _shares(confidence, bins, width)
    gap = (share * (correct - confidence)[:, None]).sum(0)
    return gap.abs().sum() / len(confidence)


def _shares(confidence: Tensor, bins: int, width: float) -> Tensor:
    number = torch.arange(1, bins + 1, device=confidence.device, dtype=confidence.dtype)
    below = number * (number - 1) / (2 * bins)
    share = (confidence[:, None] * (number / width) - below / width).softmax(1)
    return (share + 1e-6) / (1 + bins * 1e-6)
