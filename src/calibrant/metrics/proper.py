"""Proper scores and accuracy: means over rows of a fact, read directly when Predictions already holds it."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.inputs import metric
from calibrant.predictions.facts import rank
from calibrant.predictions.types import Correct, Labels, Logits, Probs, Weights, float64


def mean(values: Tensor, weights: Weights | None = None) -> float:
    """Mean in float64, weighted where there are weights."""
    return float(np.average(float64(values), weights=None if weights is None else float64(weights)))


@metric(better="higher", range=(0.0, 1.0), family="accuracy", mean_of="correct")
def accuracy(correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Share of rows whose predicted class is the true one.

    .. math:: \frac1n \sum_i a_i

    with :math:`a_i \in \{0, 1\}` the correctness; of tied classes the first is the prediction.

    Reference: any textbook; Guo et al., ICML 2017 report it beside calibration.

    Example:
        >>> accuracy(torch.tensor([True, True, False, True]))
        0.75
    """
    return mean(correct, weights)


@metric(better="higher", range=(0.0, 1.0), family="accuracy", mean_of="in_top5")
def top5_accuracy(logits: Logits, labels: Labels, *, weights: Weights | None = None) -> float:
    r"""Share of rows whose true class is among the five largest scores.

    .. math:: \frac1n \sum_i \bigl[\#\{k : z_{ik} > z_{iy_i}\} + \#\{k < y_i : z_{ik} = z_{iy_i}\} < 5\bigr]

    Ties are ranked by index. With five classes or fewer it is 1.

    Reference: Russakovsky et al., IJCV 2015.

    Example:
        >>> top5_accuracy(torch.arange(12.0).reshape(2, 6), torch.tensor([0, 1]))
        0.5
    """
    return mean(rank(logits, labels) < 5, weights)


@metric(better="lower", range=(0.0, float("inf")), family="proper", mean_of="nll")
def nll(logits: Logits, labels: Labels, *, weights: Weights | None = None) -> float:
    r"""Negative log likelihood (log loss), in nats.

    .. math:: -\frac1n \sum_i \log p_{iy_i}

    Computed from logits it is finite whenever they are; from given probabilities a true class of probability 0 counts
    as 1e-12. One row that is wrong and sure can outweigh thousands.

    Reference: Good, JRSS B 1952.

    Example:
        >>> round(nll(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0])), 4)
        0.417
    """
    losses = torch.nn.functional.cross_entropy(logits.double(), labels.to(logits.device), reduction="none")
    return mean(losses.cpu(), weights)


@metric(better="lower", range=(0.0, 2.0), family="proper", mean_of="brier")
def brier(
    probs: Probs,
    labels: Labels,
    *,
    normalise: Literal["sum", "mean_over_classes", "half"] = "sum",
    weights: Weights | None = None,
) -> float:
    r"""Brier score: squared distance between the probabilities and the truth, summed over classes.

    .. math:: \frac1n \sum_i \sum_k (p_{ik} - [y_i = k])^2 \in [0, 2]

    ``normalise="mean_over_classes"`` divides by K, ``"half"`` by 2 (the binary convention). Lower means better
    calibrated *or* better discriminating: see `corp_miscalibration` for the split.

    Reference: Brier, Monthly Weather Review 1950.

    Example:
        >>> brier(torch.tensor([[0.5, 0.5]]), torch.tensor([0]))
        0.5
    """
    p = probs.double()
    true = p.gather(1, labels[:, None].to(p.device)).squeeze(1)
    rows = p.square().sum(1) - true.square() + (1 - true).square()
    scale = {"sum": 1.0, "mean_over_classes": 1 / probs.shape[1], "half": 0.5}
    return mean(rows.cpu(), weights) * scale[normalise]
