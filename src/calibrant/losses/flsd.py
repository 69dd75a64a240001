"""FLSD-53, sample-dependent focal loss."""

import math

import torch
from torch import Tensor

from calibrant.losses.focal_family import powered
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES

FIFTH, HALF = math.log(5), math.log(2)  # -log p at p = 0.2 and 0.5


@LOSSES.register()
def flsd(logits: Logits, labels: Labels, *, gamma: float = 3.0) -> PerSample:
    r"""FLSD-53, sample-dependent focal loss: the power is 5 where the label's probability is below 0.2, else 3.

    .. math:: -(1 - p_y)^{\gamma(p_y)} \log p_y, \qquad \gamma(p) = 5 \text{ if } p < 0.2 \text{ else } 3

    The comparison carries no gradient. ``gamma`` replaces the 3 from :math:`p_y = 0.5` up (2 gives FLSD-52). The
    powers solve, by Lambert's function, where the gradient of focal loss equals that of cross-entropy.

    It jumps at the two thresholds, and makes calibration worse for a model that is not over-confident: see `AdaFocal`.

    Reference: Mukhoti et al., NeurIPS 2020.

    Example:
        >>> flsd(torch.tensor([[0.0, 2.0], [2.0, 0.0]]), torch.tensor([0, 0]))
        tensor([1.1275e+00, 2.1499e-04])
    """
    if gamma < 0:
        raise ValueError(f"gamma must not be negative; got {gamma}.")

    def power(nll: Tensor) -> Tensor:
        return torch.where(nll > FIFTH, 5.0, 3.0 if gamma == 3 else torch.where(nll > HALF, 3.0, gamma))

    return powered(logits, labels, power)
