"""SECA: cross-entropy plus a pull towards the mean prediction of the class."""

import torch
from torch import Tensor

from calibrant.losses.functional import bounded, check_batch, picked
from calibrant.predictions.types import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register(joint=True)
def seca(logits: Logits, labels: Labels, *, detach_mean: bool = True) -> PerSample:
    r"""SECA: cross-entropy against the label plus the batch's mean prediction for the label's class.

    .. math:: -\sum_k (1[k = y] + \mu_{yk}) \log p_k, \qquad
              \mu_j = \text{mean of } p \text{ over the rows of class } j

    The target sums to 2. :math:`\mu` carries no gradient: only then is the gradient in the logits
    :math:`2p - 1[k = y] - \mu_y` (the paper's equation 12). ``detach_mean=False`` lets it through, which also trains
    the entropy of the means down.

    Averaged over the rows of a class its gradient is that of cross-entropy; the added term pulls the predictions of a
    class together. A class with one row in the batch has :math:`\mu = p`, and exactly the gradient of cross-entropy:
    with many classes and small batches (or means per device) that is most rows. The sign before the middle expression
    of equation 9 is a typo.

    Reference: "SECA: Self-guided Model Calibration", 2025.

    Example:
        >>> seca(torch.tensor([[2.0, 1.0, 0.1], [0.5, 1.0, 0.2]]), torch.tensor([0, 0]))
        tensor([1.4998, 2.3067])
    """
    check_batch(logits, labels)
    logp = widened(logits).log_softmax(1)
    near = class_sums(logp.detach().exp() if detach_mean else logp.exp(), labels)
    # probabilities of a row sum to 1, so those of its class sum to the number of its rows
    return -picked(logp, labels) - (near * bounded(logp)).sum(1) / near.sum(1)


def class_sums(probs: Tensor, labels: Tensor) -> Tensor:
    """Return for each row the sum of the rows that share its label, in O(n k).

    Sums are kept by class, or with more classes than rows by the first row of each class.

    Example:
        >>> class_sums(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]]), torch.tensor([0, 0, 1]))
        tensor([[1.0000, 1.0000],
                [1.0000, 1.0000],
                [0.5000, 0.5000]])
    """
    n, k = probs.shape
    group = labels if k <= n else (labels[:, None] == labels).to(torch.uint8).argmax(1)
    return torch.zeros_like(probs[: min(n, k)]).index_add(0, group, probs)[group]
