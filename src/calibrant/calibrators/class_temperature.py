"""Class-based temperature scaling (CTS)."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.calibrators._solvers.affine import remarks
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.metrics.binned import bin_sums, top_label_ece
from calibrant.metrics.bins import assign
from calibrant.predictions.facts import from_logits
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

Candidates = Literal["offsets", "relative", "grid"]
BINS = 15
OFFSETS = np.array([-0.2, -0.1, 0.1, 0.2])
GRID = np.arange(5, 51) / 10  # 0.5, 0.6, ..., 5.0
SLICE = 1_000_000  # logits read at a time
BETTER = 1e-7  # by how much the ECE must fall for a temperature to change

_CANDIDATES: dict[str, Callable[[float, float], Vector]] = {
    "offsets": lambda now, shared: _at_least(now + OFFSETS, shared / 10),
    "relative": lambda now, shared: _at_least(now + shared * OFFSETS, shared / 10),
    "grid": lambda now, shared: GRID,
}


@CALIBRATORS.register(keeps_argmax=False, parameters="K")
class ClassTemperature(Calibrator):
    r"""Class-based temperature scaling (CTS): divide the logit of each class by its own temperature, chosen by ECE.

    .. math:: z_k \mapsto z_k / T_k

    Greedy: start with every :math:`T_k` at the T of `Temperature`; go through the classes, and give each whichever
    candidate leaves the rows the least 15-bin ECE, if that falls by more than 1e-7; again, until nothing changes, but
    at most ``sweeps`` times. The candidates are the published :math:`T_k \pm 0.1` and :math:`T_k \pm 0.2`
    (``"offsets"``), which suppose a T near 1; the same times T (``"relative"``), for logits of any scale; or 0.5, 0.6,
    ..., 5 (``"grid"``, published with 5 sweeps). No step goes below T/10. Bins and ties are those of `top_label_ece`. A
    class without rows keeps T. The map acts on the logits as the model gives them: a number added to all logits of a
    row has an effect. A sweep takes O(n K) for each candidate.

    It does not keep the argmax, and the ECE that it minimises flatters it: on other rows its log loss and Brier score
    are as a rule worse than those of `Temperature`.

    Reference: Frenkel & Goldberger, EUSIPCO 2021; the grid: Guo et al., SMART, 2025.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [0.0, 2.0]]).repeat(10, 1)
        >>> labels = torch.tensor([0, 1, 0, 0] * 5)  # class 0 is right whenever predicted, class 1 half of the time
        >>> cal = ClassTemperature.fit(logits, labels)
        >>> bool(cal.temperature[0] < cal.temperature[1]), cal.fitted.after < cal.fitted.before
        (True, True)
    """

    temperature: Tensor

    @classmethod
    def fit(
        cls, logits: Any, labels: Any = None, *, candidates: Candidates = "offsets", sweeps: int = 20
    ) -> "ClassTemperature":
        """Fit on held-out rows."""
        if sweeps < 1:
            raise ValueError(f"sweeps must be at least 1; got {sweeps}.")
        rows = FitData.read(logits, labels)
        shared = least_log_loss(rows)
        descent = Descent(rows, 1 / shared.beta)
        done = descent.run(_CANDIDATES[candidates], sweeps)
        temperature = torch.from_numpy(descent.temperature)
        after = from_logits(rows.given.cpu().double() / temperature, rows.labels)
        objective = Objective(
            "ECE (15 bins)",
            top_label_ece(rows.facts.confidence, rows.correct),
            top_label_ece(after.confidence, after.predicted == rows.labels),
        )
        notes = remarks(rows, shared, converged=True, iterations=sweeps)
        if not done:
            notes += (f"temperatures still changed in sweep {sweeps}.",)
        settings = {"candidates": candidates, "sweeps": sweeps, "shared": 1 / shared.beta}
        return cls.made(
            rows,
            {"temperature": temperature},
            settings,
            objective=objective,
            converged=done and not shared.bound,
            notes=notes,
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide each column by its temperature."""
        return logits / self.temperature.to(logits.dtype)

    def words(self) -> str:
        """Say the range of temperatures and the one they started from."""
        low, high = float(self.temperature.min()), float(self.temperature.max())
        return f"T = {low:.4g} to {high:.4g} a class, from {self.settings['shared']:.4g}"


