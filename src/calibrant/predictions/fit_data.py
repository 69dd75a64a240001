"""The rows that something is fitted on: the door of every ``fit``."""

import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.facts import Facts
from calibrant.nouns import widened
from calibrant.predictions import Predictions


@dataclass(frozen=True)
class Rows:
    """Held-out rows, checked once; ``began`` is when the fit began."""

    predictions: Predictions
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def read(cls, logits: Any, labels: Any, features: Any = None) -> "Rows":
        """Check logits, labels and features as `Predictions` does; one column is the logit of class 1."""
        began = time.perf_counter()
        if labels is None:
            raise ValueError("labels must be given: a fit needs rows whose truth is known.")
        return cls(Predictions(logits=logits, labels=labels, features=features), began)

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
