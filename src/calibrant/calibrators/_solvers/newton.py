r"""Temperature of least log loss, by safeguarded Newton steps on :math:`u = \log\beta`, :math:`\beta = 1/T`.

With :math:`d = z - \max z` the mean log loss :math:`L(\beta) = \overline{\log\sum_k e^{\beta d_k} - \beta d_y}` is
convex in :math:`\beta`: its slope :math:`g = \overline{E_\beta d - d_y}` rises, with derivative
:math:`v = \overline{\mathrm{Var}_\beta d}`, and one pass over the logits gives all three. From the left of the root
:math:`\beta - g/v` does not overshoot; from the right :math:`u - g/(\beta v + g)` never leaves :math:`\beta > 0`. The
sign of g keeps the root in a bracket.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.predictions.facts import buffer, in_chunks
from calibrant.predictions.fit_data import FitData

REACH = 10.0  # T is sought within e^±10 of the scale of the logits
CLOSE = 1e-8  # the error in log T at which the search ends
EDGE = 1.001  # a search that ends so near to the edge of its range has been stopped by it
MANY = 4000  # rows from which a tenth of them is fitted first


@dataclass(frozen=True)
class Solution:
    """``beta`` = 1/T; ``bound`` is empty, or why the log loss has no minimum within reach.

    ``spread`` is the standard error of log T; ``loss`` the log loss at the solution; ``passes`` how many times the rows
    were read, a tenth of them counting as a tenth.
    """

    beta: float
    loss: float
    spread: float
    passes: float
    bound: str = ""


@dataclass(frozen=True)
class _Moments:
    loss: float
    slope: float
    variance: float
    slope_square: float


def least_log_loss(rows: FitData) -> Solution:
    """Find the root of the slope; the answer does not depend on where the search began."""
    logits, n = rows.given, rows.n
    facts, labels = rows.facts, rows.labels
    scale = _scale(rows)
    if scale == 0:
        return Solution(
            1.0, math.log(rows.k), math.inf, 0.0, "all logits of a row are equal, so no temperature matters"
        )
    low, high = math.exp(-REACH) / scale, math.exp(REACH) / scale
    true = logits.gather(1, labels[:, None].to(logits.device)).squeeze(1).double().cpu()
    behind = true - facts.max_logit
    if bool((behind == 0).all()):
        return _at_bound(rows, behind, high, "every row is right, so the log loss falls for ever as T -> 0")
    start = _guess(rows, low, high)
    passes = 0.0
    if n >= MANY:
        part = torch.arange(0, n, 10)
        rough = _search(logits[part.to(logits.device)], facts.max_logit[part], behind[part], start, low, high)
        start, passes = rough.beta, rough.passes * len(part) / n
    found = _search(logits, facts.max_logit, behind, start, low, high)
    passes += found.passes
    if found.beta <= low * EDGE:
        return _at_bound(rows, behind, low, "the true class is no more likely among large logits than among small ones")
    if found.beta >= high / EDGE:
        return _at_bound(rows, behind, high, "the log loss still falls at the smallest T")
    return Solution(found.beta, found.loss, found.spread, passes)


def _scale(rows: FitData) -> float:
    """Return the median lead of the largest logit, which one wild row or a masked class does not move; 0 if none leads.

    Where the first two always tie, the median lead over the smallest.
    """
    lead = rows.facts.logit_margin
    if not bool((lead > 0).any()):
        lead = rows.facts.max_logit - rows.given.amin(1).double().cpu()
    return float(lead[lead > 0].median()) if bool((lead > 0).any()) else 0.0


def _guess(rows: FitData, low: float, high: float) -> float:
    """Two classes would need the odds of being right to be e^(beta margin); start from that."""
    right = min(max(float(rows.correct.double().mean()), 1.0 / rows.k + 0.05), 0.98)
    margin = float(rows.facts.logit_margin.median())
    odds = math.log(right / (1 - right)) + 1.0
    return min(max(odds / margin, low), high) if margin > 0 else math.sqrt(low * high)


def _search(logits: Tensor, top: Tensor, behind: Tensor, start: float, low: float, high: float) -> Solution:
    beta, left, right, passes = start, low, high, 0.0
    at, rises, last = _moments(logits, top, behind, beta), 0, 1.0
    while True:
        passes += 1
        left, right = (left, min(right, beta)) if at.slope > 0 else (max(left, beta), right)
        rises = rises + 1 if at.slope > 0 else 0
        step = _step(at, beta)
        if rises == 2 and step < -0.5 and left == low:  # far right of the root, or there is none: look at beta = 0
            zero = _moments(logits, top, behind, 0.0)
            passes += 1
            if zero.slope >= 0:
                return Solution(low, at.loss, math.inf, passes)
            step = math.log(max(-zero.slope / zero.variance, low) / beta)
        new = math.exp(math.log(beta) + step)
        if not left < new < right:
            new = math.sqrt(left * right) if abs(step) > CLOSE else beta
        moved = math.log(new / beta)
        # errors of Newton steps are squared each time, so the one that this step leaves can be told from the last two
        if abs(moved) * min((moved / last) ** 2, 1.0) <= CLOSE:
            # the loss at the new point, to third order in the step
            loss = at.loss + at.slope * (new - beta) + 0.5 * at.variance * (new - beta) ** 2
            noise = math.sqrt(max(at.slope_square - at.slope**2, 0.0) / len(top))
            return Solution(new, loss, noise / (beta * at.variance) if at.variance > 0 else math.inf, passes)
        if right / left < 1 + CLOSE or passes > 60:
            return Solution(new, at.loss, math.inf, passes)
        beta, last = new, moved if abs(moved) < 0.5 else 1.0
        at = _moments(logits, top, behind, beta)


def _step(at: _Moments, beta: float) -> float:
    curve = beta * at.variance
    if at.slope > 0:
        return -at.slope / (curve + at.slope)
    return math.log1p(min(-at.slope / curve, 50.0)) if curve > 0 else 4.0


def _moments(logits: Tensor, top: Tensor, behind: Tensor, beta: float) -> _Moments:
    """Read every row once: log loss, slope, variance and squared slope, averaged in float64."""
    n = len(top)
    size, first, second = torch.empty(3, n, dtype=torch.float64)

    def chunk(low: int, high: int, work: dict[str, Tensor]) -> None:
        z = logits[low:high]
        d = buffer(work, "d", z.double() if z.dtype != torch.float64 else z)
        torch.sub(z, top[low:high, None].to(z.device), out=d)
        e = torch.mul(d, beta, out=buffer(work, "e", d)).exp_()
        size[low:high] = e.sum(1)
        e.mul_(d)
        first[low:high] = e.sum(1)
        second[low:high] = torch.linalg.vecdot(e, d)

    with torch.no_grad():
        in_chunks(logits, chunk)
    mean = first / size
    slope = mean - behind
    return _Moments(
        loss=float((size.log() - beta * behind).mean()),
        slope=float(slope.mean()),
        variance=float((second / size - mean.square()).clamp(min=0).mean()),
        slope_square=float(slope.square().mean()),
    )


def _at_bound(rows: FitData, behind: Tensor, beta: float, why: str) -> Solution:
    at = _moments(rows.given, rows.facts.max_logit, behind, beta)
    return Solution(beta, at.loss, math.inf, 1.0, why)
