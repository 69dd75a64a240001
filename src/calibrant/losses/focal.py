"""Focal loss."""

from torch import Tensor

from calibrant.losses.focal_family import powered
from calibrant.losses.functional import check_batch, missing, true_nll
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES


@LOSSES.register()
def focal(logits: Logits, labels: Labels, *, gamma: float | Tensor = 3.0, detach_weight: bool = False) -> PerSample:
    r"""Focal loss: cross-entropy times a power of one minus the label's probability.

    .. math:: -(1 - p_y)^\gamma \log p_y

    Gradient flows through the weight, unless ``detach_weight`` stops it, as some libraries do, and to ``gamma`` where
    that is a tensor. The base :math:`1 - p_y` is computed from :math:`-\log p_y` and is at least the smallest positive
    number, so that a power between 0 and 1 has a finite gradient where :math:`p_y` rounds to 1.

    With :math:`\gamma` of 3 and more many models end under-confident, and a larger :math:`\gamma` does not mean smaller
    gradients for :math:`p_y` below about 0.2.

    Reference: Lin, Goyal, Girshick, He & Dollár, ICCV 2017; Mukhoti et al., NeurIPS 2020, on calibration.

    Example:
        >>> focal(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]), gamma=3.0)
        tensor([0.0165])
    """
    if gamma < 0:
        raise ValueError(f"gamma must not be negative; got {gamma}. For a negative power see inverse_focal.")
    if detach_weight or isinstance(gamma, Tensor):
        check_batch(logits, labels)
        nll = true_nll(logits, labels)
        weight = missing(nll) ** gamma
        return (weight.detach() if detach_weight else weight) * nll
    return powered(logits, labels, lambda _: gamma)
