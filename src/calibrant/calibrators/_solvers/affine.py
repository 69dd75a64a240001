r"""Softmax regression: an affine correction of logits, fitted by log loss with a ridge penalty.

.. math:: \min_{D, b}\; \overline{-\log \mathrm{softmax}(a_i + D x_i + b)_{y_i}}
   + \lambda_{diagonal} \sum_k D_{kk}^2 + \lambda_{other} \sum_{j \ne k} D_{jk}^2 + \lambda_{bias} \sum_k b_k^2

The base :math:`a` is what the map corrects, usually the logits after temperature scaling. The problem is convex; L-BFGS
starts at D = 0, b = 0 in coordinates in which every curvature is about 1, so that the size at which a slope counts as 0
does not depend on the units of x. A class that no row belongs to takes no part: its row of D and its b stay 0, and the
loss is that of the other classes among themselves (otherwise its logit would diverge to minus infinity).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from calibrant.calibrators._solvers.newton import Solution, least_log_loss
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Vector
from calibrant.records import count

FLAT = 1e-6  # the slope, in units of the root of the curvature, at which the fit ends
APART = 1e-3  # nats a row
NEARLY = 1e-4  # and below which it has converged: the objective is within about 1e-6 of its least value
ITERATIONS = 500


@dataclass(frozen=True)
class Ridge:
    """Penalties on the sums of squares of D's diagonal, of the rest of D, and of b."""

    diagonal: float = 0.0
    other: float = 0.0
    bias: float = 0.0


@dataclass(frozen=True)
class Affine:
    """D, as (k,) if it is diagonal and as (k, k) if not, and b; ``converged`` says that the slope is 0 there."""

    weight: Tensor
    bias: Tensor
    converged: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Return D x + b of each row."""
        return applied(x, self.weight, self.bias)


def applied(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the affine map of each row; a weight of one dimension is a diagonal."""
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return x * weight + bias if weight.ndim == 1 else torch.nn.functional.linear(x, weight, bias)


class Regression:
    """The objective, its slope and its minimum; all tensors are float64."""

    def __init__(self, x: Tensor, base: Tensor, labels: Tensor, *, full: bool, ridge: Ridge) -> None:
        self.x, self.labels, self.ridge = x, labels, ridge
        self.n, self.k = x.shape
        self.present = torch.bincount(labels, minlength=self.k) > 0
        self.base = base.masked_fill(~self.present, -torch.inf)
        if full:
            self.squares = torch.full((self.k, self.k), ridge.other, dtype=x.dtype).fill_diagonal_(ridge.diagonal)
        else:
            self.squares = torch.full((self.k,), ridge.diagonal, dtype=x.dtype)
        p = self.base.softmax(1)
        spread = (p * (1 - p)).mean(0).clamp(min=1e-3 / self.k)
        size = x.square().mean(0)
        curvature = torch.outer(spread, size) if full else spread * size
        self.unit = (curvature + 2 * self.squares).clamp(min=1e-12).rsqrt()
        self.bias_unit = (spread + 2 * ridge.bias).rsqrt()

    def value(self, weight: Tensor, bias: Tensor) -> tuple[float, Tensor, Tensor]:
        """Return the objective and its slopes in D and in b."""
        rows = torch.arange(self.n)
        out = applied(self.x, weight, bias).add_(self.base)
        out.sub_(out.amax(1, keepdim=True))
        true = out[rows, self.labels]
        p = out.exp_()
        total = p.sum(1)
        loss = (total.log() - true).mean()
        p.div_(total[:, None])
        p[rows, self.labels] -= 1
        slope = p.T @ self.x if weight.ndim == 2 else (p * self.x).sum(0)
        loss += (self.squares * weight.square()).sum() + self.ridge.bias * bias.square().sum()
        return (
            float(loss),
            slope / self.n + 2 * self.squares * weight,
            p.sum(0) / self.n + 2 * self.ridge.bias * bias,
        )

    def solved(self, *, start: Affine | None = None, iterations: int = ITERATIONS, flat: float = FLAT) -> Affine:
        """Return the minimum, or where the last iteration ended."""
        if iterations < 1:
            raise ValueError(f"iterations must be at least 1; got {iterations}.")
        begin = np.zeros(self.unit.numel() + self.k)
        if start is not None:
            begin = torch.cat([(start.weight / self.unit).flatten(), start.bias / self.bias_unit]).numpy()
        options = {"maxiter": iterations, "maxfun": 10 * iterations, "gtol": flat, "ftol": 1e-13}
        found = minimize(self._in_units, begin, jac=True, method="L-BFGS-B", options=options)
        weight, bias = self._parts(found.x)
        # A number added to every b, or a row to every row of D, changes no probability: take the smallest.
        bias = bias - torch.where(self.present, bias[self.present].mean(), 0.0)
        if weight.ndim == 2 and self.ridge.other == 0:
            weight = weight - torch.where(self.present[:, None], weight[self.present].mean(0), 0.0)
        # a loss near 0 means that the rows were told apart: its slope vanishes, but the weights grow without end
        reached = bool(found.success or np.abs(found.jac).max() < NEARLY) and float(found.fun) > APART
        return Affine(weight, bias, reached)

    def _parts(self, point: Vector) -> tuple[Tensor, Tensor]:
        weight, bias = torch.from_numpy(point).split([self.unit.numel(), self.k])
        return weight.view_as(self.unit) * self.unit, bias * self.bias_unit

    def _in_units(self, point: Vector) -> tuple[float, Vector]:
        loss, weight, bias = self.value(*self._parts(point))
        return loss, torch.cat([(weight * self.unit).flatten(), bias * self.bias_unit]).numpy()


@dataclass(frozen=True)
class Unpenalised:
    """W and b of least log loss for W z + b on the original logits, started from z / T, with settings and notes."""

    state: dict[str, Tensor]
    settings: dict[str, Any]
    converged: bool
    notes: tuple[str, ...]


def unpenalised(rows: FitData, *, full: bool, iterations: int) -> Unpenalised:
    """Fit a matrix (``full``) or a vector of weights, and a shift, without a penalty."""
    shared = least_log_loss(rows)
    raw = rows.given.detach().to("cpu", torch.float64)
    centre = raw.mean(0)
    scale = (raw - centre).square().mean().sqrt().clamp(min=1e-300)
    found = Regression((raw - centre) / scale, raw * shared.beta, rows.labels, full=full, ridge=Ridge()).solved(
        iterations=iterations
    )
    change = found.weight / scale
    weight = change + shared.beta * (torch.eye(rows.k, dtype=torch.float64) if full else 1.0)
    bias = found.bias - applied(centre[None], change, torch.zeros_like(centre))[0]
    return Unpenalised(
        {"weight": weight, "bias": bias},
        {"iterations": iterations, "temperature": 1 / shared.beta},
        found.converged and not shared.bound,
        remarks(rows, shared, converged=found.converged, iterations=iterations),
    )


def remarks(rows: FitData, shared: Solution, *, converged: bool, iterations: int) -> tuple[str, ...]:
    """Return notes on a fit: no best temperature, classes without rows, no convergence."""
    absent = len(rows.absent)
    told = {
        f"T of the shared correction is at the bound {1 / shared.beta:.3g}: {shared.bound}.": bool(shared.bound),
        f"{absent} of {count(rows.k)} classes have no rows; they keep the shared correction.": absent > 0,
        f"the log loss falls without end, or fell for {iterations} iterations: {count(rows.n)} rows are too few.": (
            not converged
        ),
    }
    return tuple(note for note, so in told.items() if so)
