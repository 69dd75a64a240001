"""The two ways of drawing again: rows with replacement, and labels from the model's own probabilities."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.nouns import Array, Vector, float64
from calibrant.predictions import Predictions
from calibrant.registry import METRICS, Entry

Metric = str | Callable[..., float]
Options = Mapping[str, Any] | None


def registered(metric: Metric) -> Entry:
    """Return the entry of a metric by name, or one made up for a plain function."""
    return METRICS.entry(metric) if isinstance(metric, str) else Entry("metric", metric.__name__, metric, {})


def on_rows(metric: Metric, predictions: Predictions, options: Options) -> Callable[[Array | None], float]:
    """Return the metric as a function of row numbers (None: all rows as they are)."""
    entry, extra = registered(metric), dict(options or {})
    weights = predictions.weights
    if "mean_of" in entry.facts and not extra:
        rows = float64(getattr(predictions, entry.facts["mean_of"]))
        w = np.ones_like(rows) if weights is None else float64(weights)
        return lambda i: float(np.average(rows, weights=w) if i is None else np.average(rows[i], weights=w[i]))
    views = [getattr(predictions, name) for name in entry.views]
    if any(view.ndim == 2 for view in views):  # count repetitions instead of copying rows of k values
        return lambda i: entry.method(*views, **extra, **_weights(_counted(i, weights, len(predictions))))

    def of_rows(i: Array | None) -> float:
        if i is None:
            return entry.method(*views, **extra, **_weights(weights))
        return entry.method(*(_rows(v, i) for v in views), **extra, **_weights(_rows(weights, i)))

    return of_rows


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


def redrawn(of_rows: Callable[[Array | None], float], predictions: Predictions, resamples: int, seed: int) -> Vector:
    """Return the metric on rows drawn again with replacement; rows of weight zero are not there to be drawn."""
    rng = np.random.default_rng(seed)
    w = predictions.weights
    rows = np.arange(len(predictions)) if w is None else np.flatnonzero(float64(w))
    return np.array([of_rows(rng.choice(rows, len(rows))) for _ in range(resamples)])


def null_values(entry: Entry, predictions: Predictions, options: Options, draws: int, seed: int) -> Vector:
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
