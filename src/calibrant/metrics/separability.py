"""Separability of the confidences of right and wrong rows: distances between two Gaussian fits.

NaN where either has fewer than two rows.
"""

import math

import numpy as np

from calibrant.metrics.inputs import metric
from calibrant.predictions.types import Confidence, Correct, Vector, Weights, float64, repetitions


def _moments(confidence: Confidence, correct: Correct, weights: Weights | None) -> tuple[float, float, float, float]:
    """Return mean and unbiased variance of the right rows, then of the wrong ones."""
    c, a = float64(confidence), correct.cpu().numpy()
    w = repetitions(weights, len(c))
    return (*_mean_and_variance(c[a], w[a]), *_mean_and_variance(c[~a], w[~a]))


def _mean_and_variance(c: Vector, w: Vector) -> tuple[float, float]:
    if w.sum() <= 1:
        return math.nan, math.nan
    if np.ptp(c[w > 0]) == 0:
        return float(c[w > 0][0]), 0.0
    middle = float((w * c).sum() / w.sum())
    return middle, float((w * (c - middle) ** 2).sum() / (w.sum() - 1))


def _without_spread(m1: float, v1: float, m2: float, v2: float) -> float:
    """Answer where a side has too few rows (undefined) or no spread: equal, or infinitely far apart."""
    if math.isnan(v1) or math.isnan(v2):
        return math.nan
    return 0.0 if v1 == v2 and m1 == m2 else math.inf


@metric(better="higher", range=(0.0, math.inf), family="ranking")
def separability_kl(
    confidence: Confidence, correct: Correct, *, released: bool = False, weights: Weights | None = None
) -> float:
    r"""Kullback-Leibler divergence between Gaussian fits of right and wrong confidences, both directions averaged.

    .. math:: \tfrac12 (D_{12} + D_{21}), \qquad
              D_{12} = \ln\frac{s_2}{s_1} + \frac{s_1^2 + (m_1 - m_2)^2}{2 s_2^2} - \frac12

    ``released=True`` leaves out the 2 in the denominator as the authors' code does, which gives 0.5, not 0, for equal
    distributions. Infinite where one side has no spread and the other does.

    Reference: Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> c = torch.tensor([0.9, 0.7, 0.6, 0.4])
        >>> round(separability_kl(c, torch.tensor([True, True, False, False])), 4)
        2.25
    """
    m1, v1, m2, v2 = _moments(confidence, correct, weights)
    if not (v1 > 0 and v2 > 0):
        return _without_spread(m1, v1, m2, v2)
    factor, gap = (1.0 if released else 2.0), (m1 - m2) ** 2
    one = math.log(v2 / v1) / 2 + (v1 + gap) / (factor * v2) - 0.5
    two = math.log(v1 / v2) / 2 + (v2 + gap) / (factor * v1) - 0.5
    return (one + two) / 2


@metric(better="higher", range=(0.0, math.inf), family="ranking")
def separability_bhattacharyya(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Bhattacharyya distance between Gaussian fits of right and wrong confidences.

    .. math:: \frac14 \ln\Bigl(\frac14\Bigl(\frac{s_1^2}{s_2^2} + \frac{s_2^2}{s_1^2} + 2\Bigr)\Bigr)
              + \frac14 \frac{(m_1 - m_2)^2}{s_1^2 + s_2^2}

    Reference: Bhattacharyya, 1943; Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> c = torch.tensor([0.9, 0.7, 0.6, 0.4])
        >>> round(separability_bhattacharyya(c, torch.tensor([True, True, False, False])), 4)
        0.5625
    """
    m1, v1, m2, v2 = _moments(confidence, correct, weights)
    if not (v1 > 0 and v2 > 0):
        return _without_spread(m1, v1, m2, v2)
    return math.log((v1 / v2 + v2 / v1 + 2) / 4) / 4 + (m1 - m2) ** 2 / (v1 + v2) / 4
