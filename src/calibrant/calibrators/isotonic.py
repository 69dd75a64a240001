"""The best increasing map."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from torch import Tensor

from calibrant.calibrators.lifting import Lift, Lifted
from calibrant.calibrators.problems import Problems
from calibrant.calibrators.rows import Rows
from calibrant.calibrators.tables import Table, ramp, stacked
from calibrant.nouns import Array, Vector
from calibrant.registry import CALIBRATORS

TILT = 0.01  # of the way to its neighbours that the ends of a strict block are moved


@CALIBRATORS.register(keeps_argmax=False, parameters="blocks")
class Isotonic(Lifted):
    r"""Isotonic regression: of all increasing maps of a probability, the one with the least squared error.

    .. math:: f = \arg\min_{f \text{ increasing}} \sum_i (f(p_i) - a_i)^2

    Pool adjacent violators, tied rows pooled first, gives blocks of rows with one rate each. Between blocks f is linear
    in p, outside of all it is constant. A first block of n misses does not say 0, nor a last one of n hits 1, since a
    single new row would then have an infinite log loss: they say 2q/(n + 2) and (n + 2q)/(n + 2), as if two more rows
    had come in with the rate q of the next block, or that of chance (1/k and 1/2) where it is nearer to 0 or to a half.
    ``strict=True`` tilts each block by a hundredth of the way to its neighbours, so that rows keep their ranks, and
    AUROC its value, within the range of the rows.

    With two classes the probability of class 1 is mapped. With more, all n k pairs of row and class share one map
    (``lift="pooled"``: IRM), which keeps predictions; a map for each class (``"one_vs_rest"``: IROvA) needs many more
    rows: log loss 1.257 against 1.132 on CIFAR-100 with 5000. See `calibrant.calibrators.lifting.Lifted`.

    With few rows it fits noise, in blocks that say more than they know; probabilities inside a block become equal.

    Reference: Zadrozny & Elkan, KDD 2002; one map for all classes: Zhang, Kailkhura & Han, ICML 2020.

    Example:
        >>> cal = Isotonic.fit(torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0, 1, 0, 1]))
        >>> cal(torch.tensor([-3.0, -1.0, 0.0, 3.0])).sigmoid()  # one miss, one of two, one hit
        tensor([0.3333, 0.5000, 0.5000, 0.6667])
    """

    knots: Tensor
    rates: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any, *, strict: bool = False, lift: Lift | None = None) -> "Isotonic":
        """Fit on held-out rows."""
        rows = Rows.read(logits, labels)
        problems = Problems.of(rows, lift, many="pooled")

        def solve(odds: Vector, hits: Array) -> Table:
            found = blocks(odds, hits)
            rates = found.supported(problems.classes)
            around = np.concatenate([[0.0], rates, [1.0]])
            tilt = TILT * strict * np.diff(around)
            ends = np.stack([rates - tilt[:-1], rates + tilt[1:]], 1).ravel()
            return np.stack([found.left, found.right], 1).ravel(), ends

        tables = problems.solved(solve)
        knots, rates = stacked(tables)
        settings = {"lift": problems.lift, "strict": strict, "parameters": sum(len(v) // 2 for _, v in tables)}
        return cls.made(rows, {"knots": knots, "rates": rates}, settings, notes=problems.notes)

    def curve(self, odds: Tensor) -> Tensor:
        """Interpolate between blocks."""
        return ramp(odds, self.knots, self.rates)

    def words(self) -> str:
        """Say how many blocks."""
        return f"{self.n_parameters} blocks for {self.subject}"


@dataclass(frozen=True)
class Blocks:
    """Runs of pooled rows in order: their least and largest log odds, rate of hits and number of rows."""

    left: Vector
    right: Vector
    rates: Vector
    counts: Vector

    def supported(self, classes: int) -> Vector:
        """Return rates without 0 and 1: a pure block is drawn to its neighbour, or to chance, as if by two rows."""
        rates, (first, last) = self.rates.copy(), self.counts[[0, -1]]
        if self.rates[0] == 0:
            rates[0] = 2 * min([1 / classes, *self.rates[1:2]]) / (first + 2)
        if self.rates[-1] == 1:
            rates[-1] = (last + 2 * max([0.5, *self.rates[-2:-1]])) / (last + 2)
        return rates


def blocks(odds: Vector, hits: Array) -> Blocks:
    """Pool adjacent violators.

    Only a hit can begin a block, for a miss would lower the rate before it: so rows are first grouped from each score
    with a hit to the next, and there are no more groups than hits.
    """
    ordered = np.sort(odds)
    starts, many = np.unique(odds[hits], return_counts=True)
    first = np.searchsorted(ordered, starts)
    if len(first) == 0 or first[0] > 0:
        first, many = np.append(0, first), np.append(0, many)
    counts = np.diff(np.append(first, len(ordered)))
    pooled = isotonic_regression(many / counts, weights=counts).blocks
    begin, total = first[pooled[:-1]], np.add.reduceat(many, pooled[:-1])
    end = np.append(begin[1:], len(ordered))
    return Blocks(ordered[begin], ordered[end - 1], total / (end - begin), (end - begin).astype(np.float64))
