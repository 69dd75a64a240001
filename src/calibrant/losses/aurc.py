"""AURC loss."""

from typing import Literal

import torch

from calibrant.losses.confidence import confidence_of, ranks
from calibrant.losses.functional import check_batch, true_nll
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES

Weighting = Literal["em", "ln", "sele"]


@LOSSES.register(joint=True)
def aurc(
    logits: Logits, labels: Labels, *, confidence: str = "negative_entropy", weighting: Weighting = "em"
) -> PerSample:
    r"""AURC loss: cross-entropy weighted so that its mean is the mean selective risk over all coverages.

    .. math:: -\alpha_{r} \log p_y, \qquad \alpha_r = \sum_{j=n-r+1}^{n} \frac1j

    with r the rank of the row's confidence, 1 for the least confident; ties are broken by order. ``weighting="em"`` is
    exact for the n rows of the batch; "ln" is :math:`-\ln(1 - \frac{r}{n+1})`; "sele" is :math:`r/n`. Weights carry no
    gradient and are computed for the batch at hand (released code builds them once, which is wrong for a shorter last
    batch). ``confidence`` is the name of a score.

    Confident rows have the largest weights: a confident and wrong row dominates the loss.

    Reference: Zhou, Landgraf & Blaschko, 2025; Zhou et al., arXiv 2505.23463.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.1], [0.5, 2.5, 0.3]])
        >>> aurc(logits, torch.tensor([0, 1]), confidence="msp")  # half, and one and a half, of cross-entropy
        tensor([0.2085, 0.3301])
    """
    if weighting not in ("em", "ln", "sele"):
        raise ValueError(f"weighting must be em, ln or sele; got {weighting!r}.")
    check_batch(logits, labels)
    nll = true_nll(logits, labels)
    n, place = len(nll), ranks(confidence_of(logits.detach(), confidence))
    if weighting == "em":
        return (1 / torch.arange(n, 0, -1, device=nll.device, dtype=nll.dtype)).cumsum(0)[place] * nll
    rank = place.to(nll.dtype) + 1
    return (-torch.log1p(-rank / (n + 1)) if weighting == "ln" else rank / n) * nll
