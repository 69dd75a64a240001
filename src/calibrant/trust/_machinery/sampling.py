r"""Confidence from several answers to the same rows (logits of s passes or models, stacked as (s, n, k)), and seeding.

With :math:`p_i = \mathrm{softmax}(z_i)` the probabilities of answer i, :math:`\bar p` their mean and
:math:`H(p) = -\sum_k p_k \log p_k` the entropy in nats. All arithmetic is float64.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.metrics.scores import entropy_of
from calibrant.predictions.types import Confidence, Labels, Logits, PerSample

Stacked = Tensor  # (s, n, k)
Average = Literal["probs", "logits"]
Score = Literal["entropy", "mutual_information", "msp"]
AVERAGES: tuple[Average, ...] = ("probs", "logits")


def log_mean_probs(logits: Stacked, *, average: Average = "probs") -> Logits:
    r"""Return the logarithm of :math:`\bar p`; with ``average="logits"`` that of the softmax of the mean logits.

    Example:
        >>> log_mean_probs(torch.tensor([[[0.0, 0.0]], [[40.0, -40.0]]])).exp()
        tensor([[0.7500, 0.2500]], dtype=torch.float64)
    """
    if logits.ndim != 3 or 0 in logits.shape[::2]:
        raise ValueError(f"logits must be stacked as (s, n, k), s answers to n rows; got {tuple(logits.shape)}.")
    if average == "logits":
        return logits.double().mean(0).log_softmax(1)
    return logits.double().log_softmax(2).logsumexp(0) - math.log(len(logits))


def negative_entropy(logits: Stacked, *, average: Average = "probs") -> PerSample:
    r"""Return :math:`-H(\bar p)` of each row.

    Example:
        >>> negative_entropy(torch.tensor([[[2.0, 0, 0]], [[0, 1.0, 0]], [[1.0, 0.5, 0]]]))
        tensor([-1.0117], dtype=torch.float64)
    """
    return -entropy_of(log_mean_probs(logits, average=average))


def mutual_information(logits: Stacked) -> PerSample:
    r"""Return :math:`H(\bar p) - \frac1s \sum_i H(p_i) \ge 0`: what the answers disagree about, 0 if they are the same.

    Example:
        >>> mutual_information(torch.tensor([[[2.0, 0, 0]], [[0, 1.0, 0]], [[1.0, 0.5, 0]]]))
        tensor([0.1247], dtype=torch.float64)
    """
    together = -negative_entropy(logits)
    each = entropy_of(logits.double().log_softmax(2).flatten(0, 1)).reshape(logits.shape[:2])
    return (together - each.mean(0)).clamp(min=0)


def by_entropy(logits: Stacked, answers: Labels, average: Average) -> Confidence:
    r"""Return :math:`1 - H(\bar p) / \log k`: 0 where the mean is uniform, 1 where it is certain."""
    return (1 + negative_entropy(logits, average=average) / math.log(logits.shape[2])).clamp(0, 1)


def by_mutual_information(logits: Stacked, answers: Labels, average: Average) -> Confidence:
    r"""Return 1 less the mutual information over :math:`\log k`: 1 where all agree, however unsure each is."""
    return (1 - mutual_information(logits) / math.log(logits.shape[2])).clamp(0, 1)


def by_answer(logits: Stacked, answers: Labels, average: Average) -> Confidence:
    r"""Return :math:`\bar p` of the answer that is judged, which need not be the class that the mean prefers."""
    return log_mean_probs(logits, average=average).gather(1, answers[:, None]).squeeze(1).exp().clamp(0, 1)


CONFIDENCES: dict[str, Callable[[Stacked, Labels, Average], Confidence]] = {
    "entropy": by_entropy,
    "mutual_information": by_mutual_information,
    "msp": by_answer,
}


def check_score(score: Score, average: Average) -> None:
    """Refuse a score and an average that do not go together."""
    if score == "mutual_information" and average != "probs":
        raise ValueError(
            "average must be 'probs' for score 'mutual_information', which compares entropies; got 'logits'."
        )


@contextmanager
def seeded(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed the random generators of the CPU and of the model's devices, and restore their states afterwards."""
    held = {value.device for value in chain(model.parameters(), model.buffers())}
    devices = sorted(d.index or 0 for d in held if d.type == "cuda")
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed other devices too
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
