"""Fingerprints of rows: by hashes, rows that were seen before are recognised, all or some of them, in any order.

A row is hashed from its scores, rounded to single precision, so that rows from a file that keeps no more are known
again. A fingerprint is a text: the digest of all hashes, which says whether all rows are the same, and a sample, the
smallest hashes, which says about how many of other rows are among them. Where more than a tenth of the rows are
duplicates there is no sample: other rows would be mistaken for them.
"""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from calibrant.predictions.types import Array, Vector
from calibrant.records import count, percent

Rows = NDArray[np.uint64]

SAMPLE = 128  # hashes in a sample
COLUMNS = 4  # scores of a row that are hashed beside the largest
DIGEST = 24  # characters
SOME = 0.1  # share of known rows from which it is worth a word


def of_pairs(confidence: Vector, correct: Array) -> Rows:
    """Return score and correctness of each row as one number."""
    with np.errstate(over="ignore"):
        score = confidence.astype(np.float32) + np.float32(0)  # there are two zeros
    return (score.view(np.uint32).astype(np.uint64) << np.uint64(1)) | correct.astype(np.uint64)


def of_scores(scores: Tensor) -> Rows:
    """Return the largest and some other scores of each row of (n, k) as one number."""
    return of_columns(columns(scores))


def columns(scores: Tensor) -> Tensor:
    """Return the scores of each row that are hashed: the largest, and some at fixed places."""
    some = torch.linspace(0, scores.shape[1] - 1, min(COLUMNS, scores.shape[1])).long()
    return torch.cat([scores.amax(1, keepdim=True), scores[:, some.to(scores.device)]], 1)


def of_columns(columns: Tensor) -> Rows:
    """Return the chosen scores of each row as one number."""
    with np.errstate(over="ignore"):
        single = columns.double().cpu().numpy().astype(np.float32) + np.float32(0)
    rows = np.zeros(len(single), np.uint64)
    for column in single.view(np.uint32).astype(np.uint64).T:
        rows = mixed(rows ^ column)
    return rows


def text(rows: Rows) -> str:
    """Return the fingerprint of rows: digest and sample."""
    return digest(rows) + sample(rows)


def digest(rows: Rows) -> str:
    """Return a hash of all rows, whatever their order."""
    return blake2b(np.sort(rows).tobytes(), digest_size=DIGEST // 2).hexdigest()


def sample(rows: Rows) -> str:
    """Return the smallest hashes, 8 hex digits each; nothing if more than a tenth of the rows are duplicates."""
    distinct = np.unique(rows)
    return "" if len(distinct) < 0.9 * len(rows) else "".join(f"{h:08x}" for h in np.sort(_short(distinct))[:SAMPLE])


def share_of(rows: Rows, sample: str, *, least: int = 1) -> float:
    """Estimate which share of rows a sample was taken from; 0 if fewer than ``least`` hashes are within its range."""
    kept = np.array([int(sample[i : i + 8], 16) for i in range(0, len(sample), 8)], dtype=np.uint64)
    own = _short(np.unique(rows))
    within = own[own <= kept.max(initial=0)]
    return float(np.isin(within, kept).mean()) if len(kept) and len(within) >= least else 0.0


def known(rows: Rows, prints: Iterable[str]) -> float:
    """Return the largest share of rows that any of the fingerprints (digest and sample) knows; 1.0 means all."""
    whole, shares = digest(rows), [0.0]
    for each in prints:
        shares.append(1.0 if each[:DIGEST] == whole else min(share_of(rows, each[DIGEST:]), 0.999))
    return max(shares)


def warning(share: float, n: int, who: str) -> str:
    """Say that rows were used in a fit, if a share of them was; ``who`` was fitted on them.

    Example:
        >>> warning(1.0, 500, "the calibrator")
        'these 500 rows are the rows the calibrator was fitted on; its numbers are optimistic.'
        >>> warning(0.4, 500, "bce")
        'about 40 % of these 500 rows are among those bce was fitted on; its numbers are optimistic.'
        >>> warning(0.01, 500, "bce")
        ''
    """
    if share < SOME:
        return ""
    which = "the rows" if share == 1 else "among those"
    rows = f"these {count(n)} rows" if share == 1 else f"about {percent(share)} of these {count(n)} rows"
    return f"{rows} are {which} {who} was fitted on; its numbers are optimistic."


def mixed(rows: Rows) -> Rows:
    """Return each number well mixed (splitmix64): close numbers become unrelated ones."""
    x = rows + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _short(rows: Rows) -> Rows:
    return mixed(rows) >> np.uint64(32)
