"""Curves: reliability, risk-coverage, ROC and histograms as records, the only numbers that figures draw."""

import numpy as np
import torch
from scipy.special import bdtrik

from calibrant.metrics.binned import bin_sums
from calibrant.metrics.binomial import clopper_pearson
from calibrant.metrics.bins import Index, Scheme, assign
from calibrant.metrics.blocks import tied_blocks
from calibrant.metrics.corp import isotonic
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Vector, float64, repetitions
from calibrant.records import Curve


def reliability(predictions: Predictions, *, bins: int = 15, scheme: Scheme = "mass", level: float = 0.9) -> Curve:
    r"""Reliability diagram: per bin the mean confidence and the accuracy with its exact interval, empty bins absent.

    The interval of the accuracy is Clopper-Pearson's, which does not collapse in a bin that is all right or all wrong.
    ``band_low`` and ``band_high`` bound where the accuracy of a calibrated model would fall in that bin (binomial).

    Reference: Bröcker & Smith, Weather and Forecasting 2007; Clopper & Pearson, Biometrika 1934.

    Example:
        >>> curve = reliability(Predictions(confidence=[0.9, 0.9, 0.6, 0.6], correct=[True, True, True, False]))
        >>> curve["accuracy"]
        array([0.5, 1. ])
    """
    c, a = float64(predictions.confidence), float64(predictions.correct)
    w = repetitions(predictions.weights, len(c))
    index, total = assign(c, bins=bins, scheme=scheme, weights=w)
    count = bin_sums(index, total, w)
    kept = count > 0
    low, high = np.full(total, np.inf), np.full(total, -np.inf)
    np.minimum.at(low, index, c)
    np.maximum.at(high, index, c)
    count, low, high = count[kept], low[kept], high[kept]
    sure, right = bin_sums(index, total, w * c)[kept], bin_sums(index, total, w * a)[kept]
    tail, mean = (1 - level) / 2, np.clip(sure / count, 0, 1)
    accuracy_low, accuracy_high = clopper_pearson(right, count, level)
    columns = {
        "low": low,
        "high": high,
        "count": count,
        "confidence": mean,
        "accuracy": np.clip(right / count, 0, 1),
        "accuracy_low": accuracy_low,
        "accuracy_high": accuracy_high,
        "band_low": _binomial_quantile(tail, count, mean),
        "band_high": _binomial_quantile(1 - tail, count, mean),
    }
    return Curve("reliability", columns, len(predictions), {"bins": bins, "scheme": scheme, "level": level})


def _binomial_quantile(q: float, count: Vector, mean: Vector) -> Vector:
    """Return the q-quantile of the share of successes in ``count`` rows of probability ``mean``."""
    n, inside = np.maximum(np.round(count), 1), (mean > 0) & (mean < 1)
    found = np.ceil(bdtrik(q, n, np.where(inside, mean, 0.5)) - 1e-9) / n
    return np.where(inside, np.clip(np.nan_to_num(found), 0, 1), mean)


def margin_reliability(predictions: Predictions, *, groups: int = 3, bins: int = 8, level: float = 0.9) -> Curve:
    r"""Reliability within groups of rows of about the same logit margin :math:`z_{(1)} - z_{(2)}`.

    Rows are cut into ``groups`` of equal size by margin, and each gets the bins of `reliability`. A model that
    is right on average may be over-confident where the margin is small and under-confident where it is large.
    ``margin_low`` and ``margin_high`` are the margins between which the rows of a group lie.

    Reference: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025, figure 1.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [0.5, 0.0], [4.0, 0.0], [0.4, 0.0]])
        >>> curve = margin_reliability(Predictions(logits=logits, labels=[0, 1, 0, 0]), groups=2, bins=1)
        >>> curve["margin_high"].round(1), curve["accuracy"]
        (array([0.5, 4. ]), array([0.5, 1. ]))
    """
    if groups < 1:
        raise ValueError(f"groups must be at least 1; got {groups}.")
    margin = float64(predictions.facts.logit_margin)
    place, _ = assign(margin, bins=groups, scheme="mass")
    columns: dict[str, list[np.ndarray]] = {}
    for group in np.unique(place).tolist():
        part = reliability(predictions.take(torch.from_numpy(place == group)), bins=bins, level=level)
        inside = margin[place == group]
        about = {"group": group, "margin_low": inside.min(), "margin_high": inside.max()}
        for name, values in {**{n: np.full(len(part), v) for n, v in about.items()}, **part.columns}.items():
            columns.setdefault(name, []).append(values)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    return Curve("margin_reliability", joined, len(predictions), {"groups": groups, "bins": bins, "level": level})


