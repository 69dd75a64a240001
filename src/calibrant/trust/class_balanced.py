"""Class-balanced loss: right and wrong rows weighted by their effective number of samples."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.predictions.fit_data import FitData
from calibrant.registry import TRUST
from calibrant.trust._machinery.heads import Kind
from calibrant.trust.focal import focal_loss
from calibrant.trust.learned import Learned


def effective_weights(counts: tuple[int, ...], *, beta: float = 0.9999) -> tuple[float, ...]:
    r"""Return a weight for each class by its effective number of samples, :math:`(1 - \beta) / (1 - \beta^n)`.

    They are scaled so that their sum is the number of classes. A class without rows has the weight of one with a row.

    Example:
        >>> [round(weight, 6) for weight in effective_weights((900, 100), beta=0.99)]
        [0.776042, 1.223958]
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta must lie in (0, 1); got {beta}.")
    raw = [(1 - beta) / (1 - beta ** max(n, 1)) for n in counts]
    return tuple(len(raw) * weight / sum(raw) for weight in raw)


def class_balanced_loss(
    z: Tensor, right: Tensor, *, counts: tuple[int, int], beta: float = 0.9999, gamma: float = 0.0
) -> Tensor:
    """Return the focal loss of each row, weighted for ``counts`` wrong and right rows.

    Example:
        >>> class_balanced_loss(torch.zeros(2), torch.tensor([0.0, 1.0]), counts=(100, 900), beta=0.99)
        tensor([0.8484, 0.5379])
    """
    for_wrong, for_right = effective_weights(counts, beta=beta)
    return torch.where(right > 0.5, for_right, for_wrong) * focal_loss(z, right, gamma=gamma)


@TRUST.register(reads="rows")
class ClassBalanced(Learned):
    r"""Class-balanced predictor: cross-entropy in which the few wrong rows weigh as much as the many right ones.

    .. math:: w_o \cdot \ell(z, o), \qquad w_c \propto \frac{1 - \beta}{1 - \beta^{n_c}}

    with :math:`n_c` the number of right and of wrong rows, the weights summing to 2, and :math:`\ell` the focal loss of
    power ``gamma`` (0: cross-entropy). Its confidence is a probability for a world with as many wrong answers as right
    ones: the weights move the threshold, not the ranking. ``anchor`` and ``head`` as in `SteepSlope`.

    Reference: Cui, Jia, Lin, Song & Belongie, CVPR 2019; as a baseline in Luo et al., NeurIPS 2021, appendix H.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> confidence = ClassBalanced.fit(logits, labels)(logits)
        >>> round(float(confidence.mean()), 1)
        0.5
    """

    loss = staticmethod(class_balanced_loss)

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        beta: float = 0.9999,
        gamma: float = 0.0,
        head: Kind = "linear",
        anchor: bool = True,
        seed: int = 0,
    ) -> "ClassBalanced":
        """Fit on held-out rows; with ``anchor=False`` on features alone, from scratch."""
        rows = FitData.read(logits, labels, features)
        wrong = int((~rows.correct).sum())
        loss = partial(class_balanced_loss, counts=(wrong, rows.n - wrong), beta=beta, gamma=gamma)
        return cls.learned(rows, loss, {"beta": beta, "gamma": gamma}, head=head, anchor=anchor, seed=seed)
