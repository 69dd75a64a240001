r"""Exact distances to the nearest rows of each class: matrix products find them, direct differences measure them.

:math:`\|q - x\|^2 = \|q\|^2 + \|x\|^2 - 2\, q \cdot x` makes one matrix product of all distances, and loses what is
small beside the norms. So rows and queries are centred first, the few nearest by the product are measured again by
:math:`\sum_j (q_j - x_j)^2` in float64, and the rounding of the product is bounded: where a row that was not measured
could be nearer, the search is repeated in float64 about the centre of its class, and if need be without products. The
answer is therefore exact whatever the features are; only the time depends on them.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

QUERIES, ROWS, VALUES = 8192, 2048, 2**23  # the most queries, rows and float64 values that are held at a time
NARROW = 128  # of fewer rows the two nearest are slower to find than the nearest
ROUNDING = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
TINY = {torch.float32: 1e-34, torch.float64: 1e-290}  # what is lost below the smallest number


@dataclass(frozen=True)
class _Frame:
    """The coordinates of the products: about a centre, in units of a power of two in which no square overflows."""

    centre: Tensor
    scale: float
    dtype: torch.dtype

    def placed(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return x in these coordinates, and its squared lengths in float64."""
        seen = (x / self.scale).sub_(self.centre.to(x.dtype)).to(self.dtype)
        return seen, seen.square().sum(1, dtype=torch.float64)


@dataclass(frozen=True)
class _Found:
    """The nearest few rows of each class by the product: (n, c, m) squared distances ascending, and which rows.

    A true squared distance is within ``slack``, (n, c), of the one said. Where a class has too few rows stands inf.
    """

    squared: Tensor
    rows: Tensor
    slack: Tensor


