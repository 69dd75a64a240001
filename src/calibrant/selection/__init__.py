"""Confidence -> accept or abstain with a guarantee, and conformal prediction sets."""

import importlib
from typing import Any

_HOMES = {
    "Policy": "policy",
    "certify": "certification",
    "certify_sgr": "certification",
    "cheapest": "costs",
    "conformal": "prediction_sets",
    "decide": "costs",
    "evaluate": "evaluation",
    "review": "capacity",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"calibrant.selection.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'calibrant.selection' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOMES)
