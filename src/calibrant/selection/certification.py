"""The threshold that keeps the error of the accepted rows below a limit, with a guarantee; or why there is none."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from calibrant.selection.policy import Part, Policy
from calibrant.selection.reasons import infeasible, promised
from calibrant.selection.search import first_cut, fixed_sequence, guaranteed_risk, halvings
from calibrant.selection.thresholds import Cuts, Scored, check_share, read, read_classes

START, START_OF_FEW, FEW = 0.125, 0.25, 1000  # the share accepted first must bear a few errors among the surest rows


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

    Cuts are tested in a fixed order, from the most confident share ``start`` of the rows on
    (`calibrant.selection.search.fixed_sequence`): an eighth, of fewer than 1 000 rows a quarter, unless said otherwise.
    A start of 0 begins with the fewest rows that can prove anything, none of which may be wrong. Choose it before
    looking at the labels. With ``predicted``, the predicted class of each
    row, each class has a threshold of its own and delta is divided among the classes that were predicted.
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
    if start is not None and not 0 <= start <= 1:
        raise ValueError(f"start must lie in [0, 1], a share of the rows; got {start:g}.")
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

    Needs no start, and bears errors among the most confident rows; it tests at a smaller level, and its guarantee
    assumes that the true error crosses ``max_error`` once as more rows are accepted
    (`calibrant.selection.search.guaranteed_risk`).

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
    check_share(plan.max_error, "max_error")
    check_share(plan.delta, "delta")
    rows = read(confidence, correct)
    if predicted is None:
        return _filled(plan, {"all": choose(rows, plan.delta)}, rows)
    classes = read_classes(predicted, len(rows))
    found = np.unique(classes)
    level = plan.delta / len(found)
    parts = {str(c): choose(rows.take(classes == c), level) for c in found}
    return _filled(plan, parts, rows, by_class=True)


def _filled(plan: Policy, parts: dict[str, Part], rows: Scored, *, by_class: bool = False) -> Policy:
    return Policy(plan.max_error, plan.delta, parts, plan.method, by_class, plan.score, rows.fingerprint, rows.sample)


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
