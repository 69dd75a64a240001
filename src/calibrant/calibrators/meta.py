"""Meta-calibration (Meta-Cal): reject uncertain rows, under a miscoverage or an accuracy constraint."""

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Correct, PerSample, Vector, float64
from calibrant.records import percent
from calibrant.registry import CALIBRATORS

MOST = 500  # rows that a threshold rests on
BINS = 20  # of entropy
ON = 1e-5  # an entropy so little below the threshold (a share of it) is on it: rounding must not decide

Made = TypeVar("Made", bound="Rejecting")


@dataclass(frozen=True)
class Coverage:
    """``accepted`` is the share of rows accepted and ``accuracy`` theirs (NaN if none is).

    ``original`` is the accuracy of all rows by the model's own predictions, ``argmax`` that by the argmax of what the
    calibrator returns, where a rejected row, uniform as it is, counts as class 0.
    """

    accepted: float
    accuracy: float
    original: float
    argmax: float


class Rejecting(Calibrator):
    """Temperature scaling of the rows whose entropy is below ``threshold``; the others are rejected, as uniform."""

    threshold: Tensor
    temperature: Tensor
    infinite = ("threshold",)  # where no row is rejected

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide accepted rows by T; the logits of a rejected row are all 0."""
        kept = _entropy(logits) < self._limit(logits)
        return torch.where(kept[:, None], logits / self.temperature.to(logits.dtype), 0)

    def _limit(self, like: Tensor) -> Tensor:
        return self.threshold.to(like.dtype) * (1 - ON)

    def accepted(self, logits: Tensor) -> Tensor:
        """Return which rows are accepted: those whose entropy is below the threshold."""
        z = self._read(logits, None)
        return _entropy(z) < self._limit(z)

    def coverage(self, logits: Any, labels: Any) -> Coverage:
        """Return how many rows are accepted, and the accuracy of those, of all, and of all by argmax."""
        rows = FitData.read(logits, labels)
        kept, right = self.accepted(rows.given).cpu(), rows.correct.double()
        argmax = self.calibrate(rows.predictions).correct.double()
        return Coverage(
            float(kept.double().mean()), float(right[kept].mean()), float(right.mean()), float(argmax.mean())
        )

    @property
    def n_parameters(self) -> int:
        """Two: the threshold and the temperature."""
        return 2

    def words(self) -> str:
        """Say the threshold, and the temperature below it."""
        said = f"T = {float(self.temperature):.4g} where the entropy is below {float(self.threshold):.4g}"
        return f"{said}, uniform elsewhere ({percent(self.settings['rejected'], 1)} of the rows fitted on)"

    @classmethod
    def with_threshold(
        cls: "type[Made]", rows: FitData, threshold: float, used: Tensor, settings: dict[str, Any], notes: list[str]
    ) -> Made:
        """Fit T on the accepted rows that did not determine the threshold."""
        kept = rows.facts.entropy < threshold * (1 - ON)
        free = kept.clone()
        free[used] = False
        before = after = 0.0
        beta = 1.0
        part = FitData(rows.predictions.take(free)) if bool(free.any()) else None
        if part is None:
            notes.append("No accepted row is left to fit T on, so T = 1.")
        else:
            before, (beta, after) = float(part.predictions.nll.mean()), _temperature(part, notes)
        return cls.made(
            rows,
            {
                "threshold": torch.tensor(threshold, dtype=torch.float64),
                "temperature": torch.tensor(1 / beta, dtype=torch.float64),
            },
            {**settings, "rejected": float((~kept).double().mean())},
            objective=Objective("log loss of the accepted rows", before, min(after, before)),
            notes=tuple(notes),
        )


@CALIBRATORS.register(keeps_argmax=False, parameters="2")
class MetaMis(Rejecting):
    r"""Meta-calibration under a miscoverage constraint: reject the most uncertain rows, but few that are correct.

    .. math:: z \mapsto z / T \;\text{ if }\; H(\mathrm{softmax}(z)) < \eta, \quad 0 \;\text{ otherwise}

    :math:`\eta` is the :math:`1 - \alpha` quantile (the higher of two neighbours) of the entropies of
    :math:`n_1 = \min(500, \lfloor n_{right} / 10 \rfloor)` right rows drawn at random, one at least; if others of them
    tie with it, the next larger entropy. T is that of least log loss on the accepted rows among those not drawn; where
    they are all right, T = 1.

    Right rows to come that are like those drawn are rejected with probability
    :math:`(n_1 - \lceil (n_1 - 1)(1 - \alpha) \rceil) / (n_1 + 1)`, on average over the draws; that is within
    :math:`1 / (n_1 + 1)` of :math:`\alpha`, and noted where it is a fifth more. Nothing is promised of wrong rows.

    A rejected row is uniform, so its argmax is arbitrary, and the log loss of all rows may rise: the fit is judged on
    the accepted rows. ``accepted`` tells which they are; ``coverage`` also counts rejected rows by the model's own
    prediction.

    Reference: Ma & Blaschko, "Meta-Cal: well-controlled post-hoc calibration by ranking", ICML 2021.

    Example:
        >>> logits = torch.stack([torch.linspace(0.1, 4, 400), torch.zeros(400)], 1)
        >>> labels = (torch.arange(400) % 10 < torch.linspace(4, 1, 400)).long()
        >>> cal = MetaMis.fit(logits, labels, alpha=0.2)
        >>> cal(torch.tensor([[0.1, 0.0], [4.0, 0.0]]))[0], cal.accepted(torch.tensor([[0.1, 0.0], [4.0, 0.0]]))
        (tensor([0., 0.]), tensor([False,  True]))
    """

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, alpha: float = 0.05, seed: int = 0) -> "MetaMis":
        """Fit on held-out rows."""
        if not 0 < alpha < 1:
            raise ValueError(f"alpha must be a share between 0 and 1; got {alpha}.")
        rows = FitData.read(logits, labels)
        right = rows.correct.nonzero().squeeze(1)
        if len(right) == 0:
            notes = ["No row is right, so none is rejected."]
            return cls.with_threshold(rows, math.inf, right, {"alpha": alpha, "seed": seed}, notes)
        n1 = max(1, min(MOST, len(right) // 10))
        used = _drawn(right, n1, seed)
        threshold, expected = _upper(float64(rows.facts.entropy[used]), alpha)
        told = (
            f"The threshold rests on {n1} right rows: expect {percent(expected, 1)} of the right rows to be rejected."
        )
        return cls.with_threshold(
            rows, threshold, used, {"alpha": alpha, "seed": seed}, [told] if expected > 1.2 * alpha else []
        )


@CALIBRATORS.register(keeps_argmax=False, parameters="2")
class MetaAcc(Rejecting):
    r"""Meta-calibration under an accuracy constraint: reject uncertain rows until the others reach a given accuracy.

    .. math:: z \mapsto z / T \;\text{ if }\; H(\mathrm{softmax}(z)) < \eta, \quad 0 \;\text{ otherwise}

    On :math:`n_1 = \min(500, \lfloor n / 10 \rfloor)` rows drawn at random (one at least), 20 equal-mass bins of
    entropy (:math:`(lo, hi]`, the first closed; fewer if there are fewer rows; an empty one is left out) give the
    accuracy of the surest bins, averaged over 1, 2, ... of them, and the mean entropy of the last. The decreasing
    isotonic curve from that accuracy to that entropy is read at ``accuracy``, by straight lines between its points:
    that is :math:`\eta`. T is found as in `MetaMis`. ``accuracy=None`` aims halfway between the ends of the curve; an
    accuracy beyond them is refused; if the curve is one point, no row is rejected. Published: 0.97 on CIFAR-10, 0.87 on
    CIFAR-100, 0.85 on ImageNet.

    Accepted rows to come are right about as often as asked, with no promise: the curve rests on 25 rows a bin at most.
    The authors leave the smallest entropy out of the first bin.

    Reference: Ma & Blaschko, "Meta-Cal: well-controlled post-hoc calibration by ranking", ICML 2021.

    Example:
        >>> logits = torch.stack([torch.linspace(0.1, 4, 4000), torch.zeros(4000)], 1)
        >>> labels = (torch.arange(4000) % 10 < torch.linspace(4, 1, 4000)).long()
        >>> cal = MetaAcc.fit(logits, labels, accuracy=0.8)
        >>> cal.coverage(logits, labels).accuracy > 0.75
        True
    """

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, accuracy: float | None = None, seed: int = 0) -> "MetaAcc":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        n1 = max(1, min(MOST, rows.n // 10))
        used = _drawn(torch.arange(rows.n), n1, seed)
        reached, entropy = _curve(rows.facts.entropy[used], rows.correct[used])
        aim = float(reached[0] + reached[-1]) / 2 if accuracy is None else accuracy
        if not reached[0] <= aim <= reached[-1]:
            raise ValueError(
                f"accuracy must be between {reached[0]:.4g} (no row rejected) and {reached[-1]:.4g} (most rejected); "
                f"got {accuracy}. Aim within."
            )
        threshold = float(np.interp(aim, reached, entropy)) if len(reached) > 1 else math.inf
        told = [f"The threshold rests on {n1} row{'s' * (n1 > 1)}, less than one a bin."] if n1 < BINS else []
        return cls.with_threshold(rows, threshold, used, {"accuracy": aim, "seed": seed}, told)


def _drawn(rows: Tensor, count: int, seed: int) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:count]]


def _upper(entropy: Vector, alpha: float) -> tuple[float, float]:
    """Return the threshold, and the share of right rows to come that reach it."""
    ordered, n = np.sort(entropy), len(entropy)
    place = math.ceil((n - 1) * (1 - alpha) - 1e-9)
    found = ordered[place]
    if place and ordered[place - 1] >= found * (1 - ON):  # rows that tie must not all be rejected for one
        above = ordered[ordered > found * (1 + ON)]
        found = above[0] if len(above) else math.inf
    return float(found), (n - place) / (n + 1)


def _curve(entropy: PerSample, correct: Correct, bins: int = BINS) -> tuple[Vector, Vector]:
    """Return accuracies in ascending order, and the entropy below which rows are right so often."""
    h, right = float64(entropy), float64(correct)
    edges = np.quantile(h, np.linspace(0, 1, min(bins, len(h)) + 1))
    bin_of = np.clip(np.searchsorted(edges, h, side="left") - 1, 0, len(edges) - 2)
    rows = np.bincount(bin_of, minlength=len(edges) - 1)
    full = rows > 0
    accuracy, mean = (np.bincount(bin_of, v, len(rows))[full] / rows[full] for v in (right, h))
    reached = np.round(np.cumsum(accuracy) / np.arange(1, len(accuracy) + 1), 12)
    points, place, size = np.unique(reached, return_inverse=True, return_counts=True)
    heights = np.bincount(place, mean) / size
    return points, _decreasing(heights, size.astype(np.float64))


def _decreasing(heights: Vector, weights: Vector) -> Vector:
    """The decreasing isotonic regression of a few points, by its min-max formula."""
    total, mass = np.append(0, np.cumsum(heights * weights)), np.append(0, np.cumsum(weights))
    n = len(heights)
    best = [
        min(
            max((total[high] - total[low]) / (mass[high] - mass[low]) for high in range(i + 1, n + 1))
            for low in range(i + 1)
        )
        for i in range(n)
    ]
    return np.array(best)


def _entropy(z: Tensor) -> Tensor:
    """Entropy of each row, in nats; not `scores.entropy`, whose last digits differ from those of saved thresholds."""
    d = (z - z.amax(1, keepdim=True)).clamp(min=-1e30)
    weights = d.exp()
    total = weights.sum(1)
    return total.log() - (weights * d).sum(1) / total


def _temperature(part: FitData, notes: list[str]) -> tuple[float, float]:
    """Return 1/T and the log loss there; T = 1 where the best T is 0."""
    found = least_log_loss(part)
    if not found.bound or found.beta <= 1:
        return found.beta, found.loss
    notes.append(f"T = 1: among accepted rows {found.bound}.")
    return 1.0, float(part.predictions.nll.mean())
