r"""Training objectives of sample-wise temperatures: value and derivative in the inverse temperature of each row.

With :math:`d = z - \max z`, everything a sample-wise temperature needs is
:math:`\varphi(\beta) = \log\sum_k e^{\beta d_k}`: the log loss is :math:`\varphi(\beta) - \beta d_y`, the confidence
:math:`e^{-\varphi(\beta)}`, and :math:`\sum_k p_k^2 = e^{\varphi(2\beta) - 2\varphi(\beta)}`. The four largest logits
of a row are kept as they are; the log-sum of the others is tabulated once, with its derivative, at points equally
spaced in :math:`u = \log\beta`, and interpolated by cubic Hermite polynomials: a step costs the same for any number of
classes. Up to sixteen classes nothing is tabulated. Correctness does not change with the temperature.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.facts import buffer, in_chunks
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Vector

BINS, WIDTH, ROUND = 15, 0.05, 1e-3  # soft bins, the standard deviation of their kernel, Charbonnier's delta
SMOOTHING = 0.05
LARGEST = 4  # logits of a row that are kept exactly
EXACT = 16  # classes up to which all are
SPACING = 0.2  # of the grid in log beta; the error of log-sum-exp is then below 4e-5, and 2e-6 on average
Value = tuple[float, Vector]


class LogSum:
    """The function phi of each row, for betas between ``low`` and ``high``; beyond them the table's end holds.

    ``log_sum(beta)`` returns phi and its derivative in beta, one value a row each. Arrays are (classes, n), the
    order in which numpy is fastest here, in the innermost loop of training.
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


class Scaled:
    """Rows whose logits may be scaled, each by its own inverse temperature between ``low`` and ``high``."""

    def __init__(self, rows: FitData, *, low: float, high: float) -> None:
        given, top = rows.given.cpu(), rows.facts.max_logit
        self.log_sum = LogSum(given, low=low, high=high)
        self.true: Vector = (given.gather(1, rows.labels[:, None]).squeeze(1).double() - top).numpy()
        self.mean: Vector = (given.mean(1, dtype=torch.float64) - top).numpy()
        self.correct: Vector = rows.correct.double().numpy()
        self.work: Vector = np.ones((BINS, rows.n))


Goal = Callable[[Vector, Scaled], Value]


def nll(beta: Vector, rows: Scaled) -> Value:
    """Mean log loss."""
    return _cross_entropy(beta, rows, rows.true)


def label_smoothing(beta: Vector, rows: Scaled) -> Value:
    """Mean log loss against labels of which 5 % are spread evenly over all classes."""
    return _cross_entropy(beta, rows, (1 - SMOOTHING) * rows.true + SMOOTHING * rows.mean)


def _cross_entropy(beta: Vector, rows: Scaled, target: Vector) -> Value:
    phi, slope = rows.log_sum(beta)
    return float((phi - beta * target).mean()), (slope - target) / len(beta)


def brier(beta: Vector, rows: Scaled) -> Value:
    """Mean Brier score, summed over classes."""
    (phi, slope), (twice, slope_twice) = rows.log_sum(beta), rows.log_sum(2 * beta)
    square, true = np.exp(twice - 2 * phi), np.exp(beta * rows.true - phi)
    change = square * (2 * slope_twice - 2 * slope) - 2 * true * (rows.true - slope)
    return float((square - 2 * true + 1).mean()), change / len(beta)


def mse(beta: Vector, rows: Scaled) -> Value:
    """Mean squared error of the confidence as a forecast of being right."""
    return _of_confidence(lambda c, a: (float(np.square(c - a).mean()), 2 * (c - a) / len(c)), beta, rows)


def soft_ece(beta: Vector, rows: Scaled) -> Value:
    """Soft-binned ECE: every confidence shared among bins by a Gaussian kernel, then bins compared as usual."""
    return _of_confidence(lambda c, a: soft_binned(c, a, delta=0.0, work=rows.work), beta, rows)


def charbonnier(beta: Vector, rows: Scaled) -> Value:
    """Charbonnier-smoothed soft-binned ECE: sqrt(gap^2 + delta^2) in place of the absolute gap of each bin."""
    return _of_confidence(lambda c, a: soft_binned(c, a, work=rows.work), beta, rows)


