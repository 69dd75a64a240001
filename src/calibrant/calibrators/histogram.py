"""Histogram binning."""

from typing import Any, get_args

import numpy as np
from torch import Tensor

from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, subject
from calibrant.calibrators._solvers.tables import Table, log_odds_of, stacked, step, supported
from calibrant.calibrators.calibrator import Calibrator
from calibrant.metrics.bins import EDGE, Scheme
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=False, parameters="M or MK")
class Histogram(Calibrator):
    r"""Histogram binning: a probability becomes the rate of hits among the rows of its bin.

    .. math:: p \in B_m \;\mapsto\; \frac{1}{|B_m|} \sum_{i \in B_m} a_i

    Bins are :math:`(lo, hi]`, and 0 is in the first. ``scheme="width"`` cuts [0, 1] into M bins of equal width;
    ``"mass"``, which the authors used, cuts the sorted rows into groups whose sizes differ by at most one, with edges
    at mid-points; tied rows share the lower bin, so there may be fewer than M. An empty bin says its mid-point. Where
    all n rows of a bin agree, its rate is not 0 or 1 but what n rows support, (2/k)/(n + 2) or (n + 1)/(n + 2): one new
    row would otherwise have an infinite log loss. So no rate is 0, and no row is empty before it is renormalised.

    With two classes the probability of class 1 is binned. With more, the confidence is, and predictions are kept
    (``lift="tempered"``): with many classes the bins of a single one (``"one_vs_rest"``) hold hardly a hit, and classes
    that share a rate tie, which costs up to 19 points of accuracy on CIFAR-100; ``"top_label"`` costs up to 3. See
    `calibrant.calibrators._solvers.one_vs_rest.lifted`.

    Rows of a bin become equal, so ranking within bins is lost, and with it log loss. Where most rows say nearly 1, bins
    of equal width leave them all in one: ``scheme="mass"`` then has the lower log loss (0.239, not 0.290, on CIFAR-10).

    Reference: Zadrozny & Elkan, ICML 2001; the confidence only: Gupta & Ramdas, ICLR 2022.

    Example:
        >>> cal = Histogram.fit(torch.tensor([-1.0, 1.0, 1.0, 1.0]), torch.tensor([1, 1, 1, 0]), bins=2)
        >>> cal(torch.tensor([-0.5, 2.0])).sigmoid()  # one row, a hit, supports 2/3; two of three are 2/3
        tensor([0.6667, 0.6667])
    """

    edges: Tensor
    odds: Tensor

    @classmethod
    def fit(
        cls, logits: Any, labels: Any = None, *, bins: int = 15, scheme: Scheme = "width", lift: Lift | None = None
    ) -> "Histogram":
        """Fit on held-out rows."""
        if bins < 1:
            raise ValueError(f"bins must be at least 1; got {bins}.")
        if scheme not in get_args(Scheme):
            raise ValueError(f"scheme must be 'width' or 'mass'; got {scheme!r}.")
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="tempered")

        def solve(odds: Vector, hits: Array) -> Table:
            edges = _EDGES[scheme](np.sort(odds), bins)
            rates, counts = frequencies(odds, hits, edges)
            return edges, log_odds_of(np.where(counts > 0, supported(rates, counts, problems.classes), rates))

        tables = problems.solved(solve)
        edges, odds = stacked(tables)
        parameters = sum(len(values) for _, values in tables)
        settings = {"lift": problems.lift, "bins": bins, "scheme": scheme, "parameters": parameters}
        return cls.made(rows, {"edges": edges, "odds": odds}, settings, notes=problems.notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Look up the bin."""
        return lifted(lambda odds: step(odds, self.edges, self.odds), logits, self.settings["lift"])

    def words(self) -> str:
        """Say how many bins."""
        return f"{self.settings['bins']} bins of equal {self.settings['scheme']} for {subject(self)}"


def frequencies(odds: Vector, hits: Array, edges: Vector) -> tuple[Vector, Vector]:
    """Return the rate of hits in each bin (lo, hi], and how many rows; an empty bin says its mid-point."""
    size = len(edges) + 1
    place = np.searchsorted(edges, odds, side="left")
    counts = np.bincount(place, minlength=size).astype(np.float64)
    total = np.bincount(place, hits, minlength=size)
    middle = (np.arange(size) + 0.5) / size  # only bins of equal width can be empty
    return np.where(counts > 0, total / np.maximum(counts, 1), middle), counts


def equal_width(ordered: Vector, bins: int) -> Vector:
    """Return the log odds of 1/M, 2/M, ...; a value that float32 stores a little above an edge is still on it."""
    return log_odds_of((np.arange(1, bins) + EDGE) / bins)


def equal_mass(ordered: Vector, bins: int) -> Vector:
    """Return the log odds of the mid-points between groups of equal size, strictly increasing.

    Rows tied across a border all belong to the lower group: the edge is above them, not on them, where rounding could
    send a new row with the same score to either side.
    """
    share, larger = divmod(len(ordered), bins)
    cuts = np.arange(1, bins) * share + np.minimum(np.arange(1, bins), larger)
    cuts = np.searchsorted(ordered, ordered[cuts[cuts > 0] - 1], side="right")
    cuts = np.unique(cuts[cuts < len(ordered)])
    left, right = ordered[cuts - 1], ordered[cuts]
    # log odds of (p + q) / 2 from those of p and q, to all digits: log(p + q) - log((1 - p) + (1 - q))
    mean = np.logaddexp(-np.logaddexp(0, -left), -np.logaddexp(0, -right))
    mean -= np.logaddexp(-np.logaddexp(0, left), -np.logaddexp(0, right))
    return np.where((left < mean) & (mean < right), mean, left)


_EDGES = {"width": equal_width, "mass": equal_mass}
