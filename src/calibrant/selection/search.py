r"""Two searches for the widest cut whose error is below a limit, right after the search with probability 1 - delta.

Rows are independent and alike. A cut t accepts the scores above t, and its true error is :math:`R(t)`. Given that m
calibration rows lie above t, their errors are :math:`\mathrm{Bin}(m, R(t))`, and this stays so when t is a score of the
calibration rows: given the row on the cut and all below it, those strictly above are still independent and alike. So
every single cut has an exact p-value. What remains is the search.
"""

import math

import numpy as np

from calibrant.metrics.binomial import fewest_rows, p_value
from calibrant.selection.thresholds import Cuts


def first_cut(cuts: Cuts, start: float, max_error: float, delta: float) -> int:
    """Return the first cut to test, by counts alone: it accepts the share ``start``, and could be proven at all."""
    fewest = max(fewest_rows(max_error, delta), math.ceil(start * cuts.accepted[-1]))
    return int(np.searchsorted(cuts.accepted, fewest))


def fixed_sequence(cuts: Cuts, max_error: float, delta: float, start: float) -> int | None:
    r"""Test cut after cut from the most confident rows on, each at level delta, and stop at the first that fails.

    .. math:: \Pr[\mathrm{Bin}(m_t, \text{max\_error}) \le e_t] \le \delta

    The order is fixed before a label is seen, so delta need not be divided among the cuts: the chosen cut is bad only
    if the first bad cut of the order passed its own test. Which cut is the first bad one depends on the scores. That
    does no harm: let the error be above the limit between the scores b and a, :math:`R(a) = R(b)` = max_error.
    Every stretch between such points has an error rate of exactly max_error, and a part of a bad stretch, counted
    from above, has more. Given how many rows lie in each stretch, which says where the first bad cut is, the errors
    above it are therefore at least as many as :math:`\mathrm{Bin}(m, \text{max\_error})`. No order of risks is assumed.

    With ties R jumps, and tied rows are accepted together. The same holds if every cut is tested from a start that is
    fixed by rank; a start inside a block of ties moves to its end. For that last step there is no proof here: exact
    computation over many distributions with large blocks found no excess over delta.

    Returns the number of the cut, or None. A few errors among the first rows end the search; a larger start bears them.

    Reference: Angelopoulos, Bates, Candès, Jordan & Lei, Annals of Applied Statistics 2025 (Learn then Test).
    """
    first = first_cut(cuts, start, max_error, delta)
    failed = np.flatnonzero(p_value(cuts.errors[first:], cuts.accepted[first:], max_error) > delta)
    last = first + int(failed[0]) - 1 if len(failed) else len(cuts.accepted) - 1
    return last if last >= first else None


def guaranteed_risk(cuts: Cuts, max_error: float, delta: float) -> int | None:
    r"""Search cuts by halving, each tested at the level delta over the number of halvings.

    .. math:: \Pr[\mathrm{Bin}(m_t, \text{max\_error}) \le e_t] \le \delta / \lceil \log_2 (n + 1) \rceil

    The search is among the cuts that accept enough rows to be proven at all. A cut that passes sends it to wider cuts,
    one that fails to narrower ones; the widest that passed is chosen.
    Where the search goes depends on the labels, which the division of delta does not cover in general. It does if the
    true error crosses the limit once as cuts widen: a good cut that fails sends the search to good cuts only, so until
    a bad cut passes there is one path, fixed by the scores, with that many cuts at most.

    Bears errors among the most confident rows, but tests at a smaller level than `fixed_sequence`.

    Reference: Geifman & El-Yaniv, NeurIPS 2017 (selective guaranteed risk).
    """
    level = delta / halvings(int(cuts.accepted[-1]))
    first = first_cut(cuts, 0.0, max_error, level)
    low, high = first - 1, len(cuts.accepted)  # the widest that passed, the narrowest that failed
    while high - low > 1:
        middle = (low + high) // 2
        passed = p_value(cuts.errors[[middle]], cuts.accepted[[middle]], max_error)[0] <= level
        low, high = (middle, high) if passed else (low, middle)
    return low if low >= first else None


def halvings(n: int) -> int:
    """Return how many cuts of n rows a search by halving visits at most: the binary logarithm of n + 1, rounded up."""
    return max(1, math.ceil(math.log2(n + 1)))
