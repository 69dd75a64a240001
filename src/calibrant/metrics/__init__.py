"""Predictions -> numbers and curves, with intervals, noise floors and paired comparisons."""

from typing import Any

from calibrant.registry import METRICS


def __getattr__(name: str) -> Any:
    return METRICS.attribute(name)


def __dir__() -> list[str]:
    return METRICS.attributes()
