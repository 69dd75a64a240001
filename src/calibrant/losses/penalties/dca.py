"""DCA: mean confidence against accuracy."""

from calibrant.losses.functional import top
from calibrant.predictions.types import Labels, Logits, Scalar
from calibrant.registry import PENALTIES


@PENALTIES.register()
def dca(logits: Logits, labels: Labels) -> Scalar:
    r"""DCA: the absolute difference between the mean confidence and the accuracy of the batch.

    .. math:: \Bigl|\frac1n \sum_i \max_k p_{ik} - \frac1n \sum_i a_i\Bigr|

    Accuracy carries no gradient, so the confidence of all rows moves in one direction; errors of opposite sign cancel.

    Reference: Liang, Zhang, Wang & Jacobs, 2020.

    Example:
        >>> dca(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3808)
    """
    confidence, correct = top(logits, labels)
    return (confidence.mean() - correct.to(confidence.dtype).mean()).abs()
