"""Out-of-distribution detection: AUROC, FPR at 95 % TPR and AUPR of any confidence score."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from calibrant.metrics.evidence import check_resampling
from calibrant.predictions import checks
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Vector, float64
from calibrant.records import Record
from calibrant.registry import METRICS, SCORES

ORACLE = "tcp"  # a score that needs the label says nothing of rows without one
DEFAULT = ("msp", "negative_entropy", "energy", "max_logit")

# record -> the metric of right against wrong that it is, once being in distribution counts as being right
MEASURES = {
    "ood_auroc": "failure_auroc",
    "fpr_at_95_tpr": "fpr_at_95_tpr",
    "aupr_in": "aupr_success",
    "aupr_out": "aupr_error",
}

Score = Callable[[Predictions], Any]


def outlier_records(
    inside: Predictions | Tensor,
    outside: Mapping[str, Predictions] | Mapping[str, Tensor],
    *,
    scores: Iterable[str] | Mapping[str, Score] = DEFAULT,
    level: float = 0.9,
    resamples: int = 200,
    seed: int = 0,
    model: str = "",
    dataset: str = "",
) -> tuple[Record, ...]:
    r"""Measure how well scores tell rows in distribution from each set of rows out of it.

    Records of ``ood_auroc``, :math:`\Pr(s_{in} > s_{out}) + \tfrac12 \Pr(s_{in} = s_{out})`; of ``fpr_at_95_tpr``,
    the share of outside rows accepted at the highest threshold that accepts 95 % of the inside ones; of ``aupr_in``
    and ``aupr_out``, the average precision of finding the inside rows by a high score and the outside rows by a low
    one. ``method`` is the score, ``where`` "outside: NAME", ``n`` the number of both kinds of rows. The level of both
    AUPRs depends on how many there are of each.

    ``scores`` are names of the registry, or a mapping from names to functions of `Predictions`, such as a trust
    predictor's ``lambda p: trust(p.logits)``; higher = surer. After temperature scaling pass the scaled logits. Labels
    are not looked at. Instead of `Predictions`, ``inside`` and every ``outside`` may be confidences of shape (n,),
    taken as they are. The interval of the AUROC is a bootstrap over both kinds of rows separately; there is
    none if a kind has a single row.

    Reference: Hendrycks & Gimpel, ICLR 2017; Liang, Li & Srikant, ICLR 2018.

    Example:
        >>> entropy, other = torch.tensor([0.2, 0.5, 0.3, 0.9]), torch.tensor([0.8, 1.0, 0.4])
        >>> found = outlier_records(-entropy, {"svhn": -other}, resamples=20)
        >>> found[0].metric, found[0].value
        ('ood_auroc', 0.75)
    """
    if not isinstance(outside, Mapping) or not outside:
        raise ValueError("outside must map at least one name to rows out of distribution; got none.")
    check_resampling(level, resamples, seed)
    found: list[Record] = []
    for name, other in outside.items():
        for method, here, there in _scored(inside, other, scores, f"outside[{name!r}]"):
            blank = Record("", math.nan, len(here) + len(there), where=f"outside: {name}", method=method, seed=seed)
            blank = replace(blank, model=model, dataset=dataset, settings={"inside": len(here), "outside": len(there)})
            found += _measured(here, there, blank, level, resamples)
    return tuple(found)


def _measured(here: Vector, there: Vector, blank: Record, level: float, resamples: int) -> Iterator[Record]:
    """Yield a record for each measure. Only the order of the scores counts, so ranks replace them."""
    both = np.unique(np.concatenate([here, there]), return_inverse=True)[1].astype(np.float64)
    ranks, kind = torch.from_numpy(both), torch.arange(len(both)) < len(here)
    for metric, measure in MEASURES.items():
        value = METRICS[measure](ranks, kind)
        record = replace(blank, metric=metric, value=value)
        if metric == "ood_auroc" and min(len(here), len(there)) > 1:  # a bootstrap of one row has no spread
            half = float(ndtri((1 + level) / 2)) * _spread(ranks, kind, resamples, blank.seed or 0)
            record = replace(record, low=max(0.0, value - half), high=min(1.0, value + half), level=level)
        yield record


def _spread(ranks: Tensor, kind: Tensor, resamples: int, seed: int) -> float:
    """Return the bootstrap standard error of the AUROC, resampling inside and outside rows separately."""
    rng, inside = np.random.default_rng(seed), int(kind.sum())
    sides = (np.arange(inside), np.arange(inside, len(kind)))
    drawn = (np.concatenate([rng.choice(side, len(side)) for side in sides]) for _ in range(resamples))
    values = [METRICS[MEASURES["ood_auroc"]](ranks[torch.from_numpy(rows)], kind) for rows in drawn]
    return float(np.std(values, ddof=1))


def _scored(
    inside: Predictions | Tensor, other: Predictions | Tensor, scores: Iterable[str] | Mapping[str, Score], name: str
) -> Iterable[tuple[str, Vector, Vector]]:
    """Yield each score's name with its values of the inside and of the outside rows."""
    if isinstance(inside, Predictions) != isinstance(other, Predictions):
        raise TypeError(
            f"{name} must be of the kind of inside, Predictions or confidences; got {type(other).__name__}."
        )
    if not isinstance(inside, Predictions) or not isinstance(other, Predictions):
        yield "confidence", _values(inside, None, "inside"), _values(other, None, name)
        return
    if inside.k != other.k:
        raise ValueError(f"{name} must have the {inside.k} classes of inside; got {other.k}.")
    for rows, said in ((inside, "inside"), (other, name)):
        if rows.weights is not None:
            raise ValueError(f"{said} must have no weights: every row counts once here.")
    for method, score in _functions(scores).items():
        here = _values(score(inside), len(inside), f"{method} of inside")
        yield method, here, _values(score(other), len(other), f"{method} of {name}")


def _functions(scores: Iterable[str] | Mapping[str, Score]) -> dict[str, Score]:
    if isinstance(scores, Mapping):
        return dict(scores)
    names = (scores,) if isinstance(scores, str) else tuple(scores)
    if not names:
        raise ValueError("scores must name at least one score; got none.")
    if ORACLE in names:
        raise ValueError(f"scores must be known without the label; {ORACLE} is not.")
    return {name: SCORES[name] for name in names}


def _values(given: Any, n: int | None, name: str) -> Vector:
    values = checks.tensor(given, name)
    if values.ndim != 1 or len(values) == 0 or (n is not None and len(values) != n):
        raise ValueError(f"{name} must have shape ({n or 'n'},), at least one row; got {tuple(values.shape)}.")
    checks.finite(~values.isfinite().cpu(), name)
    return float64(values)
