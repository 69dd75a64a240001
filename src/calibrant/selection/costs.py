"""Cost-sensitive decisions: the class of least expected cost row by row, or the threshold of least cost."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from calibrant.predictions import checks, scalars
from calibrant.predictions.types import Labels, Vector
from calibrant.selection.thresholds import Cuts, Scored, read

REVIEW = -1  # the decision to ask a person
LEVEL, FOLDS = 0.95, 5


def decide(probs: Any, costs: Any, review_cost: float) -> Labels:
    r"""Decide for the class of least expected cost, or for a review where that is cheaper; -1 stands for review.

    .. math:: \arg\min_a \sum_y p_y\, C_{ya}, \quad\text{or } {-1} \text{ if its value is above the cost of a review}

    ``costs`` has a row for each true class and a column for each decision; with 1 for every error and 0 else this is
    the rule to accept where the confidence is at least 1 - review_cost. Right only as far as ``probs`` are calibrated:
    the rule believes them. Of equal costs the first class, and a class before a review.

    Reference: Chow, IEEE Transactions on Information Theory 1970.

    Example:
        >>> decide([[0.7, 0.3], [0.95, 0.05]], costs=[[0, 1], [1, 0]], review_cost=0.1)
        tensor([-1,  0])
    """
    p = checks.scores(checks.tensor(probs, "probs"), "probs")
    checks.probs(p)
    price = checks.tensor(costs, "costs").double()
    if price.ndim != 2 or len(price) != p.shape[1] or price.shape[1] == 0:
        raise ValueError(f"costs must have a row for each of {p.shape[1]} classes; got shape {tuple(price.shape)}.")
    checks.finite(~price.isfinite().all(1).cpu(), "costs")
    scalars.real(review_cost, "review_cost", least=0.0)
    expected = p.double() @ price.to(p.device)
    least, decision = expected.min(1)
    return torch.where(least > review_cost + 1e-12, torch.full_like(decision, REVIEW), decision)


@dataclass(frozen=True)
class Cheapest:
    """The threshold of least cost: accept above it. ``cost`` is that a row, with an interval of level 0.95.

    ``of_accepting`` and ``of_reviewing`` are what accepting, or reviewing, every row costs.
    """

    threshold: float
    coverage: float
    cost: float
    low: float
    high: float
    of_accepting: float
    of_reviewing: float
    n: int


def cheapest(confidence: Any, correct: Any = None, *, error_cost: float, review_cost: float, seed: int = 0) -> Cheapest:
    r"""Choose the threshold of least cost, and say what it costs on rows that did not choose it.

    .. math:: \frac1n \Bigl( \text{error\_cost} \cdot \#\{\text{accepted and wrong}\}
              + \text{review\_cost} \cdot \#\{\text{not accepted}\} \Bigr)

    The threshold is chosen on all rows; of equally cheap ones the widest. The least cost seen there is optimistic, so
    ``cost`` is measured by cross-fitting: each of five parts is charged by the threshold that the other four choose.
    The interval is the normal one of the mean of these costs. Needs no calibrated confidence; promises no error rate
    (see `certify`). ``confidence`` may be `Predictions`; reviewing everything has the threshold infinity.

    Reference: Chow, IEEE Transactions on Information Theory 1970; Stone, JRSS B 1974 (cross-validation).

    Example:
        >>> sure = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> found = cheapest(sure, sure > 0.5, error_cost=10.0, review_cost=1.0)
        >>> round(found.threshold, 2), round(found.cost, 2)
        (0.5, 0.51)
    """
    scalars.real(error_cost, "error_cost", least=0.0)
    scalars.real(review_cost, "review_cost", least=0.0)
    scalars.seed(seed)
    rows = read(confidence, correct)
    if len(rows) < 2 * FOLDS:
        raise ValueError(f"confidence must have at least {2 * FOLDS} rows to choose and to judge; got {len(rows)}.")
    fold = np.random.default_rng(seed).permutation(len(rows)) % FOLDS
    charged = np.empty(len(rows))
    for part in range(FOLDS):
        own = _threshold(rows.take(fold != part), error_cost, review_cost)
        charged[fold == part] = _charge(rows.take(fold == part), own, error_cost, review_cost)
    cost, half = float(charged.mean()), float(ndtri((1 + LEVEL) / 2) * charged.std(ddof=1) / math.sqrt(len(rows)))
    threshold = _threshold(rows, error_cost, review_cost)
    coverage = float((rows.confidence > threshold).mean())
    wrong = float(1 - rows.correct.mean())
    return Cheapest(
        threshold, coverage, cost, max(cost - half, 0.0), cost + half, error_cost * wrong, review_cost, len(rows)
    )


def _threshold(rows: Scored, error_cost: float, review_cost: float) -> float:
    cuts = Cuts.of(rows)
    total = np.append(review_cost * len(rows), error_cost * cuts.errors + review_cost * (len(rows) - cuts.accepted))
    best = len(total) - 1 - int(total[::-1].argmin())
    return math.inf if best == 0 else float(cuts.threshold[best - 1])


def _charge(rows: Scored, threshold: float, error_cost: float, review_cost: float) -> Vector:
    accepted = rows.confidence > threshold
    return np.where(accepted, error_cost * ~rows.correct, review_cost)
