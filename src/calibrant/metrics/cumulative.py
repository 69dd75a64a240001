"""Tests of calibration without bins: cumulative sums of confidence - correctness along the sorted confidences.

Under perfect calibration the running sum is a random walk whose variance is known, which gives a p-value without
resampling. Tied rows count as one step, so their order cannot matter.
"""

import math

import numpy as np
from scipy.special import ndtr

from calibrant.metrics.inputs import metric
from calibrant.predictions.types import Confidence, Correct, Vector, Weights, float64, repetitions


def _walk(confidence: Confidence, correct: Correct, weights: Weights | None) -> tuple[Vector, float, float]:
    """Return the running sum of c - a at each distinct confidence, its variance under calibration, and n."""
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    _, place = np.unique(c, return_inverse=True)
    walk = np.cumsum(np.bincount(place, w * (c - a)), dtype=np.float64)
    return walk, float((w * c * (1 - c)).sum()), float(w.sum())


@metric(better="lower", range=(0.0, 1.0), family="calibration", skewed=True)
def ks_error(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Kolmogorov-Smirnov calibration error: the largest running sum of confidence - correctness.

    .. math:: \max_j \Bigl|\frac1n \sum_{i \le j} (c_{(i)} - a_{(i)})\Bigr|

    over rows sorted by confidence, taken at the end of each block of ties.

    Reference: Gupta et al., ICLR 2021.

    Example:
        >>> round(ks_error(torch.tensor([0.9, 0.9, 0.6, 0.6]), torch.tensor([True, True, True, False])), 6)
        0.05
    """
    walk, _, n = _walk(confidence, correct, weights)
    return float(np.abs(walk).max() / n)


@metric(better="higher", range=(0.0, 1.0), family="test")
def ks_pvalue(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""P-value of `ks_error` under perfect calibration.

    .. math:: \Pr\bigl(\max_{t \le 1} |B_t| \ge x\bigr)
              = 1 - \frac4\pi \sum_{j \ge 0} \frac{(-1)^j}{2j+1} e^{-(2j+1)^2\pi^2 / 8x^2},
              \qquad x = \frac{n\,\mathrm{KS}}{\sqrt{\sum_i c_i(1-c_i)}}

    with B a Brownian motion: right for many rows, slightly cautious for few.

    Reference: Arrieta-Ibarra et al., JMLR 2022.

    Example:
        >>> round(ks_pvalue(torch.tensor([0.5, 0.5]), torch.tensor([True, False])), 6)
        1.0
    """
    walk, variance, _ = _walk(confidence, correct, weights)
    x = _standardised(float(np.abs(walk).max()), variance)
    if x < 0.05 or math.isinf(x):
        return 0.0 if math.isinf(x) else 1.0
    j = np.arange(math.ceil(20 / x) + 1)  # the dual of the series above: exact in the tail, where 1 - cdf has no digits
    return float(np.clip(4 * ((-1.0) ** j * ndtr(-(2 * j + 1) * x)).sum(), 0, 1))


@metric(better="lower", range=(0.0, 1.0), family="calibration", skewed=True)
def kuiper_error(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Kuiper calibration error: the range of the running sum of confidence - correctness.

    .. math:: \max_{i \le j} \Bigl|\frac1n \sum_{l=i}^{j} (c_{(l)} - a_{(l)})\Bigr|

    The largest total miscalibration over any interval of confidence.

    Reference: Arrieta-Ibarra et al., JMLR 2022.

    Example:
        >>> round(kuiper_error(torch.tensor([0.9, 0.9, 0.6, 0.6]), torch.tensor([True, True, True, False])), 6)
        0.05
    """
    walk, _, n = _walk(confidence, correct, weights)
    return float((max(walk.max(), 0.0) - min(walk.min(), 0.0)) / n)


@metric(better="higher", range=(0.0, 1.0), family="test")
def kuiper_pvalue(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""P-value of `kuiper_error` under perfect calibration.

    .. math:: \Pr(\text{range of } B \ge r) = 8 \sum_{j \ge 1} (-1)^{j-1} j\, \Phi(-jr),
              \qquad r = \frac{n\,\mathrm{Kuiper}}{\sqrt{\sum_i c_i(1-c_i)}}

    Reference: Feller, Annals of Mathematical Statistics 1951; Arrieta-Ibarra et al., JMLR 2022.

    Example:
        >>> round(kuiper_pvalue(torch.tensor([0.5, 0.5]), torch.tensor([True, False])), 6)
        1.0
    """
    walk, variance, _ = _walk(confidence, correct, weights)
    r = _standardised(max(walk.max(), 0.0) - min(walk.min(), 0.0), variance)
    if r < 0.3 or math.isinf(r):  # the range of a Brownian motion is below 0.3 with probability under 1e-20
        return 0.0 if math.isinf(r) else 1.0
    j = np.arange(1, math.ceil(40 / r) + 2)
    return float(np.clip(8 * ((-1.0) ** (j - 1) * j * ndtr(-j * r)).sum(), 0, 1))


def _standardised(sum_: float, variance: float) -> float:
    """Divide by the standard deviation; with no variance the answer is 0 for a zero sum and infinite otherwise."""
    if variance <= 0:
        return 0.0 if abs(sum_) < 1e-9 else math.inf
    return sum_ / math.sqrt(variance)


@metric(better="zero", range=(-math.inf, math.inf), family="test")
def spiegelhalter_z(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Spiegelhalter's z: the top-label Brier score against its expectation under calibration, in standard deviations.

    .. math:: \frac{\sum_i (a_i - c_i)(1 - 2c_i)}{\sqrt{\sum_i (1 - 2c_i)^2\, c_i (1 - c_i)}}

    Positive: the Brier score is worse than the confidences promise. Blind to errors that cancel in the mean; NaN where
    no confidence has any variance.

    Reference: Spiegelhalter, Statistics in Medicine 1986.

    Example:
        >>> round(spiegelhalter_z(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])), 4)
        0.7259
    """
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    variance = (w * (1 - 2 * c) ** 2 * c * (1 - c)).sum()
    if variance <= 0:
        return float("nan")
    return float((w * (a - c) * (1 - 2 * c)).sum() / np.sqrt(variance))


@metric(better="higher", range=(0.0, 1.0), family="test")
def spiegelhalter_pvalue(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Two-sided p-value of `spiegelhalter_z` under perfect calibration.

    .. math:: 2\,\Phi(-|z|)

    Reference: Spiegelhalter, Statistics in Medicine 1986.

    Example:
        >>> round(spiegelhalter_pvalue(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])), 4)
        0.4679
    """
    return float(2 * ndtr(-abs(spiegelhalter_z(confidence, correct, weights=weights))))
