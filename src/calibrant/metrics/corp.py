r"""CORP: a proper score of the confidence split by isotonic regression into calibration and discrimination.

The recalibrated confidence is the isotonic regression of correctness on confidence (pool adjacent violators, tied rows
pooled first), the best increasing recalibration of these very rows. Then

.. math:: S(c) = \underbrace{S(c) - S(\hat c)}_{\text{miscalibration}}
              - \underbrace{(S(\bar a) - S(\hat c))}_{\text{discrimination}}
              + \underbrace{S(\bar a)}_{\text{uncertainty}}

with S the mean score: ``"brier"`` :math:`(c - a)^2` or ``"log"`` :math:`-a \log c - (1-a)\log(1-c)`, confidences
clipped to [1e-12, 1 - 1e-12] for the logarithm. Being fitted on the same rows, miscalibration is positive by about
:math:`O(n^{-2/3})` even for a calibrated model.
"""

from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import xlog1py, xlogy

from calibrant.metrics.inputs import metric
from calibrant.metrics.proper import mean
from calibrant.predictions.types import Confidence, Correct, Vector, Weights, float64, repetitions

Score = Literal["brier", "log"]


def isotonic(
    confidence: Confidence, correct: Correct, weights: Weights | None = None
) -> tuple[Vector, Vector, Vector, Vector]:
    """Return, for each distinct confidence: the value, its weight, its accuracy, and its isotonic accuracy."""
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    values, place = np.unique(c[w > 0], return_inverse=True)
    weight = np.asarray(np.bincount(place, w[w > 0]), dtype=np.float64)
    rate = np.clip(np.bincount(place, (w * a)[w > 0]) / weight, 0, 1)
    fitted = isotonic_regression(rate, weights=weight).x
    return values, weight, rate, np.clip(fitted, 0, 1)


def _split(
    confidence: Confidence, correct: Correct, score: Score, weights: Weights | None
) -> tuple[float, float, float]:
    values, weight, rate, fitted = isotonic(confidence, correct, weights)
    overall = np.full_like(values, (weight * rate).sum() / weight.sum())
    given, best, base = (
        float((weight * _SCORES[score](p, rate)).sum() / weight.sum()) for p in (values, fitted, overall)
    )
    return given - best, base - best, base


def _brier(p: Vector, rate: Vector) -> Vector:
    return rate * (1 - p) ** 2 + (1 - rate) * p**2


def _log(p: Vector, rate: Vector) -> Vector:
    p = np.where((p == rate) & ((p == 0) | (p == 1)), p, np.clip(p, 1e-12, 1 - 1e-12))
    return -xlogy(rate, p) - xlog1py(1 - rate, -p)


_SCORES = {"brier": _brier, "log": _log}


@metric(better="lower", range=(0.0, float("inf")), family="proper")
def corp_miscalibration(
    confidence: Confidence, correct: Correct, *, score: Score = "brier", weights: Weights | None = None
) -> float:
    r"""Miscalibration part of the score of the confidence: what recalibration could win back.

    .. math:: S(c) - S(\hat c)

    with :math:`\hat c` the isotonic recalibration; see the head of `calibrant.metrics.corp`.

    Reference: Dimitriadis, Gneiting & Jordan, PNAS 2021.

    Example:
        >>> round(corp_miscalibration(torch.tensor([0.9, 0.9]), torch.tensor([True, False])), 6)
        0.16
    """
    return _split(confidence, correct, score, weights)[0]


@metric(better="higher", range=(0.0, float("inf")), family="proper")
def corp_discrimination(
    confidence: Confidence, correct: Correct, *, score: Score = "brier", weights: Weights | None = None
) -> float:
    r"""Discrimination part of the score of the confidence: what it knows beyond the mean accuracy.

    .. math:: S(\bar a) - S(\hat c)

    Reference: Dimitriadis, Gneiting & Jordan, PNAS 2021.

    Example:
        >>> corp_discrimination(torch.tensor([0.9, 0.2]), torch.tensor([True, False]))
        0.25
    """
    return _split(confidence, correct, score, weights)[1]


@metric(better="neither", range=(0.0, float("inf")), family="proper")
def corp_uncertainty(
    confidence: Confidence, correct: Correct, *, score: Score = "brier", weights: Weights | None = None
) -> float:
    r"""Uncertainty part of the score of the confidence: the score of always saying the mean accuracy.

    .. math:: S(\bar a)

    Reference: Dimitriadis, Gneiting & Jordan, PNAS 2021.

    Example:
        >>> corp_uncertainty(torch.tensor([0.9, 0.2]), torch.tensor([True, False]))
        0.25
    """
    return _split(confidence, correct, score, weights)[2]


@metric(better="lower", range=(0.0, 1.0), family="proper")
def top_label_brier(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Brier score of the confidence as a forecast of being right.

    .. math:: \frac1n \sum_i (c_i - a_i)^2 = \text{miscalibration} - \text{discrimination} + \text{uncertainty}

    Reference: Brier, Monthly Weather Review 1950.

    Example:
        >>> round(top_label_brier(torch.tensor([0.9, 0.8]), torch.tensor([True, False])), 6)
        0.325
    """
    return mean((confidence.double() - correct.double()).square(), weights)
