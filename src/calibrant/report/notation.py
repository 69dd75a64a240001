"""Formatting of records: digits, intervals, noise floors, units and directions, the same in page and terminal."""

import math
import re
from collections.abc import Mapping
from typing import Any

from calibrant.records import Record
from calibrant.records import count as count
from calibrant.registry import METRICS

DIRECTIONS = {
    "lower": "lower is better",
    "higher": "higher is better",
    "zero": "0 is best",
    "one": "1 is best",
    "neither": "no better or worse",
}

UNITS = {
    "nll": "nats",
    "brier": "squared error",
    "top_label_brier": "squared error",
    "mean_entropy": "nats",
    "class_kl": "nats",
    "separability_kl": "nats",
    "separability_bhattacharyya": "nats",
    "spiegelhalter_z": "standard deviations",
    "calibration_slope": "ratio",
    "calibration_intercept": "log-odds",
}
UNITS_OF_SCORE = {"log": "nats", "brier": "squared error"}


def number(value: float, *, signed: bool = False) -> str:
    """Format a number with three decimals, or two significant digits where it is small.

    Example:
        >>> number(0.0413), number(0.00042), number(0.0413, signed=True), number(float("nan"))
        ('0.041', '0.00042', '+0.041', 'undefined')
    """
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    sign = "+" if signed and value > 0 else ""
    return sign + (f"{value:.3f}" if value == 0 or abs(value) >= 0.00995 else f"{value:#.2g}")


def value(record: Record) -> str:
    """Format the value: signed where zero is best, and as a p-value where it is one."""
    if unit(record) == "probability":
        return _p(record.value)
    return number(record.value, signed=better(record.metric) == "zero")


def interval(record: Record) -> str:
    """Format the interval in brackets; empty where there is none.

    Example:
        >>> interval(Record("brier", 0.04, 10, low=0.033, high=0.052))
        '[0.033, 0.052]'
    """
    if record.low is None or record.high is None:
        return ""
    signed = better(record.metric) == "zero"
    return f"[{number(record.low, signed=signed)}, {number(record.high, signed=signed)}]"


def estimate(record: Record) -> str:
    """Format the value and its interval: ``0.041 [0.033, 0.052]``."""
    return f"{value(record)} {interval(record)}".strip()


def floor(record: Record) -> str:
    """Format the noise floor and its 95th percentile; empty where it was not computed.

    Example:
        >>> floor(Record("brier", 0.04, 10, floor=0.025, floor_high=0.036))
        '0.025 (to 0.036)'
    """
    if record.floor is None:
        return ""
    upper = "" if record.floor_high is None else f" (to {number(record.floor_high)})"
    return number(record.floor) + upper


def p_value(record: Record) -> str:
    """Format the p-value; empty where there is none."""
    return "" if record.p is None else _p(record.p)


def _p(probability: float) -> str:
    return "<0.001" if probability < 0.001 else number(probability)


def settings(options: Mapping[str, Any]) -> str:
    """Format the options of a metric: words alone, numbers with their names.

    Example:
        >>> settings({"bins": 15, "norm": "l1"})
        'bins 15, l1'
    """
    said = (option if isinstance(option, str) else f"{name} {option}" for name, option in options.items())
    return ", ".join(said)


def better(metric: str) -> str:
    """Return "lower", "higher", "zero", "one" or "neither" as the metric's registration says, or nothing."""
    return str(METRICS.entry(metric).facts.get("better", "")) if metric in METRICS else ""


def direction(metric: str) -> str:
    """Return which direction is better; empty for a metric that is not registered."""
    return DIRECTIONS.get(better(metric), "")


def unit(record: Record) -> str:
    """Return the unit; most metrics are fractions between 0 and 1."""
    if "score" in record.settings:
        return UNITS_OF_SCORE.get(str(record.settings["score"]), "fraction")
    return UNITS.get(record.metric, "probability" if record.metric.endswith("_pvalue") else "fraction")


def unbroken(text: str) -> str:
    r"""Put no-break spaces into numbers in groups of three and before percent signs.

    Example:
        >>> unbroken("5 000 rows, 12 %")
        '5\xa0000 rows, 12\xa0%'
    """
    return re.sub(r"(?<=\d) (?=\d{3}\b|%)", "\u00a0", text)


def printable(words: str) -> str:
    r"""Replace control characters, which a terminal would obey and XML does not allow.

    Example:
        >>> printable("\x1b[2J") == "\N{REPLACEMENT CHARACTER}[2J"
        True
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)
