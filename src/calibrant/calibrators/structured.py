"""Structured vector and matrix scaling: regularised towards temperature scaling."""

import math
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from calibrant.calibrators._solvers.affine import ITERATIONS, Regression, Ridge, applied, remarks
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS

Made = TypeVar("Made", bound="Structured")


class Structured(Calibrator):
    """Shared by both: an affine map of log p, after temperature scaling and mixing with the uniform distribution."""

    full: ClassVar[bool]
    weight: Tensor
    bias: Tensor
    temperature: Tensor

    @classmethod
    def _fit(cls: "type[Made]", logits: Any, labels: Any, strength: float) -> Made:
        if not 0 < strength < math.inf:
            raise ValueError(
                f"strength must be positive and finite; got {strength}. Use vector or matrix for no ridge."
            )
        rows = FitData.read(logits, labels)
        shared, mix, k = least_log_loss(rows), 1 / (rows.n + 1), rows.k
        temperature = torch.tensor(1 / shared.beta, dtype=torch.float64)
        x = mixed(rows.logits, temperature, mix)
        unit = strength * k / rows.n
        ridge = Ridge(diagonal=unit, other=(k - 1) * unit, bias=unit)
        found = Regression(x, x, rows.labels, full=cls.full, ridge=ridge).solved()
        weight = found.weight + (torch.eye(k, dtype=x.dtype) if cls.full else 1.0)
        return cls.made(
            rows,
            {"weight": weight, "bias": found.bias, "temperature": temperature},
            {"strength": strength, "mix": mix},
            converged=found.converged and not shared.bound,
            notes=remarks(rows, shared, converged=found.converged, iterations=ITERATIONS),
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide by T, mix with the uniform, and apply the affine map to the logarithm."""
        return applied(mixed(logits, self.temperature, self.settings["mix"]), self.weight, self.bias)

    def words(self) -> str:
        """Say T, and how far the diagonal of the map is from 1."""
        scale = self.weight if self.weight.ndim == 1 else self.weight.diagonal()
        low, high = float(scale.min()), float(scale.max())
        return f"T = {float(self.temperature):.4g}, then scales {low:.3g} to {high:.3g} a class"


def mixed(logits: Tensor, temperature: Tensor, mix: float) -> Tensor:
    """Return the log of (1 - mix) softmax(z / T) + mix / K."""
    shifted = logits - logits.amax(1, keepdim=True)
    p = (shifted / temperature.to(logits.dtype)).softmax(1)
    return ((1 - mix) * p + mix / logits.shape[1]).log()


@CALIBRATORS.register(keeps_argmax=False, parameters="2K + 1")
class StructuredVector(Structured):
    r"""Structured vector scaling (SVS): temperature scaling, then a regularised scale and shift for each class.

    .. math:: x = \log\bigl((1 - \varepsilon)\,\mathrm{softmax}(z / T) + \varepsilon / K\bigr), \qquad
       z \mapsto x + v \circ x + b

    T is that of `Temperature`; :math:`\varepsilon = 1/(n + 1)` keeps the log loss finite when every row is right. Then
    v and b minimise the mean log loss plus :math:`s\,(K/n)\,(\lVert v \rVert^2 + \lVert b \rVert^2)`, s = ``strength``:
    a class that few rows speak of nearly keeps the shared correction, and one without rows keeps it exactly. The
    objective is convex. An iteration takes O(n K) and there are some ten: a sound default for many classes.

    It does not keep the argmax, and where the shared correction is all there is to find, it adds a little noise.

    Reference: Berta, Holzmüller, Jordan & Bach, AISTATS 2026.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]]).repeat(50, 1)
        >>> labels = torch.tensor([0, 1] * 30 + [1] * 40)  # class 1 comes more often than it is predicted
        >>> StructuredVector.fit(logits, labels)(logits).softmax(1).mean(0)
        tensor([0.3159, 0.6841])
    """

    full = False

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, strength: float = 1.0) -> "StructuredVector":
        """Fit on held-out rows."""
        return cls._fit(logits, labels, strength)


@CALIBRATORS.register(keeps_argmax=False, parameters="K^2 + K + 1")
class StructuredMatrix(Structured):
    r"""Structured matrix scaling (SMS): temperature scaling, then a linear layer regularised towards the identity.

    .. math:: x = \log\bigl((1 - \varepsilon)\,\mathrm{softmax}(z / T) + \varepsilon / K\bigr), \qquad
       z \mapsto x + \mathrm{diag}(v)\,x + M x + b, \quad M_{kk} = 0

    T and :math:`\varepsilon` as in `StructuredVector`. Then v, b and M minimise the mean log loss plus
    :math:`s\,\bigl[(K/n)(\lVert v \rVert^2 + \lVert b \rVert^2) + (K(K - 1)/n) \lVert M \rVert^2\bigr]` with s =
    ``strength``: M counts only where there are many rows for K^2 numbers. A class without rows keeps the shared
    correction. The objective is convex.

    It does not keep the argmax, and it reads the rows in O(n K^2) an iteration, some fifty of them: with a thousand
    classes prefer `StructuredVector`, which is about as good there.

    Reference: Berta, Holzmüller, Jordan & Bach, AISTATS 2026.

    Example:
        >>> logits = 2 * torch.eye(3).repeat(40, 1)
        >>> labels = torch.tensor([0, 2, 1] * 30 + [0, 1, 2] * 10)  # classes 1 and 2 are mostly swapped
        >>> StructuredMatrix.fit(logits, labels)(logits).argmax(1)[:3]
        tensor([0, 2, 1])
    """

    full = True

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, strength: float = 1.0) -> "StructuredMatrix":
        """Fit on held-out rows."""
        return cls._fit(logits, labels, strength)
