"""What AdaFocal and CalFocal learn from a validation set: bins of its confidence, and how right each is."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.bins import mass_edges
from calibrant.predictions.types import Confidence, Correct, PerSample, float64


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
        """Bin a validation set."""
        if len(confidence) == 0:
            raise ValueError("validation must have at least one row; got none.")
        c, a = float64(confidence), float64(correct)
        edges = mass_edges(c, bins)
        edges = edges[edges < c.max()]  # above the others there would be nobody
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
