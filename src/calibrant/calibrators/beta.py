"""Beta calibration."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators._solvers.logistic import log_loss, logistic, platt_targets
from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, subject
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=False, parameters="3 or 3K")
class Beta(Calibrator):
    r"""Beta calibration: logistic regression on the logarithms of a probability and of its complement.

    .. math:: p' = \sigma\bigl(a \ln p - b \ln(1 - p) + c\bigr), \quad a, b \ge 0

    a = b = 1, c = 0 changes nothing; a = b is Platt scaling. As in the paper, a coefficient that comes out negative is
    dropped, and the others are fitted again, so that the map increases. Unlike there, the targets are Platt's (see
    `calibrant.calibrators.platt.Platt`) instead of 1 and 0: without them there is no optimum where the score separates
    the classes. And p is not clipped: both logarithms are computed from the log odds, where they are finite.

    With two classes the probability of class 1 is mapped, and class 0 is its exact complement. With more,
    ``lift="one_vs_rest"`` is the paper's: a curve for each class, rows renormalised; see
    `calibrant.calibrators._solvers.one_vs_rest.lifted` for the others.

    Three numbers a class are too many for a class with few rows, and a curve for each class may change which one is the
    largest.

    Reference: Kull, Silva Filho & Flach, AISTATS 2017.

    Example:
        >>> logits = torch.tensor([-2.0, 0.0, 2.0]).repeat_interleave(100)  # says 12 %, 50 %, 88 %
        >>> labels = torch.cat([torch.arange(100) < hits for hits in (10, 50, 80)]).long()  # is 10 %, 50 %, 80 %
        >>> Beta.fit(logits, labels)(torch.tensor([-2.0, 0.0, 2.0])).sigmoid()
        tensor([0.1049, 0.4996, 0.7956])
    """

    a: Tensor
    b: Tensor
    c: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, lift: Lift | None = None) -> "Beta":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="one_vs_rest")
        found = problems.solved(coefficients)
        a, b, c = torch.from_numpy(np.stack([at for at, _ in found], 1))
        return cls.made(
            rows,
            {"a": a, "b": b, "c": c},
            {"lift": problems.lift, "parameters": 3 * len(found)},
            objective=found[0][1] if problems.direct else None,
            notes=problems.notes,
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Map log odds to a ln p - b ln(1 - p) + c."""
        a, b, c = (value.to(logits.dtype) for value in (self.a, self.b, self.c))
        return lifted(lambda s: a * logsigmoid(s) - b * logsigmoid(-s) + c, logits, self.settings["lift"])

    def words(self) -> str:
        """Say the three numbers, or of how many classes there are three."""
        if len(self.a) > 1:
            return f"a curve for {subject(self)}"
        return f"a = {float(self.a):.4g}, b = {float(self.b):.4g}, c = {float(self.c):.4g} for {subject(self)}"


def coefficients(odds: Vector, hits: Array) -> tuple[Vector, Objective]:
    """Return a, b and c, and what was minimised."""
    features, targets = [-np.logaddexp(0, -odds), np.logaddexp(0, odds)], platt_targets(hits)
    kept, at = [0, 1], logistic(features, targets)
    while (at[:-1] < 0).any():
        kept.pop(int(at[:-1].argmin()))
        at = logistic([features[i] for i in kept], targets)
    whole = np.zeros(3)
    whole[[*kept, 2]] = at
    after = log_loss(whole[0] * features[0] + whole[1] * features[1] + whole[2], targets)
    return whole, Objective("log loss at Platt's targets", log_loss(odds, targets), after)
