"""Statistics of the probabilities within classes, by which SECA's authors follow training."""

import math

import torch

from calibrant.metrics.inputs import metric
from calibrant.metrics.proper import mean
from calibrant.predictions.types import Labels, Probs, Weights


@metric(better="neither", range=(0.0, math.inf), family="dynamics", mean_of="entropy")
def mean_entropy(probs: Probs, *, weights: Weights | None = None) -> float:
    r"""Mean entropy of the probabilities, in nats.

    .. math:: -\frac1n \sum_i \sum_k p_{ik} \log p_{ik}, \qquad 0 \log 0 = 0

    Reference: "SECA: Self-guided Model Calibration", under review, Appendix A.

    Example:
        >>> round(mean_entropy(torch.tensor([[0.5, 0.5]])), 4)
        0.6931
    """
    return mean(torch.special.entr(probs.double()).sum(1).cpu(), weights)


@metric(better="neither", range=(0.0, math.inf), family="dynamics")
def class_kl(probs: Probs, labels: Labels, *, leave_out: bool = True, weights: Weights | None = None) -> float:
    r"""Mean divergence of a row's probabilities from the mean of the other rows of its class.

    .. math:: \frac1{n'} \sum_i D_{KL}(\mu_{-i} \,\|\, p_i)

    with :math:`\mu_{-i}` the mean over the other rows with the same label; rows without such peers are skipped, and
    without any the answer is NaN. ``leave_out=False`` keeps the row in its own mean. The paper does not state the
    direction; this one agrees with its Eq. 9. A probability of 0 counts as 1e-12.

    Reference: "SECA: Self-guided Model Calibration", under review, Appendix A.

    Example:
        >>> round(class_kl(torch.tensor([[0.5, 0.5], [0.9, 0.1]]), torch.tensor([0, 0])), 4)
        0.4394
    """
    p, y, w = _with_weights(probs, labels, weights)
    size, total = _class_sums(p, y, w)
    own = 1.0 if leave_out else 0.0
    peers = size[y] - own
    kept = (peers > 0) & (w > 0)
    if not bool(kept.any()):
        return math.nan
    others = ((total[y] - own * p) / peers[:, None])[kept].clamp(min=0)
    divergence = torch.special.xlogy(others, others) - others * p[kept].clamp(min=1e-12).log()
    return mean(divergence.sum(1).clamp(min=0).cpu(), w[kept].cpu())


@metric(better="neither", range=(0.0, 1.0), family="dynamics")
def class_cosine(probs: Probs, labels: Labels, *, weights: Weights | None = None) -> float:
    r"""Mean cosine similarity between a row's probabilities and the mean of its class, the row included.

    .. math:: \frac1n \sum_i \frac{p_i \cdot \mu_{y_i}}{\|p_i\|\,\|\mu_{y_i}\|}

    Reference: "SECA: Self-guided Model Calibration", under review, Appendix A.

    Example:
        >>> round(class_cosine(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0])), 4)
        0.7071
    """
    p, y, w = _with_weights(probs, labels, weights)
    size, total = _class_sums(p, y, w)
    middle = (total / size.clamp(min=1e-300)[:, None])[y]
    cosine = torch.nn.functional.cosine_similarity(p, middle, dim=1, eps=0.0)
    return mean(cosine[w > 0].clamp(0, 1).cpu(), w[w > 0].cpu())


def _with_weights(
    probs: Probs, labels: Labels, weights: Weights | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    p = probs.double()
    w = torch.ones(len(p), dtype=torch.float64) if weights is None else weights.double()
    return p, labels.to(p.device), w.to(p.device)


def _class_sums(p: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    size = torch.zeros(p.shape[1], dtype=torch.float64, device=p.device).index_add_(0, y, w)
    total = torch.zeros(p.shape[1], p.shape[1], dtype=torch.float64, device=p.device)
    return size, total.index_add_(0, y, w[:, None] * p)
