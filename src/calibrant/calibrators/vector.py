"""Vector scaling."""

from typing import Any

from torch import Tensor

from calibrant.calibrators._solvers.affine import ITERATIONS, applied, unpenalised
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=False, parameters="2K")
class Vector(Calibrator):
    r"""Vector scaling: multiply the logit of each class by its own number and add its own number.

    .. math:: z \mapsto w \circ z + b, \qquad
       (w, b) = \arg\min\; \frac1n \sum_i -\log \mathrm{softmax}(w \circ z_i + b)_{y_i}

    No ridge, as published. The objective is convex; L-BFGS starts from temperature scaling, w = 1/T and b = 0. A class
    without rows keeps that start, the others being compared among themselves. A weight may turn negative. The map acts
    on the logits as the model gives them: a number added to all logits of a row changes no probability before, but does
    after.

    With few rows a class its 2K numbers fit noise and lose to temperature scaling: see `StructuredVector`.

    Reference: Guo, Pleiss, Sun & Weinberger, ICML 2017.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).repeat(10, 1)
        >>> labels = torch.tensor([0] * 8 + [1] * 12)  # 0 and 1 by turns would be right
        >>> Vector.fit(logits, labels)(logits).softmax(1).mean(0)  # each class as often as it came
        tensor([0.4000, 0.6000])
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, iterations: int = ITERATIONS) -> "Vector":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        found = unpenalised(rows, full=False, iterations=iterations)
        return cls.made(rows, found.state, found.settings, converged=found.converged, notes=found.notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Scale and shift each column."""
        return applied(logits, self.weight, self.bias)

    def words(self) -> str:
        """Say how far the classes are from one temperature."""
        ratio = self.weight * self.settings["temperature"]
        low, high = float(ratio.min()), float(ratio.max())
        return f"scales {low:.3g} to {high:.3g} times 1/T, T = {self.settings['temperature']:.4g}"
