"""The network of an oracle: a copy of some body, and what it is shown."""

import copy
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


def copied(classifier: nn.Module, given: nn.Module | None) -> nn.Module:
    """Return a copy: training it must not reach a tensor of the classifier, nor of the caller."""
    body = getattr(classifier, "body", None) if given is None else given
    if not isinstance(body, nn.Module):
        raise ValueError(
            f"backbone must be given: {type(classifier).__name__} has no body to copy. Pass a module that maps inputs "
            "to (n, d) features."
        )
    return copy.deepcopy(body).requires_grad_()


def resized(inputs: Any, side: int) -> Any:
    """Return images interpolated to a side; as they are if it is 0."""
    if not side:
        return inputs
    if not isinstance(inputs, Tensor) or inputs.ndim != 4:
        raise ValueError("resize must be left out: inputs are not images of shape (n, c, h, w).")
    return F.interpolate(inputs, size=(side, side), mode="bilinear", align_corners=False)
