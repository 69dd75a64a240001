"""Checked entries of JSON objects: what a file claims is of the right type and within bounds, or a ValueError."""

import json
from typing import Any


def parsed(text: str | bytes) -> Any:
    """Return what a JSON text says; too deep a nesting is refused like any other mistake.

    Example:
        >>> parsed('{"n": 3}')
        {'n': 3}
        >>> parsed("[" * 100_000)
        Traceback (most recent call last):
            ...
        ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def entry(told: dict[str, Any], name: str, kind: type) -> Any:
    """Return an entry of a type; True is no number.

    Example:
        >>> entry({"by_class": "false"}, "by_class", bool)
        Traceback (most recent call last):
            ...
        TypeError: by_class must be a bool; got 'false'
    """
    if type(told.get(name)) is not kind:
        raise TypeError(f"{name} must be a {kind.__name__}; got {told.get(name)!r:.100}")
    return told[name]


def whole(told: dict[str, Any], name: str, least: int, most: int) -> int:
    """Return a whole number within bounds."""
    value: int = entry(told, name, int)
    if not least <= value <= most:
        raise ValueError(f"{name} must lie in {least} to {most}; got {_shown(value)}")
    return value


def number(told: dict[str, Any], name: str, least: float, most: float) -> float:
    """Return a number within bounds, which NaN and infinity are not."""
    value: Any = told.get(name)
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{name} must be a number in [{least:g}, {most:g}]; got {_shown(value)}")
    return float(value)


def hexadecimal(told: dict[str, Any], name: str, most: int) -> str:
    """Return hexadecimal digits, at most so many."""
    value: str = entry(told, name, str)
    if len(value) > most or set(value) - set("0123456789abcdef"):
        raise ValueError(f"{name} must be at most {most} hexadecimal digits; got {value!r:.50}")
    return value


def _shown(value: Any) -> str:
    return "a number of many digits" if isinstance(value, int) and abs(value) > 10**18 else f"{value!r:.100}"
