"""Spline calibration."""

from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.special import expit
from torch import Tensor

from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, subject
from calibrant.calibrators._solvers.tables import Table, ramp, stacked, supported
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

POINTS = 1023  # of the curve that are kept, at most
FITTED = 100_000  # points of the cumulative gap that the spline is fitted to, at most


@CALIBRATORS.register(keeps_argmax=False, parameters="knots or knots x K")
class Spline(Calibrator):
    r"""Spline calibration: add to a probability the slope of the smoothed cumulative gap between hits and probability.

    .. math:: d_i = \frac1n \sum_{j \le i} (a_j - p_j), \quad t_i = \frac{i - 1}{n - 1}, \qquad p'_i = p_i + S'(t_i)

    Rows are sorted by p; S is the natural cubic spline with ``knots`` equally spaced knots on [0, 1] that is nearest to
    :math:`(t_i, d_i)` in least squares. A new p is interpolated linearly between the fitted ones, and constant outside.
    Tied rows count with their mean hits and get the mean slope over their stretch, so the order of rows cannot matter.
    With fewer rows than knots there are as many knots as rows. p' is kept to what n rows support, between (2/k)/(n + 2)
    and (n + 1)/(n + 2), where the paper allows 0 and 1. At most 1023 points of the curve are kept, evenly by rank.

    With two classes the probability of class 1 is mapped. With more, the confidence is, and predictions are kept
    (``lift="tempered"``); the paper maps the score alone, and says nothing of the other classes. A map for each class
    (``"one_vs_rest"``) is poor with many classes, most of whose probabilities are all but 0. See
    `calibrant.calibrators._solvers.one_vs_rest.lifted`.

    The map need not increase, and where rows are few at the ends, its slope there is a guess.

    Reference: Gupta, Rahimi, Ajanthan, Mensink, Sminchisescu & Hartley, ICLR 2021 (whose released interpolation swaps
    its two weights; this one does not).

    Example:
        >>> z = torch.tensor([-2.0, -1.0, 1.0, 2.0]).repeat(25)
        >>> cal = Spline.fit(z, torch.tensor([0, 1, 0, 1]).repeat(25), knots=2)
        >>> cal(torch.tensor([-2.0, 2.0])).sigmoid()  # two knots: a line, so every probability moves as much
        tensor([0.1192, 0.8808])
    """

    points: Tensor
    rates: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, knots: int = 6, lift: Lift | None = None) -> "Spline":
        """Fit on held-out rows."""
        if knots < 2:
            raise ValueError(f"knots must be at least 2; got {knots}.")
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="tempered")

        def solve(odds: Vector, hits: Array) -> Table:
            at, rates = recalibrated(odds, hits, knots)
            return at, supported(rates, np.full(len(at), float(len(odds))), problems.classes)

        tables = problems.solved(solve)
        points, rates = stacked(tables)
        settings = {"lift": problems.lift, "knots": knots, "parameters": min(knots, rows.n) * len(tables)}
        return cls.made(rows, {"points": points, "rates": rates}, settings, notes=problems.notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Interpolate between the points."""
        return lifted(lambda odds: ramp(odds, self.points, self.rates), logits, self.settings["lift"])

    def words(self) -> str:
        """Say how many knots."""
        return f"a cubic spline with {self.settings['knots']} knots for {subject(self)}"


def recalibrated(odds: Vector, hits: Array, knots: int) -> tuple[Vector, Vector]:
    """Return distinct log odds in order, thinned out if there are many, and p' at each."""
    at, place, counts = np.unique(odds, return_inverse=True, return_counts=True)
    gap = np.bincount(place, hits) / counts - expit(at)
    last = np.cumsum(counts) - 1
    some = _evenly(len(at), POINTS)
    if len(odds) == 1:
        return at, expit(at) + gap
    spline = nearest_spline(np.cumsum(np.repeat(gap, counts)) / len(odds), knots)
    start, stop = (last - counts + 1)[some] / (len(odds) - 1), last[some] / (len(odds) - 1)
    chord = (spline(stop) - spline(start)) / np.maximum(stop - start, 1 / len(odds))
    return at[some], expit(at[some]) + np.where(counts[some] > 1, chord, spline(start, 1))


def nearest_spline(gaps: Vector, knots: int) -> CubicSpline:
    """Return the natural cubic spline nearest to values at equally spaced places from 0 to 1."""
    some = _evenly(len(gaps), FITTED)
    places = np.linspace(0, 1, min(knots, len(gaps)))
    cardinal = CubicSpline(places, np.eye(len(places)), bc_type="natural")
    values = np.linalg.lstsq(cardinal(some / (len(gaps) - 1)), gaps[some])[0]
    return CubicSpline(places, values, bc_type="natural")


def _evenly(n: int, most: int) -> Array:
    return np.linspace(0, n - 1, min(n, most)).round().astype(np.intp)
