"""No calibration: the baseline of every comparison."""

from typing import Any

from torch import Tensor

from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=True, parameters="0")
class Identity(Calibrator):
    r"""The logits as they are: what every other method is compared with.

    .. math:: z \mapsto z

    Reference: none needed; it is the "vanilla" row of every table of post-hoc calibration (Guo et al., ICML 2017).

    Example:
        >>> cal = Identity.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> cal(torch.tensor([[3.0, 1.0]]))
        tensor([[3., 1.]])
    """

    @classmethod
    def fit(cls, logits: Any, labels: Any = None) -> "Identity":
        """Check the rows and fit nothing."""
        rows = FitData.read(logits, labels)
        return cls.made(rows, {}, log_loss=float(rows.predictions.nll.mean()))

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the logits."""
        return logits

    def words(self) -> str:
        """Say that nothing was fitted."""
        return "nothing fitted"
