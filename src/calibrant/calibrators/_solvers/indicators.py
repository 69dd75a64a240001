"""What a temperature network looks at: one or more numbers of a row of logits, the same for every row count."""

from collections.abc import Callable

import torch
from torch import Tensor


def margin(logits: Tensor) -> Tensor:
    """Lead of the largest logit over the second."""
    two = logits.topk(2, dim=1).values
    return two[:, :1] - two[:, 1:]


def max_logit(logits: Tensor) -> Tensor:
    """Largest logit."""
    return logits.amax(1, keepdim=True)


def max_less_mean(logits: Tensor) -> Tensor:
    """Largest logit less the mean of the row."""
    return logits.amax(1, keepdim=True) - logits.mean(1, keepdim=True)


def confidence(logits: Tensor) -> Tensor:
    """Largest probability."""
    return logits.softmax(1).amax(1, keepdim=True)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the probabilities, in nats."""
    return -(logits.softmax(1) * logits.log_softmax(1).clamp(min=-1e4)).sum(1, keepdim=True)


def all_logits(logits: Tensor) -> Tensor:
    """Every logit of the row, in the order of classes."""
    return logits


def largest_logits(logits: Tensor) -> Tensor:
    """The ten largest logits (all, if there are fewer), descending, clipped to ±100."""
    return logits.topk(min(10, logits.shape[1]), dim=1).values.clamp(-100, 100)


INDICATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "margin": margin,
    "max_logit": max_logit,
    "max_less_mean": max_less_mean,
    "confidence": confidence,
    "entropy": entropy,
    "all_logits": all_logits,
    "largest_logits": largest_logits,
}


def look(logits: Tensor, names: list[str]) -> Tensor:
    """Return the named indicators side by side, (n, columns); a logit counts as at most 1e30, so sums are finite."""
    logits = logits.clamp(-1e30, 1e30)
    return torch.cat([INDICATORS[name](logits) for name in names], 1)
