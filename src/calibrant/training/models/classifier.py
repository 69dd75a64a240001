"""A body that gives features, and a linear head that reads logits from them."""

from torch import Tensor, nn

from calibrant.predictions.types import Features, Logits


class Classifier(nn.Module):
    """Two parts: ``body`` maps inputs to features of shape (n, width), ``head`` maps features to k logits.

    Calibrators and trust scores that need features find them the same way in every model: ``features(inputs)`` is the
    input of ``head``, and the logits are ``head(features(inputs))``.

    Example:
        >>> model = Classifier(torch.nn.Flatten(), width=4, k=3)
        >>> model(torch.zeros(2, 1, 2, 2)).shape
        torch.Size([2, 3])
    """

    def __init__(self, body: nn.Module, width: int, k: int) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be a number of classes, at least 1; got {k}.")
        self.body = body
        self.head = nn.Linear(width, k)

    def features(self, inputs: Tensor) -> Features:
        """Return what the head reads, one row a sample."""
        return self.body(inputs)

    def forward(self, inputs: Tensor) -> Logits:
        """Return the logits."""
        return self.head(self.features(inputs))
