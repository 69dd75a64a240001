"""Dual focal loss."""

from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.losses.functional import check_batch, missing
from calibrant.predictions.types import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES

Competitor = Literal["ranked_after", "competitor", "only_if_right"]


@LOSSES.register()
def dual_focal(
    logits: Logits, labels: Labels, *, gamma: float = 5.0, competitor: Competitor = "ranked_after"
) -> PerSample:
    r"""Dual focal loss: focal loss whose weight grows with the probability of a competitor.

    .. math:: -(1 - p_y + p_j)^\gamma \log p_y, \qquad p_j = \max\{p_k : p_k < p_y\}

    ``"ranked_after"``, the default, is the largest probability strictly below the label's (0 if there is none): what
    the authors' abstract and code say. ``"competitor"`` is the largest probability of another class, the reading that
    Zhou et al. print (their equation 33); ``"only_if_right"`` is the same but 0 where the prediction is wrong (their
    equation 35, which they take the released code to do; it does not). Gradient flows through both probabilities.

    Under "ranked_after" the loss jumps where the label's probability passes that of another class.

    Reference: Tao, Dong & Xu, ICML 2023; Zhou et al., arXiv 2505.23463.

    Example:
        >>> dual_focal(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.0282])
    """
    if gamma < 0:
        raise ValueError(f"gamma must not be negative; got {gamma}.")
    check_batch(logits, labels)
    logp = widened(logits).log_softmax(1)
    rival = _rival(logp.detach(), labels, competitor)
    both = logp.gather(1, torch.stack([labels, rival.indices], 1))
    nll, other = -both[:, 0], torch.where(rival.values.isfinite(), both[:, 1].exp(), 0)
    return (missing(nll) + other) ** gamma * nll


def _rival(logp: Tensor, labels: Tensor, competitor: str) -> Any:
    """Return the log probability of the competitor, -inf where there is none, and its place."""
    true = logp.gather(1, labels[:, None])
    if competitor == "ranked_after":
        return logp.masked_fill(logp >= true, -torch.inf).max(1)
    if competitor not in ("competitor", "only_if_right"):
        raise ValueError(f"competitor must be ranked_after, competitor or only_if_right; got {competitor!r}.")
    others = logp.scatter(1, labels[:, None], -torch.inf)
    if competitor == "only_if_right":
        others = others.masked_fill(others.amax(1, keepdim=True) > true, -torch.inf)
    return others.max(1)
