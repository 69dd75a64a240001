"""Exact binomial inference: p-values, Clopper-Pearson bounds and intervals, and the rows that a proof needs."""

import math

import numpy as np
from scipy.special import betainc, betaincinv

from calibrant.predictions.types import Array, Vector

EXACT = 1e9  # rows beyond which one more or less is neither computable nor of interest
MOST = 1e12  # more rows than that is no useful advice


def p_value(errors: Array, rows: Array, rate: float) -> Vector:
    r"""Return the probability of so few errors, or fewer, if the rate were ``rate``.

    .. math:: \Pr[\mathrm{Bin}(m, r) \le e] = I_{1-r}(m - e,\, e + 1)

    Small values speak against a rate of ``rate`` or more. Errors need not be whole numbers.

    Example:
        >>> p_value(np.array([0]), np.array([59]), 0.05).round(4)
        array([0.0485])
    """
    e, m = np.asarray(errors, np.float64), np.asarray(rows, np.float64)
    some = e < m
    return np.where(some, betainc(np.where(some, m - e, 1.0), e + 1, 1 - rate), 1.0)


def upper_bound(errors: int, rows: int, delta: float) -> float:
    r"""Return the smallest rate that so few errors refute: the one-sided bound of Clopper and Pearson.

    .. math:: \Pr[\mathrm{Bin}(m, r) \le e] = \delta

    The rate behind the rows is larger with probability at most delta. 1 where every row is an error, or there are none.

    Reference: Clopper & Pearson, Biometrika 1934.

    Example:
        >>> round(upper_bound(5, 100, 0.001), 11)
        0.15536730581
    """
    return float(_upper(np.asarray(errors), np.asarray(rows), delta))


def _upper(errors: Array, rows: Array, delta: float) -> Vector:
    some = rows - errors > 1e-9  # weighted counts need not be whole numbers
    return np.where(some, betaincinv(errors + 1, np.where(some, rows - errors, 1.0), 1 - delta), 1.0)


def clopper_pearson(successes: Array, rows: Array, level: float) -> tuple[Vector, Vector]:
    """Return the two-sided exact interval of each proportion, lower and upper ends; counts may be weighted.

    It has a width even where all rows are successes, or none.

    Example:
        >>> low, high = clopper_pearson(np.array([10]), np.array([10]), 0.9)
        >>> low.round(4), high
        (array([0.7411]), array([1.]))
    """
    tail, some = (1 - level) / 2, successes > 1e-9
    low = betaincinv(np.where(some, successes, 1.0), rows - successes + 1, tail)
    return np.where(some, low, 0.0), _upper(successes, rows, tail)


def interval(successes: int, rows: int, level: float) -> tuple[float, float]:
    """Return the two-sided exact interval of one proportion; [0, 1] without rows.

    The lower end is 1 less an upper bound: `clopper_pearson` has it to a few more digits, but saved policies hold this.

    Example:
        >>> interval(0, 0, 0.95)
        (0.0, 1.0)
    """
    tail = (1 - level) / 2
    low = 1 - upper_bound(rows - successes, rows, tail) if rows else 0.0
    return low, upper_bound(successes, rows, tail)


def fewest_rows(rate: float, delta: float) -> int:
    """Return the fewest rows that prove a rate below ``rate`` when none of them is an error.

    Example:
        >>> fewest_rows(0.02, 0.05)
        149
    """
    m = max(1, math.floor(math.log(delta) / math.log1p(-rate)) - 1)
    if m > EXACT:
        return m + 2
    while p_value(np.array([0]), np.array([m]), rate)[0] > delta:
        m += 1
    return m


def rows_needed(observed: float, rate: float, delta: float) -> float:
    """Return about how many rows prove a rate below ``rate`` when the share ``observed`` of them are errors.

    Infinity if that share is not below the rate, or so near it that no sensible number of rows would do.

    Example:
        >>> rows_needed(0.0, 0.02, 0.05), rows_needed(0.02, 0.02, 0.05)
        (149.0, inf)
    """
    if observed >= rate:
        return math.inf
    low = high = fewest_rows(rate, delta)
    while high < MOST and not _proves(observed, high, rate, delta):
        low, high = high, 2 * high
    if high >= MOST:
        return math.inf
    while high - low > max(1, low // 1000):  # three digits are enough for an estimate
        middle = (low + high) // 2
        low, high = (low, middle) if _proves(observed, middle, rate, delta) else (middle, high)
    return float(low if _proves(observed, low, rate, delta) else high)


def _proves(observed: float, rows: int, rate: float, delta: float) -> bool:
    return bool(p_value(np.array([observed * rows]), np.array([rows]), rate)[0] <= delta)
