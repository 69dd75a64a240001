"""Temperature scaling."""

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from calibrant.calibrators._solvers.newton import Solution, least_log_loss
from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.metrics.binned import top_label_ece
from calibrant.predictions.facts import Facts, from_logits
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS

Rule = Literal["nll", "nll_grid", "mse", "ece_grid", "ece_em_grid"]
GRID = np.arange(1, 101) / 10  # 0.1, 0.2, ..., 10.0, as in the papers that search a grid


@CALIBRATORS.register(keeps_argmax=True, parameters="1")
class Temperature(Calibrator):
    r"""Temperature scaling: divide the logits by one number T > 0.

    .. math:: z \mapsto z / T, \qquad T = \arg\min_{T > 0}\; \frac1n \sum_i -\log \mathrm{softmax}(z_i / T)_{y_i}

    T > 1 means that the model was over-confident. The log loss is convex in 1/T, so ``rule="nll"`` finds the one
    optimum by safeguarded Newton steps (two to six passes over the rows, no learning rate), whatever the scale of the
    logits. Where there is no optimum, the bound is returned, ``bound`` says why, and a warning says it too: T -> 0 if
    every row is right, T -> infinity if large logits are no more often right than small ones. ``spread`` is the
    standard error of log T (sandwich estimate).

    The other rules are those of published tables: ``"nll_grid"``, ``"ece_grid"`` and ``"ece_em_grid"`` take the best of
    T = 0.1, 0.2, ..., 10.0 by log loss, 15-bin ECE or equal-mass ECE (the smallest wins ties), ``"mse"`` minimises the
    Brier score. ECE is a poor guide: on few rows its minimum is noise.

    One number cannot mend a model that is over-confident in one place and under-confident in another.

    Reference: Guo, Pleiss, Sun & Weinberger, ICML 2017; rule "mse": Zhang, Kailkhura & Han, ICML 2020; rule "ece_grid":
    Mukhoti et al., NeurIPS 2020; rule "ece_em_grid": Ghosh, Schaaf & Gormley, NeurIPS 2022.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0]]).repeat(4, 1)  # says 98 %, four times
        >>> cal = Temperature.fit(logits, torch.tensor([0, 0, 0, 1]))  # and is right three times
        >>> round(cal.temperature.item(), 4), round(float(4 / np.log(3)), 4)
        (3.641, 3.641)
        >>> cal(logits)[0].softmax(0)
        tensor([0.7500, 0.2500])
    """

    temperature: Tensor
    spread: Tensor
    infinite = ("spread",)  # at a bound nothing is known about T

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, rule: Rule = "nll") -> "Temperature":
        """Fit on held-out rows."""
        rows = FitData.read(logits, labels)
        found, objective = _RULES[rule](rows)
        notes: tuple[str, ...] = ()
        if found.bound:
            notes = (f"T is at the bound {1 / found.beta:.3g}: {found.bound}.",)
            warnings.warn(f"temperature: {notes[0]}", stacklevel=2)
        return cls.made(
            rows,
            {"temperature": _number(1 / found.beta), "spread": _number(found.spread)},
            {"rule": rule, "bound": found.bound, "passes": found.passes},
            objective=objective,
            log_loss=found.loss,
            converged=not found.bound,
            notes=notes,
        )

    @property
    def bound(self) -> str:
        """Empty, or why the log loss had no minimum within reach."""
        return str(self.settings["bound"])

    @property
    def n_parameters(self) -> int:
        """One: the temperature."""
        return 1

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide by T."""
        return logits / self.temperature.to(logits.dtype)

    def words(self) -> str:
        """Say T with its interval, and which way it points."""
        t, spread = float(self.temperature), float(self.spread)
        way = "over-confident" if t > 1 else "under-confident"
        if not math.isfinite(spread):
            return f"T = {t:.4g} (the model was {way})"
        low, high = t * math.exp(-1.96 * spread), t * math.exp(1.96 * spread)
        known = f"the model was {way}" if low > 1 or high < 1 else "no clear sign that 1 was wrong"
        return f"T = {t:.4g} (95 % {low:.4g} to {high:.4g}: {known})"


def _number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def _nll(rows: FitData) -> tuple[Solution, Objective]:
    found = least_log_loss(rows)
    before = float(rows.predictions.nll.mean())
    # at the optimum the loss is known to rounding; a fit that changes nothing must not look like one that hurts
    after = min(found.loss, before) if found.loss - before < 1e-9 else found.loss
    return found, Objective("log loss", before, after)


def _on_grid(name: str, value: Callable[[FitData, Facts], float]) -> Callable[[FitData], tuple[Solution, Objective]]:
    def best(rows: FitData) -> tuple[Solution, Objective]:
        values = [value(rows, at(rows, 1 / t)) for t in GRID]
        place = int(np.argmin(values))  # the first of equals: the smallest T
        beta = 1 / float(GRID[place])
        loss = float(at(rows, beta).nll.mean())
        return Solution(beta, loss, math.inf, float(len(GRID))), Objective(name, value(rows, rows.facts), values[place])

    return best


def _mse(rows: FitData) -> tuple[Solution, Objective]:
    found = least_brier(rows)
    return found, Objective("Brier score", float(rows.predictions.brier.mean()), _brier(rows, at(rows, found.beta)))


def least_brier(rows: FitData) -> Solution:
    """Return the temperature of least Brier score, within a factor e^3 of that of least log loss."""
    first = least_log_loss(rows)
    centre = math.log(first.beta)
    search = minimize_scalar(
        lambda u: _brier(rows, at(rows, math.exp(u))), bounds=(centre - 3, centre + 3), options={"xatol": 1e-8}
    )
    beta = math.exp(float(search.x))
    return Solution(beta, float(at(rows, beta).nll.mean()), math.inf, float(search.nfev), first.bound)


def at(rows: FitData, beta: float) -> Facts:
    """Return the facts of the rows with their logits multiplied by beta."""
    return from_logits(rows.given.double() * beta, rows.labels)


def _brier(rows: FitData, facts: Facts) -> float:
    return float(facts.brier.mean())


def _log(rows: FitData, facts: Facts) -> float:
    return float(facts.nll.mean())


def _ece(rows: FitData, facts: Facts) -> float:
    return top_label_ece(facts.confidence, rows.correct)


def _ece_em(rows: FitData, facts: Facts) -> float:
    return top_label_ece(facts.confidence, rows.correct, scheme="mass")


_RULES: dict[str, Callable[[FitData], tuple[Solution, Objective]]] = {
    "nll": _nll,
    "nll_grid": _on_grid("log loss", _log),
    "mse": _mse,
    "ece_grid": _on_grid("ECE (15 bins)", _ece),
    "ece_em_grid": _on_grid("ECE (15 equal-mass bins)", _ece_em),
}
