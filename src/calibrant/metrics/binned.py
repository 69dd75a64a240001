"""Calibration errors that compare mean confidence with accuracy inside bins."""

import numpy as np
import torch

from calibrant.metrics.bins import EDGE, Convention, Index, Scheme, assign
from calibrant.metrics.inputs import metric
from calibrant.predictions import scalars
from calibrant.predictions.types import (
    Confidence,
    Correct,
    Labels,
    Probs,
    Vector,
    Weights,
    float64,
    repetitions,
    widened,
)

SLICE = 65_536  # rows at a time: the temporaries of a slice stay in cache


def bin_sums(index: Index, bins: int, values: Vector) -> Vector:
    """Sum values a bin; index -1 is left out."""
    if len(index) and index.min() < 0:
        index, values = index[index >= 0], values[index >= 0]
    return np.asarray(np.bincount(index, values, bins), dtype=np.float64)


def _gaps(
    confidence: Confidence,
    correct: Correct,
    bins: int,
    scheme: Scheme,
    convention: Convention,
    weights: Weights | None,
) -> tuple[Vector, Vector, float]:
    """Return per bin the sum of confidence - correctness, the number of rows, and the number of all rows."""
    confidence, correct = confidence.cpu(), correct.cpu()

    def sums(rows: slice) -> tuple[Vector, Vector, float]:
        c, a = float64(confidence[rows]), float64(correct[rows])
        w = repetitions(None if weights is None else weights[rows], len(c))
        given = None if weights is None else w
        index, found = assign(c, bins=bins, scheme=scheme, convention=convention, weights=given)
        return bin_sums(index, found, w * (c - a)), bin_sums(index, found, w), float(w.sum())

    if scheme == "mass":  # edges depend on all rows
        return sums(slice(None))
    parts = [sums(slice(low, low + SLICE)) for low in range(0, len(confidence), SLICE)]
    gap, count, total = (sum(part) for part in zip(*parts, strict=True))
    return gap, count, total


@metric(better="lower", range=(0.0, 1.0), family="calibration")
def top_label_ece(
    confidence: Confidence,
    correct: Correct,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    convention: Convention = "calibrant",
    weights: Weights | None = None,
) -> float:
    r"""Expected calibration error of the predicted class.

    .. math:: \sum_{b=1}^{M} \frac{n_b}{n}\,\bigl|\bar a_b - \bar c_b\bigr|

    with :math:`\bar c_b` the mean confidence and :math:`\bar a_b` the accuracy of the :math:`n_b` rows in bin b. Bins
    are :math:`(lo, hi]` with 0 in the first; ``scheme="mass"`` makes them equally full (AdaECE), tied values sharing a
    bin; an empty bin adds 0. ``convention`` reproduces other packages' edges, see `calibrant.metrics.bins.assign`.

    Biased upward: a perfectly calibrated model scores about 0.055 on 200 rows and 0.008 on 10 000. Compare it with
    its noise floor, or use `ece_debiased`.

    Reference: Naeini, Cooper & Hauskrecht, AAAI 2015; Guo et al., ICML 2017; equal mass: Nguyen & O'Connor, EMNLP 2015.

    Example:
        >>> round(top_label_ece(torch.tensor([0.95, 1.0]), torch.tensor([True, False]), bins=10), 6)
        0.475
    """
    gap, _, total = _gaps(confidence, correct, bins, scheme, convention, weights)
    return float(np.abs(gap).sum() / total)


@metric(better="lower", range=(-1.0, 1.0), family="calibration")
def ece_excess(
    confidence: Confidence,
    correct: Correct,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    weights: Weights | None = None,
) -> float:
    r"""What `top_label_ece` shows beyond noise: its value less what a calibrated model would show on these rows.

    .. math:: \mathrm{ECE} - \frac1n \sum_b \sqrt{\tfrac2\pi \sum_{i \in b} c_i (1 - c_i)}

    The subtracted noise is the mean absolute value of a normal variable with the variance that each bin's sum has under
    perfect calibration. Zero on average for a calibrated model, whatever n and the bins; may be negative.

    Reference: Bröcker & Smith, Weather and Forecasting 2007 (the noise of a reliability diagram).

    Example:
        >>> round(ece_excess(torch.tensor([0.9] * 10), torch.tensor([True] * 6 + [False] * 4)), 4)
        0.2243
    """
    c, a, w = float64(confidence), float64(correct), repetitions(weights, len(confidence))
    index, bins = assign(c, bins=bins, scheme=scheme, weights=None if weights is None else w)
    gap, variance = bin_sums(index, bins, w * (c - a)), bin_sums(index, bins, w * c * (1 - c))
    return float((np.abs(gap) - np.sqrt(2 / np.pi * variance)).sum() / w.sum())


