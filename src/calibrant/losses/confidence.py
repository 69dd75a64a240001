"""Differentiable confidence scores: what a loss may weight rows by."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.losses.functional import entropy, picked
from calibrant.predictions.types import Confidence, Labels, Logits, widened

PAIRS = 4096  # rows up to which pairs are compared


def _lead(values: Tensor) -> Tensor:
    two = values.topk(2, dim=1).values
    return two[:, 0] - two[:, 1]


def _square(logits: Tensor) -> Tensor:
    return logits.softmax(1).square().sum(1)


def _released(logits: Tensor) -> Tensor:
    probs = logits.softmax(1)
    best = picked(probs, logits.detach().argmax(1))
    return best.exp() / probs.exp().sum(1)  # the largest of a second softmax


# name -> score, and whether it lies in [0, 1]
SCORES: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "msp": (lambda logits: logits.softmax(1).amax(1), True),
    "margin": (lambda logits: _lead(logits.softmax(1)), True),
    "normalised_negative_entropy": (lambda logits: 1 - entropy(logits) / math.log(logits.shape[1]), True),
    "l2_norm": (lambda logits: _square(logits).sqrt(), True),
    "released": (_released, True),
    "negative_entropy": (lambda logits: -entropy(logits), False),
    "gini": (lambda logits: _square(logits) - 1, False),
    "max_logit": (lambda logits: logits.amax(1), False),
    "energy": (lambda logits: logits.logsumexp(1), False),
    "logit_margin": (_lead, False),
}


WITHIN_UNIT = {"negative_entropy": "normalised_negative_entropy"}  # the same order of rows, within [0, 1]


def has_unit_range(name: str) -> bool:
    """Say whether a score, or its form within [0, 1], needs no other rows to lie there."""
    return SCORES[WITHIN_UNIT.get(name, name)][1]


def confidence_of(logits: Logits, name: str) -> Confidence:
    """Return a score by its name; "released" is the largest softmax of the probabilities, a second softmax.

    Example:
        >>> confidence_of(torch.tensor([[3.0, 1.0]]), "logit_margin")
        tensor([2.])
    """
    if name not in SCORES:
        raise ValueError(f"confidence must be one of {', '.join(SCORES)}; got {name!r}.")
    return SCORES[name][0](widened(logits))


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
