"""Maximum class probability: the classifier's own confidence."""

from typing import Any

from torch import Tensor

from calibrant.metrics.scores import log_odds
from calibrant.predictions.fit_data import FitData
from calibrant.registry import TRUST
from calibrant.trust.predictor import TrustFit, TrustPredictor


@TRUST.register(reads="rows")
class Mcp(TrustPredictor):
    r"""Maximum class probability: what the classifier itself says, and what every other predictor is compared with.

    .. math:: \max_k p_k

    Nothing is fitted. It ranks well and is hard to beat; as a probability it is usually too high, so that hardly an
    answer falls below 1/2.

    Reference: Hendrycks & Gimpel, ICLR 2017.

    Example:
        >>> mcp = Mcp.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
        >>> mcp(torch.tensor([[0.0, 0.0]]))
        tensor([0.5000], dtype=torch.float64)
    """

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, features: Any = None) -> "Mcp":
        """Read the rows; there is nothing to fit, and features are not looked at."""
        rows = FitData.read(logits, labels)
        return cls({}, {}, TrustFit(rows.n, rows.k, int((~rows.correct).sum()), ()))

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the probability of the predicted class."""
        return log_odds(logits).double().sigmoid()
