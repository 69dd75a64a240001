"""A temperature for each row: what the calibrators that learn one have in common."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.calibrators._solvers.network import Network, output
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators._solvers.objectives import Scaled
from calibrant.calibrators.calibrator import Calibrator
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

    def level(self, out: Tensor) -> Tensor:
        """Return the temperature, in units, that an output of the network stands for."""
        return softplus(out) + LEAST

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


class Problem:
    """The rows of a fit as a sample-wise method sees them.

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


def margin(logits: Tensor) -> Tensor:
    """Lead of the largest logit over the second."""
    two = logits.topk(2, dim=1).values
    return two[:, :1] - two[:, 1:]


def max_logit(logits: Tensor) -> Tensor:
    """Largest logit."""
    return logits.amax(1, keepdim=True)


def max_less_mean(logits: Tensor) -> Tensor:
    """Largest logit less the mean of the row."""
    return logits.amax(1, keepdim=True) - logits.mean(1, keepdim=True)


def confidence(logits: Tensor) -> Tensor:
    """Largest probability."""
    return logits.softmax(1).amax(1, keepdim=True)


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the probabilities, in nats."""
    return -(logits.softmax(1) * logits.log_softmax(1).clamp(min=-1e4)).sum(1, keepdim=True)


def all_logits(logits: Tensor) -> Tensor:
    """Every logit of the row, in the order of classes."""
    return logits


def largest_logits(logits: Tensor) -> Tensor:
    """The ten largest logits (all, if there are fewer), descending, clipped to ±100."""
    return logits.topk(min(10, logits.shape[1]), dim=1).values.clamp(-100, 100)


INDICATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "margin": margin,
    "max_logit": max_logit,
    "max_less_mean": max_less_mean,
    "confidence": confidence,
    "entropy": entropy,
    "all_logits": all_logits,
    "largest_logits": largest_logits,
}


def look(logits: Tensor, names: list[str]) -> Tensor:
    """Return the named indicators side by side, (n, columns); a logit counts as at most 1e30, so sums are finite."""
    logits = logits.clamp(-1e30, 1e30)
    return torch.cat([INDICATORS[name](logits) for name in names], 1)
