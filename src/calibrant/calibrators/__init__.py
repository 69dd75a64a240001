"""Logits -> calibrated logits: post-hoc methods, fitted on held-out rows, compared and exported."""

from typing import Any

from calibrant.registry import CALIBRATORS


def __getattr__(name: str) -> Any:
    return CALIBRATORS.attribute(name)


def __dir__() -> list[str]:
    return CALIBRATORS.attributes()
