"""Focal loss: logistic regression of correctness that emphasises hard rows."""

import math
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from calibrant.predictions.fit_data import FitData
from calibrant.registry import TRUST
from calibrant.trust._machinery.heads import Kind
from calibrant.trust.learned import Learned


def focal_loss(z: Tensor, right: Tensor, *, gamma: float = 2.0) -> Tensor:
    r"""Return :math:`-(1 - q)^\gamma \log q` of each row, q the probability given to what was true.

    Powers are taken of logarithms, so a probability that rounds to 1 leaves a finite gradient for any gamma.

    Example:
        >>> focal_loss(torch.zeros(1), torch.ones(1))
        tensor([0.1733])
    """
    if not 0 <= gamma < math.inf:
        raise ValueError(f"gamma must be a finite number of at least 0; got {gamma}.")
    towards = z * (2 * right - 1)
    return -(gamma * F.logsigmoid(-towards)).exp() * F.logsigmoid(towards)


@TRUST.register(reads="rows")
class Focal(Learned):
    r"""Focal predictor: cross-entropy with rows that are already well placed weighted down.

    .. math:: -o\,(1 - p)^\gamma \log p - (1 - o)\, p^\gamma \log(1 - p), \qquad p = \sigma(z)

    Not proper: its confidences are drawn towards 1/2. ``anchor`` and ``head`` as in `SteepSlope`.

    Reference: Lin et al., ICCV 2017; as a baseline in Luo et al., NeurIPS 2021.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> confidence = Focal.fit(logits, labels)(logits)
        >>> bool((confidence[logits.argmax(1) == labels].mean() > confidence[logits.argmax(1) != labels].mean()))
        True
    """

    loss = staticmethod(focal_loss)

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        gamma: float = 2.0,
        head: Kind = "linear",
        anchor: bool = True,
        seed: int = 0,
    ) -> "Focal":
        """Fit on held-out rows; with ``anchor=False`` on features alone, from scratch."""
        rows, loss = FitData.read(logits, labels, features), partial(focal_loss, gamma=gamma)
        return cls.learned(rows, loss, {"gamma": gamma}, head=head, anchor=anchor, seed=seed)
