r"""The log-sum of scaled logits at one inverse temperature a row, at a cost that does not grow with the classes.

With :math:`d = z - \max z`, everything a sample-wise temperature needs is
:math:`\varphi(\beta) = \log\sum_k e^{\beta d_k}`: the log loss is :math:`\varphi(\beta) - \beta d_y`, the confidence
:math:`e^{-\varphi(\beta)}`, and :math:`\sum_k p_k^2 = e^{\varphi(2\beta) - 2\varphi(\beta)}`. The four largest logits
of a row are kept as they are; the log-sum of the others is tabulated once, with its derivative, at points equally
spaced in :math:`u = \log\beta`, and interpolated by cubic Hermite polynomials. Up to sixteen classes nothing is
tabulated.
"""

import math

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.facts import buffer, in_chunks
from calibrant.predictions.types import Vector

LARGEST = 4  # logits of a row that are kept exactly
EXACT = 16  # classes up to which all are
SPACING = 0.2  # of the grid in log beta; the error of log-sum-exp is then below 4e-5, and 2e-6 on average


class LogSum:
    """Rows ready to be evaluated, for betas between ``low`` and ``high``; beyond them the table's end holds.

    ``log_sum(beta)`` returns phi and its derivative in beta, one value a row each. Columns are rows here: numpy walks
    through memory in that order, and the loop around this does nothing else.
    """

    def __init__(self, logits: Tensor, *, low: float, high: float) -> None:
        n, k = logits.shape
        self.low, self.cells = math.log(low), 0
        if k <= EXACT:
            largest = (logits.double() - logits.double().amax(1, keepdim=True)).T.contiguous()
        else:
            grid = torch.arange(self.low, math.log(high) + SPACING, SPACING, dtype=torch.float64)
            largest, values, slopes = _tabulate(logits, grid)
            self.cells = len(grid) - 1
            self._cubics: Vector = _cubics(values, slopes).numpy().reshape(-1)
            self._rows = np.arange(n)
        self.largest: Vector = largest.numpy()
        self._work = np.empty_like(self.largest)

    def __call__(self, beta: Vector) -> tuple[Vector, Vector]:
        """Return phi(beta) and its derivative."""
        e = np.exp(np.multiply(self.largest, beta, out=self._work), out=self._work)
        size = e.sum(0)
        slope = np.einsum("mn,mn->n", e, self.largest)
        if self.cells:
            value, change = self._others(np.log(beta))
            other = np.exp(value)
            size += other
            slope += other * change / beta
        return np.log(size), slope / size

    def _others(self, u: Vector) -> tuple[Vector, Vector]:
        """Return the log-sum of the smaller logits and its derivative in u, by cubic Hermite interpolation."""
        place = np.clip((u - self.low) / SPACING, 0, self.cells - 1e-6)
        cell = place.astype(np.intp)
        t, n = place - cell, len(u)
        at = 4 * n * cell + self._rows
        a, b, c, d = (self._cubics.take(at + power * n) for power in range(4))
        return a + t * (b + t * (c + t * d)), (b + t * (2 * c + 3 * t * d)) / SPACING


def _tabulate(logits: Tensor, grid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest logits less the first of them, and the log-sum of the others and its slope at each point."""
    n = len(logits)
    largest = torch.empty(LARGEST, n, dtype=torch.float64)
    lead = torch.empty(n, dtype=torch.float64)  # the largest of the others, less the largest of all
    sizes, slopes = torch.empty(len(grid), n, dtype=logits.dtype), torch.empty(len(grid), n, dtype=logits.dtype)
    betas = grid.exp().tolist()

    def chunk(start: int, stop: int, work: dict[str, Tensor]) -> None:
        z = logits[start:stop]
        top = z.topk(LARGEST, dim=1)
        largest[:, start:stop] = (top.values.double() - top.values[:, :1].double()).T
        d = buffer(work, "d", z).copy_(z).sub_(top.values[:, :1])
        first = d.scatter_(1, top.indices, -torch.inf).amax(1, keepdim=True)
        lead[start:stop] = first.squeeze(1)
        d.sub_(first).clamp_(min=-1e10)  # the others start at 0, so that no row underflows
        e = buffer(work, "e", d)
        for place, beta in enumerate(betas):  # as few calls a point as can be: they, not the arithmetic, take the time
            torch.clamp(d, min=-80 / beta, out=e).mul_(beta).exp_()  # e^-80: numbers below the normal ones are slow
            torch.sum(e, 1, out=sizes[place, start:stop])
            torch.linalg.vecdot(e, d, out=slopes[place, start:stop])

    with torch.no_grad():
        in_chunks(logits, chunk)
    size, beta = sizes.double(), grid.exp()[:, None]
    return largest, size.log() + beta * lead, beta * (slopes.double() / size + lead)


def _cubics(values: Tensor, slopes: Tensor) -> Tensor:
    """Return (cells, 4, n) coefficients, constant first, of the cubics in [0, 1] that have these values and slopes."""
    f, g = values[:-1], values[1:]
    df, dg = slopes[:-1] * SPACING, slopes[1:] * SPACING
    return torch.stack([f, df, 3 * (g - f) - 2 * df - dg, 2 * (f - g) + df + dg], 1)
