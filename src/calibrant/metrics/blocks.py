"""Rows ranked by confidence, tied rows as one block: what every ranking metric and curve is a function of."""

from dataclasses import dataclass

import numpy as np

from calibrant.nouns import Array, Confidence, Correct, PerSample, Vector, Weights, float64


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
    c = float64(confidence)
    if losses is None and weights is None and len(c) and c.min() >= 0:
        return _unweighted(c, correct.cpu().numpy())
    loss = 1 - float64(correct) if losses is None else float64(losses)
    w = np.ones_like(c) if weights is None else float64(weights)
    kept = w > 0
    c, loss, w = c[kept], loss[kept], w[kept]
    order = np.argsort(-c, kind="stable")
    ordered = c[order]
    first = np.flatnonzero(np.diff(ordered, prepend=np.inf))
    return Blocks(ordered[first], np.add.reduceat(w[order], first), np.add.reduceat((w * loss)[order], first))


def _unweighted(c: Vector, correct: Array) -> Blocks:
    """Sort numbers instead of indices: the bits of a float >= 0 order like it and leave room for one bit more."""
    key = (c + 0.0).view(np.uint64)  # + 0.0 makes -0.0 positive
    key = np.sort((key << np.uint64(1)) | correct.astype(np.uint64))
    value, right = key >> np.uint64(1), key & np.uint64(1)
    last = np.append(np.flatnonzero(value[1:] != value[:-1]), len(value) - 1)
    count = np.diff(last, prepend=-1).astype(np.float64)
    hits = np.diff(np.cumsum(right, dtype=np.int64)[last], prepend=0)
    return Blocks(value[last].view(np.float64)[::-1], count[::-1], (count - hits)[::-1])
