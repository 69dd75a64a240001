"""The ways of drawing again: rows with replacement, two models swapped, labels from the model's own probabilities."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.proper import mean
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, float64
from calibrant.registry import METRICS, Entry

Metric = str | Callable[..., float]
Options = Mapping[str, Any] | None


def registered(metric: Metric) -> Entry:
    """Return the entry of a metric by name, or one made up for a plain function."""
    return METRICS.entry(metric) if isinstance(metric, str) else Entry("metric", metric.__name__, metric, {})


def on_rows(metric: Metric, predictions: Predictions, options: Options) -> Callable[[Array | None], float]:
    """Return the metric as a function of row numbers (None: all rows as they are)."""
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
    entry = registered(metric)
    if "mean_of" in entry.facts and not options:
        return mean, (entry.facts["mean_of"],)
    return partial(entry.method, **(options or {})), entry.views


def _rows(view: Tensor, i: Array) -> Tensor:
    """Select rows by numpy: for short vectors torch would spend its time waking threads."""
    return torch.from_numpy(view.cpu().numpy()[i])


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


def swapped(metric: Metric, first: Predictions, second: Predictions, options: Options, draws: int, seed: int) -> Vector:
    """Return the difference first - second when the two models are exchanged in each row at random."""
    rng = np.random.default_rng(seed)
    method, names = _function(metric, options)
    pairs = [(getattr(first, name).cpu(), getattr(second, name).cpu()) for name in names]
    extra = _weights(first.weights)

    def exchanged(swap: Tensor) -> float:
        return method(*(torch.where(swap if a.ndim == 1 else swap[:, None], b, a) for a, b in pairs), **extra)

    swaps = (torch.from_numpy(rng.random(len(first)) < 0.5) for _ in range(draws))
    return np.array([exchanged(swap) - exchanged(~swap) for swap in swaps])


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
