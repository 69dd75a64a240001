"""Inverse focal loss."""

import warnings

from calibrant.losses.focal_family import powered
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES

TURNS = 3.591121476668622  # min over p of (1 + p) / (-p log p), at p = 0.278465


@LOSSES.register()
def inverse_focal(logits: Logits, labels: Labels, *, gamma: float = 2.0) -> PerSample:
    r"""Inverse focal loss: cross-entropy times a power of one plus the label's probability.

    .. math:: -(1 + p_y)^\gamma \log p_y

    It emphasises rows that are already right, which raises confidence. The derivative is
    :math:`-\gamma (1 + p_y)^{\gamma-1} \log p_y - (1 + p_y)^\gamma / p_y`: its first term is positive (an appendix of
    Zhou et al. prints the other sign), and above :math:`\gamma = 3.5911` it dominates for some :math:`p_y`, where
    training then lowers the label's probability; a warning is given.

    Reference: Wang, Feng & Zhang, NeurIPS 2021; Zhou et al., arXiv 2505.23463.

    Example:
        >>> inverse_focal(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]), gamma=2.0)
        tensor([1.1478])
    """
    if gamma < 0:
        raise ValueError(f"gamma must not be negative; got {gamma}. For a negative power see focal.")
    if gamma > TURNS:
        warnings.warn(
            f"gamma of {gamma:g} is above 3.59: near p = 0.28 the loss then grows with the label's probability, and "
            "training goes the wrong way; take 3.5 or less.",
            stacklevel=2,
        )
    return powered(logits, labels, lambda _: -gamma)
