r"""Per-row facts in one pass over the logits, chunk by chunk so that a chunk stays in cache.

With :math:`m = \max_k z_k` and :math:`p = \mathrm{softmax}(z)`, a row gives its confidence :math:`p_{(1)}`, predicted
class (ties: lowest index), margin :math:`p_{(1)} - p_{(2)}`, entropy, :math:`\sum_k p_k^2`, largest logit, energy
:math:`\log\sum_k e^{z_k}`, logit margin :math:`z_{(1)} - z_{(2)}`, and with a label its negative log likelihood and
Brier score. Everything after this pass costs O(n).

The confidence is returned in float64 as one minus the mass of the *other* classes, so rows whose float32 softmax rounds
to 1 keep their order. Half precision is cast to float32 before any exponential.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from calibrant.predictions.types import widened

CHUNK = 500_000  # values a chunk: 2 MB of float32 stay in cache while ten operations pass over them
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
            for name in ("predicted", "p_top", "rest", "rest_norm", "cross"):
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
    rows = max(1, CHUNK // k)
    starts = list(range(0, n, rows))
    threads = torch.get_num_threads()
    if len(starts) < 4 * threads or threads == 1:
        buffers: dict[str, Tensor] = {}
        for low in starts:
            work(low, min(n, low + rows), buffers)
        return

    def worker(share: int) -> None:
        # One Python thread a core, each on its own chunks, beats threads inside each operation (no barrier a step).
        torch.set_num_threads(1)
        buffers: dict[str, Tensor] = {}
        with torch.no_grad():
            for low in starts[share::threads]:
                work(low, min(n, low + rows), buffers)

    try:
        with ThreadPoolExecutor(min(threads, os.cpu_count() or 1)) as pool:
            list(pool.map(worker, range(threads)))
    finally:
        torch.set_num_threads(threads)  # the setting is the caller's; leave it as found


def _rows(logits: Tensor, labels: Tensor | None, out: "_Raw", low: int, work: dict[str, Tensor]) -> None:
    """Fill rows ``low`` onwards of ``out``. ``work`` holds this thread's buffers between chunks."""
    high = low + len(logits)
    z = widened(logits).contiguous()
    top, predicted = _max(z)
    d = torch.sub(z, top[:, None], out=buffer(work, "d", z))
    p = torch.softmax(d, 1, out=buffer(work, "p", z))
    at = predicted[:, None]
    out.top[low:high] = top
    out.predicted[low:high] = predicted
    out.p_top[low:high] = p.gather(1, at).squeeze(1)
    if labels is not None:
        out.d_true[low:high] = d.gather(1, labels[low:high, None].to(z.device)).squeeze(1)
    p.scatter_(1, at, 0.0)
    out.rest[low:high] = p.sum(1)
    out.rest_norm[low:high] = torch.linalg.vector_norm(p, dim=1)
    out.cross[low:high] = torch.linalg.vecdot(p, d)
    out.second[low:high] = d.scatter_(1, at, -torch.inf).amax(1)


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
    """What a chunk leaves, float64: the facts follow from it in O(n)."""

    def __init__(self, n: int) -> None:
        self.predicted = torch.zeros(n, dtype=torch.int64)
        columns = torch.empty(7, n, dtype=torch.float64)
        self.top, self.p_top, self.d_true, self.rest, self.rest_norm, self.cross, self.second = columns

    def facts(self, labels: Tensor | None) -> Facts:
        """Put the pieces together; d = z - max z, and "rest" is every class but the predicted one."""
        sure = self.rest < 0.5
        confidence = torch.where(sure, 1 - self.rest, self.p_top)
        log_top = torch.where(sure, torch.log1p(-self.rest), self.p_top.log())
        rest_square = self.rest_norm.square()
        square = confidence.square() + rest_square
        nll = brier = torch.full_like(confidence, torch.nan)
        if labels is not None:
            nll = -log_top - self.d_true
            p_true = (-nll).exp()
            miss = square - p_true.square() + (1 - p_true).square()
            brier = torch.where(labels == self.predicted, self.rest.square() + rest_square, miss)
        return Facts(
            confidence=confidence,
            predicted=self.predicted,
            margin=-torch.expm1(self.second) * confidence,
            entropy=(-log_top - self.cross).clamp(min=0),
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
