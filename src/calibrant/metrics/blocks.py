"""Rows sorted by confidence with ties grouped into blocks, from which ranking metrics and curves are computed."""

from dataclasses import dataclass

import numpy as np

from calibrant.predictions.types import Array, Confidence, Correct, PerSample, Vector, Weights, float64, repetitions


@dataclass(frozen=True)
class Blocks:
    """Distinct confidences from high to low, with the number of rows and the summed loss (errors) at each."""

    threshold: Vector
    count: Vector
    loss: Vector

    @property
    def coverage(self) -> Vector:
        """Share of rows accepted at each threshold (confidence >= threshold)."""
        accepted = np.cumsum(self.count)
        return accepted / accepted[-1]

    @property
    def risk(self) -> Vector:
        """Mean loss of the accepted rows at each threshold."""
        return np.cumsum(self.loss) / np.cumsum(self.count)


def tied_blocks(
    confidence: Confidence,
    correct: Correct,
    *,
    losses: PerSample | None = None,
    weights: Weights | None = None,
) -> Blocks:
    """Sort once; rows of weight zero are left out. ``losses`` replaces the 0/1 error of a row.

    Example:
        >>> tied_blocks(torch.tensor([0.5, 0.9, 0.5]), torch.tensor([True, True, False])).count
        array([1., 2.])
    """
    if losses is None and weights is None and len(confidence) and confidence.min() >= 0:
        narrow = confidence.dtype.itemsize <= 4  # float32 keys are half as long and sort in half the time
        values = confidence.detach().float().cpu().numpy() if narrow else float64(confidence)
        return _unweighted(values, correct.cpu().numpy())
    c = float64(confidence)
    loss = 1 - float64(correct) if losses is None else float64(losses)
    w = repetitions(weights, len(c))
    kept = w > 0
    c, loss, w = c[kept], loss[kept], w[kept]
    order = np.argsort(-c, kind="stable")
    ordered = c[order]
    first = np.flatnonzero(np.diff(ordered, prepend=np.inf))
    return Blocks(ordered[first], np.add.reduceat(w[order], first), np.add.reduceat((w * loss)[order], first))


def _unweighted(c: Array, correct: Array) -> Blocks:
    """Sort keys instead of indices: floats >= 0 sort like their bit patterns, so correctness fits into a spare bit."""
    bits = np.uint32 if c.dtype == np.float32 else np.uint64
    key = (c + c.dtype.type(0)).view(bits)  # + 0 makes -0.0 positive
    key <<= bits(1)
    key |= correct
    key.sort()
    hits = np.cumsum(key & bits(1), dtype=np.int64)
    key >>= bits(1)
    last = np.append(np.flatnonzero(key[1:] != key[:-1]), len(key) - 1)
    count = np.diff(last, prepend=-1).astype(np.float64)
    wrong = count - np.diff(hits[last], prepend=0)
    return Blocks(key[last].view(c.dtype).astype(np.float64)[::-1], count[::-1], wrong[::-1])
