"""Binary cross-entropy: logistic regression of correctness."""

import torch.nn.functional as F
from torch import Tensor

from calibrant.registry import TRUST
from calibrant.trust.learned import Learned


def bce_loss(z: Tensor, right: Tensor) -> Tensor:
    r"""Return :math:`-o \log \sigma(z) - (1 - o) \log(1 - \sigma(z))` of each row.

    Example:
        >>> bce_loss(torch.zeros(1), torch.ones(1))
        tensor([0.6931])
    """
    return F.binary_cross_entropy_with_logits(z, right, reduction="none")


@TRUST.register(reads="rows")
class Bce(Learned):
    r"""Binary cross-entropy predictor: the probability that the answer is right.

    .. math:: \sigma(z), \qquad z = \arg\min \frac1n \sum_i -o_i \log \sigma(z_i) - (1 - o_i) \log(1 - \sigma(z_i))

    The proper one: on rows like those of the fit its confidence is calibrated, so the threshold follows from the costs
    (with features a ridge holds it somewhat too near the middle: calibrate what it says, if it matters).
    Where nearly all answers are right, nearly all stay above 1/2. ``anchor`` and ``head`` as in `SteepSlope`.

    Reference: Cox, Journal of the Royal Statistical Society B 1958; as a baseline in Luo et al., NeurIPS 2021.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> trust = Bce.fit(logits, labels)  # a classifier twice too sure of itself
        >>> round(float(trust(logits).mean()), 3), round(float((logits.argmax(1) == labels).double().mean()), 3)
        (0.564, 0.564)
    """

    loss = staticmethod(bce_loss)
