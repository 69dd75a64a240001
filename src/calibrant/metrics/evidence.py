r"""How sure are we of a metric? Interval, noise floor, p-value, and the paired difference of two models.

**Interval.** Rows are drawn again with replacement; with :math:`\hat\theta` the value and :math:`s^*` the standard
deviation of the redrawn values, the interval of level :math:`1 - \alpha` is

.. math:: \hat\theta \pm z_{1-\alpha/2}\, s^*

cut to the metric's range. Only the spread of the redrawn values is used: their level is not that of the metric,
because redrawing inflates a calibration error a second time. Two kinds are treated apart. A proportion (accuracy) has
the exact interval of Clopper and Pearson. The errors without bins (SmoothECE, smCE, KS, Kuiper) are skewed, so theirs
is widened to hold the quantiles of the redrawn values too, which is cautious near calibration.

What the interval covers is the mean of the metric over samples of *this size*: for an unbiased metric the true value,
for a binned error the true value plus the bias the floor shows. For a perfectly calibrated model it is a little wider
than it need be.

**Floor.** Labels are drawn from the model's own probabilities, so that the model is perfectly calibrated by
construction: the mean of the metric over such labels is what noise alone shows at this n with these confidences. The
p-value counts the draws at least as bad as the value, :math:`(1 + \#)/(1 + \text{draws})`, which is exact for any n.

**Comparison.** The interval of the difference redraws rows for both models at once. Its p-value swaps the two models in
each row at random: if they were interchangeable, the difference would be as large in that share of the swaps.

Rows are the unit: a row of weight 2 is drawn, relabelled or swapped as a whole. Seeds are explicit and no global
generator is touched.

Reference: Bröcker & Smith, Weather and Forecasting 2007 (consistency resampling); Davison & Hinkley, 1997 (bootstrap).
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri

from calibrant.metrics.binomial import clopper_pearson
from calibrant.metrics.bootstrap import Metric, Options, null_values, on_rows, redrawn, registered, swapped
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, repetitions


@dataclass(frozen=True)
class Interval:
    """A value with bounds that cover its mean over samples of this size with probability ``level``."""

    value: float
    low: float
    high: float
    level: float


@dataclass(frozen=True)
class Floor:
    """What noise alone shows: the mean and 95th percentile under perfect calibration, and the p-value of the value."""

    value: float
    mean: float
    high: float
    p: float


@dataclass(frozen=True)
class Comparison:
    """The difference first - second on the same rows, its interval, and a two-sided p-value for no difference."""

    difference: float
    low: float
    high: float
    level: float
    p: float


def measure(metric: Metric, predictions: Predictions, *, options: Options = None) -> float:
    """Compute a metric, by name or as a function of named views, on predictions and their weights.

    Example:
        >>> measure("accuracy", Predictions(confidence=[0.9, 0.8], correct=[True, False]))
        0.5
    """
    return on_rows(metric, predictions, options)(None)


def interval(
    metric: Metric,
    predictions: Predictions,
    *,
    options: Options = None,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
) -> Interval:
    """Return the value and its bootstrap interval; undefined (NaN) bounds where most redrawn values are undefined.

    Example:
        >>> found = interval("accuracy", Predictions(confidence=[0.5] * 100, correct=[True, False] * 50))
        >>> found.low < 0.5 < found.high
        True
    """
    _check(level, resamples, seed)
    of_rows = on_rows(metric, predictions, options)
    value = of_rows(None)
    counted = _successes(metric, predictions)
    if counted is not None:
        low, high = (float(b[0]) for b in clopper_pearson(np.array([counted]), np.array([len(predictions)]), level))
        return Interval(value, low, high, level)
    again = redrawn(of_rows, predictions, resamples, seed)
    low, high = _bounds(value, again, level)
    if registered(metric).facts.get("skewed"):
        lower, upper = np.quantile(again, [(1 - level) / 2, (1 + level) / 2])
        low, high = min(low, float(lower)), max(high, float(upper))
    least, most = _range(metric, options)
    return Interval(value, float(np.clip(low, least, most)), float(np.clip(high, least, most)), level)


def floor(
    metric: Metric, predictions: Predictions, *, options: Options = None, draws: int = 400, seed: int = 0
) -> Floor:
    """Return what the metric shows when labels are drawn from the model's own probabilities, and the p-value.

    The p-value is one-sided towards worse for a metric that is better lower or higher, two-sided otherwise.

    Example:
        >>> p = Predictions(confidence=[0.99] * 50, correct=[True, False] * 25)
        >>> floor("top_label_ece", p).p < 0.01
        True
    """
    entry = registered(metric)
    value = measure(metric, predictions, options=options)
    null = null_values(entry, predictions, options, draws, seed)
    null = null[~np.isnan(null)]
    if np.isnan(value) or len(null) == 0:
        return Floor(value, float("nan"), float("nan"), float("nan"))
    tolerance = 1e-12 * max(1.0, abs(value))  # equal values may differ in the last bit with the order of summation
    middle = float(null.mean())
    worse = {"lower": null - middle, "higher": middle - null}.get(entry.facts.get("better", ""), np.abs(null - middle))
    seen = {"lower": value - middle, "higher": middle - value}.get(entry.facts.get("better", ""), abs(value - middle))
    p = (1 + np.sum(worse >= seen - tolerance)) / (1 + len(null))
    return Floor(value, middle, float(np.quantile(null, 0.95)), float(p))


def compare(
    metric: Metric,
    first: Predictions,
    second: Predictions,
    *,
    options: Options = None,
    level: float = 0.9,
    resamples: int = 400,
    seed: int = 0,
) -> Comparison:
    """Compare two models on the same rows, in the same order: the difference of a metric with its interval and p.

    Example:
        >>> right = [True, False] * 50
        >>> a, b = (Predictions(confidence=[c] * 100, correct=right) for c in (0.9, 0.6))
        >>> round(compare("top_label_ece", a, b).difference, 6)
        0.3
    """
    _check(level, resamples, seed)
    _same_rows(first, second)
    one, two = on_rows(metric, first, options), on_rows(metric, second, options)

    def difference(rows: Array | None) -> float:
        return one(rows) - two(rows)

    value = difference(None)
    low, high = _bounds(value, redrawn(difference, first, resamples, seed), level)
    exchanged = swapped(metric, first, second, options, resamples, seed)
    extreme = np.sum(np.abs(exchanged[~np.isnan(exchanged)]) >= abs(value) - 1e-12)
    return Comparison(value, low, high, level, float((1 + extreme) / (1 + len(exchanged))))


def _successes(metric: Metric, predictions: Predictions) -> int | None:
    """Count the rows that a proportion counts (accuracy, top-5); None for any other metric, or with weights."""
    fact = registered(metric).facts.get("mean_of")
    if predictions.weights is not None or fact not in ("correct", "in_top5"):
        return None
    return int(getattr(predictions, fact).sum())


def _range(metric: Metric, options: Options) -> tuple[float, float]:
    facts = registered(metric).facts
    special = facts.get("ranges", {}).get((options or {}).get("norm"))
    return special or facts.get("range", (-np.inf, np.inf))


def _check(level: float, resamples: int, seed: int) -> None:
    if seed < 0:
        raise ValueError(f"seed must not be negative; got {seed}.")
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1); got {level}.")
    if resamples < 20:
        raise ValueError(f"resamples must be at least 20; got {resamples}.")


def _same_rows(first: Predictions, second: Predictions) -> None:
    if len(first) != len(second):
        raise ValueError(f"second must hold the same rows as first; got {len(second)} rows beside {len(first)}.")
    both = first.rows.labels is not None and second.rows.labels is not None
    if both and not torch.equal(first.labels, second.labels):
        raise ValueError("second must hold the same rows as first, in the same order; the labels differ.")
    one, two = (repetitions(p.weights, len(p)) for p in (first, second))
    if not np.array_equal(one, two):
        raise ValueError("second must hold the same rows as first, in the same order; the weights differ.")


def _bounds(value: float, again: Vector, level: float) -> tuple[float, float]:
    known = again[np.isfinite(again)]
    if np.isnan(value) or len(known) < len(again) / 2:
        return float("nan"), float("nan")
    half = float(ndtri((1 + level) / 2) * known.std(ddof=1))
    return value - half, value + half