class Descent:
    """Coordinate descent on the ECE that reads one column at a time.

    Of each row it keeps the two largest scaled logits and the sum of exp over all classes but the first, relative to
    the second. What the other classes add up to, without any one class, follows from these without cancellation.
    """

    def __init__(self, rows: FitData, shared: float) -> None:
        self.shared = shared
        self.logits: Vector = np.ascontiguousarray(rows.given.cpu().double().numpy().T)
        self.labels: Array = rows.labels.numpy()
        self.present = np.setdiff1d(np.arange(rows.k), rows.absent)
        self.temperature: Vector = np.full(rows.k, shared)
        n = rows.n
        self.first: NDArray[np.intp] = np.zeros(n, np.intp)
        self.second: NDArray[np.intp] = np.zeros(n, np.intp)
        self.top, self.next, self.rest = np.zeros((3, n))
        self._read(np.arange(n))
        self.error = float(self._errors(0, np.full(1, shared))[0])

    def run(self, candidates: Callable[[float, float], Vector], sweeps: int) -> bool:
        """Sweep over the classes; return whether nothing changed any more."""
        for _ in range(sweeps):
            before = self.temperature.copy()
            for k in self.present.tolist():
                tried = candidates(float(self.temperature[k]), self.shared)
                errors = self._errors(k, tried)
                best = int(errors.argmin())
                if errors[best] < self.error - BETTER:
                    self._change(k, float(tried[best]))
                    self.error = float(errors[best])
            if bool((before == self.temperature).all()):
                return True
            self._read(np.arange(len(self.top)))  # rounding of the sums must not add up
        return False

    def _errors(self, k: int, tried: Vector) -> Vector:
        """Return the ECE for each temperature that class k may take."""
        mine = self.first == k
        rival, winner = np.where(mine, self.next, self.top), np.where(mine, self.second, self.first)
        own = np.exp(np.minimum(self.logits[k] / self.temperature[k] - self.next, 0.0))
        without = 1 + np.maximum(self.rest - own, 0.0) * np.exp(self.next - self.top)
        others = np.where(mine, self.rest, without)  # the sum over the other classes, relative to the rival
        ahead = (self.logits[k] / each - rival for each in tried)  # one at a time: it stays in cache
        return np.array([self._error(k, each, others, winner) for each in ahead])

    def _error(self, k: int, ahead: Vector, others: Vector, winner: Array) -> float:
        """Return the ECE if class k is ahead of the best of the others by so much."""
        small = np.exp(-np.abs(ahead))
        confidence = 1 / np.where(ahead > 0, 1 + others * small, others + small)
        wins = (ahead > 0) | ((ahead == 0) & (k < winner))
        correct = np.where(wins, self.labels == k, self.labels == winner)
        index, bins = assign(confidence, bins=BINS)
        return float(np.abs(bin_sums(index, bins, confidence - correct)).sum() / len(ahead))

    def _change(self, k: int, temperature: float) -> None:
        old, new = self.logits[k] / self.temperature[k], self.logits[k] / temperature
        self.temperature[k] = temperature
        far = (self.first != k) & (self.second != k) & (new < self.next)  # neither was nor is among the two largest
        self.rest[far] += np.exp(new[far] - self.next[far]) - np.exp(old[far] - self.next[far])
        self._read((~far).nonzero()[0])

    def _read(self, rows: NDArray[np.intp]) -> None:
        """Find the two largest and the sum of some rows afresh."""
        step = max(1, SLICE // len(self.logits))
        for part in (rows[low : low + step] for low in range(0, len(rows), step)):
            scaled, at = self.logits[:, part] / self.temperature[:, None], np.arange(len(part))
            first = self.first[part] = scaled.argmax(0)
            self.top[part] = scaled[first, at]
            scaled[first, at] = -np.inf
            second = self.second[part] = scaled.argmax(0)
            self.next[part] = scaled[second, at]
            self.rest[part] = np.exp(scaled - scaled[second, at]).sum(0)


def _at_least(values: Vector, low: float) -> Vector:
    return values[values >= low]
