"""Direction of miscalibration: signed measures of over- and under-confidence."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from calibrant.metrics.inputs import metric
from calibrant.metrics.proper import mean
from calibrant.predictions.types import Confidence, Correct, Vector, Weights, float64, repetitions


@metric(better="neither", range=(0.0, 1.0), family="direction", mean_of="confidence")
def mean_confidence(confidence: Confidence, *, weights: Weights | None = None) -> float:
    r"""Mean confidence: the accuracy that the model promises.

    .. math:: \frac1n \sum_i c_i

    Reference: Guo et al., ICML 2017.

    Example:
        >>> round(mean_confidence(torch.tensor([0.9, 0.7])), 6)
        0.8
    """
    return mean(confidence, weights)


@metric(better="zero", range=(-1.0, 1.0), family="direction")
def signed_gap(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Mean confidence minus accuracy: positive is over-confident.

    .. math:: \frac1n \sum_i (c_i - a_i)

    Over- and under-confidence cancel: zero does not mean calibrated.

    Reference: Van Calster et al., BMC Medicine 2019 (calibration in the large).

    Example:
        >>> round(signed_gap(torch.tensor([0.9, 0.7]), torch.tensor([True, False])), 6)
        0.3
    """
    return mean(confidence.double() - correct.double(), weights)


@metric(better="one", range=(-math.inf, math.inf), family="direction")
def calibration_slope(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Slope of the logistic recalibration of the confidence: below 1, confidences are too extreme.

    .. math:: \mathrm{logit}\,\Pr(a = 1) = \alpha + \beta\,\mathrm{logit}\,c \qquad (\beta \text{ is returned})

    by maximum likelihood, confidences clipped to [1e-12, 1 - 1e-12]. NaN where the fit does not exist: constant
    confidence, rows all right or all wrong, or perfectly separated.

    Reference: Cox, Biometrika 1958; Van Calster et al., BMC Medicine 2019.

    Example:
        >>> c = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.6, 0.6])
        >>> round(calibration_slope(c, torch.tensor([True, True, True, False, True, False])), 4)
        0.6131
    """
    x, a, w = _logistic_data(confidence, correct, weights)
    middle = float(np.average(x, weights=w))
    spread = math.sqrt(float(np.average((x - middle) ** 2, weights=w)))
    right = float((w * a).sum())
    if spread == 0 or right <= 0 or right >= w.sum():
        return math.nan
    slope = _maximum_likelihood(
        (x - middle) / spread, a, w
    )  # standardised, so that the two parameters are on one scale
    return slope / spread


@metric(better="zero", range=(-math.inf, math.inf), family="direction")
def calibration_intercept(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Intercept of the logistic recalibration at slope 1: negative is over-confident.

    .. math:: \mathrm{logit}\,\Pr(a = 1) = \alpha + \mathrm{logit}\,c \qquad (\alpha \text{ is returned})

    The shift in log odds that makes mean confidence equal accuracy. NaN where the rows are all right or all wrong.

    Reference: Cox, Biometrika 1958; Van Calster et al., BMC Medicine 2019.

    Example:
        >>> round(calibration_intercept(torch.tensor([0.9, 0.9]), torch.tensor([True, False])), 4)
        -2.1972
    """
    x, a, w = _logistic_data(confidence, correct, weights)
    rate = float((w * a).sum() / w.sum())
    if rate <= 0 or rate >= 1:
        return math.nan
    level = math.log(rate) - math.log1p(-rate)  # the answer were all log odds 0; it lies between these
    return float(brentq(lambda b: float((w * (a - expit(x + b))).sum()), level - x.max() - 1, level - x.min() + 1))


def _logistic_data(confidence: Confidence, correct: Correct, weights: Weights | None) -> tuple[Vector, Vector, Vector]:
    c, a = np.clip(float64(confidence), 1e-12, 1 - 1e-12), float64(correct)
    w = repetitions(weights, len(c))
    c, a, w = c[w > 0], a[w > 0], w[w > 0]
    return np.log(c) - np.log1p(-c), a, w


def _maximum_likelihood(x: Vector, a: Vector, w: Vector) -> float:
    """Newton's method with halved steps on a concave likelihood; return the slope, NaN where it has no maximum."""

    def likelihood(shift: float, slope: float) -> float:
        eta = shift + slope * x
        return float(w @ (a * eta - np.logaddexp(0, eta)))

    shift = slope = 0.0
    best = likelihood(shift, slope)
    for _ in range(100):
        p = expit(shift + slope * x)
        miss, weight = w * (a - p), w * p * (1 - p)
        g0, g1, h00 = float(miss.sum()), float(miss @ x), float(weight.sum())
        h01, h11 = float(weight @ x), float((weight * x) @ x)
        determinant = h00 * h11 - h01 * h01
        if determinant <= 1e-12 * h00 * h11:
            return math.nan
        up, turn = (h11 * g0 - h01 * g1) / determinant, (h00 * g1 - h01 * g0) / determinant
        size = 1.0 / max(1.0, abs(up) / 10, abs(turn) / 10)  # where all p are near 1 a full step is far too long
        while (proposed := likelihood(shift + size * up, slope + size * turn)) < best - 1e-12 and size > 1e-8:
            size /= 2
        shift, slope, best = shift + size * up, slope + size * turn, max(best, proposed)
        if max(abs(up), abs(turn)) < 1e-9 * (1 + abs(slope)):
            return slope
    return math.nan