def by_class(
    queries: Tensor, rows: Tensor, offsets: list[int], *, neighbour: int = 1, judged: Tensor | None = None
) -> Tensor:
    """Return the (n, k) float64 distances of queries to the ``neighbour``-th nearest row of each class.

    Rows are sorted by class: those of class c stand at ``offsets[c]`` to ``offsets[c + 1]``. A class of fewer than
    ``neighbour`` rows is infinitely far. Rows that stand there twice count twice. Where ``judged`` names a class for
    each query, only that class and the nearest of the others are measured; the rest come back as inf.

    Example:
        >>> rows = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])  # the last is of class 1
        >>> by_class(torch.zeros(1, 2), rows, [0, 2, 3]), by_class(torch.zeros(1, 2), rows, [0, 2, 3], neighbour=2)
        (tensor([[0., 1.]], dtype=torch.float64), tensor([[5., inf]], dtype=torch.float64))
    """
    k, m = len(offsets) - 1, neighbour + 1
    block = min(QUERIES, max(256, VALUES // (k * m)))
    with torch.no_grad(), torch.autocast(queries.device.type, enabled=False):
        frame, parts = _frame(queries, rows, _product_type(rows)), []
        plain = 2.0**-100 < frame.scale < 2.0**100  # beyond, float32 cannot say how large it is
        kind = torch.promote_types(queries.dtype, rows.dtype) if plain else torch.float64
        for low in range(0, len(queries), block):
            part = queries[low : low + block].to(kind)
            found = _by_products(part, rows, offsets, m, frame)
            needed = _needed(found, neighbour, None if judged is None else judged[low : low + block])
            parts.append(_measured(found, needed, part, rows, offsets, neighbour))
        return torch.cat(parts) if parts else queries.new_empty(0, k, dtype=torch.float64)


def _product_type(rows: Tensor) -> torch.dtype:
    """Return float32 where its products are true float32: TF32 and bfloat16, if allowed, would break the bound."""
    try:
        true = rows.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # torch's answer where the precision was set for one kind of device alone
        true = False
    return torch.float32 if true else torch.float64


def _frame(queries: Tensor, rows: Tensor, dtype: torch.dtype) -> _Frame:
    largest = max((float(x.aminmax()[i].abs()) for x in (queries, rows) if x.numel() for i in (0, 1)), default=0.0)
    scale = 2.0 ** (math.frexp(largest)[1] + math.frexp(math.sqrt(rows.shape[1]))[1] + 1)
    return _Frame(rows.mean(0, dtype=torch.float64) / scale, scale, dtype)


def _by_products(queries: Tensor, rows: Tensor, offsets: list[int], m: int, frame: _Frame) -> _Found:
    """Find the m nearest rows of each class by matrix products; of a narrow class only how far the nearest is."""
    n, k, d, dtype = len(queries), len(offsets) - 1, rows.shape[1], frame.dtype
    q, qq = frame.placed(queries)
    q = torch.cat([q, torch.ones_like(q[:, :1])], 1)
    squared = torch.full((n, k, m), torch.inf, dtype=dtype, device=q.device)
    index = torch.zeros((n, k, m), dtype=torch.int64, device=q.device)
    longest = qq.new_zeros(k)
    for low, high in _chunks(offsets):
        x, xx = frame.placed(rows[low:high].to(queries.dtype))
        product = q @ torch.cat([-2 * x, xx.to(dtype)[:, None]], 1).T  # (n, rows): |q - x|^2 short of |q|^2
        for c, a, b in _classes_in(offsets, low, high):
            longest[c] = torch.maximum(longest[c], xx[a - low : b - low].amax())
            said = product[:, a - low : b - low]
            if m == 2 < offsets[c + 1] - offsets[c] < NARROW:  # and so whole
                squared[:, c, 0], squared[:, c, 1], index[:, c] = said.amin(1), -torch.inf, a
                continue
            near = said.topk(min(m, b - a), largest=False)
            both = torch.cat([squared[:, c], near.values], 1), torch.cat([index[:, c], near.indices + a], 1)
            squared[:, c], index[:, c] = _nearest(*both, m)
    # the classical bound of a dot product, the number of its terms times the rounding, and a few roundings around it
    slack = (d + 16) * ROUNDING[dtype] * (qq.sqrt()[:, None] + longest.sqrt()).square() + TINY[dtype]
    return _Found((squared.double() + qq[:, None, None]) * frame.scale**2, index, slack * frame.scale**2)


def _chunks(offsets: list[int]) -> Iterator[tuple[int, int]]:
    """Cut the rows into pieces that end where a class ends, if one does."""
    low, n = 0, offsets[-1]
    while low < n:
        ends = offsets[bisect_right(offsets, low) : bisect_right(offsets, low + ROWS)]
        high = ends[-1] if ends else low + ROWS
        yield low, high
        low = high


def _classes_in(offsets: list[int], low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Give each class that has rows between low and high, with those rows."""
    for c in range(bisect_right(offsets, low) - 1, bisect_left(offsets, high)):
        a, b = max(offsets[c], low), min(offsets[c + 1], high)
        if a < b:
            yield c, a, b


def _needed(found: _Found, neighbour: int, judged: Tensor | None) -> Tensor:
    """Mark the distances to measure: all that exist, or those of the judged class and of what may be nearest else."""
    said = found.squared[:, :, neighbour - 1]
    exists = said.isfinite()
    if judged is None:
        return exists
    bound = (said + found.slack).scatter(1, judged[:, None], torch.inf).amin(1, keepdim=True)
    return exists & (said - found.slack <= bound).scatter(1, judged[:, None], value=True)


def _measured(
    found: _Found, needed: Tensor, queries: Tensor, rows: Tensor, offsets: list[int], neighbour: int
) -> Tensor:
    """Return the (n, c) exact distances where they are needed, inf elsewhere."""
    out = torch.full(needed.shape, torch.inf, dtype=torch.float64, device=queries.device)
    query, label = needed.nonzero(as_tuple=True)
    squared, sure = _remeasured(found, query, label, queries, rows, neighbour)
    out[query, label] = squared.sqrt()
    query, label = query[~sure], label[~sure]
    for c in label.unique().tolist():
        again, own = query[label == c], rows[offsets[c] : offsets[c + 1]]
        search = _directly if len(again) * own.numel() <= 2 * VALUES else _of_one_class
        out[again, c] = search(queries[again], own, neighbour)
    return out


def _of_one_class(queries: Tensor, rows: Tensor, neighbour: int) -> Tensor:
    """Search in float64 about the centre of the rows, then among distinct rows, then without products."""
    found = _by_products(queries.double(), rows, [0, len(rows)], neighbour + 7, _frame(queries, rows, torch.float64))
    every = torch.arange(len(queries), device=queries.device)
    squared, sure = _remeasured(found, every, torch.zeros_like(every), queries, rows, neighbour)
    out, doubtful = squared.sqrt(), every[~sure]
    if len(doubtful) and neighbour == 1:  # a row that stands there often leaves no telling which of it is nearest
        distinct = rows.unique(dim=0)
        if len(distinct) < len(rows):
            out[doubtful] = _of_one_class(queries[doubtful], distinct, 1)
            return out
    for part in doubtful.split(max(1, VALUES // ROWS)):
        out[part] = _directly(queries[part], rows, neighbour)
    return out


def _directly(queries: Tensor, rows: Tensor, neighbour: int) -> Tensor:
    """Measure every distance."""
    near = queries.new_empty(len(queries), 0, dtype=torch.float64)
    index = near.long()
    for low in range(0, len(rows), ROWS):
        some = rows[low : low + ROWS].double()
        away = torch.cdist(queries.double(), some, compute_mode="donot_use_mm_for_euclid_dist")
        place = torch.arange(low, low + len(some), device=near.device).expand(away.shape)
        near, index = _nearest(torch.cat([near, away], 1), torch.cat([index, place], 1), neighbour)
    found = _Found(near[:, None], index[:, None], torch.zeros_like(near[:, :1]))
    every = torch.arange(len(queries), device=queries.device)
    return _remeasured(found, every, torch.zeros_like(every), queries, rows, neighbour)[0].sqrt()


def _nearest(values: Tensor, index: Tensor, m: int) -> tuple[Tensor, Tensor]:
    """Return the m smallest values, ascending, and their index."""
    best = values.topk(min(m, values.shape[1]), largest=False)
    return best.values, index.gather(1, best.indices)


def _remeasured(
    found: _Found, query: Tensor, label: Tensor, queries: Tensor, rows: Tensor, neighbour: int
) -> tuple[Tensor, Tensor]:
    """Return squared distances of pairs (query, class) by direct differences, and whether no other row is nearer."""
    m, d = found.squared.shape[2], rows.shape[1]
    values, sure = [], []
    for part in torch.arange(len(query), device=query.device).split(max(1, VALUES // (m * d))):
        at = query[part], label[part]
        away = queries[at[0]].double()[:, None] - rows[found.rows[at]].double()  # (p, m, d)
        squared = away.square().sum(2).masked_fill(found.squared[at].isinf(), torch.inf)
        values.append(squared.sort(1).values[:, neighbour - 1])
        sure.append(values[-1] <= found.squared[at][:, -1] - found.slack[at])  # a row left out is at least so far
    if not values:
        return queries.new_empty(0, dtype=torch.float64), queries.new_empty(0, dtype=torch.bool)
    return torch.cat(values), torch.cat(sure)
