"""The confidence that a loss weighs rows by: a score by name, the same within [0, 1], and ranks."""

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.losses.functional import picked
from calibrant.metrics.scores import FROM_LOGITS
from calibrant.predictions.types import Confidence, Labels, Logits, widened
from calibrant.registry import SCORES

PAIRS = 4096  # rows up to which pairs are compared


def _released(logits: Tensor) -> Tensor:
    probs = logits.softmax(1)
    best = picked(probs, logits.detach().argmax(1))
    return best.exp() / probs.exp().sum(1)  # the largest of a second softmax


Score = Callable[[Tensor], Tensor]
UNIT: dict[str, Score] = {  # within [0, 1] whatever the other rows are
    **{name: score for name, score in FROM_LOGITS.items() if SCORES.entry(name).facts["range"] == (0.0, 1.0)},
    "released": _released,
}
CONFIDENCES: dict[str, Score] = UNIT | FROM_LOGITS
WITHIN_UNIT = {"negative_entropy": "normalised_negative_entropy"}  # the same order of rows, within [0, 1]


def has_unit_range(name: str) -> bool:
    """Return whether a score lies in [0, 1] without being rescaled over the batch."""
    return WITHIN_UNIT.get(name, name) in UNIT


def confidence_of(logits: Logits, name: str) -> Confidence:
    """Return a score by its name; "released" is the largest softmax of the probabilities, a second softmax.

    Example:
        >>> confidence_of(torch.tensor([[3.0, 1.0]]), "logit_margin")
        tensor([2.])
    """
    if name not in CONFIDENCES:
        raise ValueError(f"confidence must be one of {', '.join(CONFIDENCES)}; got {name!r}.")
    return CONFIDENCES[name](widened(logits))


def unit_confidence_of(logits: Logits, name: str) -> Confidence:
    """Return a score in [0, 1]: entropy by log K, any other by its extremes in the batch.

    Example:
        >>> unit_confidence_of(torch.tensor([[3.0, 1.0], [2.0, 1.0], [0.0, 0.0]]), "logit_margin")
        tensor([1.0000, 0.5000, 0.0000])
    """
    found = confidence_of(logits, WITHIN_UNIT.get(name, name))
    if has_unit_range(name):
        return found
    low, high = found.detach().amin(), found.detach().amax()
    return (found - low) / (high - low).clamp(min=torch.finfo(found.dtype).tiny)


def ranks(confidence: Confidence) -> Labels:
    """Return the place of each row, 0 for the least sure; of equal ones the first comes first.

    On a GPU rows are compared pair by pair, up to as many as that is quicker than to sort.

    Example:
        >>> ranks(torch.tensor([0.5, 0.9, 0.5]))
        tensor([0, 2, 1])
    """
    n = len(confidence)
    if n > PAIRS or not confidence.is_cuda:
        order = confidence.argsort(stable=True)
        return torch.empty_like(order).scatter(0, order, torch.arange(n, device=order.device))
    place = torch.arange(n, device=confidence.device)
    equal = (confidence[:, None] == confidence) & (place[:, None] > place)
    return ((confidence[:, None] > confidence) | equal).sum(1)
