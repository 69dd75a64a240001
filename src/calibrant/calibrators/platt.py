"""Platt scaling."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._solvers.logistic import log_loss, logistic, platt_targets
from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems, Lift, lifted, subject
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=False, parameters="2 or 2K")
class Platt(Calibrator):
    r"""Platt scaling: logistic regression on the log odds of a probability.

    .. math:: p' = \sigma(A s + B), \quad s = \log\tfrac{p}{1-p}, \quad
              t_+ = \tfrac{n_+ + 1}{n_+ + 2},\; t_- = \tfrac{1}{n_- + 2}

    A and B minimise the log loss against Platt's targets t instead of 1 and 0, by damped Newton steps. The targets make
    the optimum finite where the score separates the classes: there the most that is claimed is about t. A may be
    negative, if the score points the wrong way.

    With two classes s is the difference of the logits; class 1 is mapped, and class 0 is its exact complement. With
    more, ``lift="one_vs_rest"`` is the method as it is commonly used: a line for each class, rows renormalised. With
    few rows a class (fifty, say) ``"pooled"`` and ``"tempered"`` have a lower log loss; see
    `calibrant.calibrators._solvers.one_vs_rest.lifted`.

    Two numbers cannot follow a curve that bends differently at 0 and 1, and a line for each class may change which one
    is the largest.

    Reference: Platt, Advances in Large Margin Classifiers, 1999; targets and Newton steps: Lin, Lin & Weng, Machine
    Learning 2007; one-vs-rest: Zadrozny & Elkan, KDD 2002.

    Example:
        >>> logits = torch.tensor([4.0, 4.0, 4.0, 4.0, -4.0, -4.0, -4.0, -4.0]).repeat(100)  # says 98 % and 2 %
        >>> cal = Platt.fit(logits, torch.tensor([1, 1, 1, 0, 0, 0, 0, 1]).repeat(100))  # is 75 % and 25 %
        >>> cal(torch.tensor([4.0, -4.0])).sigmoid()  # 3/4 t_+ + 1/4 t_- = (3 x 401 + 1) / 1608
        tensor([0.7488, 0.2512])
    """

    slope: Tensor
    intercept: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, lift: Lift | None = None) -> "Platt":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        problems = BinaryProblems.of(rows, lift, many="one_vs_rest")
        found = problems.solved(line)
        slope, intercept = torch.from_numpy(np.stack([at for at, _ in found], 1))
        return cls.made(
            rows,
            {"slope": slope, "intercept": intercept},
            {"lift": problems.lift, "parameters": 2 * len(found)},
            objective=found[0][1] if problems.direct else None,
            notes=problems.notes,
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Map log odds s to A s + B."""
        a, b = self.slope.to(logits.dtype), self.intercept.to(logits.dtype)
        return lifted(lambda odds: odds * a + b, logits, self.settings["lift"])

    def words(self) -> str:
        """Say the line, or of how many classes there is one."""
        if len(self.slope) > 1:
            return f"a line for {subject(self)}"
        return f"A = {float(self.slope):.4g}, B = {float(self.intercept):.4g} on the log odds of {subject(self)}"


def line(odds: Vector, hits: Array) -> tuple[Vector, Objective]:
    """Return A and B, and what was minimised."""
    targets = platt_targets(hits)
    at = logistic([odds], targets)
    after = log_loss(at[0] * odds + at[1], targets)
    return at, Objective("log loss at Platt's targets", log_loss(odds, targets), after)
