"""Brier loss."""

from calibrant.losses.functional import check_batch, picked
from calibrant.predictions.types import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register()
def brier(logits: Logits, labels: Labels) -> PerSample:
    r"""Brier loss: the squared distance from the probabilities to the label, summed over classes.

    .. math:: \sum_k (p_k - 1[k = y])^2 = \sum_k p_k^2 - 2 p_y + 1 \in [0, 2]

    Bounded, so that a wrong label costs little; and flat where the prediction is confidently wrong, so that training
    with many classes starts slowly.

    Reference: Brier, Monthly Weather Review 1950; Hui & Belkin, ICLR 2021.

    Example:
        >>> brier(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.1848])
    """
    check_batch(logits, labels)
    probs = widened(logits).softmax(1)
    true = picked(probs, labels)
    # (1 - p_y)^2 plus the squares of the others, to avoid cancellation near p_y = 1
    return probs.square().sum(1) - true.square() + (1 - true).square()
