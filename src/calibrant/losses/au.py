"""AU, the selective-risk loss."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.losses.confidence import confidence_of, has_unit_range, ranks, unit_confidence_of
from calibrant.losses.functional import check_batch, count, true_nll
from calibrant.predictions.types import Confidence, Labels, Logits, PerSample
from calibrant.registry import LOSSES


@LOSSES.register(joint=True, counts={"histogram": "epoch"})
class AU(nn.Module):
    r"""AU selective-risk loss: cross-entropy weighted by the smoothed rank of the confidence, flat above a threshold.

    .. math:: -\beta \log p_y, \qquad \beta = -\ln(1 - G(\min(s, \tau))), \qquad
              G(x) = \frac1n \sum_m h_m\, \sigma\!\Bigl(\frac{x - c_m}{\nu}\Bigr)

    s is the confidence, :math:`h_m` its histogram on ``bins`` equal bins of [0, 1] with centres :math:`c_m`, and
    :math:`\tau` its quantile of level ``kappa``: the share of rows that count as uncertain. G is held within
    :math:`[\frac1{n+1}, \frac n{n+1}]`. Histogram and :math:`\tau` carry no gradient; s does, below :math:`\tau`, times
    ``weight_gradient``. ``constant`` multiplies by :math:`C = 1 / G(\tau)`, which the paper prints and its code leaves
    out. ``histogram="epoch"`` counts the rows of the epoch so far (in train mode, until ``epoch_end``), about as its
    code does (which counts the validation rows too), not those of the batch, as its algorithm says.

    ``nu`` is 0.1 unless given, and for the default confidence half of the range that it can have with K classes
    (0.066 for 10, 0.0083 for 100; the paper tunes it between 0.005 and 0.1): far below that, training with few classes
    stalls.

    The default ``confidence="released"`` is the largest softmax *of the probabilities*: what the released code computes
    and the published numbers rest on. With the confidence as printed (``"msp"``) and its whole gradient the loss lowers
    the confidence of every uncertain row and does not train: a ResNet-32 on CIFAR-100, 170 epochs, ends at 51 % error
    and 24 % ECE, or NaN with ``nu=0.01``; cross-entropy at 31.3 and 12.0, the released form at 32.0 and 2.3, the
    printed one with ``weight_gradient=0`` at 31.6 and 8.2. Any name of a score will do; one that is not within [0, 1]
    is rescaled by its extremes in the batch (not possible with "epoch").

    Reference: Zhou et al., arXiv 2505.23463.

    Example:
        >>> loss = AU(confidence="msp", bins=4, nu=0.1, kappa=0.5)
        >>> loss(torch.tensor([[2.0, 1.0, 0.1], [0.5, 2.5, 0.3]]), torch.tensor([0, 1]))
        tensor([0.1757, 0.1383])
    """

    counts: Tensor

    def __init__(
        self,
        *,
        confidence: str = "released",
        kappa: float = 0.8,
        nu: float | None = None,
        bins: int = 64,
        weight_gradient: float = 1.0,
        constant: bool = False,
        histogram: Literal["batch", "epoch"] = "batch",
    ) -> None:
        super().__init__()
        confidence_of(torch.zeros(1, 2), confidence)  # raises for a wrong name
        if not 0 < kappa <= 1 or (nu is not None and nu <= 0) or bins < 1 or not 0 <= weight_gradient <= 1:
            raise ValueError(
                "kappa must lie in (0, 1], nu be positive, bins at least 1 and weight_gradient in [0, 1]; "
                f"got {kappa}, {nu}, {bins} and {weight_gradient}."
            )
        if histogram not in ("batch", "epoch"):
            raise ValueError(f"histogram must be batch or epoch; got {histogram!r}.")
        if histogram == "epoch" and not has_unit_range(confidence):
            raise ValueError(f"confidence must lie in [0, 1] for the histogram of an epoch; {confidence} does not.")
        self.confidence, self.kappa, self.nu, self.bins = confidence, kappa, nu, bins
        self.weight_gradient, self.constant, self.histogram = weight_gradient, constant, histogram
        self.register_buffer("counts", torch.zeros(bins, dtype=torch.float32))

    def forward(self, logits: Logits, labels: Labels) -> PerSample:
        """Return the loss of each row."""
        check_batch(logits, labels)
        s = unit_confidence_of(logits, self.confidence)
        s = s.detach() + self.weight_gradient * (s - s.detach())
        nu = _usual(self.confidence, logits.shape[1]) if self.nu is None else self.nu
        return self.weights(s, nu) * true_nll(logits, labels)

    def weights(self, s: Confidence, nu: float) -> PerSample:
        """Return beta of each row, given its confidence and the width of the smoothing."""
        fixed = s.detach()
        shares = self._shares(fixed)
        centres = (torch.arange(self.bins, device=s.device, dtype=s.dtype) + 0.5) / self.bins
        threshold = _quantile(fixed, self.kappa)

        def below(at: Tensor) -> Tensor:
            share = (torch.sigmoid((at[:, None] - centres) / nu) * shares).sum(1)
            return share.clamp(1 / (len(s) + 1), len(s) / (len(s) + 1))

        weight = -torch.log1p(-below(torch.where(s < threshold, s, threshold)))
        return weight / below(threshold[None]) if self.constant else weight

    def _shares(self, s: Tensor) -> Tensor:
        index = (s * self.bins).long().clamp(0, self.bins - 1)
        batch = (index[:, None] == torch.arange(self.bins, device=s.device)).sum(0).to(s.dtype)
        if self.histogram == "batch":
            return batch / len(s)
        counts = self.counts.to(s.dtype) + batch
        if self.training:
            count(self.counts, batch)
        return counts / counts.sum()

    @torch.no_grad()
    def epoch_end(self) -> None:
        """Reset the counts."""
        self.counts.zero_()


def _usual(confidence: str, k: int) -> float:
    return 0.5 * (math.e / (math.e + k - 1) - 1 / k) if confidence == "released" else 0.1


def _quantile(values: Tensor, level: float) -> Tensor:
    """Return a quantile by linear interpolation, without a sort or a copy from host to device."""
    rank, place = ranks(values), level * (len(values) - 1)
    low, high = (torch.where(rank == at, values, 0).sum() for at in (math.floor(place), math.ceil(place)))
    return low + (place - math.floor(place)) * (high - low)
