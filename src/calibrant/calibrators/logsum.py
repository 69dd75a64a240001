r"""The log-sum of scaled logits at one inverse temperature a row, at a cost that does not grow with the classes.

With :math:`d = z - \max z`, everything a sample-wise temperature needs is
:math:`\varphi(\beta) = \log\sum_k e^{\beta d_k}`: the log loss is :math:`\varphi(\beta) - \beta d_y`, the confidence
:math:`e^{-\varphi(\beta)}`, and :math:`\sum_k p_k^2 = e^{\varphi(2\beta) - 2\varphi(\beta)}`. The eight largest logits
of a row are kept as they are; the log-sum of the others is tabulated once, with its derivative, at points equally
spaced in :math:`u = \log\beta`, and interpolated by cubic Hermite polynomials. Up to sixteen classes nothing is
tabulated.
"""

import math

import numpy as np
import torch
from torch import Tensor

from calibrant.facts import buffer, in_chunks
from calibrant.nouns import Vector

LARGEST = 8  # logits of a row that are kept exactly
EXACT = 16  # classes up to which all are
SPACING = 0.2  # of the grid in log beta; the error of log-sum-exp is then below 2e-5, and 1e-6 on average


class LogSum:
    """Rows ready to be evaluated, for betas between ``low`` and ``high``; beyond them the table's end holds.

    ``log_sum(beta)`` returns phi and its derivative in beta, one value a row each. Columns are rows here: numpy walks
    through memory in that order, and the loop around this does nothing else.
    """

    def __init__(self, logits: Tensor, *, low: float, high: float) -> None:
        n, k = logits.shape
        self.low = math.log(low)
        grid = torch.arange(self.low, math.log(high) + SPACING, SPACING, dtype=torch.float64)
        rest = torch.empty(len(grid), 2, n, dtype=torch.float64)
        largest = torch.empty(min(k, EXACT) if k <= EXACT else LARGEST, n, dtype=torch.float64)
        if k <= EXACT:
            largest = (logits.double() - logits.double().amax(1, keepdim=True)).T.contiguous()
        else:
            _tabulate(logits, grid.tolist(), largest, rest)
        self.largest: Vector = largest.numpy()
        self.points = 0 if k <= EXACT else len(grid)
        self._rest: Vector = rest.numpy().reshape(-1)
        self._rows = np.arange(n)
        self._work = np.empty_like(self.largest)

    def __call__(self, beta: Vector) -> tuple[Vector, Vector]:
        """Return phi(beta) and its derivative."""
        e = np.exp(np.multiply(self.largest, beta, out=self._work), out=self._work)
        size = e.sum(0)
        slope = np.einsum("mn,mn->n", e, self.largest)
        if self.points:
            value, change = self._others(np.log(beta))
            other = np.exp(value)
            size += other
            slope += other * change / beta
        return np.log(size), slope / size

    def _others(self, u: Vector) -> tuple[Vector, Vector]:
        """Return the log-sum of the smaller logits and its derivative in u, by cubic Hermite interpolation."""
        place = np.clip((u - self.low) / SPACING, 0, self.points - 1.000001)
        cell = place.astype(np.intp)
        t, n = place - cell, len(u)
        at = 2 * n * cell + self._rows
        f, df, g, dg = (self._rest.take(at + shift * n) for shift in range(4))
        curve, twist = 3 * (g - f) - 2 * df - dg, 2 * (f - g) + df + dg
        value = f + t * (df + t * (curve + t * twist))
        return value, (df + t * (2 * curve + 3 * t * twist)) / SPACING


def _tabulate(logits: Tensor, grid: list[float], largest: Tensor, rest: Tensor) -> None:
    """Fill in the largest logits of each row, and for the others the log-sum and its derivative times the spacing."""

    def chunk(start: int, stop: int, work: dict[str, Tensor]) -> None:
        z = logits[start:stop]
        top = z.topk(LARGEST, dim=1)
        largest[:, start:stop] = (top.values.double() - top.values[:, :1].double()).T
        d = buffer(work, "d", z).copy_(z).sub_(top.values[:, :1])
        first = d.scatter_(1, top.indices, -torch.inf).amax(1, keepdim=True)
        d.sub_(first).clamp_(min=-1e30)  # the others start at 0, so that no row underflows
        e, lead = buffer(work, "e", d), first.squeeze(1).double()
        for place, u in enumerate(grid):
            beta = math.exp(u)
            size = torch.mul(d, beta, out=e).exp_().sum(1)
            slope = torch.linalg.vecdot(e, d) / size
            rest[place, 0, start:stop] = size.double().log() + beta * lead
            rest[place, 1, start:stop] = beta * (slope.double() + lead) * SPACING

    with torch.no_grad():
        in_chunks(logits, chunk)
