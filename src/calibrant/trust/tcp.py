"""ConfidNet: regression of the true class probability."""

from torch import Tensor

from calibrant.registry import TRUST
from calibrant.trust.learned import Learned


def tcp_loss(z: Tensor, truth: Tensor) -> Tensor:
    r"""Return :math:`(\sigma(z) - p_y)^2` of each row.

    Equation 6 of Luo et al. leaves the sigmoid out.

    Example:
        >>> tcp_loss(torch.zeros(1), torch.tensor([0.9]))
        tensor([0.1600])
    """
    return (z.sigmoid() - truth).square()


@TRUST.register(reads="rows")
class Tcp(Learned):
    r"""ConfidNet: an estimate of the probability that the classifier gives to the true class.

    .. math:: \sigma(z), \qquad z = \arg\min \frac1n \sum_i (\sigma(z_i) - p_{y_i})^2

    A true class probability above 1/2 means right, below 1/K wrong; between them it says nothing, and the estimate of
    it says less. So an answer counts as trusted above 1/2, as distrusted below 1/K. ConfidNet's head is
    ``head="mlp"``, four hidden layers of 400. ``anchor`` as in `SteepSlope`.

    Reference: Corbière, Thome, Bar-Hen, Cord & Pérez, "Addressing Failure Prediction by Learning Model Confidence",
    NeurIPS 2019.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> trust = Tcp.fit(logits, labels)
        >>> trust.distrust_below
        0.2
    """

    loss = staticmethod(tcp_loss)
    estimates_truth = True
