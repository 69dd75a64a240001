r"""Per-row facts in one pass over the logits, chunk by chunk so that a chunk stays in cache.

With :math:`m = \max_k z_k` and :math:`p = \mathrm{softmax}(z)`, a row gives its confidence :math:`p_{(1)}`, predicted
class (ties: lowest index), margin :math:`p_{(1)} - p_{(2)}`, entropy, :math:`\sum_k p_k^2`, largest logit, energy
:math:`\log\sum_k e^{z_k}`, logit margin :math:`z_{(1)} - z_{(2)}`, and with a label its negative log likelihood and
Brier score. Everything after this pass costs O(n).

The confidence is computed in float64 from the mass of the *other* classes, so rows whose float32 softmax rounds to 1
keep their order. Half precision is cast to float32 before any exponential.

Rows that hold the same logits in another order have the same confidence and margins, up to `EXACT` classes: the sum
over the classes does not depend on their order (but for one pair of rows in many thousands). Their entropy and sum of
squares may differ in the last digits, as may everything beyond that number of classes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from calibrant.predictions.threads import spread
from calibrant.predictions.types import widened

EXACT = 128  # classes up to which a sum over them does not depend on their order; it costs a few operations
SMALL = 32_768  # values up to which torch itself uses one thread
CHUNK = 500_000  # values a chunk: 2 MB of float32 stay in cache while ten operations pass over them
LANE = 200_000  # values from which a second worker pays
GPU_CHUNK = 16_000_000
LOG_ZERO = -1e4  # log p is floored here, so that 0 log 0 = 0
PROB_ZERO = 1e-12  # the floor where a logarithm of a *given* probability is needed


@dataclass(frozen=True)
class Facts:
    """One float64 value a row; ``predicted`` is int64; ``nll`` and ``brier`` are NaN where there are no labels."""

    confidence: Tensor
    predicted: Tensor
    margin: Tensor
    entropy: Tensor
    square: Tensor
    max_logit: Tensor
    energy: Tensor
    logit_margin: Tensor
    nll: Tensor
    brier: Tensor

    def take(self, rows: Tensor) -> "Facts":
        """Return the facts of some rows."""
        return Facts(*(getattr(self, f.name)[rows] for f in fields(self)))


def from_logits(logits: Tensor, labels: Tensor | None) -> Facts:
    """Compute the facts of (n, k) logits; a row that is not finite comes back with entropy NaN."""
    with torch.no_grad():
        raw = _Raw(len(logits))
        in_chunks(logits, lambda low, high, work: _rows(logits[low:high], labels, raw, low, work))
        odd = (raw.top + raw.cross).isnan().nonzero().squeeze(1)
        odd = odd[logits[odd.to(logits.device)].isfinite().all(1).cpu()]
        if len(odd):  # a finite row may span more than its type holds: shift it in float64 and try again
            wide = logits[odd.to(logits.device)].double()
            raw.top[odd] = wide.amax(1).cpu()
            shifted, again = (wide - wide.amax(1, keepdim=True)).clamp(min=LOG_ZERO), _Raw(len(odd))
            _rows(shifted, None, again, 0, {})
            for name in ("predicted", "others", "norm", "cross"):
                getattr(raw, name)[odd] = getattr(again, name)
            two = wide.topk(2, dim=1).values.cpu()
            raw.second[odd] = two[:, 1] - two[:, 0]
            if labels is not None:
                raw.d_true[odd] = wide.cpu().gather(1, labels[odd][:, None]).squeeze(1) - raw.top[odd]
        return raw.facts(labels)


def from_probs(probs: Tensor, labels: Tensor | None) -> Facts:
    """Compute the facts of (n, k) probabilities, kept exactly as given; log 0 is taken as log 1e-12."""
    with torch.no_grad():
        rows = max(1, CHUNK // probs.shape[1])
        parts = [
            _prob_rows(probs[low : low + rows].double(), None if labels is None else labels[low : low + rows])
            for low in range(0, len(probs), rows)
        ]
        return Facts(*(torch.cat([getattr(part, f.name).cpu() for part in parts]) for f in fields(Facts)))


def rank(scores: Tensor, labels: Tensor) -> Tensor:
    """Return how many classes are ahead of the true one; tied classes are ranked by index."""
    mine = labels[:, None].to(scores.device)
    true = scores.gather(1, mine)
    earlier = torch.arange(scores.shape[1], device=scores.device) < mine
    return ((scores > true) | ((scores == true) & earlier)).sum(1).cpu()


def in_chunks(logits: Tensor, work: Callable[[int, int, dict[str, Tensor]], None]) -> None:
    """Call ``work(low, high, buffers)`` on ranges of rows that fit in cache, on as many threads as torch may use."""
    n, k = logits.shape
    if logits.device.type != "cpu":
        rows = max(1, GPU_CHUNK // k)
        for low in range(0, n, rows):
            work(low, min(n, low + rows), {})
        return
    lanes = min(torch.get_num_threads(), -(-logits.numel() // LANE))
    rows = max(1, min(CHUNK, -(-logits.numel() // lanes)) // k)

    def lane(first: int) -> None:
        # One worker a core, each on its own chunks, beats threads inside each operation (no barrier a step).
        buffers: dict[str, Tensor] = {}
        with torch.no_grad():
            for low in range(first * rows, n, lanes * rows):
                work(low, min(n, low + rows), buffers)

    if logits.numel() <= SMALL:
        lane(0)
    else:
        spread(lane, range(lanes))


def _rows(logits: Tensor, labels: Tensor | None, out: "_Raw", low: int, work: dict[str, Tensor]) -> None:
    """Fill rows ``low`` onwards of ``out``. ``work`` holds this thread's buffers between chunks."""
    high = low + len(logits)
    z = widened(logits).contiguous()
    top, predicted = _max(z)
    at = predicted[:, None]
    d = torch.sub(z, top[:, None], out=buffer(work, "d", z))
    if labels is not None:
        out.d_true[low:high] = d.gather(1, labels[low:high, None].to(z.device)).squeeze(1)
    second = d.scatter_(1, at, -torch.inf).amax(1)
    e = torch.exp(d.sub_(second[:, None]), out=buffer(work, "e", z))  # of the others, the largest of them 1
    d.scatter_(1, at, 0.0)
    out.top[low:high] = top
    out.predicted[low:high] = predicted
    out.second[low:high] = second
    out.others[low:high] = _sum(e, work)
    out.norm[low:high] = torch.linalg.vector_norm(e, dim=1)
    out.cross[low:high] = torch.linalg.vecdot(e, d)


