r"""How strange a class is for a row: scores of conformal sets, one for each class, lower = more at home.

With :math:`p_{(1)} \ge p_{(2)} \ge \dots` the sorted probabilities of a row and r(y) the rank of class y (ties in the
order of columns). ``draws`` are numbers u in [0, 1], one a row; 1 for every row means no randomisation.
"""

import torch
from torch import Tensor

from calibrant.predictions.types import PerSample, Probs


def thr(probs: Probs, draws: PerSample) -> Probs:
    r"""Least ambiguous sets by a threshold on the probability: the smallest sets on average.

    .. math:: 1 - p_y

    Covers easy rows too often and hard ones too rarely. Ignores ``draws``.

    Reference: Sadinle, Lei & Wasserman, JASA 2019.

    Example:
        >>> thr(torch.tensor([[0.75, 0.25]]), torch.ones(1))
        tensor([[0.2500, 0.7500]])
    """
    return 1 - probs


def aps(probs: Probs, draws: PerSample) -> Probs:
    r"""Adaptive prediction sets: the probability of all classes that come before, and of a part u of the class itself.

    .. math:: \sum_{j < r(y)} p_{(j)} + u\, p_y

    Larger sets where the model is unsure, so that hard rows are covered too; large with many classes, see `raps`.

    Reference: Romano, Sesia & Candès, NeurIPS 2020.

    Example:
        >>> aps(torch.tensor([[0.25, 0.75]]), torch.ones(1))
        tensor([[1.0000, 0.7500]])
    """
    order = probs.argsort(dim=1, descending=True, stable=True)
    ranked = probs.gather(1, order)
    before = ranked.cumsum(1) - ranked
    return torch.empty_like(probs).scatter_(1, order, before + draws[:, None] * ranked)


def raps(probs: Probs, draws: PerSample, *, penalty: float = 0.01, free: int = 5) -> Probs:
    r"""Regularised adaptive prediction sets: `aps`, and a penalty for every rank beyond the first few.

    .. math:: \sum_{j < r(y)} p_{(j)} + u\, p_y + \lambda \max(0, r(y) - k_{\mathrm{free}})

    with :math:`\lambda` the ``penalty`` and :math:`k_{\mathrm{free}}` = ``free``. Cuts the long tail of unlikely
    classes. Choose both on other rows than those of the quantile.

    Reference: Angelopoulos, Bates, Malik & Jordan, ICLR 2021.

    Example:
        >>> raps(torch.tensor([[0.25, 0.75]]), torch.ones(1), penalty=0.5, free=1)
        tensor([[1.5000, 0.7500]])
    """
    return aps(probs, draws) + penalty * (ranks(probs) - free).clamp(min=0).to(probs.dtype)


def ranks(probs: Probs) -> Tensor:
    """Return the rank of each class in its row, from 1 for the most probable.

    Example:
        >>> ranks(torch.tensor([[0.2, 0.5, 0.3]]))
        tensor([[3, 1, 2]])
    """
    order = probs.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, probs.shape[1] + 1, device=probs.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)
