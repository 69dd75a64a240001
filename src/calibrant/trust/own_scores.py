"""Logits -> what the classifier itself says about its answer, in the forms that a trust predictor starts from."""

import torch
from torch import Tensor

from calibrant.predictions.types import widened

SORTED = 10  # of the largest log-probabilities that are kept


def log_odds(logits: Tensor) -> Tensor:
    r"""Return the log odds of the predicted class, :math:`\log p_{(1)} - \log(1 - p_{(1)})`, of each row.

    The logarithm of the rest is summed over the other classes, so a confidence that rounds to 1 still has its rank.

    Example:
        >>> log_odds(torch.tensor([[2.0, 0.0], [1e4, 0.0]]))
        tensor([2.0000e+00, 1.0000e+04])
    """
    z = widened(logits)
    top, place = z.max(1, keepdim=True)
    others = z.scatter(1, place, -torch.inf)
    return top.squeeze(1) - others.logsumexp(1)


def own_scores(logits: Tensor) -> Tensor:
    r"""Return (n, m) scores beside the log odds: negative entropy, logit margin, the largest log-probabilities sorted.

    Example:
        >>> own_scores(torch.zeros(1, 3))
        tensor([[-1.0986,  0.0000, -1.0986, -1.0986, -1.0986]])
    """
    logp = widened(logits).log_softmax(1)
    best = logp.topk(min(SORTED, logp.shape[1]), dim=1).values
    entropy = (logp.exp() * logp.clamp(min=-1e4)).sum(1, keepdim=True)  # 0 log 0 = 0
    return torch.cat([entropy, best[:, :1] - best[:, 1:2], best.clamp(min=-1e4)], 1)
