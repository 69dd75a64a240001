"""Logits, features or inputs -> a confidence that the prediction is right, learned or not."""

from typing import Any

from calibrant.registry import TRUST


def __getattr__(name: str) -> Any:
    return TRUST.attribute(name)


def __dir__() -> list[str]:
    return TRUST.attributes()
