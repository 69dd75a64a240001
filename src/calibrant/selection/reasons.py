"""Explanations of a policy in words: what is guaranteed and on which evidence, or what a guarantee lacks."""

import math

import numpy as np

from calibrant.metrics.binomial import fewest_rows, p_value, rows_needed, upper_bound
from calibrant.records import count, percent
from calibrant.selection.thresholds import LOWEST, Cuts


def share(value: float) -> str:
    """Write a share with as many digits as it needs, two at least after the first that counts.

    Example:
        >>> share(0.02), share(0.0387), share(0.00051)
        ('2 %', '3.87 %', '0.051 %')
    """
    return f"{100 * value:.3g} %"


def sureness(delta: float) -> str:
    """Write 1 - delta as a percentage that never rounds to certainty.

    Example:
        >>> sureness(0.05), sureness(0.0005)
        ('95 %', '99.95 %')
    """
    return f"{100 - float(f'{100 * delta:.2g}'):.12g} %"


def digits(threshold: float) -> str:
    """Write a threshold with as many digits as tell it from 1, where confidences crowd.

    Example:
        >>> digits(0.8731212), digits(0.99999912345), digits(12.3456)
        ('0.8731', '0.999999123', '12.35')
    """
    shown = (f"{threshold:.{places}g}" for places in range(4, 18))
    return next(text for text in shown if abs(float(text) - threshold) <= 1e-3 * max(abs(1 - threshold), 1e-15))


def rule(threshold: float, score: str) -> str:
    """Write a threshold as a rule.

    Example:
        >>> rule(0.873, "confidence"), rule(LOWEST, "confidence")
        ('Accept if confidence > 0.873', 'Accept every row')
    """
    return "Accept every row" if threshold == LOWEST else f"Accept if {score} > {digits(threshold)}"


def promised(threshold: float, accepted: int, errors: int, bound: float, delta: float, score: str) -> str:
    """Say the rule, the promise and the evidence."""
    return (
        f"{rule(threshold, score)}: the error of the accepted rows is at most {share(bound)} with "
        f"{sureness(delta)} confidence; "
        f"of these rows {count(accepted)} are accepted, {count(errors)} of them wrong "
        f"({percent(errors / accepted if accepted else 0.0, 2)})."
    )


def infeasible(cuts: Cuts, first: int, max_error: float, delta: float, level: float) -> str:
    """Say why no threshold is certified, and how many rows would be needed; ``level`` is that of a single test."""
    n = int(cuts.accepted[-1])
    fewest = fewest_rows(max_error, level)
    place = min(first, len(cuts.accepted) - 1)
    tried, errors = int(cuts.accepted[place]), int(cuts.errors[place])
    head = f"No threshold reaches an error of {share(max_error)} at {sureness(delta)} confidence: "
    if n < fewest:
        proof = share(upper_bound(0, n, level))
        return (
            f"{head}even without an error {_rows(n)} prove {proof} at best; at least {count(fewest)} accepted rows "
            f"without an error are needed{_observed(errors, tried, max_error)}."
        )
    who = f"all {_rows(n)}" if tried == n else f"the most confident {_rows(tried)}"
    seen = f"{head}{who} hold {_errors(errors)} ({share(errors / tried)}), which proves "
    seen += f"{share(upper_bound(errors, tried, level))} at best"
    if len(cuts.accepted) == 1:
        seen += ", and the confidence takes one value, so the choice is all rows or none"
    if errors / tried >= max_error:
        return (
            f"{seen}. No number of rows would do if that is their true error: the limit must be larger, or the "
            f"model or its confidence better.{_narrower(cuts, place, max_error, level)}"
        )
    needed = rows_needed(errors / tried, max_error, level)
    if math.isinf(needed):
        return f"{seen}. No sensible number of rows would do: their error is too near the limit."
    return (
        f"{seen}. About {count(math.ceil(needed))} such rows would be needed, "
        f"{count(math.ceil(needed * n / tried))} rows in all, if their error stays as it is."
        f"{_narrower(cuts, place, max_error, level)}"
    )


def _narrower(cuts: Cuts, place: int, max_error: float, level: float) -> str:
    """Point to a smaller share that would have passed by itself; on these rows it is too late to choose it."""
    passed = np.flatnonzero(p_value(cuts.errors[:place], cuts.accepted[:place], max_error) <= level)
    if not len(passed):
        return ""
    widest = int(cuts.accepted[passed[-1]])
    return (
        f" The most confident {_rows(widest)} would pass by themselves, but were not the first to be tried: "
        f"certify other rows with a start of {widest / cuts.accepted[-1]:.2g}."
    )


def _observed(errors: int, tried: int, max_error: float) -> str:
    if errors == 0:
        return ""
    such = f"; {_errors(errors)} in {_rows(tried)} ({share(errors / tried)})"
    return f"{such} is above the limit already" if errors / tried >= max_error else f"{such} would ask for more"


def _rows(n: int) -> str:
    return f"{count(n)} row{'s' if n != 1 else ''}"


def _errors(errors: int) -> str:
    return "no error" if errors == 0 else f"{count(errors)} error{'s' if errors != 1 else ''}"
