"""MDCA: mean probability against frequency of every class."""

import torch

from calibrant.losses.functional import check_batch
from calibrant.predictions.types import Labels, Logits, Scalar, widened
from calibrant.registry import PENALTIES


@PENALTIES.register()
def mdca(logits: Logits, labels: Labels) -> Scalar:
    r"""MDCA: the difference between mean probability and frequency in the batch, averaged over classes.

    .. math:: \frac1K \sum_k \Bigl|\frac1n \sum_i p_{ik} - \frac1n \sum_i 1[y_i = k]\Bigr|

    A class absent from the batch counts with its mean probability. With more classes than rows the frequencies are
    mostly noise.

    Reference: Hebbalaguppe, Prakash, Madan & Arora, CVPR 2022.

    Example:
        >>> mdca(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3808)
    """
    check_batch(logits, labels)
    probs = widened(logits).softmax(1)
    one = torch.full_like(probs[:, 0], 1 / len(probs))
    frequency = torch.zeros_like(probs[0]).index_add(0, labels, one)
    return (probs.mean(0) - frequency).abs().mean()
