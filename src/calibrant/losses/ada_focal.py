"""AdaFocal, and the bins that it and CalFocal read off a validation set."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.losses.focal_family import powered
from calibrant.metrics.bins import mass_edges
from calibrant.predictions.types import Confidence, Correct, Labels, Logits, PerSample, float64
from calibrant.records import Curve
from calibrant.registry import LOSSES


@LOSSES.register(needs_validation=True)
class AdaFocal(nn.Module):
    r"""AdaFocal: focal loss with a power for each bin of probability, updated after each epoch by the bin's error.

    .. math:: -(1 - p_y)^{\gamma_b} \log p_y \text{ if } \gamma_b \ge 0, \qquad
              -(1 + p_y)^{|\gamma_b|} \log p_y \text{ otherwise}

    where b is the bin of :math:`p_y`. After an epoch the validation set is cut into ``bins`` bins of equal mass of its
    top-label confidence, and with :math:`E_b` the mean confidence less the accuracy of a bin

    .. math:: \gamma_b \leftarrow \gamma_b e^{\lambda E_b} \text{ if } \gamma_b \ge 0, \qquad
              \gamma_b e^{-\lambda E_b} \text{ otherwise},

    held within [``gamma_min``, ``gamma_max``]; one that comes closer to 0 than ``switch`` changes its sign. The powers
    begin at 1 on bins of equal width. They carry no gradient, and an empty bin keeps its power. Equal-mass edges lie
    half-way between neighbours and the outer bins are open, so that no row is without a bin (the released code drops
    the smallest); a bin is (low, high] for both sets (the paper prints [low, high), which differs at an edge only).
    ``rate`` is :math:`\lambda`.

    It uses up the validation set: a temperature fitted on the same rows is optimistic.

    Reference: Ghosh, Schaaf & Gormley, NeurIPS 2022.

    Example:
        >>> loss = AdaFocal(bins=5)
        >>> loss(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.1422])
        >>> loss.epoch_end(torch.tensor([0.9, 0.9]), torch.tensor([True, False]))  # confidence 0.9, accuracy 0.5
        >>> loss.gammas[0]
        tensor(1.4918)
    """

    gammas: Tensor
    inner: Tensor

    def __init__(
        self,
        *,
        bins: int = 15,
        rate: float = 1.0,
        gamma_max: float = 20.0,
        gamma_min: float = -2.0,
        switch: float = 0.2,
    ) -> None:
        super().__init__()
        if not gamma_min < 0 < gamma_max:
            raise ValueError(f"gamma_min must be below 0 and gamma_max above; got {gamma_min} and {gamma_max}.")
        if not 0 < switch <= min(gamma_max, -gamma_min):
            raise ValueError(f"switch must lie in (0, {min(gamma_max, -gamma_min):g}]; got {switch}.")
        self.rate, self.gamma_max, self.gamma_min, self.switch = rate, gamma_max, gamma_min, switch
        self.register_buffer("inner", equal_width(bins))
        self.register_buffer("gammas", torch.ones(bins, dtype=torch.float32))
        self._history: list[Tensor] = []

    def forward(self, logits: Logits, labels: Labels) -> PerSample:
        """Return the loss of each row."""
        return powered(logits, labels, lambda nll: self.gammas[place(nll, self.inner)])

    @torch.no_grad()
    def epoch_end(self, confidence: Confidence, correct: Correct) -> None:
        """Update powers and bin edges from a validation set."""
        found = ValidationBins.of(confidence, correct, len(self.gammas))
        error = (found.confidence - found.accuracy).to(self.gammas.device)
        self.gammas.copy_(self._moved(self.gammas, error))
        self.inner.copy_(found.inner)
        self._history.append(torch.stack([self.gammas.cpu(), error.cpu()]))

    def _moved(self, gamma: Tensor, error: Tensor) -> Tensor:
        up = gamma >= 0
        moved = (gamma * torch.where(up, self.rate * error, -self.rate * error).exp()).clamp(
            self.gamma_min, self.gamma_max
        )
        switched = torch.where(up, -self.switch, self.switch)
        return torch.where(moved.abs() < self.switch, switched, moved)

    @property
    def history(self) -> Curve:
        """The power and the error (confidence less accuracy) of each bin after each epoch."""
        epochs, bins = len(self._history), len(self.gammas)
        gamma, error = torch.stack(self._history, 1).double().numpy() if epochs else np.empty((2, 0, bins))
        epoch, which = np.divmod(np.arange(epochs * bins), bins)
        columns = {"epoch": epoch + 1, "bin": which, "gamma": gamma.reshape(-1), "error": error.reshape(-1)}
        return Curve("gammas", columns, epochs)

    def get_extra_state(self) -> Tensor:
        """Return the history, so that it is saved with the powers and edges."""
        return torch.stack(self._history) if self._history else torch.empty(0, 2, len(self.gammas))

    def set_extra_state(self, state: Tensor) -> None:
        """Restore a saved history."""
        if state.shape[1:] != (2, len(self.gammas)):
            raise ValueError(f"history must be of {len(self.gammas)} bins; got one of {state.shape[-1]}.")
        self._history = list(state.cpu().unbind())


@dataclass(frozen=True)
class ValidationBins:
    """Equal-mass bins of the top-label confidence: ``bins - 1`` inner edges, confidence and accuracy of each bin.

    Where many confidences are equal there are fewer bins; the edges left over are infinite and their bins empty. An
    empty bin has confidence and accuracy 0, so no error.
    """

    inner: Tensor
    confidence: Tensor
    accuracy: Tensor

    @classmethod
    def of(cls, confidence: Confidence, correct: Correct, bins: int) -> "ValidationBins":
        """Bin the rows of a validation set."""
        if len(confidence) == 0:
            raise ValueError("validation must have at least one row; got none.")
        c, a = float64(confidence), float64(correct)
        edges = mass_edges(c, bins)
        edges = edges[edges < c.max()]  # a bin above the largest confidence would be empty
        index = np.searchsorted(edges, c, side="left")
        rows = np.maximum(np.bincount(index, minlength=bins), 1)
        inner = np.full(bins - 1, np.inf)
        inner[: len(edges)] = edges
        means = (np.bincount(index, weights=values, minlength=bins) / rows for values in (c, a))
        return cls(*(torch.from_numpy(column).float() for column in (inner, *means)))


def equal_width(bins: int) -> Tensor:
    """Return the inner edges of bins of equal width."""
    if bins < 1:
        raise ValueError(f"bins must be at least 1; got {bins}.")
    return torch.arange(1, bins, dtype=torch.float32) / bins


def place(nll: PerSample, inner: Tensor) -> Tensor:
    """Return the bin of the label's probability: (low, high], as in the validation set; the first holds 0 too."""
    return torch.bucketize((-nll).exp(), inner.to(nll.dtype))
