r"""What a sample-wise temperature is trained on: value and derivative at one inverse temperature a row.

Correctness does not change with the temperature, so only the confidence :math:`c = e^{-\varphi(\beta)}` moves.
"""

from collections.abc import Callable

import numpy as np
import torch

from calibrant.calibrators._solvers.logsum import LogSum
from calibrant.predictions.fit_data import Rows
from calibrant.predictions.types import Vector

BINS, WIDTH, ROUND = 15, 0.05, 1e-3  # soft bins, the standard deviation of their kernel, Charbonnier's delta
SMOOTHING = 0.05
Value = tuple[float, Vector]


class Scaled:
    """Rows whose logits may be scaled, each by its own inverse temperature between ``low`` and ``high``."""

    def __init__(self, rows: Rows, *, low: float, high: float) -> None:
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
