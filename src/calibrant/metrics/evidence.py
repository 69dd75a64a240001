r"""Uncertainty of a metric: bootstrap interval, noise floor, p-value, and the paired difference of two models.

**Interval.** Rows are resampled with replacement (the bootstrap); with :math:`\hat\theta` the value and :math:`s^*` the
standard deviation of the bootstrap values, the interval of level :math:`1 - \alpha` is

.. math:: \hat\theta \pm z_{1-\alpha/2}\, s^*

clipped to the metric's range. Only the spread of the bootstrap values is used: their mean is not that of the metric,
because resampling inflates a calibration error a second time. Two kinds are treated apart. A proportion (accuracy) has
the exact interval of Clopper and Pearson. The errors without bins (SmoothECE, smCE, KS, Kuiper) are skewed, so theirs
is widened to hold the quantiles of the bootstrap values too, which is conservative near calibration.

What the interval covers is the mean of the metric over samples of *this size*: for an unbiased metric the true value,
for a binned error the true value plus the bias the floor shows. For a perfectly calibrated model it is a little wider
than it need be.

**Floor.** Labels are drawn from the model's own probabilities, so that the model is perfectly calibrated by
construction: the mean of the metric over such labels is what noise alone shows at this n with these confidences. The
p-value counts the draws at least as bad as the value, :math:`(1 + \#)/(1 + \text{draws})`, which is exact for any n.

**Comparison.** The interval of the difference resamples rows for both models at once. Its p-value is that of a
permutation test, which swaps the two models in each row at random: if they were interchangeable, the difference would
be as large in that share of the swaps.

Rows are the unit: a row of weight 2 is drawn, relabelled or swapped as a whole. Seeds are explicit and no global
generator is touched.

Reference: Bröcker & Smith, Weather and Forecasting 2007 (consistency resampling); Davison & Hinkley, 1997 (bootstrap).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from calibrant.metrics.binomial import clopper_pearson
from calibrant.metrics.inputs import unchecked
from calibrant.metrics.proper import mean
from calibrant.predictions import scalars
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, float64, repetitions
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
    with unchecked():  # Predictions checked their rows
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
    """Return the value and its bootstrap interval; NaN bounds where most bootstrap values are undefined.

    Example:
        >>> found = interval("accuracy", Predictions(confidence=[0.5] * 100, correct=[True, False] * 50))
        >>> found.low < 0.5 < found.high
        True
    """
    check_resampling(level, resamples, seed)
    of_rows = _on_rows(metric, predictions, options)
    value = measure(metric, predictions, options=options)
    counted = _successes(metric, predictions)
    if counted is not None:
        low, high = (float(b[0]) for b in clopper_pearson(np.array([counted]), np.array([len(predictions)]), level))
        return Interval(value, low, high, level)
    again = _bootstrap(of_rows, predictions, resamples, seed)
    low, high = _bounds(value, again, level)
    if _registered(metric).facts.get("skewed"):
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
    scalars.seed(seed)
    scalars.whole(draws, "draws", least=1)
    entry = _registered(metric)
    value = measure(metric, predictions, options=options)
    null = _null_values(entry, predictions, options, draws, seed)
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
    check_resampling(level, resamples, seed)
    _same_rows(first, second)
    one, two = _on_rows(metric, first, options), _on_rows(metric, second, options)

    def difference(rows: Array | None) -> float:
        return one(rows) - two(rows)

    with unchecked():
        value = difference(None)
    low, high = _bounds(value, _bootstrap(difference, first, resamples, seed), level)
    exchanged = _swapped(metric, first, second, options, resamples, seed)
    extreme = np.sum(np.abs(exchanged[~np.isnan(exchanged)]) >= abs(value) - 1e-12)
    return Comparison(value, low, high, level, float((1 + extreme) / (1 + len(exchanged))))


def _successes(metric: Metric, predictions: Predictions) -> int | None:
    """Count the rows that a proportion counts (accuracy, top-5); None for any other metric, or with weights."""
    fact = _registered(metric).facts.get("mean_of")
    if predictions.weights is not None or fact not in ("correct", "in_top5"):
        return None
    return int(getattr(predictions, fact).sum())


def _range(metric: Metric, options: Options) -> tuple[float, float]:
    facts = _registered(metric).facts
    special = facts.get("ranges", {}).get((options or {}).get("norm"))
    return special or facts.get("range", (-np.inf, np.inf))


def check_resampling(level: Any, resamples: Any, seed: Any) -> None:
    """Refuse a level outside of (0, 1), fewer than 20 resamples, or a negative seed."""
    scalars.seed(seed)
    scalars.share(level, "level")
    scalars.whole(resamples, "resamples", least=20)


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


def _registered(metric: Metric) -> Entry:
    """Return the registry entry of a metric by name, or a new one for a plain function."""
    if isinstance(metric, str):
        return METRICS.entry(metric)
    if not callable(metric):
        raise TypeError(f"metric must be the name of a metric or a function of views; got {metric!r}.")
    return Entry("metric", getattr(metric, "__name__", type(metric).__name__), metric, {})


def _on_rows(metric: Metric, predictions: Predictions, options: Options) -> Callable[[Array | None], float]:
    """Return the metric as a function of row indices (None: all rows as they are)."""
    if not isinstance(predictions, Predictions):
        raise TypeError(f"predictions must be Predictions(logits=..., labels=...); got {type(predictions).__name__}.")
    method, names = _function(metric, options)
    missing = [name for name in names if not hasattr(Predictions, name)]
    if missing:
        raise ValueError(f"metric must read views of Predictions; {missing[0]} is none. Call the function directly.")
    weights = predictions.weights
    views = [getattr(predictions, name) for name in names]
    weighted = "weights" in inspect.signature(method).parameters
    if weighted and any(view.ndim == 2 for view in views):  # count repetitions instead of copying rows of k values
        return lambda i: method(*views, **_weights(_counted(i, weights, len(predictions))))

    def of_rows(i: Array | None) -> float:
        if i is None:
            return method(*views, **_weights(weights))
        return method(*(_rows(v, i) for v in views), **_weights(None if weights is None else _rows(weights, i)))

    return of_rows


def _function(metric: Metric, options: Options) -> tuple[Callable[..., float], tuple[str, ...]]:
    """Return the metric with its options filled in, and the views it reads; a mean of a fact reads just that fact."""
    entry = _registered(metric)
    if "mean_of" in entry.facts and not options:
        return mean, (entry.facts["mean_of"],)
    return partial(entry.method, **(options or {})), entry.views


def _rows(view: Tensor, i: Array) -> Tensor:
    """Select rows by numpy: on short vectors the overhead of torch's threads dominates."""
    return torch.from_numpy(view.cpu().numpy()[i])


