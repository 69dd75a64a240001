"""Ensemble temperature scaling (ETS)."""

from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.calibrators.temperature import least_brier
from calibrant.predictions.facts import PROB_ZERO
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Vector
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=True, parameters="4")
class EnsembleTemperature(Calibrator):
    r"""Ensemble temperature scaling (ETS): mix the scaled prediction with the original one and with the uniform one.

    .. math:: p = w_1\,\mathrm{softmax}(z / T) + w_2\,\mathrm{softmax}(z) + w_3 / K, \qquad w \ge 0, \; \sum_i w_i = 1

    T minimises the Brier score alone; then w minimises it given T. That is a quadratic of three numbers on a simplex,
    solved exactly by trying every face of it. T is sought around that of least log loss, without the limit of 5 of the
    original. Returns log p, floored at log 1e-12.

    A row that all three parts get wrong stays wrong: it only softens.

    Reference: Zhang, Kailkhura & Han, "Mix-n-Match", ICML 2020.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]]).repeat(4, 1)
        >>> cal = EnsembleTemperature.fit(logits, torch.tensor([0, 0, 0, 1]))
        >>> cal(logits)[0].softmax(0)
        tensor([0.7500, 0.2500])
    """

    temperature: Tensor
    weights: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any = None) -> "EnsembleTemperature":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        found = least_brier(rows)
        beta = found.beta
        members = [(rows.logits * beta).softmax(1), rows.logits.softmax(1), torch.full_like(rows.logits, 1 / rows.k)]
        truth = torch.nn.functional.one_hot(rows.labels, rows.k).double()
        inner = np.array([[float((a * b).sum()) for b in members] for a in members])
        hits = np.array([float((a * truth).sum()) for a in members])
        weights = on_simplex(inner, hits)
        after = (weights @ inner @ weights - 2 * weights @ hits) / rows.n + 1
        return cls.made(
            rows,
            {"temperature": torch.tensor(1 / beta, dtype=torch.float64), "weights": torch.from_numpy(weights)},
            objective=Objective("Brier score", float(rows.predictions.brier.mean()), float(after) - 1e-15),
            converged=not found.bound,
            notes=(f"T = {1 / beta:.3g} is where the search ended: {found.bound}.",) if found.bound else (),
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Mix in probability space and take the logarithm."""
        w = self.weights.to(logits.dtype)
        scaled = (logits / self.temperature.to(logits.dtype)).softmax(1)
        mixed = w[0] * scaled + w[1] * logits.softmax(1) + w[2] / logits.shape[1]
        return mixed.clamp(min=PROB_ZERO).log()

    def words(self) -> str:
        """Say the temperature and the three shares."""
        a, b, c = (float(w) for w in self.weights)
        return f"{a:.2f} at T = {float(self.temperature):.4g}, {b:.2f} as it was, {c:.2f} uniform"


def on_simplex(inner: Vector, linear: Vector) -> Vector:
    """Return the w >= 0 with sum 1 that minimises w' inner w - 2 linear' w, for a positive semidefinite matrix."""
    size = len(linear)
    best, least = np.eye(size)[0], np.inf
    for face in (np.array(f) for m in range(1, size + 1) for f in combinations(range(size), m)):
        system = np.block([[inner[np.ix_(face, face)], np.ones((len(face), 1))], [np.ones((1, len(face))), 0.0]])
        inside = np.linalg.lstsq(system, np.append(linear[face], 1.0), rcond=None)[0][:-1]
        w = np.zeros(size)
        w[face] = inside
        value = float(w @ inner @ w - 2 * linear @ w)
        if inside.min() >= -1e-12 and abs(inside.sum() - 1) < 1e-9 and value < least:
            best, least = np.maximum(w, 0) / np.maximum(w, 0).sum(), value
    return best
