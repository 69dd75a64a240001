"""CalFocal: focal loss with powers from the last validation errors."""

import torch
from torch import Tensor, nn

from calibrant.losses.ada_focal import ValidationBins, equal_width, place
from calibrant.losses.focal_family import powered
from calibrant.predictions.types import Confidence, Correct, Labels, Logits, PerSample
from calibrant.registry import LOSSES

MOST = 1e4  # a larger power gives every row weight 0, and an infinite one has no gradient


@LOSSES.register(needs_validation=True)
class CalFocal(nn.Module):
    r"""CalFocal: focal loss with a power computed anew from the last validation error.

    .. math:: -(1 - p_y)^\gamma \log p_y, \qquad
              \gamma = e^{\lambda (p_y - A_b)} \text{ (case 1)}, \quad
              \gamma = e^{\lambda (C_b - A_b)} \text{ (case 2)}

    with :math:`C_b` and :math:`A_b` the confidence and accuracy of the validation bin b that :math:`p_y` falls into
    (bins as in `AdaFocal`). The power carries no gradient, is 1 until the first validation, and at most 10 000.
    ``rate`` is :math:`\lambda`, of which 1, 10 and 100 were studied.

    A step towards AdaFocal, kept for comparison: it has no memory, so once the error is gone the power that removed it
    is gone too.

    Reference: Ghosh, Schaaf & Gormley, NeurIPS 2022, equations 2 and 3.

    Example:
        >>> loss = CalFocal(bins=4, rate=10.0)
        >>> loss(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))  # no validation yet: the power is 1
        tensor([0.1422])
    """

    inner: Tensor
    gammas: Tensor
    accuracy: Tensor

    def __init__(self, *, bins: int = 15, rate: float = 10.0, case: int = 2) -> None:
        super().__init__()
        if case not in (1, 2):
            raise ValueError(f"case must be 1 or 2; got {case}.")
        self.rate, self.case = rate, case
        self.register_buffer("inner", equal_width(bins))
        self.register_buffer("gammas", torch.ones(bins, dtype=torch.float32))
        self.register_buffer(
            "accuracy", torch.full((bins,), torch.nan, dtype=torch.float32)
        )  # not known yet: the power is 1

    def forward(self, logits: Logits, labels: Labels) -> PerSample:
        """Return the loss of each row."""
        return powered(logits, labels, self._power)

    def _power(self, nll: Tensor) -> Tensor:
        at = place(nll, self.inner)
        if self.case == 2:
            return self.gammas[at]
        error = (-nll).exp() - self.accuracy[at]
        return (self.rate * error).nan_to_num(nan=0.0).exp().clamp(max=MOST)

    @torch.no_grad()
    def epoch_end(self, confidence: Confidence, correct: Correct) -> None:
        """Recompute bins and powers from a validation set."""
        found = ValidationBins.of(confidence, correct, len(self.accuracy))
        self.inner.copy_(found.inner)
        self.accuracy.copy_(found.accuracy)
        self.gammas.copy_((self.rate * (found.confidence - found.accuracy)).exp().clamp(max=MOST))
