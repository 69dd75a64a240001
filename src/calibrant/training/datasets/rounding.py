"""Whole numbers in a table whose rows and columns add up."""

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.int64]


def apportioned(rows: Table, columns: Table) -> Table:
    r"""Return whole numbers with these sums of rows and columns, each less than one from its exact share.

    .. math:: \left|m_{ij} - r_i s_j / n\right| < 1, \qquad \sum_j m_{ij} = r_i, \quad \sum_i m_{ij} = s_j

    for row sums :math:`r`, column sums :math:`s`, and :math:`n` the sum of each. Such a table always exists: wherever a
    value is not whole, there is a cycle of such values along rows and columns, and moving along it, up and down in
    turn, keeps all sums and makes a value whole. The cycle goes up at the largest remainder of a column, so that two
    columns give the method of largest remainders; ties go to the first row. The arithmetic is that of integers.

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


Places = tuple[NDArray[np.int64], NDArray[np.int64]]


def _cycle(left: Table) -> tuple[Places, Places]:
    """Return the places of a cycle among the remainders that are not zero: those to raise and those to lower.

    A row or column with one remainder has another, because its sum is whole; so a walk goes on until it meets itself.
    """
    column = int(left.any(0).argmax())
    path: list[tuple[int, int]] = []  # raise, lower, raise, lower, ... in turn: along a column, then along a row
    seen: dict[tuple[str, int], int] = {}
    row = -1
    while ("column", column) not in seen:
        seen["column", column] = len(path)
        values = left[:, column].copy()
        if path:
            values[row] = 0  # not back to where the walk came from
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
