"""Label smoothing."""

from typing import Literal

import torch.nn.functional as F

from calibrant.losses.functional import IGNORE_NONE, check_batch
from calibrant.predictions.types import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register()
def label_smoothing(
    logits: Logits, labels: Labels, *, alpha: float = 0.05, convention: Literal["uniform", "k_minus_1"] = "uniform"
) -> PerSample:
    r"""Label smoothing: cross-entropy against a label that gives some of its mass to the other classes.

    .. math:: -\sum_k t_k \log p_k, \qquad t_k = (1 - \alpha)\, 1[k = y] + \alpha / K

    With ``convention="k_minus_1"`` the label keeps :math:`1 - \alpha` and each other class gets
    :math:`\alpha / (K - 1)`: what some papers mean by the same :math:`\alpha`. Torch's ``label_smoothing`` is
    "uniform".

    Probabilities above :math:`1 - \alpha + \alpha / K` are always penalised, and similarities between classes are lost.

    Reference: Szegedy et al., CVPR 2016; Müller, Kornblith & Hinton, NeurIPS 2019.

    Example:
        >>> label_smoothing(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]), alpha=0.1)
        tensor([0.5137])
    """
    check_batch(logits, labels)
    k = logits.shape[1]
    if convention not in ("uniform", "k_minus_1"):
        raise ValueError(f"convention must be uniform or k_minus_1; got {convention!r}.")
    most = 1.0 if convention == "uniform" else 1 - 1 / k
    if not 0 <= alpha <= most:
        raise ValueError(f"alpha must lie in [0, {most:g}]; got {alpha}.")
    mass = alpha / most if k > 1 else 0.0  # spread over all k classes, the label's among them
    return F.cross_entropy(
        widened(logits), labels.long(), reduction="none", label_smoothing=mass, ignore_index=IGNORE_NONE
    )
