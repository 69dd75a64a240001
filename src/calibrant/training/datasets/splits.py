"""Rows by number: stratified splits, and training sets with rare classes."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from calibrant.training.datasets.rounding import Table, apportioned


def split(labels: Tensor, sizes: Mapping[str, int | float], *, seed: int) -> dict[str, Tensor]:
    r"""Return disjoint rows for each name, drawn at random within each class; the others are under ``"rest"``.

    A size is a number of rows (an int), or a share of them (a float between 0 and 1). A name with :math:`s` of
    :math:`n` rows gets :math:`s n_c / n` of the :math:`n_c` rows of class :math:`c`, rounded up or down so that its
    total is exactly :math:`s`; a class with few rows may get none. Rows are numbers in ascending order. The draw
    depends on the seed and the labels alone, not on the platform or a version of a library.

    Example:
        >>> parts = split(torch.tensor([0, 0, 0, 0, 1, 1]), {"validation": 3}, seed=0)
        >>> {name: len(rows) for name, rows in parts.items()}
        {'validation': 3, 'rest': 3}
    """
    classes = _classes(labels)
    totals = {name: _rows(name, size, len(labels)) for name, size in sizes.items()}
    asked = sum(totals.values())
    if asked > len(labels):
        raise ValueError(f"sizes must sum to at most the {len(labels)} rows there are; got {asked}.")
    columns = np.array([*totals.values(), len(labels) - asked], dtype=np.int64)
    counts = apportioned(np.array([len(rows) for rows in classes], dtype=np.int64), columns)
    ends = counts.cumsum(1)
    shuffled = _shuffled(classes, len(labels), seed)
    parts: dict[str, Tensor] = {}
    for column, name in enumerate([*totals, "rest"]):
        ranges = zip(shuffled, ends[:, column] - counts[:, column], ends[:, column], strict=True)
        rows = np.concatenate([rows[start:end] for rows, start, end in ranges])
        parts[name] = torch.from_numpy(np.sort(rows))
    return parts


def imbalanced(labels: Tensor, factor: float, *, seed: int) -> Tensor:
    r"""Return the rows of a long-tailed set: each class has fewer rows than the one before, the last ``factor`` times.

    .. math:: n_c = \lfloor n_{\max} \cdot \mathrm{IF}^{-c/(k-1)} \rfloor, \qquad c = 0, \dots, k - 1

    with :math:`n_{\max}` the number of rows of the largest class and IF the factor. A class that has fewer rows keeps
    them all. Of each class a random draw is kept, and a larger factor keeps a part of what a smaller one keeps.
    Take the validation rows out first, and leave the test rows as they are. Rows are numbers in ascending order.

    Cui's code takes the inverse of the factor.

    Reference: Cui, Jia, Lin, Song & Belongie, CVPR 2019.

    Example:
        >>> rows = imbalanced(torch.arange(3).repeat(100), 10.0, seed=0)
        >>> torch.arange(3).repeat(100)[rows].bincount()
        tensor([100,  31,  10])
    """
    classes = _classes(labels)
    largest, last = max(map(len, classes)), len(classes) - 1
    if not 1 <= factor <= largest:
        raise ValueError(f"factor must lie in [1, {largest}], or the rarest class has no rows left; got {factor}.")
    if last < 1:
        raise ValueError("labels must have at least two classes to be made uneven; got one.")
    shuffled = _shuffled(classes, len(labels), seed)
    kept = [rows[: int(largest / factor ** (c / last))] for c, rows in enumerate(shuffled)]
    return torch.from_numpy(np.sort(np.concatenate(kept)))


def _classes(labels: Tensor) -> list[Table]:
    """The rows of each class that occurs, in the order of labels."""
    if labels.ndim != 1 or len(labels) == 0 or labels.is_floating_point():
        kind = str(labels.dtype).removeprefix("torch.")
        raise ValueError(
            f"labels must be whole numbers of shape (n,), n >= 1; got {kind} of shape {tuple(labels.shape)}."
        )
    _, inverse = np.unique(labels.cpu().numpy(), return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    return np.split(order.astype(np.int64), np.bincount(inverse).cumsum()[:-1])


def _shuffled(classes: list[Table], n: int, seed: int) -> list[Table]:
    if seed < 0:
        raise ValueError(f"seed must not be negative; got {seed}.")
    keys = np.random.PCG64(seed).random_raw(n)  # numpy promises this stream for ever, and that of shuffle not
    return [rows[np.argsort(keys[rows], kind="stable")] for rows in classes]


def _rows(name: str, size: int | float, n: int) -> int:
    if name == "rest":
        raise ValueError("sizes must not name 'rest'; it is what the others leave.")
    whole = isinstance(size, int) and not isinstance(size, bool)
    if not (size >= 1 if whole else isinstance(size, float) and 0 < size < 1):
        raise ValueError(f"sizes[{name!r}] must be an int from 1, or a share between 0 and 1; got {size!r}.")
    rows = int(size) if whole else round(size * n)
    if rows < 1:
        raise ValueError(f"sizes[{name!r}] must be at least one row; a share of {size} of {n} rows is none.")
    return rows
