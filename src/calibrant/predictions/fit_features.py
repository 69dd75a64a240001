"""Features at the door: of a fit, and of a call."""

import torch
from torch import Tensor

from calibrant.fitting.rows import Rows


def of_fit(rows: Rows) -> Tensor:
    """Return the features of the rows in float64, if there is at least one column and all are finite."""
    features = rows.features
    if features.shape[1] == 0:
        raise ValueError(f"features must have at least one column; got {tuple(features.shape)}.")
    return _finite(features)


def of_call(features: Tensor | None, d: int, logits: Tensor) -> Tensor:
    """Return the features in the type of the logits, if they have the ``d`` columns that the fit saw."""
    if features is None or features.shape[1] != d:
        got = "none" if features is None else tuple(features.shape)
        raise ValueError(f"features must have {d} columns, as when fitted; got {got}.")
    return _finite(features.to(logits.dtype))


def _finite(features: Tensor) -> Tensor:
    if not torch.compiler.is_compiling() and not bool(features.isfinite().all()):
        bad = int((~features.isfinite().all(1)).sum())
        raise ValueError(f"features must be finite; {bad} of {len(features)} rows are not.")
    return features
