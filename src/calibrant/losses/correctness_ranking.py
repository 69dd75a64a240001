"""Correctness ranking loss."""

import torch
from torch import Tensor, nn

from calibrant.losses.functional import check_batch, count, picked, surest
from calibrant.predictions.types import Confidence, Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register(joint=True, needs_rows=True, counts=True)
class CorrectnessRanking(nn.Module):
    r"""Correctness ranking loss: rows that were right more often in training should be more confident.

    .. math:: -\log p_{y_i} + \lambda \max\bigl(0,\; |c_i - c_j| - \mathrm{sign}(c_i - c_j)(s_i - s_j)\bigr)

    :math:`c_i` is the fraction of the times seen so far that row i was predicted right, :math:`s_i` its largest
    probability, and j the next row of the batch (the last is paired with the first). A row is identified by
    ``rows``, its index in the training set of ``n`` rows; counts are kept in train mode, from what the batch
    predicts, after the loss is computed. ``weight`` is :math:`\lambda`.

    Where the training set is fitted from the first epoch on, all counts are equal and the term is 0.

    Reference: Moon, Kim, Shin & Hwang, ICML 2020.

    Example:
        >>> loss = CorrectnessRanking(100)
        >>> loss(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 1]), torch.tensor([7, 42]))
        tensor([0.3133, 0.0486])
    """

    counts: Tensor  # (n, 2): how often right, how often seen

    def __init__(self, n: int, *, weight: float = 1.0) -> None:
        super().__init__()
        if n < 1:
            raise ValueError(f"n must be the number of training rows; got {n}.")
        self.weight = weight
        self.register_buffer("counts", torch.zeros(n, 2, dtype=torch.float32))

    def forward(self, logits: Logits, labels: Labels, rows: Labels) -> PerSample:
        """Return the loss of each row, and in train mode count it."""
        check_batch(logits, labels)
        logp = widened(logits).log_softmax(1)
        sure, correct = surest(logp, labels)
        known = self.counts[rows].to(sure.dtype)
        share = known[:, 0] / known[:, 1].clamp(min=1)
        if self.training:
            count(self.counts, torch.stack([correct, torch.ones_like(correct)], 1), rows)
        return self.weight * ranking(sure, share) - picked(logp, labels)


def ranking(confidence: Confidence, share: Confidence) -> PerSample:
    """Return the ranking term of each row with the next.

    Example:
        >>> ranking(torch.tensor([0.6, 0.7]), torch.tensor([0.9, 0.4]))
        tensor([0.6000, 0.6000])
    """
    gap = share - share.roll(-1)
    return (gap.abs() - gap.sign() * (confidence - confidence.roll(-1))).relu()