@metric(better="lower", range=(0.0, 1.0), family="calibration")
def mce(
    confidence: Confidence,
    correct: Correct,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    convention: Convention = "calibrant",
    weights: Weights | None = None,
) -> float:
    r"""Maximum calibration error: the worst bin of `top_label_ece`.

    .. math:: \max_{b:\, n_b > 0} \bigl|\bar a_b - \bar c_b\bigr|

    One thin bin decides it: read it beside the bin counts.

    Reference: Naeini, Cooper & Hauskrecht, AAAI 2015.

    Example:
        >>> round(mce(torch.tensor([0.95, 1.0, 0.55]), torch.tensor([True, False, True]), bins=10), 6)
        0.475
    """
    gap, count, _ = _gaps(confidence, correct, bins, scheme, convention, weights)
    kept = count > 0
    return float((np.abs(gap[kept]) / count[kept]).max(initial=0.0))


@metric(better="lower", range=(0.0, 1.0), family="calibration")
def binary_ece(
    probs: Probs,
    labels: Labels,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    convention: Convention = "calibrant",
    weights: Weights | None = None,
) -> float:
    r"""Expected calibration error of the probability of class 1, for two classes.

    .. math:: \sum_{b=1}^{M} \frac{n_b}{n}\,\bigl|\overline{[y = 1]}_b - \bar p_b\bigr|

    with :math:`p` the probability of class 1 binned over [0, 1]. Not the same number as `top_label_ece`, which bins the
    larger of the two probabilities.

    Reference: Naeini, Cooper & Hauskrecht, AAAI 2015.

    Example:
        >>> round(binary_ece(torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([1, 1])), 6)
        0.5
    """
    if probs.shape[1] != 2:
        raise ValueError(f"probs must have two columns for binary_ece; got {probs.shape[1]}. Use top_label_ece.")
    return top_label_ece(probs[:, 1], labels == 1, bins=bins, scheme=scheme, convention=convention, weights=weights)


@metric(better="lower", range=(0.0, 1.0), family="calibration")
def classwise_ece(
    probs: Probs,
    labels: Labels,
    *,
    bins: int = 15,
    scheme: Scheme = "width",
    weights: Weights | None = None,
) -> float:
    r"""Class-wise expected calibration error (cwECE, SCE): every class's probability, all rows, mean over classes.

    .. math:: \frac1K \sum_k \sum_b \frac{n_{kb}}{n}\,\bigl|\overline{[y = k]}_{kb} - \bar p_{kb}\bigr|

    K is the number of columns: a class without rows still counts. At most 2/K, so it shrinks as K grows; multiply by K
    to compare across K. Papers that print it in "%" for K >= 20 mean thousandths.

    Reference: Nixon et al., CVPR workshops 2019; Kull et al., NeurIPS 2019.

    Example:
        >>> classwise_ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        0.25
    """
    return float(per_class_ece(probs, labels, bins=bins, scheme=scheme, weights=weights).mean())


def per_class_ece(
    probs: Probs, labels: Labels, *, bins: int = 15, scheme: Scheme = "width", weights: Weights | None = None
) -> Vector:
    """Return the K terms whose mean is `classwise_ece`.

    Example:
        >>> per_class_ece(torch.tensor([[0.75, 0.25], [0.75, 0.25]]), torch.tensor([0, 1]))
        array([0.25, 0.25])
    """
    k = probs.shape[1]
    if scheme == "width":
        return _width_gaps(probs, labels, bins, weights)
    truth = (labels[:, None] == torch.arange(k)).to(probs.device)
    errors = (top_label_ece(probs[:, j], truth[:, j], bins=bins, scheme=scheme, weights=weights) for j in range(k))
    return np.fromiter(errors, float, k)


def _width_gaps(probs: Probs, labels: Labels, bins: int, weights: Weights | None) -> Vector:
    """Sum p - [y = k] a class and bin without visiting every cell: most of a row lies in the lowest bin.

    A row has at most M - 1 probabilities above 1/M. Only those are placed one by one; the lowest bin is what is left
    of the column's sum.
    """
    bins = scalars.bins(bins)
    n, k = probs.shape
    w = torch.ones(n, dtype=torch.float64) if weights is None else weights.double().cpu()
    gap = torch.zeros(k * bins, dtype=torch.float64)
    step = max(1, 4_000_000 // k)
    for low in range(0, n, step):
        p, y, weight = widened(probs[low : low + step]), labels[low : low + step], w[low : low + step]
        row, column = (p > (1 - 1e-6) / bins).nonzero(as_tuple=True)
        value = p[row, column].double().cpu()
        row, column = row.cpu(), column.cpu()
        place = _place(value, bins)
        gap.index_add_(0, column * bins + place, weight[row] * value)
        columns = p.sum(0, dtype=torch.float64) if weights is None else weight.to(p.device) @ p.double()
        gap[::bins] += columns.cpu()
        gap[::bins].index_add_(0, column, -weight[row] * value)
        true = p.gather(1, y[:, None].to(p.device)).squeeze(1).double().cpu()
        gap.index_add_(0, y * bins + _place(true, bins), -weight)
    return float64(gap.view(k, bins).abs().sum(1) / w.sum())


def _place(values: torch.Tensor, bins: int) -> torch.Tensor:
    return (values * bins - EDGE).ceil().long().sub(1).clamp(0, bins - 1)
