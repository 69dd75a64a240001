"""Calibration errors without bins: Lipschitz tests and kernels."""

import heapq
from typing import Literal

import numpy as np
from scipy.fft import dct, idct
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp

from calibrant.metrics.inputs import metric
from calibrant.predictions import scalars
from calibrant.predictions.types import Array, Confidence, Correct, Labels, Probs, Vector, Weights, float64, repetitions


@metric(better="lower", range=(0.0, 1.0), family="calibration", skewed=True)
def smooth_ce(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Smooth calibration error smCE, exact: the largest correlation of a 1-Lipschitz function with the residuals.

    .. math:: \sup_{\varphi : [0,1] \to [-1,1],\ \varphi\ 1\text{-Lipschitz}} \frac1n \sum_i \varphi(c_i)(a_i - c_i)

    Continuous in the confidences, no parameter, and :math:`|\bar a - \bar c| \le \mathrm{smCE} \le
    \frac1n\sum_i |a_i - c_i|`. Solved exactly in O(n log n): along the sorted confidences the best value as a function
    of :math:`\varphi(c_i) \in [-1, 1]` is concave and piecewise linear; its breakpoints live in two heaps, a gap d
    moves the left ones by -d and the right ones by +d, and adding :math:`r\varphi` tips breakpoints across the top.

    Reference: Kakade & Foster, COLT 2004; Błasiok et al., STOC 2023.

    Example:
        >>> round(smooth_ce(torch.tensor([0.3, 0.8]), torch.tensor([True, False])), 6)
        0.225
    """
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    values, place = np.unique(c, return_inverse=True)
    gains = np.bincount(place, w * (a - c))
    left: list[tuple[float, float]] = []  # (-(x + shift), slope): breakpoints left of the top, nearest first
    right: list[tuple[float, float]] = []  # (x - shift, slope): right of the top
    best = shift = 0.0
    for gap, gain in zip(np.diff(values, prepend=values[0]).tolist(), gains.tolist(), strict=True):
        shift += gap
        best += _tip(right, left, gain, shift) if gain > 0 else _tip(left, right, -gain, shift)
    return float(best / w.sum())


def _tip(ahead: list[tuple[float, float]], behind: list[tuple[float, float]], slope: float, shift: float) -> float:
    """Add a slope to a concave piecewise linear function, moving breakpoints that its maximum passes; return its rise.

    Seen from the top both heaps look alike: distance along the slope's direction, at most 1 (the edge of [-1, 1]).
    """
    gain = 0.0
    while slope > 0:
        x = ahead[0][0] + shift if ahead else 1.0
        if x >= 1.0:  # the edge holds any slope; what lies beyond it has left the domain for good
            gain += slope
            heapq.heappush(behind, (-1.0 - shift, slope))
            return gain
        _, weight = heapq.heappop(ahead)
        moved = min(weight, slope)
        if weight > slope:
            heapq.heappush(ahead, (x - shift, weight - slope))
        heapq.heappush(behind, (-x - shift, moved))
        gain += moved * x
        slope -= moved
    return gain


@metric(better="lower", range=(0.0, 1.0), family="calibration", skewed=True)
def sm_ece(
    confidence: Confidence, correct: Correct, *, sigma: float | None = None, weights: Weights | None = None
) -> float:
    r"""SmoothECE: calibration error smoothed by a Gaussian whose width is the error itself.

    .. math:: \mathrm{smECE}_\sigma = \int_0^1 \Bigl|\frac1n \sum_i (c_i - a_i) K_\sigma(t, c_i)\Bigr| dt,
              \qquad \mathrm{smECE} = \sigma^* \text{ with } \mathrm{smECE}_{\sigma^*} = \sigma^*

    with K the Gaussian reflected at 0 and 1; ``sigma`` fixes the width instead. Residuals are shared linearly between
    the two nearest of 2 048 cells (the widening is undone) and smoothed in cosine space, where reflection is exact and
    a width costs one transform. The left side falls in sigma, so a bracketed root search finds the fixed point.

    Reference: Błasiok & Nakkiran, ICLR 2024 (arXiv 2309.12236).

    Example:
        >>> round(sm_ece(torch.tensor([0.9, 0.9, 0.6, 0.6]), torch.tensor([True, False, True, False])), 4)
        0.25
    """
    grid = _residuals(confidence, correct, weights)
    wave = np.arange(len(grid))
    spectrum = dct(grid, type=2, norm="ortho") / np.sinc(wave / (2 * len(grid))) ** 2
    unsmoothed = float(np.abs(grid).sum())

    def error(width: float) -> float:
        smoothed = np.abs(idct(spectrum * np.exp(-0.5 * (np.pi * wave * width) ** 2), type=2, norm="ortho")).sum()
        return min(float(smoothed), unsmoothed)  # a width below a cell rings

    if sigma is not None:
        return error(scalars.positive(sigma, "sigma"))
    if error(1e-9) <= 1e-9:
        return 0.0
    return float(brentq(lambda width: error(width) - width, 1e-9, 2.0, xtol=1e-10))


def _residuals(confidence: Confidence, correct: Correct, weights: Weights | None) -> Vector:
    cells = 2048
    c, a = float64(confidence), float64(correct)
    w = repetitions(weights, len(c))
    place = np.clip(c * cells - 0.5, 0, cells - 1)
    cell = np.minimum(place.astype(np.intp), cells - 2)
    residual, above = w * (c - a) / w.sum(), place - cell
    shares = np.bincount(cell, residual * (1 - above), cells) + np.bincount(cell + 1, residual * above, cells)
    return np.asarray(shares, dtype=np.float64)


@metric(better="lower", range=(0.0, float("inf")), family="calibration")
def ece_kde(
    probs: Probs,
    labels: Labels,
    *,
    kind: Literal["canonical", "top_label", "marginal"] = "canonical",
    power: int = 1,
    bandwidth: float = 0.02,
    weights: Weights | None = None,
) -> float:
    r"""Calibration error with the true probabilities estimated by a Dirichlet kernel, each row left out in turn.

    .. math:: \frac1n \sum_j \sum_k |r_{jk} - p_{jk}|^{power}, \qquad
              r_{jk} = \frac{\sum_{i \ne j} \kappa(p_j; p_i)\,[y_i = k]}{\sum_{i \ne j} \kappa(p_j; p_i)},
              \quad \kappa(\cdot; p_i) = \mathrm{Dir}(p_i / h + 1)

    ``kind="canonical"`` uses the whole vector; ``"top_label"`` the confidence and correctness with a Beta kernel;
    ``"marginal"`` sums that over classes (divide by K for a mean). NaN for a single row. O(n^2 K): meant for a few
    thousand rows.

    Reference: Popordanoska, Sayer & Blaschko, NeurIPS 2022.

    Example:
        >>> p = torch.tensor([[0.6, 0.4], [0.6, 0.4], [0.6, 0.4]])
        >>> round(ece_kde(p, torch.tensor([0, 0, 1])), 6)
        0.4
    """
    bandwidth, power = scalars.positive(bandwidth, "bandwidth"), scalars.whole(power, "power", least=1)
    p, y = float64(probs), labels.cpu().numpy()
    w = repetitions(weights, len(p))
    truth = y[:, None] == np.arange(p.shape[1])
    if kind == "canonical":
        return _kde_error(p, truth, w, power, bandwidth)
    if kind == "top_label":
        top = p.argmax(1)
        columns = [(p.max(1), top == y)]
    else:
        columns = [(p[:, j], truth[:, j]) for j in range(p.shape[1])]
    return sum(_kde_error(np.stack([c, 1 - c], 1), np.stack([a], 1), w, power, bandwidth) for c, a in columns)


def _kde_error(p: Vector, truth: Array, w: Vector, power: int, h: float) -> float:
    """Mean over rows of the powered distance, over as many leading columns as ``truth`` has."""
    rows = w > 0
    p, truth, w = p[rows], truth[rows].astype(float), w[rows]
    if w.sum() <= 1:
        return float("nan")
    log_p = np.log(np.clip(p, 1e-12, 1.0))
    normaliser = gammaln(p / h + 1).sum(1) - gammaln((p / h + 1).sum(1))
    error = 0.0
    for low in range(0, len(p), step := max(1, 2_000_000 // len(p))):
        part = slice(low, low + step)
        log_kernel = log_p[part] @ (p.T / h) - normaliser  # (rows here, all rows)
        others = np.broadcast_to(w, log_kernel.shape).copy()
        np.einsum("ii->i", others[:, part])[:] -= 1.0  # leave one unit of the row itself out
        with np.errstate(divide="ignore"):
            log_kernel += np.log(np.maximum(others, 0.0))
        kernel = np.exp(log_kernel - logsumexp(log_kernel, axis=1, keepdims=True))
        distance = np.abs(kernel @ truth - p[part, : truth.shape[1]]) ** power
        error += float((w[part] * distance.sum(1)).sum())
    return error / float(w.sum())