def _sum(e: Tensor, work: dict[str, Tensor]) -> Tensor:
    """Return the sum of each row of numbers in [0, 1], up to `EXACT` of them whatever their order.

    Adding and subtracting a large number rounds each to a multiple of a power of two so coarse that the sum of the
    rounded ones is exact. What was cut off is so small that its own rounding hardly ever shows.
    """
    k = e.shape[1]
    if k > EXACT:
        return e.sum(1)
    large = 1.5 * 2.0 ** math.ceil(math.log2(k))
    coarse = torch.add(e, large, out=buffer(work, "coarse", e)).sub_(large)
    whole = coarse.sum(1).double()
    return (whole + torch.sub(e, coarse, out=coarse).sum(1)).to(e.dtype)


def _max(z: Tensor) -> tuple[Tensor, Tensor]:
    """Largest value and its first index. Finding an index is scalar code, so look in one block, not the whole row."""
    n, k = z.shape
    blocks = k // 100
    if blocks < 2 or z.device.type != "cpu":
        top, index = z.max(1)
        return top, index
    width = k // blocks
    head = z[:, : blocks * width].unflatten(1, (blocks, width))
    top, block = head.amax(2).max(1)
    index = block * width + head[torch.arange(n), block].argmax(1)
    if blocks * width < k:
        tail, place = z[:, blocks * width :].max(1)
        index = torch.where(tail > top, place + blocks * width, index)
        top = torch.maximum(top, tail)
    return top, index


class _Raw:
    """What a chunk leaves, float64: the facts follow from it in O(n).

    With d = z - max z and "others" every class but the predicted one: ``second`` is their largest d, ``others`` the sum
    of their exp(d - second), ``norm`` the Euclidean norm, and ``cross`` the sum of exp(d - second) (d - second).
    """

    def __init__(self, n: int) -> None:
        self.predicted = torch.zeros(n, dtype=torch.int64)
        columns = torch.empty(6, n, dtype=torch.float64)
        self.top, self.d_true, self.second, self.others, self.norm, self.cross = columns

    def facts(self, labels: Tensor | None) -> Facts:
        """Put the pieces together."""
        lead = self.second.exp()
        odds = self.others * lead  # of being another class than the predicted one
        confidence = 1 / (1 + odds)
        log_top, rest = -torch.log1p(odds), odds * confidence
        mean_d = (self.cross + self.second * self.others) * lead * confidence  # under the probabilities
        rest_square = (self.norm * lead * confidence).square()
        square = confidence.square() + rest_square
        nll = brier = torch.full_like(confidence, torch.nan)
        if labels is not None:
            nll = -log_top - self.d_true
            p_true = (-nll).exp()
            miss = square - p_true.square() + (1 - p_true).square()
            brier = torch.where(labels == self.predicted, rest.square() + rest_square, miss)
        return Facts(
            confidence=confidence,
            predicted=self.predicted,
            margin=-torch.expm1(self.second) * confidence,
            entropy=(-log_top - mean_d).clamp(min=0),
            square=square,
            max_logit=self.top,
            energy=self.top - log_top,
            logit_margin=-self.second,
            nll=nll,
            brier=brier,
        )


def buffer(work: dict[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return a tensor like another, kept under its name between chunks."""
    if name not in work or work[name].shape[0] < like.shape[0]:
        work[name] = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return work[name][: like.shape[0]]


def _prob_rows(p: Tensor, labels: Tensor | None) -> Facts:
    (top, second), (first, _) = (t.unbind(1) for t in p.topk(2, dim=1))
    log = p.clamp(min=PROB_ZERO).log()
    square = p.square().sum(1)
    nll = brier = torch.full_like(top, torch.nan)
    if labels is not None:
        mine = labels[:, None].to(p.device)
        p_true = p.gather(1, mine).squeeze(1)
        nll = -log.gather(1, mine).squeeze(1)
        brier = (square - p_true.square() + (1 - p_true).square()).clamp(min=0)
    return Facts(
        confidence=top,
        predicted=torch.where(top == second, p.argmax(1), first),
        margin=top - second,
        entropy=-(p * log).sum(1),
        square=square,
        max_logit=log.amax(1),
        energy=torch.zeros_like(top),
        logit_margin=log.amax(1) - second.clamp(min=PROB_ZERO).log(),
        nll=nll,
        brier=brier,
    )
