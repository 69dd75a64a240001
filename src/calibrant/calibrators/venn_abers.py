"""Inductive Venn-Abers prediction."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, mapped_odds, shifted, subject
from calibrant.calibrators._solvers.tables import Table, stacked, step
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

NEAR = 1e-5  # log odds this near to fitted ones, relative to values above 1, are tied with them: float32 holds no more


@CALIBRATORS.register(keeps_argmax=False, parameters="steps")
class VennAbers(Calibrator):
    r"""Inductive Venn-Abers prediction: isotonic regression with the new row added, once as a miss, once as a hit.

    .. math:: p' = \frac{p_1}{1 - p_0 + p_1}

    where :math:`p_0` and :math:`p_1` are the isotonic probabilities of the new row if it is a miss and if it is a hit.
    Whatever the distribution, if new rows come from the same one, the one of the two that belongs to what the row will
    turn out to be is a calibrated probability. ``interval`` returns both; they are far apart where rows are few. The
    single p' is the one that minimises regret in log loss; it is never 0 or 1 (nor is :math:`p_0 = 1` or
    :math:`p_1 = 0`).

    All answers are computed once, in O(n log n): between two neighbouring scores they do not change, so a query is a
    look-up. Log odds within 1e-5 of a fitted score are tied with it.

    With two classes the probability of class 1 is mapped. With more, the confidence is: what is valid is then the
    probability of being right, and predictions are kept (``lift="tempered"``). The lifts ``"one_vs_rest"`` and
    ``"pooled"`` renormalise rows, after which nothing is valid any more, and take time: see
    `calibrant.calibrators._solvers.one_vs_rest.lifted`.

    Valid does not mean sharp: the map has steps, as isotonic regression has, and knows nothing beyond the rows' range.

    Reference: Vovk & Petej, UAI 2014; the algorithm: Vovk, Petej & Fedorova, NeurIPS 2015.

    Example:
        >>> cal = VennAbers.fit(torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0, 0, 1, 1]))
        >>> cal.interval(torch.tensor([-2.0, 2.0]))
        (tensor([0.0000, 0.6667]), tensor([0.3333, 1.0000]))
        >>> cal(torch.tensor([-2.0, 2.0])).sigmoid()
        tensor([0.2500, 0.7500])
    """

    edges: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, lift: Lift | None = None) -> "VennAbers":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="tempered")
        tables = problems.solved(steps)
        edges, low, high = stacked(tables)
        return cls.made(
            rows,
            {"edges": edges, "low": low, "high": high},
            {"lift": problems.lift, "parameters": 2 * sum(len(low) for _, low, _ in tables)},
            # what is valid by construction must not be given up because a few rows had a lower log loss before
            objective=Objective("none (valid by construction)", 0.0, 0.0) if problems.direct else None,
            notes=problems.notes,
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Look up the log odds of p', log p1 - log(1 - p0)."""
        values = self.high.log() - torch.log1p(-self.low)
        return lifted(lambda odds: step(odds, self.edges, values), logits, self.settings["lift"])

    def interval(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return p0 and p1 of what is mapped: (n,) of class 1 or of the predicted class, or (n, k) of every class."""
        odds = mapped_odds(shifted(self._read(logits, None)), self.settings["lift"])
        low, high = (step(odds, self.edges, value) for value in (self.low, self.high))
        return low.squeeze(1), high.squeeze(1)

    def words(self) -> str:
        """Say how many steps."""
        return f"{self.n_parameters // 2} steps for {subject(self)}"


def steps(odds: Vector, hits: Array) -> Table:
    """Return edges, p0 and p1 of the bins (lo, hi] within which a new row has the same answers.

    A new hit is pooled with the fitted score above it, if there is one, for nothing exceeds a hit; a new miss with the
    one below. So p1 changes just above a fitted score, and p0 just below.
    """
    at, place, counts = np.unique(odds, return_inverse=True, return_counts=True)
    total = np.bincount(place, hits).astype(np.int64)
    if_hit = np.append(with_a_hit(counts, total), 1.0)
    if_miss = 1 - np.append(with_a_hit(counts[::-1], (counts - total)[::-1]), 1.0)[::-1]
    near, between = NEAR * np.maximum(1, np.abs(at)), (at[1:] + at[:-1]) / 2
    above, below = np.minimum(at + near, np.append(between, np.inf)), np.maximum(at - near, np.append(-np.inf, between))
    edges = np.union1d(above, below)
    ends = np.append(edges, np.inf)
    low, high = if_miss[np.searchsorted(below, ends)], if_hit[np.searchsorted(above, ends)]
    change = np.flatnonzero((np.diff(low) != 0) | (np.diff(high) != 0))
    last = np.append(change, len(edges))
    return edges[change], low[last], high[last]


def with_a_hit(counts: Array, hits: Array) -> Vector:
    """Return for each score in order the isotonic rate of a new hit that is tied with it.

    The rate is a slope of the lower hull of the running sums of rows and hits. The new hit is a step (1, 1), which
    moves from before the first score to before the last: one point changes at a time, and the hull to its right is kept
    as a stack.
    """
    points = list(zip([-1, 0, *np.cumsum(counts).tolist()], [-1, 0, *np.cumsum(hits).tolist()], strict=True))
    stack: list[tuple[int, int]] = []
    for point in reversed(points):
        _push(stack, point)
    rates = []
    (x, y), sizes = points[0], zip(counts.tolist(), hits.tolist(), strict=True)
    for more, more_hits in sizes:
        (left, low), (right, high) = stack[-1], stack[-2]
        rates.append((high - low) / (right - left))
        x, y = x + more, y + more_hits
        if (y - low) * (right - left) < (high - low) * (x - left):
            stack.pop()
            _push(stack, (x, y))
    return np.array(rates)


def _push(stack: list[tuple[int, int]], point: tuple[int, int]) -> None:
    """Push a point onto the lower hull from the left, popping the points that it dominates."""
    x, y = point
    while len(stack) > 1 and (stack[-1][1] - y) * (stack[-2][0] - x) >= (stack[-2][1] - y) * (stack[-1][0] - x):
        stack.pop()
    stack.append(point)
