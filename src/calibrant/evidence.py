r"""How sure are we of a metric? Interval, noise floor, p-value, and the paired difference of two models.

**Interval.** Rows are drawn again with replacement; with :math:`\hat\theta` the value, :math:`m^*` the mean and
:math:`q^*` the quantiles of the redrawn values, the interval of level :math:`1 - \alpha` is

.. math:: [\hat\theta + m^* - q^*_{1-\alpha/2},\ \hat\theta + m^* - q^*_{\alpha/2}]

cut to the metric's range. Redrawing inflates a calibration error a second time; subtracting :math:`m^*` rather than
:math:`\hat\theta` keeps that inflation out of the interval. What it covers is the mean of the metric over samples of
*this size*: for an unbiased metric the true value, for a binned error the true value plus the bias the floor shows.
For a perfectly calibrated model it is a little wider than it need be.

**Floor.** Labels are drawn from the model's own probabilities, so that the model is perfectly calibrated by
construction: the mean of the metric over such labels is what noise alone shows at this n with these confidences. The
p-value counts the draws at least as bad as the value, :math:`(1 + \#)/(1 + \text{draws})`, and is exact for any n.

Seeds are explicit and no global generator is touched.

Reference: Bröcker & Smith, Weather and Forecasting 2007 (consistency resampling); Davison & Hinkley, 1997 (bootstrap).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.nouns import Array, Vector, float64
from calibrant.predictions import Predictions
from calibrant.registry import METRICS, Entry

Metric = str | Callable[..., float]
Options = Mapping[str, Any] | None


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
    return _on_rows(metric, predictions, options)(None)


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
    _check(level, resamples)
    on_rows = _on_rows(metric, predictions, options)
    value = on_rows(None)
    low, high = _bounds(value, _redrawn(on_rows, len(predictions), resamples, seed), level)
    least, most = _entry(metric).facts.get("range", (-np.inf, np.inf))
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
    entry = _entry(metric)
    value = measure(metric, predictions, options=options)
    null = _null_values(entry, predictions, options, draws, seed)
    null = null[~np.isnan(null)]
    if np.isnan(value) or len(null) == 0:
        return Floor(value, float("nan"), float("nan"), float("nan"))
    tolerance = 1e-12 * max(1.0, abs(value))  # equal values may differ in the last bit with the order of summation
    above = (1 + np.sum(null >= value - tolerance)) / (1 + len(null))
    below = (1 + np.sum(null <= value + tolerance)) / (1 + len(null))
    tails = {"lower": above, "higher": below}
    p = tails.get(entry.facts.get("better", ""), min(1.0, 2 * min(above, below)))
    return Floor(value, float(null.mean()), float(np.quantile(null, 0.95)), float(p))


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
    _check(level, resamples)
    _same_rows(first, second)
    one, two = _on_rows(metric, first, options), _on_rows(metric, second, options)

    def difference(rows: Array | None) -> float:
        return one(rows) - two(rows)

    value = difference(None)
    redrawn = _redrawn(difference, len(first), resamples, seed)
    low, high = _bounds(value, redrawn, level)
    known = redrawn[~np.isnan(redrawn)]
    extreme = np.sum(np.abs(known - known.mean()) >= abs(value) - 1e-12) if len(known) else 0
    return Comparison(value, low, high, level, float((1 + extreme) / (1 + len(known))))


def _check(level: float, resamples: int) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie in (0, 1); got {level}.")
    if resamples < 20:
        raise ValueError(f"resamples must be at least 20; got {resamples}.")


def _same_rows(first: Predictions, second: Predictions) -> None:
    if len(first) != len(second):
        raise ValueError(f"second must hold the same rows as first; got {len(second)} rows beside {len(first)}.")
    both = first._labels is not None and second._labels is not None
    if both and not torch.equal(first.labels, second.labels):
        raise ValueError("second must hold the same rows as first, in the same order; the labels differ.")


def _entry(metric: Metric) -> Entry:
    return METRICS.entry(metric) if isinstance(metric, str) else Entry("metric", metric.__name__, metric, {})


def _on_rows(metric: Metric, predictions: Predictions, options: Options) -> Callable[[Array | None], float]:
    """Return the metric as a function of row numbers (None: all rows as they are)."""
    entry, extra = _entry(metric), dict(options or {})
    weights = predictions.weights
    if "mean_of" in entry.facts and not extra:
        rows = float64(getattr(predictions, entry.facts["mean_of"]))
        w = np.ones_like(rows) if weights is None else float64(weights)
        return lambda i: float(np.average(rows, weights=w) if i is None else np.average(rows[i], weights=w[i]))
    views = [getattr(predictions, name) for name in entry.views]
    if any(view.ndim == 2 for view in views):  # count repetitions instead of copying rows of k values
        return lambda i: entry.method(*views, **extra, **_weights(_counted(i, weights, len(predictions))))

    def on_rows(i: Array | None) -> float:
        if i is None:
            return entry.method(*views, **extra, **_weights(weights))
        return entry.method(*(_rows(v, i) for v in views), **extra, **_weights(_rows(weights, i)))

    return on_rows


def _rows(view: Tensor | None, i: Array) -> Tensor | None:
    """Select rows by numpy: for short vectors torch would spend its time waking threads."""
    return None if view is None else torch.from_numpy(view.cpu().numpy()[i])


def _weights(weights: Tensor | None) -> dict[str, Tensor]:
    return {} if weights is None else {"weights": weights}


def _counted(rows: Array | None, weights: Tensor | None, n: int) -> Tensor | None:
    if rows is None:
        return weights
    counts = torch.from_numpy(np.bincount(rows, minlength=n)).double()
    return counts if weights is None else counts * weights


def _redrawn(on_rows: Callable[[Array | None], float], n: int, resamples: int, seed: int) -> Vector:
    rng = np.random.default_rng(seed)
    return np.array([on_rows(rng.integers(0, n, n)) for _ in range(resamples)])


def _bounds(value: float, redrawn: Vector, level: float) -> tuple[float, float]:
    known = redrawn[np.isfinite(redrawn)]
    if np.isnan(value) or len(known) < len(redrawn) / 2:
        return float("nan"), float("nan")
    lower, upper = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    middle = known.mean()
    return float(value + middle - upper), float(value + middle - lower)


def _null_values(entry: Entry, predictions: Predictions, options: Options, draws: int, seed: int) -> Vector:
    """Return the metric on labels drawn from the model's own probabilities, draw by draw."""
    rng = np.random.default_rng(seed)
    names = set(entry.views)
    draw = _drawn_correctness if names <= {"confidence", "correct"} else _drawn_labels
    fixed = {name: getattr(predictions, name) for name in names - {"correct", "labels"}}
    extra = {**(options or {}), **_weights(predictions.weights)}
    drawn = (fixed | views for views in draw(predictions, draws, rng))
    return np.array([entry.method(*(views[name] for name in entry.views), **extra) for views in drawn])


def _drawn_correctness(predictions: Predictions, draws: int, rng: np.random.Generator) -> Iterator[dict[str, Tensor]]:
    sure = predictions.confidence.numpy()
    for _ in range(draws):
        yield {"correct": torch.from_numpy(rng.random(len(sure)) < sure)}


def _drawn_labels(predictions: Predictions, draws: int, rng: np.random.Generator) -> Iterator[dict[str, Tensor]]:
    steps = predictions.probs.double().cpu().cumsum(1)
    steps /= steps[:, -1:].clone()
    for _ in range(draws):
        spots = torch.searchsorted(steps, torch.from_numpy(rng.random((len(steps), 1))), right=True)
        labels = spots.squeeze(1).clamp(max=steps.shape[1] - 1)
        yield {"labels": labels, "correct": labels == predictions.predicted}