def reliability_isotonic(predictions: Predictions) -> Curve:
    """Binless reliability curve: accuracy as the isotonic regression of correctness on confidence (CORP).

    Reference: Dimitriadis, Gneiting & Jordan, PNAS 2021.

    Example:
        >>> reliability_isotonic(Predictions(confidence=[0.9, 0.6], correct=[True, False]))["accuracy"]
        array([0., 1.])
    """
    values, _, _, fitted = isotonic(predictions.confidence, predictions.correct, predictions.weights)
    ends = np.flatnonzero(np.diff(fitted))  # a step is drawn by its two ends
    kept = np.unique(np.concatenate([[0], ends, ends + 1, [len(values) - 1]]))
    return Curve("reliability_isotonic", {"confidence": values[kept], "accuracy": fitted[kept]}, len(predictions))


def confidence_histogram(predictions: Predictions, *, bins: int = 25) -> Curve:
    """Count right and wrong rows by confidence, in equal-width bins of [0, 1].

    Example:
        >>> confidence_histogram(Predictions(confidence=[0.9, 0.6], correct=[True, False]), bins=2)["right"]
        array([0., 1.])
    """
    c, a = float64(predictions.confidence), float64(predictions.correct)
    w = repetitions(predictions.weights, len(c))
    index, _ = assign(c, bins=bins)
    edges = np.linspace(0, 1, bins + 1)
    right, wrong = bin_sums(index, bins, w * a), bin_sums(index, bins, w * (1 - a))
    columns = {"low": edges[:-1], "high": edges[1:], "right": right, "wrong": wrong}
    return Curve("confidence_histogram", columns, len(predictions), {"bins": bins})


def trust_histogram(predictions: Predictions, *, bins: int = 20, threshold: float = 0.5) -> Curve:
    """Count right and wrong rows on either side of a threshold, in equal-width bins of [0, 1].

    Rows above the threshold are trusted: ``tp`` right and trusted, ``fp`` wrong and trusted, ``tn`` wrong and not,
    ``fn`` right and not. ``right_share`` and ``wrong_share`` are the shares of the right and of the wrong rows in each
    bin; NaN where there are none.

    Reference: Luo et al., NeurIPS 2021 (their Figure 3).

    Example:
        >>> curve = trust_histogram(Predictions(confidence=[0.9, 0.6, 0.2], correct=[True, False, False]), bins=2)
        >>> curve["tp"], curve["tn"], curve["wrong_share"]
        (array([0., 1.]), array([1., 0.]), array([0.5, 0.5]))
    """
    c, a = float64(predictions.confidence), float64(predictions.correct)
    w, trusted = repetitions(predictions.weights, len(c)), c > threshold
    index, _ = assign(c, bins=bins)
    sides = {"tp": a * trusted, "fp": (1 - a) * trusted, "tn": (1 - a) * ~trusted, "fn": a * ~trusted}
    columns = {name: bin_sums(index, bins, w * side) for name, side in sides.items()}
    for name, one, other in (("right_share", "tp", "fn"), ("wrong_share", "fp", "tn")):
        rows = columns[one] + columns[other]
        columns[name] = rows / rows.sum() if rows.sum() > 0 else np.full(bins, np.nan)
    edges = np.linspace(0, 1, bins + 1)
    columns = {"low": edges[:-1], "high": edges[1:], **columns}
    return Curve("trust_histogram", columns, len(predictions), {"bins": bins, "threshold": threshold})


