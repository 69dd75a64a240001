"""What calibrators share that set aside uncertain rows, and divide the others by a temperature."""

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.predictions.fit_data import Rows
from calibrant.records import percent

ON = 1e-5  # an entropy so little below the threshold (a share of it) is on it: rounding must not decide

Made = TypeVar("Made", bound="Rejecting")


@dataclass(frozen=True)
class Coverage:
    """``accepted`` is the share of rows accepted and ``accuracy`` theirs (NaN if none is).

    ``original`` is the accuracy of all rows by the model's own predictions, ``argmax`` that by the argmax of what the
    calibrator returns, where a rejected row, uniform as it is, counts as class 0.
    """

    accepted: float
    accuracy: float
    original: float
    argmax: float


class Rejecting(Calibrator):
    """Accepts rows whose entropy is below ``threshold``; the others become uniform."""

    threshold: Tensor
    temperature: Tensor

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide accepted rows by T; the logits of a rejected row are all 0."""
        kept = _entropy(logits) < self._limit(logits)
        return torch.where(kept[:, None], logits / self.temperature.to(logits.dtype), 0)

    def _limit(self, like: Tensor) -> Tensor:
        return self.threshold.to(like.dtype) * (1 - ON)

    def accepted(self, logits: Tensor) -> Tensor:
        """Return which rows are accepted: those whose entropy is below the threshold."""
        z = self._read(logits, None)
        return _entropy(z) < self._limit(z)

    def coverage(self, logits: Any, labels: Any) -> Coverage:
        """Return how many rows are accepted, and the accuracy of those, of all, and of all by argmax."""
        rows = Rows.read(logits, labels)
        kept, right = self.accepted(rows.given).cpu(), rows.correct.double()
        argmax = self.calibrate(rows.predictions).correct.double()
        return Coverage(
            float(kept.double().mean()), float(right[kept].mean()), float(right.mean()), float(argmax.mean())
        )

    @property
    def n_parameters(self) -> int:
        """Two: the threshold and the temperature."""
        return 2

    def words(self) -> str:
        """Say the threshold, and the temperature below it."""
        said = f"T = {float(self.temperature):.4g} where the entropy is below {float(self.threshold):.4g}"
        return f"{said}, uniform elsewhere ({percent(self.settings['rejected'], 1)} of the rows fitted on)"

    @classmethod
    def with_threshold(
        cls: "type[Made]", rows: Rows, threshold: float, used: Tensor, settings: dict[str, Any], notes: list[str]
    ) -> Made:
        """Fit T on the accepted rows that the threshold does not rest on."""
        kept = rows.facts.entropy < threshold * (1 - ON)
        free = kept.clone()
        free[used] = False
        before = after = 0.0
        beta = 1.0
        part = Rows(rows.predictions.take(free)) if bool(free.any()) else None
        if part is None:
            notes.append("No accepted row is left to fit T on, so T = 1.")
        else:
            before, (beta, after) = float(part.predictions.nll.mean()), _temperature(part, notes)
        return cls.made(
            rows,
            {
                "threshold": torch.tensor(threshold, dtype=torch.float64),
                "temperature": torch.tensor(1 / beta, dtype=torch.float64),
            },
            {**settings, "rejected": float((~kept).double().mean())},
            objective=Objective("log loss of the accepted rows", before, min(after, before)),
            notes=tuple(notes),
        )


def _entropy(z: Tensor) -> Tensor:
    """Entropy a row, in nats."""
    d = (z - z.amax(1, keepdim=True)).clamp(min=-1e30)
    weights = d.exp()
    total = weights.sum(1)
    return total.log() - (weights * d).sum(1) / total


def _temperature(part: Rows, notes: list[str]) -> tuple[float, float]:
    """Return 1/T and the log loss there; T is not let go to 0."""
    found = least_log_loss(part)
    if not found.bound or found.beta <= 1:
        return found.beta, found.loss
    notes.append(f"T = 1: among accepted rows {found.bound}.")
    return 1.0, float(part.predictions.nll.mean())
