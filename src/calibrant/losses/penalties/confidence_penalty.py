"""Confidence penalty: the negative entropy of the predictions."""

from calibrant.losses.functional import check_batch
from calibrant.metrics.scores import entropy
from calibrant.predictions.types import Labels, Logits, Scalar
from calibrant.registry import PENALTIES


@PENALTIES.register()
def confidence_penalty(logits: Logits, labels: Labels) -> Scalar:
    r"""Confidence penalty: the mean negative entropy of the predictions.

    .. math:: \frac1n \sum_i \sum_k p_{ik} \log p_{ik}

    It ignores the labels: the confidence of right and wrong predictions is lowered alike. Usual weights are 0.1 to 1.

    Reference: Pereyra, Tucker, Chorowski, Kaiser & Hinton, 2017.

    Example:
        >>> confidence_penalty(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor(-0.6931)
    """
    check_batch(logits, labels)
    return -entropy(logits).mean()
