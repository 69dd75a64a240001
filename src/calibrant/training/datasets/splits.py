"""Stratified splits and long-tailed subsets, as row indices."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Table = NDArray[np.int64]
Places = tuple[NDArray[np.int64], NDArray[np.int64]]


def split(labels: Tensor, sizes: Mapping[str, int | float], *, seed: int) -> dict[str, Tensor]:
    r"""Return a stratified random split: disjoint row indices for each name, the remaining rows under ``"rest"``.

    A size is a number of rows (an int), or a fraction of them (a float between 0 and 1). A part of :math:`s` of
    :math:`n` rows gets :math:`s n_c / n` of the :math:`n_c` rows of class :math:`c`, rounded up or down so that its
    total is exactly :math:`s`; a class with few rows may get none. Indices are in ascending order. The split depends
    on the seed and the labels only, not on the platform or library versions.

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
    r"""Return the row indices of a long-tailed subset: class sizes decrease exponentially, by ``factor`` in total.

    .. math:: n_c = \lfloor n_{\max} \cdot \mathrm{IF}^{-c/(k-1)} \rfloor, \qquad c = 0, \dots, k - 1

    with :math:`n_{\max}` the number of rows of the largest class and IF the imbalance factor. A class with fewer rows
    keeps them all. The rows of a class are sampled at random, and the subset of a larger factor is contained in that of
    a smaller one. Split off the validation set first, and leave the test set balanced. Indices are in ascending order.

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
    """Return the row indices of each class that occurs, in the order of labels."""
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
    keys = np.random.PCG64(seed).random_raw(n)  # numpy guarantees this stream across versions, but not that of shuffle
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


def apportioned(rows: Table, columns: Table) -> Table:
    r"""Return an integer table with given row and column sums, each entry within one of its exact share.

    .. math:: \left|m_{ij} - r_i s_j / n\right| < 1, \qquad \sum_j m_{ij} = r_i, \quad \sum_i m_{ij} = s_j

    for row sums :math:`r`, column sums :math:`s`, and :math:`n` the total (controlled rounding). Such a table always
    exists: fractional entries lie on a cycle along rows and columns, and alternately raising and lowering the entries
    of the cycle keeps all sums and makes at least one entry an integer. The cycle raises the largest remainder of a
    column, so that two columns give the largest-remainder method; ties go to the first row. All arithmetic is in
    integers.

    Reference: Bacharach, Journal of the Institute of Mathematics and its Applications 1966; Cox, JASA 1987.

    Example:
        >>> apportioned(np.array([5, 3]), np.array([4, 4])).tolist()
        [[3, 2], [1, 2]]
    """
    n = int(rows.sum())
    table, left = np.divmod(np.multiply.outer(rows, columns), n)  # whole parts, and n times the remainders
    while left.any():
        up, down = _cycle(left)
        step = min(n - left[up].max(), left[down].min())
        left[up] += step
        left[down] -= step
        table += left == n
        left[left == n] = 0
    return table


def _cycle(left: Table) -> tuple[Places, Places]:
    """Return the entries of a cycle among the non-zero remainders: those to raise and those to lower.

    A row or column with one fractional entry has another, because its sum is an integer; so a path can always be
    extended until it meets itself.
    """
    column = int(left.any(0).argmax())
    path: list[tuple[int, int]] = []  # raise, lower, raise, lower, ... in turn: along a column, then along a row
    seen: dict[tuple[str, int], int] = {}
    row = -1
    while ("column", column) not in seen:
        seen["column", column] = len(path)
        values = left[:, column].copy()
        if path:
            values[row] = 0  # do not step back
        tied = np.flatnonzero(values == values.max())
        row = int(tied[-1 if path else 0])  # the first column takes from the last row, so ties go to the first
        path.append((row, column))
        if ("row", row) in seen:
            return _split(path[seen["row", row] :], first_rises=False)
        seen["row", row] = len(path)
        values = np.where(left[row] > 0, left[row], left.sum() + 1)
        values[column] = left.sum() + 1
        column = int(values.argmin())
        path.append((row, column))
    return _split(path[seen["column", column] :], first_rises=True)


def _split(path: list[tuple[int, int]], *, first_rises: bool) -> tuple[Places, Places]:
    rows, columns = (np.array(axis, dtype=np.int64) for axis in zip(*path, strict=True))
    first, second = (rows[::2], columns[::2]), (rows[1::2], columns[1::2])
    return (first, second) if first_rises else (second, first)
