"""Isotonic regression."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression
from torch import Tensor

from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, subject
from calibrant.calibrators._solvers.tables import Table, ramp, stacked, supported
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

TILT = 0.01  # of the way to its neighbours that the ends of a strict block are moved


@CALIBRATORS.register(keeps_argmax=False, parameters="blocks")
class Isotonic(Calibrator):
    r"""Isotonic regression: of all increasing maps of a probability, the one with the least squared error.

    .. math:: f = \arg\min_{f \text{ increasing}} \sum_i (f(p_i) - a_i)^2

    Pool adjacent violators, tied rows pooled first, gives blocks of rows with one rate each. Between blocks f is linear
    in p, outside of all it is constant. A first block of n misses does not say 0, nor a last one of n hits 1, since a
    single new row would then have an infinite log loss: they say what n rows support, (2/k)/(n + 2) and
    (n + 1)/(n + 2), or what the block beside them says if that is further out. ``strict=True`` tilts each block by a
    hundredth of the way to its neighbours, so that rows keep their ranks, and AUROC its value, within the range of the
    rows.

    With two classes the probability of class 1 is mapped. With more, all n k pairs of row and class share one map
    (``lift="pooled"``: IRM), which keeps predictions; a map for each class (``"one_vs_rest"``: IROvA) needs many more
    rows: log loss 1.257 against 1.132 on CIFAR-100 with 5000. See `calibrant.calibrators._solvers.one_vs_rest.lifted`.

    With few rows it fits noise, in over-confident blocks; probabilities inside a block become equal.

    Reference: Zadrozny & Elkan, KDD 2002; one map for all classes: Zhang, Kailkhura & Han, ICML 2020.

    Example:
        >>> cal = Isotonic.fit(torch.tensor([-2.0, -1.0, 1.0, 2.0]), torch.tensor([0, 1, 0, 1]))
        >>> cal(torch.tensor([-3.0, -1.0, 0.0, 3.0])).sigmoid()  # one miss, one of two, one hit
        tensor([0.3333, 0.5000, 0.5000, 0.6667])
    """

    knots: Tensor
    rates: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, strict: bool = False, lift: Lift | None = None) -> "Isotonic":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="pooled")

        def solve(odds: Vector, hits: Array) -> Table:
            found = blocks(odds, hits).supported(problems.classes)
            tilt = TILT * strict * np.diff(found.rates, prepend=0.0, append=1.0)
            ends = found.rates - tilt[:-1], found.rates + tilt[1:]
            return np.stack([found.left, found.right], 1).ravel(), np.stack(ends, 1).ravel()

        tables = problems.solved(solve)
        knots, rates = stacked(tables)
        settings = {"lift": problems.lift, "strict": strict, "parameters": sum(len(v) // 2 for _, v in tables)}
        return cls.made(rows, {"knots": knots, "rates": rates}, settings, notes=problems.notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Interpolate between blocks."""
        return lifted(lambda odds: ramp(odds, self.knots, self.rates), logits, self.settings["lift"])

    def words(self) -> str:
        """Say how many blocks."""
        return f"{self.n_parameters} blocks for {subject(self)}"


@dataclass(frozen=True)
class Blocks:
    """Runs of pooled rows in order: their least and largest log odds, rate of hits and number of rows."""

    left: Vector
    right: Vector
    rates: Vector
    counts: Vector

    def supported(self, classes: int) -> "Blocks":
        """Return blocks without the rates 0 and 1; one that would then pass its neighbour is joined to it."""
        rates = supported(self.rates, self.counts, classes)
        rates[0], rates[-1] = rates.min(), rates.max()
        first = np.append(True, np.diff(rates) > 0)
        last = np.append(first[1:], True)
        return Blocks(self.left[first], self.right[last], rates[first], self.counts[first])


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
