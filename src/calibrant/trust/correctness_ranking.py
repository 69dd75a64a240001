"""Correctness ranking: right rows ranked above wrong ones."""

from torch import Tensor

from calibrant.registry import TRUST
from calibrant.trust.learned import Learned


def ranking_loss(z: Tensor, right: Tensor) -> Tensor:
    r"""Return each row's share of the correctness ranking loss over all pairs of a right and a wrong row.

    .. math:: \frac{1}{n_+ n_-} \sum_{i \in +,\, j \in -} \max\bigl(0,\; 1 - (\sigma(z_i) - \sigma(z_j))\bigr)
              = 1 - \bigl(\overline{\sigma(z)}_+ - \overline{\sigma(z)}_-\bigr)

    The loss of a pair is :math:`\max(0, -\mathrm{sign}(c_i - c_j)(\kappa_i - \kappa_j) + |c_i - c_j|)` with c how often
    a row was right. Under a frozen classifier c is 0 or 1: pairs of equal c cost nothing, and the others never reach
    the hinge, since confidences differ by at most 1. So the sum over pairs is a difference of means. The mean of what
    is returned is that sum; with rows of one side only it is 0.

    Example:
        >>> ranking_loss(torch.tensor([100.0, -100.0]), torch.tensor([1.0, 0.0])).mean()
        tensor(0.)
    """
    share = right.mean()
    both = (share > 0) & (share < 1)
    confidence = z.sigmoid()
    loss = right * (1 - confidence) / share.clamp(min=1e-12) + (1 - right) * confidence / (1 - share).clamp(min=1e-12)
    return loss * both


@TRUST.register(reads="rows")
class CorrectnessRanking(Learned):
    r"""Correctness ranking predictor: maximises the lead of right rows over wrong ones in mean confidence.

    .. math:: z = \arg\min\; 1 - \bigl(\overline{\sigma(z)}_+ - \overline{\sigma(z)}_-\bigr)

    What the correctness ranking loss becomes for a classifier that is frozen (`ranking_loss`). To train the classifier
    itself by it, with a record of how often each row was right, use ``Criterion("correctness_ranking")``. The loss is
    bounded and not proper: it would drive confidences to 0 and 1, from which a ridge on the scale keeps them.
    ``anchor`` and ``head`` as in `SteepSlope`.

    Reference: Moon, Kim, Shin & Hwang, "Confidence-Aware Learning for Deep Neural Networks", ICML 2020.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> confidence = CorrectnessRanking.fit(logits, labels)(logits)
        >>> bool((confidence[logits.argmax(1) == labels].mean() > confidence[logits.argmax(1) != labels].mean()))
        True
    """

    loss = staticmethod(ranking_loss)
    scale_ridge = 0.1  # the loss has no best scale: confidences would run to 0 and 1, and ties would cost the ranking
