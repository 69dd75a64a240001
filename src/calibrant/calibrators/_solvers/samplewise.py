"""Sample-wise temperatures: the base class, the fit of a temperature network, and the indicators that it reads."""

import math
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._solvers.network import Network, output
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators._solvers.objectives import Scaled
from calibrant.calibrators.calibrator import Calibrator
from calibrant.metrics.scores import FROM_LOGITS
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Vector

LEAST, MOST = 0.1, 20.0  # temperatures, in units, between which a fit looks


class Samplewise(Calibrator):
    """A calibrator that divides each row by a temperature of its own, read off indicators of the row by a network."""

    unit: Tensor

    def temperature(self, logits: Tensor) -> Tensor:
        """Return the temperature of each row."""
        x = look(self._read(logits, None), self.settings["indicators"])
        t = self.unit.to(x.dtype) * self.level(output(x, self._net()))
        return torch.ones_like(t) if self.fitted.identity else t

    @abstractmethod
    def level(self, out: Tensor) -> Tensor:
        """Return the temperature, in units, that an output of the network stands for."""

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Divide each row by its temperature."""
        return logits / self.temperature(logits)[:, None]

    @property
    def n_parameters(self) -> int:
        """The weights of the network."""
        return sum(value.numel() for name, value in self._net().items() if name[0] in "wb")

    def _net(self) -> dict[str, Tensor]:
        return {name: value for name, value in self.named_buffers() if name != "unit"}

    def words(self) -> str:
        """Say what the network reads and how large it is."""
        read = ", ".join(name.replace("_", " ") for name in self.settings["indicators"])
        return f"a temperature for each row from its {read} ({self.n_parameters} weights)"


class NetworkFit:
    """What training a temperature network needs: the network, the rows to scale, and the unit of temperatures.

    ``one`` is the best single temperature (1 where there is none) and ``unit`` what temperatures are measured in: 1
    where ``one`` is within [0.2, 5], because that is what the papers do and a network can reach it; otherwise ``one``,
    because it cannot.
    """

    def __init__(
        self, rows: FitData, indicators: list[str], widths: tuple[int, ...], *, own_unit: bool = False
    ) -> None:
        found = least_log_loss(rows)
        self.one = 1.0 if found.bound else 1 / found.beta
        why = f"no single temperature is best ({found.bound}), so the search began at 1."
        self.notes: tuple[str, ...] = (why,) if found.bound else ()
        self.unit = 1.0 if 0.2 <= self.one <= 5 and not own_unit else self.one
        # twice the largest inverse temperature, for the Brier score looks there
        self.scaled = Scaled(rows, low=1 / (MOST * self.unit), high=2 / (LEAST * self.unit))
        self.net = Network(look(rows.given.cpu().double(), indicators), widths)

    def state(self, weights: Vector) -> dict[str, Tensor]:
        """Return the buffers of a calibrator with these weights."""
        return {**self.net.state(weights), "unit": torch.tensor(self.unit, dtype=torch.float64)}

    def start(self, seed: int) -> Vector:
        """Return random weights whose temperature is about the best single one."""
        above = max(self.one / self.unit - LEAST, 0.02)
        return self.net.start(above + math.log(-math.expm1(-above)), seed)  # softplus of the bias is ``above``

    def soft(self, out: Vector) -> tuple[Vector, Vector]:
        """Return beta = 1/T for T = unit (softplus(out) + 0.1), and its derivative."""
        e = np.exp(-np.abs(out))
        beta = 1 / (self.unit * (np.log1p(e) + np.maximum(out, 0) + LEAST))
        return beta, -(beta**2) * self.unit * np.where(out >= 0, 1, e) / (1 + e)


def _entropy(logits: Tensor) -> Tensor:
    # not that of metrics.scores, which differs in the last digit: fitted networks read this one
    return -(logits.softmax(1) * logits.log_softmax(1).clamp(min=-1e4)).sum(1, keepdim=True)


INDICATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "margin": lambda logits: FROM_LOGITS["logit_margin"](logits)[:, None],
    "max_logit": lambda logits: FROM_LOGITS["max_logit"](logits)[:, None],
    "max_less_mean": lambda logits: (logits.amax(1) - logits.mean(1))[:, None],
    "confidence": lambda logits: FROM_LOGITS["msp"](logits)[:, None],
    "entropy": _entropy,
    "all_logits": lambda logits: logits,
    "largest_logits": lambda logits: logits.topk(min(10, logits.shape[1]), dim=1).values.clamp(-100, 100),
}


def look(logits: Tensor, names: list[str]) -> Tensor:
    """Return the named indicators side by side, (n, columns); a logit counts as at most 1e30, so sums are finite."""
    logits = logits.clamp(-1e30, 1e30)
    return torch.cat([INDICATORS[name](logits) for name in names], 1)