def risk_coverage(predictions: Predictions, *, points: int = 400, through: float | None = None) -> Curve:
    """Error among the accepted rows at each threshold, from the highest down; thinned to about ``points``.

    The point of coverage ``through``, or the next above, is kept.

    Reference: El-Yaniv & Wiener, JMLR 2010.

    Example:
        >>> risk_coverage(Predictions(confidence=[0.9, 0.6], correct=[True, False]))["risk"]
        array([0. , 0.5])
    """
    blocks = tied_blocks(predictions.confidence, predictions.correct, weights=predictions.weights)
    kept = _thin(blocks.coverage, points)
    if through is not None:
        place = np.searchsorted(blocks.coverage, through - 1e-12)
        kept = np.union1d(kept, [min(int(place), len(blocks.coverage) - 1)])
    columns = {"threshold": blocks.threshold, "coverage": blocks.coverage, "risk": blocks.risk}
    return Curve("risk_coverage", {name: x[kept] for name, x in columns.items()}, len(predictions))


def oracle_risk_coverage(predictions: Predictions, *, points: int = 100) -> Curve:
    """Risk-coverage curve of a ranking that puts every error last.

    Example:
        >>> oracle_risk_coverage(Predictions(confidence=[0.9, 0.6], correct=[True, False]), points=2)["risk"]
        array([0. , 0.5])
    """
    blocks = tied_blocks(predictions.confidence, predictions.correct, weights=predictions.weights)
    error = float(blocks.risk[-1])
    coverage = np.linspace(1 / points, 1, points)
    risk = np.maximum(coverage - (1 - error), 0) / coverage
    return Curve("oracle_risk_coverage", {"coverage": coverage, "risk": risk}, len(predictions))


def generalised_risk_coverage(predictions: Predictions, *, points: int = 400) -> Curve:
    """Share of all rows that are accepted and wrong, against coverage; `augrc` is the area under it.

    Reference: Traub et al., NeurIPS 2024.

    Example:
        >>> generalised_risk_coverage(Predictions(confidence=[0.9, 0.6], correct=[True, False]))["risk"]
        array([0. , 0. , 0.5])
    """
    blocks = tied_blocks(predictions.confidence, predictions.correct, weights=predictions.weights)
    coverage = np.concatenate([[0.0], blocks.coverage])
    wrong = np.concatenate([[0.0], np.cumsum(blocks.loss)]) / blocks.count.sum()
    kept = _thin(coverage, points)
    return Curve("generalised_risk_coverage", {"coverage": coverage[kept], "risk": wrong[kept]}, len(predictions))


def roc(predictions: Predictions, *, points: int = 400) -> Curve:
    """ROC of telling right from wrong by confidence; empty where all rows are right or all are wrong.

    Reference: Fawcett, Pattern Recognition Letters 2006.

    Example:
        >>> roc(Predictions(confidence=[0.9, 0.6], correct=[True, False]))["tpr"]
        array([0., 1., 1.])
    """
    blocks = tied_blocks(predictions.confidence, predictions.correct, weights=predictions.weights)
    right, wrong = np.cumsum(blocks.count - blocks.loss), np.cumsum(blocks.loss)
    if right[-1] <= 0 or wrong[-1] <= 0:
        return Curve("roc", {"fpr": np.empty(0), "tpr": np.empty(0)}, len(predictions))
    tpr, fpr = np.concatenate([[0.0], right / right[-1]]), np.concatenate([[0.0], wrong / wrong[-1]])
    kept = _thin(tpr + fpr, points)
    return Curve("roc", {"fpr": fpr[kept], "tpr": tpr[kept]}, len(predictions))


def _thin(x: Vector, points: int) -> Index:
    """Return places of about ``points`` values spread evenly over an increasing x, both ends kept."""
    if len(x) <= points:
        return np.arange(len(x))
    wanted = np.linspace(x[0], x[-1], points)
    return np.unique(np.concatenate([[0], np.minimum(np.searchsorted(x, wanted), len(x) - 1)]))