def charbonnier_printed(beta: Vector, rows: Scaled) -> Value:
    """The objective as printed in the SMART paper (its equation 6): for study only, it does not calibrate."""
    return _of_confidence(printed, beta, rows)


def _of_confidence(of: Callable[[Vector, Vector], Value], beta: Vector, rows: Scaled) -> Value:
    phi, slope = rows.log_sum(beta)
    confidence = np.exp(-phi)
    value, change = of(confidence, rows.correct)
    return value, -change * confidence * slope


def soft_binned(
    confidence: Vector, correct: Vector, *, bins: int = BINS, delta: float = ROUND, work: Vector | None = None
) -> Value:
    r"""Return :math:`\sum_b \frac{n_b}{n} \sqrt{(C_b - A_b)^2 + \delta^2}` and its derivative in the confidences.

    Row i belongs to bin b by :math:`e^{-(c_i - x_b)^2 / 2\sigma^2}`, normalised over bins with centres :math:`x_b`;
    bins are averaged before the root, and that is what makes accuracy the minimiser. ``work`` is (bins, n) ones.

    With delta = 0 it equals the penalty `soft_ece` at temperature :math:`2\sigma^2` and p = 1, which is for training
    under autograd. Here the derivative is written out in numpy: a fit takes thousands of full-batch steps.

    Example:
        >>> round(soft_binned(np.full(10, 0.7), (np.arange(10) < 7) * 1.0)[0], 6)
        0.001
    """
    n, gaps = len(confidence), confidence - correct
    centre = (np.arange(bins) + 0.5) / bins
    # up to a factor of the row, which normalising cancels, the kernel is a power series: one exponential a row
    factor = np.exp(np.minimum(confidence, 1.0) / (bins * WIDTH**2))
    power = np.ones((bins, n)) if work is None else work
    for b in range(1, bins):
        np.multiply(power[b - 1], factor, out=power[b])
    kernel = np.exp(-np.square(centre) / (2 * WIDTH**2))
    share = 1 / (kernel @ power)
    masses, totals = kernel * (np.stack([share, share * gaps]) @ power.T)
    mass = np.maximum(masses, 1e-300)
    gap = totals / mass
    root = np.sqrt(gap**2 + delta**2)
    # the value depends on a bin through the sum of its gaps and through its mass
    by_sum = np.divide(gap, root, out=np.zeros(bins), where=root > 0) / n
    by_mass = np.divide(delta**2, root, out=np.zeros(bins), where=root > 0) / n
    columns = np.stack([by_sum, by_sum * centre, by_mass, by_mass * centre, centre]) * kernel
    sums, sums_at, weights, weights_at, place = (columns @ power) * share
    change = sums + (gaps * (sums_at - place * sums) + weights_at - place * weights) / WIDTH**2
    return float(mass @ root) / n, change


def printed(confidence: Vector, correct: Vector, *, points: int = 2000) -> Value:
    r"""Return :math:`\frac1n \sum_i \int K(c_i, u)\sqrt{(a_i - u)^2 + \delta^2}\,du`, the distance taken row by row.

    A row's distance to u does not know about other rows, so the value is linear in the kernel's mean: it falls to
    confidence 1 where more than half are right and to 0 where fewer are, never to the accuracy.
    """
    u = (np.arange(points) + 0.5) / points
    value, change = np.empty_like(confidence), np.empty_like(confidence)
    for low in range(0, len(confidence), 500):
        c, a = confidence[low : low + 500, None], correct[low : low + 500, None]
        kernel = np.exp(-np.square(c - u) / (2 * WIDTH**2))
        kernel /= kernel.sum(1, keepdims=True)
        far = np.sqrt(np.square(a - u) + ROUND**2)
        value[low : low + 500] = (kernel * far).sum(1)
        change[low : low + 500] = (kernel * (u - kernel @ u[:, None]) * far).sum(1) / WIDTH**2
    return float(value.mean()), change / len(confidence)


GOALS: dict[str, Goal] = {
    "charbonnier": charbonnier,
    "soft_ece": soft_ece,
    "nll": nll,
    "label_smoothing": label_smoothing,
    "mse": mse,
    "brier": brier,
    "charbonnier_printed": charbonnier_printed,
}
