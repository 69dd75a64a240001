"""Matrix scaling."""

from typing import Any

from torch import Tensor

from calibrant.calibrators._solvers.affine import ITERATIONS, applied, unpenalised
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.records import count
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=False, parameters="K^2 + K")
class Matrix(Calibrator):
    r"""Matrix scaling: a linear layer on the logits.

    .. math:: z \mapsto W z + b, \qquad
       (W, b) = \arg\min\; \frac1n \sum_i -\log \mathrm{softmax}(W z_i + b)_{y_i}

    No ridge, as published. With more numbers than rows it separates the rows it is fitted on and is far worse than no
    calibration elsewhere; the fit then ends after ``iterations`` with ``converged`` False and a note. It is here to be
    compared with: use `StructuredMatrix` or `Dirichlet`, which regularise the matrix. L-BFGS starts from temperature
    scaling, W = I/T and b = 0; a class without rows keeps that start. The map acts on the logits as the model gives
    them, and a number added to all logits of a row has an effect. An iteration takes O(n K^2).

    Reference: Guo, Pleiss, Sun & Weinberger, ICML 2017; Kull et al., NeurIPS 2019, on how it overfits.

    Example:
        >>> logits = 2 * torch.eye(3).repeat(40, 1)
        >>> labels = torch.tensor([0, 2, 1] * 30 + [0, 1, 2] * 10)  # classes 1 and 2 are mostly swapped
        >>> Matrix.fit(logits, labels)(logits).argmax(1)[:3]
        tensor([0, 2, 1])
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, iterations: int = ITERATIONS) -> "Matrix":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        found = unpenalised(rows, full=True, iterations=iterations)
        return cls.made(rows, found.state, found.settings, converged=found.converged, notes=found.notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Multiply each row by W and add b."""
        return applied(logits, self.weight, self.bias)

    def words(self) -> str:
        """Say how many numbers there were for how many rows."""
        return f"{count(self.n_parameters)} numbers around T = {self.settings['temperature']:.4g}"
