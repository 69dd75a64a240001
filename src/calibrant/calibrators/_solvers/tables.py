r"""Maps of log odds given as tables: steps, and ramps that are linear in the probability.

The tables of several maps are the rows of one tensor, padded to :math:`2^h - 1` places by repeating the last.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.predictions.facts import PROB_ZERO
from calibrant.predictions.types import Vector

Table = tuple[Vector, ...]


def stacked(tables: list[Table]) -> list[Tensor]:
    """Stack the edges of several maps, and each of their columns of values, as many (ramps) or one more (steps)."""
    size = (1 << max(len(edges) for edges, *_ in tables).bit_length()) - 1
    sizes = [size + len(column) - len(tables[0][0]) for column in tables[0]]
    columns = zip(zip(*tables, strict=True), sizes, strict=True)
    return [torch.from_numpy(np.stack([_padded(row, size) for row in rows])) for rows, size in columns]


def _padded(row: Vector, size: int) -> Vector:
    return np.append(row, np.full(size - len(row), row[-1] if len(row) else 0.0))


def step(odds: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Return the value of the bin (lo, hi] that each of the (n, m) log odds falls into."""
    return _take(values.to(odds.dtype), _below(edges.to(odds.dtype), odds))


def ramp(odds: Tensor, knots: Tensor, rates: Tensor) -> Tensor:
    r"""Interpolate probabilities linearly in the probability, and return log odds; constant outside the knots.

    With :math:`\sigma` the logistic function, log odds :math:`l < s < h` are at

    .. math:: \frac{\sigma(s) - \sigma(l)}{\sigma(h) - \sigma(l)} = \frac{\sigma(s)}{\sigma(h)} \cdot
              \frac{e^{l-s} - 1}{e^{l-h} - 1}

    of the way, which loses no digits where the probabilities themselves round to 1.
    """
    knots = knots.to(odds.dtype)
    place, tiny = _below(knots, odds), torch.finfo(odds.dtype).tiny
    low, high = (place - 1).clamp(min=0), place.clamp(max=knots.shape[1] - 1)
    left, right = _take(knots, low), _take(knots, high)
    inside = torch.minimum(torch.maximum(odds, left), right)
    run = torch.expm1(left - right).clamp(max=-tiny)  # 0 outside the knots, and where two of them round to one
    share = (torch.expm1(left - inside) / run * (logsigmoid(inside) - logsigmoid(right)).exp()).clamp(0, 1)
    rates = rates.clamp(PROB_ZERO, 1 - PROB_ZERO)
    sides = (value.to(odds.dtype) for value in (rates, 1 - rates))
    hit, miss = (torch.lerp(_take(side, low), _take(side, high), share).log() for side in sides)
    return hit - miss


def _below(edges: Tensor, odds: Tensor) -> Tensor:
    """Count for (n, m) log odds the edges of their map that lie below; a single map serves all columns."""
    if not torch.compiler.is_compiling():
        wide = odds if len(edges) > 1 else odds.reshape(-1, 1)
        return torch.searchsorted(edges, wide.T.contiguous()).T.reshape(odds.shape)
    # searchsorted has no ONNX form; the same by halving
    place, half = torch.zeros_like(odds, dtype=torch.int64), (edges.shape[1] + 1) // 2
    while half:
        place = place + half * (_take(edges, place + (half - 1)) < odds)
        half //= 2
    return place


def _take(table: Tensor, place: Tensor) -> Tensor:
    first = torch.arange(len(table), device=table.device) * table.shape[1]
    return table.reshape(-1)[first + place]


def supported(rates: Vector, counts: Vector, classes: int) -> Vector:
    r"""Return rates that n rows support: not below :math:`\frac{2/k}{n+2}`, not above :math:`\frac{n+1}{n+2}`.

    A rate of n rows that is not 0 or 1 is not changed. A rate of exactly 0 or 1 would make the log loss infinite at the
    first new row that is otherwise; for two outcomes this is Laplace's rule of succession for n equal outcomes. Among k
    classes each one is rarer, and k floors must not add up to a probability of their own.
    """
    return np.clip(rates, 2 / classes / (counts + 2), (counts + 1) / (counts + 2))


def log_odds_of(rates: Vector) -> Vector:
    """Return the log odds of probabilities, which are kept away from 0 and 1."""
    inside = np.clip(rates, PROB_ZERO, 1 - PROB_ZERO)
    return np.log(inside) - np.log1p(-inside)
