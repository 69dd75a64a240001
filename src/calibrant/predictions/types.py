"""Array types of the six nouns: logits, probs, labels, confidence, correct, features.

Sizes are ``n`` rows and ``k`` classes. The annotations are documentation that the tests execute: with jaxtyping
installed (it is a development dependency) every call in the suite is checked against them; without it they are
plain tensors and cost nothing.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class _Plain:
            def __class_getitem__(cls, item: tuple[type, str]) -> type:
                return item[0]

        Bool = Float = Int = _Plain

Logits = Float[Tensor, "n k"]
Probs = Float[Tensor, "n k"]
Labels = Int[Tensor, " n"]
Confidence = Float[Tensor, " n"]
OtherConfidence = Float[Tensor, " m"]
Correct = Bool[Tensor, " n"]
Features = Float[Tensor, "n d"]
PerSample = Float[Tensor, " n"]
Scalar = Float[Tensor, ""]
Weights = Float[Tensor, " n"]

Vector = NDArray[np.float64]
Array = NDArray[Any]


def float64(values: Tensor) -> Vector:
    """Return a tensor of any kind and device as a float64 numpy vector; the arithmetic of metrics starts here."""
    return values.detach().double().cpu().numpy()


def widened(values: Tensor) -> Tensor:
    """Cast half precision up to float32: neither an exponential, nor a long sum, nor a floor of 1e-12 fits in it."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def repetitions(weights: Tensor | None, n: int) -> Vector:
    """Return how often each of n rows counts: once, or as its weight says."""
    return np.ones(n) if weights is None else float64(weights)
