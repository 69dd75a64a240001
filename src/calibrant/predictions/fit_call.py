"""The door of every call: logits and features as they come -> (n, k) logits, or one sentence."""

import torch
from torch import Tensor, nn

from calibrant.nouns import Logits, widened


def checked(fitted: nn.Module, name: str, k: int, logits: Tensor, features: Tensor | None, *, needs: bool) -> Tensor:
    """Return (n, k) logits for a fitted thing; one column is the score of class 1 of two, half precision float32.

    ``needs`` says whether there must be features.
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.ndim not in (1, 2):
        got = f"{logits.dtype} of shape {tuple(logits.shape)}" if hasattr(logits, "dtype") else type(logits).__name__
        raise TypeError(f"logits must be a floating point tensor of shape (n, {k}); got {got}.")
    z = columns(widened(logits))
    if z.shape[1] != k:
        raise ValueError(f"logits must have {k} columns, as when fitted; got {tuple(logits.shape)}.")
    if needs and features is None:
        raise ValueError(f"features must be given: {name} was fitted on them. Call it with (logits, features).")
    if features is not None and not isinstance(features, Tensor):
        raise TypeError(f"features must be a tensor of shape (n, d); got {type(features).__name__}.")
    if features is not None and (features.ndim != 2 or features.shape[0] != logits.shape[0]):
        raise ValueError(f"features must have shape ({logits.shape[0]}, d); got {tuple(features.shape)}.")
    home = next((value.device for value in fitted.buffers() if value.ndim), z.device)
    if home != z.device:
        raise ValueError(f"logits must be on {home}, where {name} is; got {z.device}. Move one with .to(device).")
    if not torch.compiler.is_compiling() and not bool(z.isfinite().all()):
        bad = ~z.isfinite().all(1)
        raise ValueError(f"logits must be finite; {int(bad.sum())} of {len(bad)} rows are not.")
    return z


def columns(logits: Tensor) -> Logits:
    """Return (n, k) logits; one column, (n,) or (n, 1), is the logit of class 1 of two."""
    if logits.ndim == 2 and logits.shape[1] > 1:
        return logits
    return torch.stack([torch.zeros_like(logits.reshape(-1)), logits.reshape(-1)], 1)
