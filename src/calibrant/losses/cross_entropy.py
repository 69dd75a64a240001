"""Cross-entropy."""

from calibrant.losses.functional import check_batch, true_nll
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES


@LOSSES.register()
def cross_entropy(logits: Logits, labels: Labels) -> PerSample:
    r"""Cross-entropy: the negative log probability of the label.

    .. math:: -\log p_y

    A proper score, but a network that can fit its training set is driven to probabilities of 1 there and ends
    over-confident.

    Reference: Good, JRSS B 1952; Guo, Pleiss, Sun & Weinberger, ICML 2017, on over-confidence.

    Example:
        >>> cross_entropy(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.4170])
    """
    check_batch(logits, labels)
    return true_nll(logits, labels)
