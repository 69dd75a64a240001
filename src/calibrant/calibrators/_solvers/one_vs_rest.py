r"""Lifting a map of one probability to k classes: one-vs-rest and its alternatives, and their binary problems.

Maps take *log odds* :math:`s = \log\frac{p}{1-p}` to log odds. In them a float32 score keeps its rank however sure the
model is (p itself rounds to 1 from s = 17 on), and the complement of a probability is a change of sign.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.calibrator import Calibrator, argmax_kept
from calibrant.predictions.facts import CHUNK, GPU_CHUNK
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector

Lift = Literal["one_vs_rest", "pooled", "top_label", "tempered"]
FAR = 1e30  # log odds are kept within this, so that their differences are finite in float32
TINY = 1e-30
STEPS = 3  # to the temperature of a row: more change no digit of the log loss, and c' is exact in any case
SHARED = 1_000_000  # pairs of row and class, at most, from which a class without rows borrows its map
Solution = TypeVar("Solution")
Curve = Callable[[Tensor], Tensor]  # (n, m) log odds to log odds


def lifted(curve: Curve, logits: Tensor, lift: Lift) -> Tensor:
    r"""Return log probabilities of (n, k) logits after a ``curve`` on log odds; ``lift`` says what it is applied to.

    - ``"one_vs_rest"``: a map for each class, then rows are renormalised. With two classes there is one map, that of
      class 1, and class 0 is the exact complement. A class without rows takes the map fitted on all classes together.
    - ``"pooled"``: one map for all classes, fitted on all n k pairs of row and class, then rows are renormalised.
      Predictions stay as they are, to the bit; where the map falls, the predicted class is raised to the largest.
    - ``"top_label"``: one map, of the confidence: c becomes c', and the other classes are multiplied by
      (1 - c') / (1 - c). Where c' falls below another class the prediction changes: an over-confident model that says
      0.99 and 0.01, and is right three times in ten, is read as preferring the second class. That costs accuracy.
    - ``"tempered"``: the same map, and the same c', but where c' < c the other classes are first softened by the
      temperature at which this row would have said c' itself. Predictions stay as they are, to the bit; for that, c'
      may not be less than 1/k.

    The last two change the confidence only: the order of the other classes stays the model's own.
    """

    def lift_part(part: Tensor) -> Tensor:
        return _LIFTS[lift](shifted(part), lambda odds: curve(odds).clamp(-FAR, FAR))

    return lift_part(logits) if torch.compiler.is_compiling() else by_parts(lift_part, logits)


def subject(calibrator: Calibrator) -> str:
    """Return what a lifted calibrator maps, in words."""
    lift, k = calibrator.settings["lift"], calibrator.fitted.k
    if lift == "one_vs_rest":
        return "the probability of class 1" if k == 2 else f"each of {k} classes"
    return "all classes together" if lift == "pooled" else "the confidence"


def shifted(logits: Tensor) -> Tensor:
    """Return logits with largest 0 in each row."""
    return (logits - logits.amax(1, keepdim=True)).clamp(min=-FAR)


def by_parts(function: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
    """Apply a function of rows to parts that stay in cache between its steps."""
    size = CHUNK if logits.device.type == "cpu" else GPU_CHUNK
    return torch.cat([function(part) for part in logits.split(max(1, size // logits.shape[1]))])


def top_log_odds(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the predicted class, its log odds, and the log of the sum of the others; each (n, 1)."""
    best, top = z.max(1, keepdim=True)
    others = z.scatter(1, top, -2 * FAR).logsumexp(1, keepdim=True)
    return top, best - others, others


def class_log_odds(z: Tensor) -> Tensor:
    """Return the (n, k) log odds of every class; the predicted one's from the sum of the others, not from 1 - p."""
    log_p = z.log_softmax(1)
    top, odds, _ = top_log_odds(z)
    rest = torch.log1p(-log_p.exp().clamp(max=0.75))  # only the predicted class can be above 0.5
    return (log_p - rest).clamp(min=-FAR).scatter(1, top, odds)


def mapped_odds(z: Tensor, lift: Lift) -> Tensor:
    """Return the (n, m) log odds that a lift maps: of the predicted class, of class 1 of two, or of every class."""
    if lift in ("top_label", "tempered"):
        return top_log_odds(z)[1]
    return z[:, 1:] - z[:, :1] if lift == "one_vs_rest" and z.shape[1] == 2 else class_log_odds(z)


def _one_vs_rest(z: Tensor, curve: Curve) -> Tensor:
    if z.shape[1] == 2:
        odds = curve(z[:, 1:] - z[:, :1])
        return logsigmoid(torch.cat([-odds, odds], 1))
    return logsigmoid(curve(class_log_odds(z))).log_softmax(1)


def _pooled(z: Tensor, curve: Curve) -> Tensor:
    return argmax_kept(z, logsigmoid(curve(class_log_odds(z))).log_softmax(1))


def _top_label(z: Tensor, curve: Curve) -> Tensor:
    top, odds, others = top_log_odds(z)
    new = curve(odds)
    return (z - others + logsigmoid(-new)).clamp(min=-FAR).scatter(1, top, logsigmoid(new))


def _tempered(z: Tensor, curve: Curve) -> Tensor:
    r"""Find the :math:`\beta` in [0, 1] at which the log odds of the row are those of c', and soften the others by it.

    .. math:: h(\beta) = -\log \sum_{j \ne top} e^{\beta z_j} = \log\frac{c'}{1-c'}

    h is concave, and lies below its tangent at 0 and below :math:`-\beta z_2`, with :math:`z_2 < 0` the second largest:
    so where these reach c' is left of the root, and Newton steps from there stay left of it. The others then are too
    soft if anything, and the second cannot overtake the first, however few the steps.
    """
    top, odds, _ = top_log_odds(z)
    least = -math.log(z.shape[1] - 1)
    new = curve(odds).clamp(min=least)
    want = torch.minimum(new, odds)
    second = z.scatter(1, top, -2 * FAR).amax(1, keepdim=True)
    behind = (z - second).scatter(1, top, -2 * FAR)
    mean = -z.sum(1, keepdim=True) / (z.shape[1] - 1)
    beta = torch.maximum((want - least) / mean.clamp(min=TINY), want / (-second).clamp(min=TINY)).clamp(1e-20, 1.0)
    for _ in range(STEPS):
        power = (beta * behind).exp()
        total = power.sum(1, keepdim=True)
        slope = -(second + (power * behind).sum(1, keepdim=True) / total)
        beta = (beta + (want + beta * second + total.log()) / slope.clamp(min=TINY)).clamp(1e-20, 1.0)
    softened = torch.where(new < odds, beta, torch.ones_like(beta)) * behind
    others = softened.logsumexp(1, keepdim=True)
    return argmax_kept(z, (softened - others + logsigmoid(-new)).clamp(min=-FAR).scatter(1, top, logsigmoid(new)))


_LIFTS: dict[str, Callable[[Tensor, Curve], Tensor]] = {
    "one_vs_rest": _one_vs_rest,
    "pooled": _pooled,
    "top_label": _top_label,
    "tempered": _tempered,
}


@dataclass(frozen=True)
class BinaryProblems:
    """The binary problems of a lift: log odds and hits of class 1, of each class, of all, or of the predicted class."""

    rows: FitData
    lift: Lift

    @classmethod
    def of(cls, rows: FitData, lift: Lift | None, *, many: Lift) -> "BinaryProblems":
        """Use the given lift, or the default one: class 1 for two classes, ``many`` for more."""
        return cls(rows, lift or ("one_vs_rest" if rows.k == 2 else many))

    @property
    def each(self) -> bool:
        """Whether there is a problem for each class."""
        return self.lift == "one_vs_rest" and self.rows.k > 2

    @property
    def direct(self) -> bool:
        """Whether the solution is the probability that comes out; otherwise rows are renormalised."""
        return not self.each and self.lift != "pooled"

    @property
    def classes(self) -> int:
        """The number of outcomes that share a row's probability."""
        return 2 if self.direct else self.rows.k

    @cached_property
    def absent(self) -> list[int]:
        """The classes that borrow their map."""
        return self.rows.absent if self.each else []

    def solved(self, solve: Callable[[Vector, Array], Solution]) -> list[Solution]:
        """Return the solution of the only problem, or one for each class in order."""
        found = [solve(odds, hits) for odds, hits in self]
        own = iter(found)
        return [found[-1] if one in self.absent else next(own) for one in range(self.rows.k if self.each else 1)]

    def __iter__(self) -> Iterator[tuple[Vector, Array]]:
        """Yield the log odds and hits of each problem; where a class is absent, last the one that it borrows."""
        odds, labels = self._odds(), self.rows.labels.numpy()
        if self.direct:
            yield odds.ravel(), labels == 1 if self.lift == "one_vs_rest" else self.rows.correct.numpy()
            return
        hits = labels[:, None] == np.arange(self.rows.k)
        for one in range(self.rows.k) if self.each else ():
            if one not in self.absent:
                yield odds[:, one].copy(), hits[:, one].copy()
        if self.absent or not self.each:
            some = slice(None, None, max(1, odds.size // SHARED) if self.each else None)
            yield odds[some].ravel(), hits[some].ravel()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on classes without rows, whose map is borrowed."""
        if self.lift == "one_vs_rest" and not self.each and self.rows.absent:
            return (f"every row belongs to class {1 - self.rows.absent[0]}: the map knows nothing of the other.",)
        if not self.absent:
            return ()
        named = ", ".join(map(str, self.absent[:5])) + (", ..." if len(self.absent) > 5 else "")
        return (f"no row belongs to {len(self.absent)} of the classes ({named}): their map is that of all classes.",)

    def _odds(self) -> Vector:
        given = self.rows.given
        odds = by_parts(lambda part: mapped_odds(shifted(part.detach().double().cpu()), self.lift), given)
        # sums of the same numbers in another order differ in the last digit; such rows must tie
        return odds.round(decimals=12).numpy()
