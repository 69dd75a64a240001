"""Calibrant makes a classifier's confidence mean what it says.

Names resolve when first used, so that importing the package stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from calibrant.auditing import Audit as Audit
    from calibrant.auditing import audit as audit
    from calibrant.autocalibration import autocalibrate as autocalibrate
    from calibrant.collecting import collect as collect
    from calibrant.criterion import Criterion as Criterion
    from calibrant.label_shift import estimate_prior as estimate_prior
    from calibrant.loading import load as load
    from calibrant.predictions import Predictions as Predictions
    from calibrant.prior import adjust_prior as adjust_prior
    from calibrant.selection.certifying import certify as certify
    from calibrant.selection.policy import Policy as Policy
    from calibrant.training.recipe import Recipe as Recipe
    from calibrant.training.running import train as train
    from calibrant.trusting import trust_report as trust_report

_HOMES = {
    "Predictions": "predictions",
    "audit": "auditing",
    "Audit": "auditing",
    "autocalibrate": "autocalibration",
    "load": "loading",
    "collect": "collecting",
    "Criterion": "criterion",
    "adjust_prior": "prior",
    "estimate_prior": "label_shift",
    "Recipe": "training.recipe",
    "train": "training.running",
    "certify": "selection.certifying",
    "Policy": "selection.policy",
    "trust_report": "trusting",
}
_MODULES = {
    "calibrators",
    "corruptions",
    "curves",
    "datasets",
    "evidence",
    "losses",
    "margins",
    "metrics",
    "models",
    "penalties",
    "presets",
    "records",
    "registry",
    "report",
    "scores",
    "selection",
    "shifts",
    "training",
    "trust",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"calibrant.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"calibrant.{name}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_MODULES, "__version__"])
