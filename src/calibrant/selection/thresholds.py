"""Scored rows and the cuts that a threshold can make, from the most to the least confident row."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.predictions import checks
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, float64

SAMPLE = 256  # rows that a policy remembers
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
    def fingerprint(self) -> str:
        """A hash of these rows: the same pairs of score and correctness, in any order, give the same hash.

        Scores are rounded to single precision, so that rows from a file that keeps no more are recognised.
        """
        return blake2b(np.sort(self._rows()).tobytes(), digest_size=12).hexdigest()

    @property
    def sample(self) -> str:
        """The smallest hashes of the rows, 8 hex digits each, by which some of them are recognised.

        Empty if more than a tenth of the rows are duplicates: other rows would be mistaken for them.
        """
        rows = np.unique(self._rows())
        return "" if len(rows) < 0.9 * len(self) else "".join(f"{h:08x}" for h in np.sort(_hashed(rows))[:SAMPLE])

    def known(self, sample: str) -> float:
        """Estimate which share of these rows a sample was taken from; 0 if too few hashes are within its range."""
        kept = np.array([int(sample[i : i + 8], 16) for i in range(0, len(sample), 8)], dtype=np.uint64)
        own = _hashed(np.unique(self._rows()))
        within = own if len(kept) < SAMPLE else own[own <= kept.max()]
        return float(np.isin(within, kept).mean()) if len(kept) and len(within) >= 5 else 0.0

    def _rows(self) -> NDArray[np.uint64]:
        """Return score and correctness of each row as one number."""
        with np.errstate(over="ignore"):
            score = self.confidence.astype(np.float32) + np.float32(0)  # there are two zeros
        return (score.view(np.uint32).astype(np.uint64) << np.uint64(1)) | self.correct.astype(np.uint64)


def _hashed(rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 32 bits of each number, well mixed (splitmix64)."""
    x = rows + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (x ^ (x >> np.uint64(31))) >> np.uint64(32)


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
    sure, right = read_scores(confidence), checks.tensor(correct, "correct").cpu()
    if right.shape != sure.shape:
        raise ValueError(f"correct must have shape {sure.shape}; got {tuple(right.shape)}.")
    odd = right[(right != 0) & (right != 1)]
    if len(odd):
        raise ValueError(f"correct must be bool, or 0 and 1: whether the prediction was right; got {odd[0].item():g}.")
    checks.finite(torch.from_numpy(~np.isfinite(sure)), "confidence")
    return Scored(sure, right.bool().numpy())


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


def check_share(value: float, name: str) -> None:
    """Refuse what is not strictly between 0 and 1; NaN is not."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number in (0, 1); got {value!r}.")
    if not 0 < value < 1:
        hint = f" Did you mean {value / 100:g}?" if 1 < value < 100 else ""
        raise ValueError(f"{name} must lie in (0, 1); got {value:g}.{hint}")
