"""CI gates: a metric's interval against a limit; pass, fail, or not enough data."""

import math
import operator
import re
from dataclasses import dataclass

from calibrant.records import Record, count

_SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True)
class Rule:
    """A metric, a comparison sign, and a limit."""

    metric: str
    sign: str
    limit: float


@dataclass(frozen=True)
class Outcome:
    """The outcome and its reason: ``code`` is 0 pass, 1 fail, 3 not enough data."""

    code: int
    reason: str


def parse(text: str) -> Rule:
    """Parse a rule such as ``"ece_excess<0.02"``.

    Example:
        >>> parse("accuracy >= 0.9")
        Rule(metric='accuracy', sign='>=', limit=0.9)
    """
    found = re.fullmatch(r"\s*(\w+)\s*(<=|>=|<|>)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*", text)
    if not found:
        raise ValueError(f"gate must look like ece_excess<0.02; got {text!r}.")
    return Rule(found[1], found[2], float(found[3]))


def decide(rule: Rule, records: tuple[Record, ...]) -> Outcome:
    """Judge a rule by the interval of the metric: all of it must be on the right side.

    An interval that straddles the limit decides nothing: the answer is "not enough data", with the number of rows at
    which an interval of this value would clear the limit. A metric without an interval is judged by its value.

    Example:
        >>> decide(parse("accuracy>0.5"), (Record("accuracy", 0.9, 100, 0.85, 0.95, 0.9),)).code
        0
    """
    record = next((r for r in records if r.metric == rule.metric and r.where == "all"), None)
    if record is None:
        known = ", ".join(dict.fromkeys(r.metric for r in records if r.where == "all"))
        raise ValueError(f"gate must name a metric of the audit; got {rule.metric!r}, and the audit has {known}.")
    return _judge(record, rule.sign, rule.limit)


def _judge(record: Record, sign: str, limit: float) -> Outcome:
    low, high = record.low, record.high
    shown = f"{record.metric} {record.value:.4f}"
    if math.isnan(record.value):
        return Outcome(3, f"not enough data: {record.metric} is undefined on these rows.")
    if low is None or high is None:
        passed = _SIGNS[sign](record.value, limit)
        return Outcome(0 if passed else 1, f"{'pass' if passed else 'fail'}: {shown}, limit {sign} {limit:g}.")
    if math.isnan(low) or math.isnan(high) or high - low < 1e-9:
        return Outcome(3, f"not enough data: {shown} has no interval on {count(record.n)} rows.")
    shown += f" [{low:.4f}, {high:.4f}], limit {sign} {limit:g}"
    good = [_SIGNS[sign](bound, limit) for bound in (low, high)]
    if all(good):
        return Outcome(0, f"pass: {shown}.")
    if not any(good):
        return Outcome(1, f"fail: {shown}.")
    return Outcome(3, f"not enough data: {shown}; {_rows_needed(record, limit, low, high)}.")


def _rows_needed(record: Record, limit: float, low: float, high: float) -> str:
    distance = abs(record.value - limit)
    half = high - record.value if record.value < limit else record.value - low
    if distance <= 0 or half <= 0 or (half / distance) ** 2 > 1e4:
        return "the value lies at the limit, so no number of rows would settle it"
    needed = math.ceil(record.n * (half / distance) ** 2 / 100 - 1e-6) * 100
    return f"about {count(needed)} rows like these {count(record.n)} would settle it"
