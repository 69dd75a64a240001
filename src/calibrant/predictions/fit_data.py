"""The input checks of every ``fit`` and of every call of what was fitted: logits, labels and features."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.predictions import checks
from calibrant.predictions.facts import Facts
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Logits, widened

UNREAD = object()  # in place of features, where a method reads none


@dataclass(frozen=True)
class FitData:
    """Held-out rows, checked once; ``began`` is when the fit began."""

    predictions: Predictions
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, logits: Any, labels: Any, features: Any = UNREAD) -> "FitData":
        """Check logits, labels and features as `Predictions` does; one column is the logit of class 1.

        `Predictions` in place of the logits know their labels and features, and are not checked again. A method that
        reads no features leaves ``features`` out.
        """
        began = time.perf_counter()
        if isinstance(logits, Predictions):
            return cls(_labelled(logits, labels, features), began)
        if labels is None:
            raise ValueError("labels must be given: a fit needs rows whose truth is known.")
        given = None if features is UNREAD else features
        return cls(Predictions(logits=logits, labels=labels, features=given), began)

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.predictions)

    @property
    def k(self) -> int:
        """The number of classes."""
        return int(self.given.shape[1])

    @property
    def given(self) -> Tensor:
        """The (n, k) logits as they came, on their device; half precision as float32."""
        return widened(self.predictions.logits)

    @cached_property
    def logits(self) -> Tensor:
        """The (n, k) logits in float64 on the CPU, each row shifted so that its largest is 0.

        No probability depends on the shift, and a finite row may span more than its own type holds.
        """
        wide = self.predictions.logits.detach().to("cpu", torch.float64)
        return (wide - wide.amax(1, keepdim=True)).clamp(min=-1e300)

    @property
    def labels(self) -> Tensor:
        """The true classes, int64 on the CPU."""
        return self.predictions.labels

    @cached_property
    def features(self) -> Tensor:
        """The features in float64 on the CPU."""
        return self.predictions.features.detach().to("cpu", torch.float64)

    @property
    def facts(self) -> Facts:
        """Confidence, predicted class, margin, ... of each row before calibration."""
        return self.predictions.facts

    @property
    def correct(self) -> Tensor:
        """Whether the predicted class is the true one, before calibration."""
        return self.predictions.correct

    @cached_property
    def absent(self) -> list[int]:
        """The classes that no row belongs to."""
        return (torch.bincount(self.labels, minlength=self.k) == 0).nonzero().squeeze(1).tolist()


def _labelled(rows: Predictions, labels: Any, features: Any) -> Predictions:
    if labels is not None or not (features is None or features is UNREAD):
        raise ValueError("labels and features must be left out with Predictions, which hold them.")
    if rows.k is None or rows.rows.labels is None:
        raise ValueError("logits and labels must be given: these predictions lack them, and a fit needs both.")
    return rows.without_features() if features is UNREAD and rows.has_features else rows


def of_arrays(fitted: nn.Module, logits: Any, features: Any) -> Array:
    """Call a fitted thing with arrays that are not torch's; the answer is a numpy array."""
    home = next((value.device for value in fitted.buffers()), torch.device("cpu"))
    given = [checks.tensor(logits, "logits").to(home)]
    if features is not None:
        given.append(checks.tensor(features, "features").to(home))
    with torch.no_grad():
        answer: Array = fitted.forward(*given).cpu().numpy()  # hooks are called around this call already
    return answer


def checked(fitted: nn.Module, name: str, k: int, logits: Tensor, features: Tensor | None, *, needs: bool) -> Tensor:
    """Return (n, k) logits for a fitted thing; one column is the score of class 1 of two, half precision float32.

    ``needs`` says whether there must be features.
    """
    if not logits.is_floating_point() or logits.ndim not in (1, 2):
        raise TypeError(f"logits must be floats of shape (n, {k}); got {logits.dtype} of shape {tuple(logits.shape)}.")
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


def of_fit(rows: FitData) -> Tensor:
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


def standardised(columns: Tensor) -> dict[str, Tensor]:
    """Return mean and population standard deviation of each of (n, d) columns, and their standardised range.

    A constant column keeps its scale.
    """
    mean, std = columns.mean(0), columns.std(0, correction=0)
    std = torch.where(std > 1e-9 * columns.abs().amax(0), std, torch.ones_like(std))  # below is rounding
    seen = (columns - mean) / std
    return {"mean": mean, "std": std, "low": seen.amin(0), "high": seen.amax(0)}
