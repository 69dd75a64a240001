"""Where it goes wrong: the gap between confidence and accuracy by predicted class and by group."""

from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import bdtr, bdtrc

from calibrant.metrics.evidence import interval, measure
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, float64, repetitions
from calibrant.records import Record

SHOWN = 10  # classes, and groups, that get an interval


def records(predictions: Predictions, *, level: float) -> Iterator[Record]:
    r"""Yield accuracy, mean confidence and signed gap of the worst predicted classes and the worst groups.

    Slices are ranked by :math:`|\sum(c - a)| / \sqrt{\sum c(1 - c)}`, how far beyond noise their gap is. ``p`` is the
    two-sided binomial p-value of the number of right rows given the mean confidence (cautious where confidences
    differ), times the number of slices looked at, because the worst of many looks bad by chance.
    """
    if predictions.k is not None:
        names = predictions.classes or tuple(range(predictions.k))
        yield from _worst("class", predictions, predictions.predicted.numpy(), [str(n) for n in names], level)
    if predictions.groups is not None:
        found, place = np.unique(predictions.groups.astype(str), return_inverse=True)
        yield from _worst("group", predictions, place, found.tolist(), level)


def _worst(kind: str, p: Predictions, place: Array, names: list[str], level: float) -> Iterator[Record]:
    c, a = float64(p.confidence), float64(p.correct)
    w = repetitions(p.weights, len(c))
    gap = np.bincount(place, w * (c - a), len(names))
    spread = np.sqrt(np.bincount(place, w**2 * c * (1 - c), len(names)))
    present = np.flatnonzero(np.bincount(place, w, len(names)) > 0)
    z = np.abs(gap) / np.maximum(spread, 1e-12)
    for slice_ in sorted(present, key=lambda s: -z[s])[:SHOWN]:
        part = p.take(torch.from_numpy(place == slice_))
        where, n = f"{kind}: {names[slice_]}", len(part)
        yield Record("accuracy", measure("accuracy", part), n, where=where)
        yield Record("mean_confidence", measure("mean_confidence", part), n, where=where)
        found = interval("signed_gap", part, level=level, resamples=200)
        corrected = min(1.0, _binomial_p(part) * len(present))
        yield Record("signed_gap", found.value, n, found.low, found.high, level, p=corrected, where=where)


def _binomial_p(p: Predictions) -> float:
    """Return the two-sided p-value of as many right rows if each were right with the mean confidence."""
    w = repetitions(p.weights, len(p))
    n = max(1, round(w.sum() ** 2 / (w**2).sum()))  # rows of unequal weight count as fewer
    right, sure = round(n * measure("accuracy", p)), measure("mean_confidence", p)
    return min(1.0, 2 * float(min(bdtr(right, n, sure), bdtrc(right - 1, n, sure) if right else 1.0)))
