"""Scored rows and the cuts that a threshold can make, from the most to the least confident row."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.predictions import checks, fingerprints
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, float64

LOWEST = -float(np.finfo(np.float32).max)  # below every score, and a number that JSON and float32 can hold


@dataclass(frozen=True)
class Scored:
    """Rows with a score each (higher = surer), and whether each was right. Scores are float64."""

    confidence: Vector
    correct: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.correct)

    def take(self, rows: Array) -> "Scored":
        """Return some rows, by number or by mask."""
        return Scored(self.confidence[rows], self.correct[rows])

    @property
    def hashed(self) -> fingerprints.Rows:
        """A number for each row, by which it is known again."""
        return fingerprints.of_pairs(self.confidence, self.correct)


@dataclass(frozen=True)
class Cuts:
    """Every cut between different scores: ``accepted`` rows lie strictly above ``threshold``, ``errors`` are wrong.

    Tied rows are on the same side of every cut. The last cut accepts every row; its threshold is `LOWEST`.
    """

    threshold: Vector
    accepted: NDArray[np.int64]
    errors: NDArray[np.int64]

    @classmethod
    def of(cls, rows: Scored) -> "Cuts":
        """Sort the rows and find where scores differ."""
        order = np.argsort(-rows.confidence, kind="stable")
        score, wrong = rows.confidence[order], np.cumsum(~rows.correct[order])
        last = np.append(np.flatnonzero(score[1:] != score[:-1]), len(score) - 1)  # of each block of ties
        return cls(np.append(score[last[:-1] + 1], LOWEST), last + 1, wrong[last])


def read(confidence: Any, correct: Any) -> Scored:
    """Read scores and correctness, or `Predictions` alone: then its confidence and correctness."""
    if isinstance(confidence, Predictions):
        if correct is not None:
            raise ValueError("correct must be left out with Predictions, which know it.")
        if confidence.weights is not None:
            raise ValueError("weights must be left out: a guarantee counts every row once, as it was drawn.")
        return Scored(float64(confidence.confidence), confidence.correct.numpy())
    if correct is None:
        raise ValueError(
            "correct must be given: whether each prediction was right; only Predictions know it themselves."
        )
    sure = float64(checks.confidence(checks.tensor(confidence, "confidence"), bounded=False))
    return Scored(sure, checks.correct(checks.tensor(correct, "correct").cpu(), len(sure)).numpy())


def read_scores(confidence: Any) -> Vector:
    """Read one floating point score a row; half and single precision become float64 without a change of value."""
    sure = checks.tensor(confidence, "confidence")
    if sure.ndim != 1 or len(sure) == 0:
        raise ValueError(f"confidence must have shape (n,) with n >= 1; got {tuple(sure.shape)}.")
    if not sure.is_floating_point():
        raise TypeError(f"confidence must be floating point; got {str(sure.dtype).removeprefix('torch.')}.")
    return float64(sure)


def read_classes(predicted: Any, n: int) -> NDArray[np.int64]:
    """Read one predicted class a row, as an index."""
    found = checks.tensor(predicted, "predicted").cpu()
    if found.shape != (n,):
        raise ValueError(f"predicted must have shape ({n},), one class a row; got {tuple(found.shape)}.")
    if found.is_floating_point() or found.dtype == torch.bool:
        raise TypeError(f"predicted must be indices of classes; got {str(found.dtype).removeprefix('torch.')}.")
    return found.long().numpy()
