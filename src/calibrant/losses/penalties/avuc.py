"""AvUC, accuracy versus uncertainty, and its soft form S-AvUC."""

import math

import torch
from torch import Tensor

from calibrant.losses.functional import check_batch, surest
from calibrant.metrics.scores import entropy_of
from calibrant.predictions.types import Labels, Logits, PerSample, Scalar, widened
from calibrant.registry import PENALTIES


@PENALTIES.register()
def avuc(logits: Logits, labels: Labels, *, threshold: float | None = None, detach_confidence: bool = False) -> Scalar:
    r"""AvUC: right but uncertain and wrong but certain rows, relative to the rest.

    .. math:: \log\Bigl(1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}}\Bigr)

    With u the entropy, t = tanh u and r the confidence: :math:`n_{AC} = \sum r (1 - t)` over right rows with u below
    the threshold, :math:`n_{AU} = \sum r t` over right rows at or above it, :math:`n_{IC} = \sum (1 - r)(1 - t)` and
    :math:`n_{IU} = \sum (1 - r)\, t` over wrong rows likewise. 1e-10 is added to the denominator. The threshold, in
    nats, is half-way between the mean entropies of right and of wrong rows of the batch unless it is given (the
    reference fixes it after a warm-up with cross-entropy alone).

    The membership in the four groups carries no gradient: at the threshold the value jumps.

    Reference: Krishnan & Tickoo, NeurIPS 2020.

    Example:
        >>> avuc(torch.tensor([[2.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1]), threshold=0.5)
        tensor(0.)
    """
    confidence, correct, uncertainty = _read(logits, labels)
    confidence = confidence.detach() if detach_confidence else confidence
    limit = _half_way(uncertainty.detach(), correct) if threshold is None else threshold
    amount, unsure = torch.where(correct, confidence, 1 - confidence), uncertainty >= limit
    return _balance(torch.where(unsure, 0, amount), torch.where(unsure, amount, 0), uncertainty, correct)


@PENALTIES.register()
def soft_avuc(logits: Logits, labels: Labels, *, threshold: float = 0.5, temperature: float = 1.0) -> Scalar:
    r"""S-AvUC: AvUC with a soft gate in place of the threshold, and without the confidence as a factor.

    .. math:: q = \sigma\Bigl(\frac1T \log\frac{e\,(1 - \theta)}{(1 - e)\,\theta}\Bigr), \qquad e = \frac{u}{\log K}

    is the uncertainty of a row; then :math:`n_{AC} = \sum (1 - q)(1 - t)` and :math:`n_{AU} = \sum q\,t` over right
    rows, :math:`n_{IC}` and :math:`n_{IU}` the same over wrong ones, and the logarithm of `avuc`. e is held within
    [1e-6, 1 - 1e-6]; ``threshold`` is :math:`\theta`, a share of the largest entropy.

    It has two options to tune, and half the largest entropy means different things with 10 and with 1 000 classes.

    Reference: Karandikar et al., NeurIPS 2021.

    Example:
        >>> soft_avuc(torch.tensor([[2.0, 0.0], [0.5, 0.0]]), torch.tensor([0, 1]))
        tensor(0.2112)
    """
    if not 0 < threshold < 1 or temperature <= 0:
        raise ValueError(f"threshold must lie in (0, 1) and temperature be positive; got {threshold}, {temperature}.")
    _, correct, uncertainty = _read(logits, labels)
    share = (uncertainty / math.log(logits.shape[1])).clamp(1e-6, 1 - 1e-6)
    gate = ((torch.logit(share) - math.log(threshold / (1 - threshold))) / temperature).sigmoid()
    return _balance(1 - gate, gate, uncertainty, correct)


def _read(logits: Logits, labels: Labels) -> tuple[PerSample, Tensor, PerSample]:
    """Return confidence, correctness and entropy of each row, from one log-softmax."""
    check_batch(logits, labels)
    logp = widened(logits).log_softmax(1)
    return *surest(logp, labels), entropy_of(logp)


def _balance(sure: PerSample, unsure: PerSample, uncertainty: PerSample, correct: Tensor) -> Scalar:
    t = uncertainty.tanh()
    certain, uncertain = sure * (1 - t), unsure * t
    good = torch.where(correct, certain, uncertain).sum()
    bad = torch.where(correct, uncertain, certain).sum()
    return torch.log1p(bad / (good + 1e-10))


def _half_way(uncertainty: Tensor, correct: Tensor) -> Tensor:
    """Return the average of the mean entropies of right and of wrong rows, or the one that exists."""
    kinds = torch.stack([correct, ~correct])
    rows = kinds.sum(1)
    means = torch.where(kinds, uncertainty, 0).sum(1) / rows.clamp(min=1)
    return means.sum() / (rows > 0).sum()
