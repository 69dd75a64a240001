"""Cross-entropy plus a pull towards what the batch predicts for the class."""

import torch
from torch import Tensor

from calibrant.batch import full_precision
from calibrant.nouns import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register(joint=True)
def seca(logits: Logits, labels: Labels, *, detach_mean: bool = True) -> PerSample:
    r"""SECA: cross-entropy against the label plus the batch's mean prediction for the label's class.

    .. math:: -\sum_k (1[k = y] + \mu_{yk}) \log p_k, \qquad
              \mu_j = \text{mean of } p \text{ over the rows of class } j

    The target sums to 2. :math:`\mu` carries no gradient: only then is the gradient in the logits
    :math:`2p - 1[k = y] - \mu_y` (the paper's equation 12). ``detach_mean=False`` lets it through, which also trains
    the entropy of the means down.

    Averaged over the rows of a class its gradient is that of cross-entropy; what it adds draws the rows of a class
    together. A class with one row in the batch has :math:`\mu = p`, and exactly the gradient of cross-entropy: with
    many classes and small batches (or means per device) that is most rows. The sign before the middle expression of
    equation 9 is a slip.

    Reference: "SECA: Self-guided Model Calibration", 2025.

    Example:
        >>> seca(torch.tensor([[2.0, 1.0, 0.1], [0.5, 1.0, 0.2]]), torch.tensor([0, 0]))
        tensor([1.4998, 2.3067])
    """
    logp = widened(logits).log_softmax(1)
    with full_precision(logits):
        mean = class_means(logp.detach().exp() if detach_mean else logp.exp(), labels)
    return -logp.gather(1, labels[:, None]).squeeze(1) - (mean * logp.clamp(min=-1e30)).sum(1)


def class_means(probs: Tensor, labels: Tensor) -> Tensor:
    """Return for each row the mean of the rows that share its label, by one matrix product.

    The product is over pairs of rows or over classes, whichever are fewer.

    Example:
        >>> class_means(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), torch.tensor([0, 0, 1]))
        tensor([[0.5000, 0.5000],
                [0.5000, 0.5000],
                [0.5000, 0.5000]])
    """
    n, k = probs.shape
    if n <= k:
        same = (labels[:, None] == labels).to(probs.dtype)
        return (same / same.sum(1, keepdim=True)) @ probs
    member = (labels[:, None] == torch.arange(k, device=labels.device)).to(probs.dtype)
    return (member.T @ probs / member.sum(0).clamp(min=1)[:, None])[labels]