def _weights(weights: Tensor | None) -> dict[str, Tensor]:
    return {} if weights is None else {"weights": weights}


def _counted(rows: Array | None, weights: Tensor | None, n: int) -> Tensor | None:
    if rows is None:
        return weights
    counts = torch.from_numpy(np.bincount(rows, minlength=n)).double()
    return counts if weights is None else counts * weights


def _bootstrap(of_rows: Callable[[Array | None], float], predictions: Predictions, resamples: int, seed: int) -> Vector:
    """Return the metric on bootstrap samples of the rows; rows of weight zero are never drawn."""
    rng = np.random.default_rng(seed)
    w = predictions.weights
    rows = np.arange(len(predictions)) if w is None else np.flatnonzero(float64(w))
    with unchecked():
        return np.array([of_rows(rng.choice(rows, len(rows))) for _ in range(resamples)])


def _swapped(
    metric: Metric, first: Predictions, second: Predictions, options: Options, draws: int, seed: int
) -> Vector:
    """Return the difference first - second when the two models are exchanged in each row at random."""
    rng = np.random.default_rng(seed)
    method, names = _function(metric, options)
    pairs = [(getattr(first, name).cpu(), getattr(second, name).cpu()) for name in names]
    extra = _weights(first.weights)

    def exchanged(swap: Tensor) -> float:
        return method(*(torch.where(swap if a.ndim == 1 else swap[:, None], b, a) for a, b in pairs), **extra)

    swaps = (torch.from_numpy(rng.random(len(first)) < 0.5) for _ in range(draws))
    with unchecked():
        return np.array([exchanged(swap) - exchanged(~swap) for swap in swaps])


def _null_values(entry: Entry, predictions: Predictions, options: Options, draws: int, seed: int) -> Vector:
    """Return the metric on labels drawn from the model's own probabilities, draw by draw."""
    rng = np.random.default_rng(seed)
    names = set(entry.views)
    draw = _drawn_correctness if names <= {"confidence", "correct"} else _drawn_labels
    fixed = {name: getattr(predictions, name) for name in names - {"correct", "labels"}}
    extra = {**(options or {}), **_weights(predictions.weights)}
    drawn = (fixed | views for views in draw(predictions, draws, rng))
    with unchecked():
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
