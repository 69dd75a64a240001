"""Binned calibration errors with less bias: debiased ECE, and ECE with a data-driven number of bins."""

from typing import Literal

import numpy as np
from scipy.special import ndtr

from calibrant.metrics.binned import bin_sums
from calibrant.metrics.bins import Scheme, assign
from calibrant.metrics.inputs import metric
from calibrant.predictions import scalars
from calibrant.predictions.types import Confidence, Correct, Vector, Weights, float64, repetitions


@metric(better="lower", range=(-1.0, 1.0), ranges={"l2": (0.0, 1.0)}, family="calibration")
def ece_debiased(
    confidence: Confidence,
    correct: Correct,
    *,
    bins: int = 15,
    scheme: Scheme = "mass",
    norm: Literal["l1", "l2", "l2_squared"] = "l1",
    weights: Weights | None = None,
) -> float:
    r"""Calibration error with the bias of small bins subtracted.

    .. math::
        \text{l1:}\quad & \sum_b \tfrac{n_b}{n} \bigl(2|d_b| - \mathbb{E}\,|N(d_b, s_b^2)|\bigr),
            \qquad d_b = \bar c_b - \bar a_b,\; s_b^2 = \tfrac{\bar a_b(1 - \bar a_b)}{n_b} \\
        \text{l2:}\quad & \sqrt{\max\Bigl(0, \sum_b \tfrac{n_b}{n}
            \bigl(d_b^2 - \tfrac{\bar a_b(1 - \bar a_b)}{n_b - 1}\bigr)\Bigr)}

    The expectation has the closed form :math:`s\sqrt{2/\pi}\,e^{-d^2/2s^2} + d(1 - 2\Phi(-d/s))`, so nothing is drawn.
    ``l1`` may be negative and is not clipped; ``l2_squared`` is the unbiased square under the root of ``l2``. A bin of
    fewer than two rows cannot be debiased and adds 0. Equal-mass bins, tied values sharing one.

    Near zero it is noisy rather than biased: read it with its interval.

    Reference: Kumar, Liang & Ma, NeurIPS 2019; Bröcker, Climate Dynamics 2012.

    Example:
        >>> c = torch.tensor([0.9] * 10 + [0.6] * 10)
        >>> round(ece_debiased(c, torch.tensor(([True] * 6 + [False] * 4) * 2)), 6)
        0.086639
    """
    c, a, weight = float64(confidence), float64(correct), repetitions(weights, len(confidence))
    index, bins = assign(c, bins=bins, scheme=scheme, weights=None if weights is None else weight)
    count = bin_sums(index, bins, weight)
    kept = count >= 2
    count, share = count[kept], count[kept] / weight.sum()
    rate = np.clip(bin_sums(index, bins, weight * a)[kept] / count, 0, 1)
    gap = bin_sums(index, bins, weight * c)[kept] / count - rate
    if norm == "l1":
        spread = np.sqrt(rate * (1 - rate) / count)
        return float((share * (2 * np.abs(gap) - _mean_absolute_normal(gap, spread))).sum())
    square = float((share * (gap**2 - rate * (1 - rate) / (count - 1))).sum())
    return square if norm == "l2_squared" else max(square, 0.0) ** 0.5


def _mean_absolute_normal(mean: Vector, spread: Vector) -> Vector:
    safe = np.where(spread > 0, spread, 1.0)
    ratio = mean / safe
    folded = safe * np.sqrt(2 / np.pi) * np.exp(-(ratio**2) / 2) + mean * (1 - 2 * ndtr(-ratio))
    return np.where(spread > 0, folded, np.abs(mean))


@metric(better="lower", range=(0.0, 1.0), family="calibration")
def ece_sweep(
    confidence: Confidence, correct: Correct, *, scheme: Scheme = "mass", weights: Weights | None = None
) -> float:
    r"""Expected calibration error with the most bins that keep accuracy increasing from bin to bin.

    .. math:: \mathrm{ECE}_{b^*}, \qquad b^* = \max\{b : \bar a_1 \le \dots \le \bar a_{b'} \text{ for all } b' \le b\}

    The sweep stops at the first b whose accuracies decrease and uses b - 1 bins; one bin gives
    :math:`|\bar c - \bar a|`. Equal mass: bin of sorted row j (from 0) is :math:`\lfloor jb/n \rfloor`, and tied rows
    share their mean accuracy, so their order cannot matter. Equal width:
    :math:`\lfloor cb \rfloor`, empty bins skipped. There are at most n bins, and at most a million.

    Reference: Roelofs et al., AISTATS 2022.

    Example:
        >>> c = torch.tensor([0.35, 0.42, 0.48, 0.55, 0.61, 0.68, 0.74, 0.83, 0.91, 0.97])
        >>> round(ece_sweep(c, torch.tensor([0, 1, 0, 1, 0, 1, 1, 1, 0, 1]) == 1), 6)
        0.094
    """
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    sums = _Mass(c, a, w) if scheme == "mass" else _Width(c, a, w)
    total, error = float(w.sum()), 0.0
    most = min(int(np.ceil(total)), scalars.MOST_BINS)
    for b in range(most if _increases(c, a, w) else 1, most + 1):
        count, right, sure = sums(b)
        if b > 1 and (np.diff(right / count) < -1e-9).any():
            break
        error = float(np.abs(sure - right).sum() / total)
    return error


def _increases(c: Vector, a: Vector, w: Vector) -> bool:
    """Whether accuracy never falls along the confidences: then no number of bins fails, and the last one counts."""
    _, place = np.unique(c[w > 0], return_inverse=True)
    rate = np.bincount(place, (w * a)[w > 0]) / np.bincount(place, w[w > 0])
    return not (np.diff(rate) < 0).any()


class _Mass:
    """Sums in b equal-mass bins, from running sums over distinct values: O(b log n) for each b."""

    def __init__(self, c: Vector, a: Vector, w: Vector) -> None:
        _, place = np.unique(c[w > 0], return_inverse=True)
        running = [np.bincount(place, (w * x)[w > 0]).cumsum() for x in (np.ones_like(c), a, c)]
        self.units, self.right, self.sure = (np.concatenate([[0.0], r]) for r in running)
        self.whole = bool(np.all(w == np.round(w)))

    def __call__(self, b: int) -> tuple[Vector, Vector, Vector]:
        total = self.units[-1]
        cuts = np.arange(b + 1) * (total / b)
        if self.whole:
            cuts = np.ceil(np.arange(b + 1) * total / b)
        return (
            np.diff(cuts),
            np.diff(np.interp(cuts, self.units, self.right)),
            np.diff(np.interp(cuts, self.units, self.sure)),
        )


class _Width:
    """Sums in b equal-width bins, empty ones left out."""

    def __init__(self, c: Vector, a: Vector, w: Vector) -> None:
        self.c, self.columns = c, (w, w * a, w * c)

    def __call__(self, b: int) -> tuple[Vector, Vector, Vector]:
        index = np.minimum((self.c * b).astype(np.intp), b - 1)
        count, right, sure = (bin_sums(index, b, column) for column in self.columns)
        return count[count > 0], right[count > 0], sure[count > 0]
