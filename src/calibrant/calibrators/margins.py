"""Curves by logit margin: what rows of equal confidence but unequal margin hide, and what a calibrator does."""

import numpy as np
import torch

from calibrant.calibrators._solvers.samplewise import Samplewise
from calibrant.metrics.bins import assign
from calibrant.metrics.curves import reliability
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import float64
from calibrant.records import Curve


def margin_reliability(predictions: Predictions, *, groups: int = 3, bins: int = 8, level: float = 0.9) -> Curve:
    r"""Reliability within groups of rows of about the same logit margin :math:`z_{(1)} - z_{(2)}`.

    Rows are cut into ``groups`` of equal size by margin, and each gets the bins of `curves.reliability`. A model that
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


def margin_temperature(calibrator: Samplewise, predictions: Predictions, *, points: int = 60) -> Curve:
    """Temperature against logit margin: the median, and the tenth and ninetieth percentile, of rows of like margin.

    Rows are cut into ``points`` groups of equal size by margin. Where a calibrator reads the margin alone, as SMART
    does, the three lines are one.

    Reference: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025, figure 16.

    Example:
        >>> from calibrant.calibrators.smart import Smart
        >>> logits, labels = 4 * torch.eye(3)[torch.arange(60) % 3], (torch.arange(60) * 7 // 5) % 3
        >>> curve = margin_temperature(Smart.fit(logits, labels, steps=5), Predictions(logits=logits, labels=labels))
        >>> curve["margin"]
        array([4.])
    """
    if not isinstance(calibrator, Samplewise):
        raise TypeError(f"calibrator must give each row a temperature, as Smart does; got {type(calibrator).__name__}.")
    margin = float64(predictions.facts.logit_margin)
    with torch.no_grad():
        t = float64(calibrator.temperature(predictions.logits.double()))
    place, _ = assign(margin, bins=points, scheme="mass")
    groups = [place == group for group in np.unique(place)]
    columns = {
        "margin": np.array([np.median(margin[g]) for g in groups]),
        "temperature": np.array([np.median(t[g]) for g in groups]),
        "low": np.array([np.quantile(t[g], 0.1) for g in groups]),
        "high": np.array([np.quantile(t[g], 0.9) for g in groups]),
        "count": np.array([g.sum() for g in groups]),
    }
    return Curve("margin_temperature", columns, len(predictions), {"method": calibrator.name})
