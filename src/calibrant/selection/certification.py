r"""Certified thresholds: the error of the accepted rows stays below a limit, with a guarantee that covers the search.

Rows are independent and identically distributed. A cut t accepts the scores above t, and its true error is
:math:`R(t)`. Given that m calibration rows lie above t, their errors are :math:`\mathrm{Bin}(m, R(t))`, and this stays
so when t is a score of the calibration rows: given the row on the cut and all below it, those strictly above are still
independent and identically distributed. So every single cut has an exact p-value. `fixed_sequence` and
`guaranteed_risk` search for the widest good cut, and choose a bad one with probability at most delta.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from calibrant.metrics.binomial import fewest_rows, p_value
from calibrant.predictions import scalars
from calibrant.predictions.fingerprints import digest, sample
from calibrant.selection.policy import Part, Policy
from calibrant.selection.reasons import infeasible, promised
from calibrant.selection.thresholds import Cuts, Scored, read, read_classes

START, START_OF_FEW, FEW = 0.125, 0.25, 1000  # the share accepted first must tolerate a few errors at the top


def certify(
    confidence: Any,
    correct: Any = None,
    *,
    max_error: float,
    delta: float = 0.05,
    predicted: Any = None,
    start: float | None = None,
    score: str = "confidence",
) -> Policy:
    """Choose the threshold that accepts most rows while the error of the accepted stays below a limit, guaranteed.

    ``confidence`` is any score, one a row, higher = surer, with ``correct``, whether each prediction was right; or it
    is `Predictions` alone, whose confidence and correctness are then taken. Over the draw of these rows, the true error
    of the accepted rows is above ``max_error`` with probability at most ``delta``, the search included. The rows must
    be independent, from where the policy will be used, and not those that the model or a calibrator was fitted on.

    Cuts are tested in a fixed order (`fixed_sequence`), from the most confident share ``start`` of the rows on: by
    default an eighth, or a quarter of fewer than 1 000 rows. A start of 0 begins with the fewest rows that can prove
    anything, none of which may be wrong. Choose it before looking at the labels. With ``predicted``, the predicted
    class of each row, each class has a threshold of its own and delta is divided among the classes that were predicted.
    ``score`` is the name of the score, for the record.

    If nothing can be promised, the policy says so: its threshold is None and its reason says how many rows would do.

    Two calibrators set rows aside as well: `calibrant.calibrators.meta.MetaMis` bounds the share of *right* rows among
    them, on average over draws, and says nothing about errors; ``MetaAcc`` aims at an accuracy of the others without a
    promise. What they accept can be certified here, on other rows.

    Reference: Angelopoulos, Bates, Candès, Jordan & Lei, Annals of Applied Statistics 2025 (Learn then Test).

    Example:
        >>> sure = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> policy = certify(sure, sure > 0.5, max_error=0.05)
        >>> policy.threshold < 0.5, round(policy.coverage, 3)
        (True, 0.517)
    """
    if start is not None:
        start = scalars.real(start, "start", least=0.0, most=1.0)
    choose = partial(_by_fixed_sequence, max_error=max_error, start=start, score=score)
    return _policy(confidence, correct, predicted, choose, Policy(max_error, delta, {}, "fixed_sequence", score=score))


def certify_sgr(
    confidence: Any,
    correct: Any = None,
    *,
    max_error: float,
    delta: float = 0.05,
    predicted: Any = None,
    score: str = "confidence",
) -> Policy:
    """Choose the threshold as `certify` does, by selective guaranteed risk: a search by halving.

    Needs no start, and tolerates errors among the most confident rows; it tests at a smaller level, and its guarantee
    assumes that the true error crosses ``max_error`` once as more rows are accepted (`guaranteed_risk`).

    Reference: Geifman & El-Yaniv, NeurIPS 2017.

    Example:
        >>> sure = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> round(certify_sgr(sure, sure > 0.5, max_error=0.05).coverage, 3)
        0.513
    """
    choose = partial(_by_halving, max_error=max_error, score=score)
    return _policy(confidence, correct, predicted, choose, Policy(max_error, delta, {}, "sgr", score=score))


def _policy(
    confidence: Any, correct: Any, predicted: Any, choose: Callable[[Scored, float], Part], plan: Policy
) -> Policy:
    scalars.share(plan.max_error, "max_error")
    scalars.share(plan.delta, "delta")
    rows = read(confidence, correct)
    if predicted is None:
        return _filled(plan, {"all": choose(rows, plan.delta)}, rows)
    classes = read_classes(predicted, len(rows))
    found = np.unique(classes)
    level = plan.delta / len(found)
    parts = {str(c): choose(rows.take(classes == c), level) for c in found}
    return _filled(plan, parts, rows, by_class=True)


def _filled(plan: Policy, parts: dict[str, Part], rows: Scored, *, by_class: bool = False) -> Policy:
    prints = digest(rows.hashed), sample(rows.hashed)
    return Policy(plan.max_error, plan.delta, parts, plan.method, by_class, plan.score, *prints)


def _by_fixed_sequence(rows: Scored, delta: float, *, max_error: float, start: float | None, score: str) -> Part:
    cuts = Cuts.of(rows)
    if start is None:
        start = START if len(rows) >= FEW else START_OF_FEW
    chosen = fixed_sequence(cuts, max_error, delta, start)
    if chosen is None:
        return _none(cuts, first_cut(cuts, start, max_error, delta), max_error, delta, delta)
    return _part(cuts, chosen, max_error, delta, score)


def _by_halving(rows: Scored, delta: float, *, max_error: float, score: str) -> Part:
    cuts = Cuts.of(rows)
    chosen, level = guaranteed_risk(cuts, max_error, delta), delta / halvings(len(rows))
    if chosen is None:
        return _none(cuts, first_cut(cuts, 0.0, max_error, level), max_error, delta, level)
    return _part(cuts, chosen, max_error, delta, score)


def _part(cuts: Cuts, chosen: int, max_error: float, delta: float, score: str) -> Part:
    threshold, accepted, errors = float(cuts.threshold[chosen]), int(cuts.accepted[chosen]), int(cuts.errors[chosen])
    reason = promised(threshold, accepted, errors, max_error, delta, score)
    return Part(threshold, int(cuts.accepted[-1]), accepted, errors, max_error, reason)


def _none(cuts: Cuts, first: int, max_error: float, delta: float, level: float) -> Part:
    return Part(None, int(cuts.accepted[-1]), 0, 0, None, infeasible(cuts, first, max_error, delta, level))


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

    Returns the index of the cut, or None. A few errors among the first rows end the search; a larger start tolerates
    them.

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

    Tolerates errors among the most confident rows, but tests at a smaller level than `fixed_sequence`.

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
