"""Calibrant makes a classifier's confidence mean what it says.

Names resolve when first used, so that importing the package stays light.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# The folders and files of the package, lowest layer first. A module imports only from its own folder and from lower
# layers. The layer test and the README's listing are made from this list, and the README's picture must show its
# folders; each describes itself in the first line of its docstring.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("registry", "records"),
    ("predictions", "report"),
    ("io", "metrics"),
    ("losses", "selection"),
    ("calibrators", "training"),
    ("trust",),
    ("evaluation", "integrations"),
    ("cli",),
)

if TYPE_CHECKING:
    from calibrant.calibrators.autocalibrate import autocalibrate as autocalibrate
    from calibrant.calibrators.label_shift import estimate_prior as estimate_prior
    from calibrant.calibrators.prior import adjust_prior as adjust_prior
    from calibrant.evaluation.audit import Audit as Audit
    from calibrant.evaluation.audit import audit as audit
    from calibrant.evaluation.trust_report import trust_report as trust_report
    from calibrant.io.sealed import load as load
    from calibrant.losses.criterion import Criterion as Criterion
    from calibrant.predictions.collect import collect as collect
    from calibrant.predictions.predictions import Predictions as Predictions
    from calibrant.selection.certification import certify as certify
    from calibrant.selection.policy import Policy as Policy
    from calibrant.training.recipe import Recipe as Recipe
    from calibrant.training.train import train as train

# what users type most, by its short name: cb.audit is calibrant.evaluation.audit.audit
_HOMES = {
    "Predictions": "predictions.predictions",
    "audit": "evaluation.audit",
    "Audit": "evaluation.audit",
    "autocalibrate": "calibrators.autocalibrate",
    "load": "io.sealed",
    "collect": "predictions.collect",
    "Criterion": "losses.criterion",
    "adjust_prior": "calibrators.prior",
    "estimate_prior": "calibrators.label_shift",
    "Recipe": "training.recipe",
    "train": "training.train",
    "certify": "selection.certification",
    "Policy": "selection.policy",
    "trust_report": "evaluation.trust_report",
}
_MODULES = {name: name for layer in LAYERS for name in layer} | {
    "corruptions": "training.corruptions",
    "curves": "metrics.curves",
    "datasets": "training.datasets",
    "evidence": "metrics.evidence",
    "margins": "calibrators.apply",
    "models": "training.models",
    "penalties": "losses.penalties",
    "presets": "losses.presets",
    "scores": "metrics.scores",
    "shifts": "training.shifts",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"calibrant.{_HOMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"calibrant.{_MODULES[name]}")
    raise AttributeError(f"module 'calibrant' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*_HOMES, *_MODULES, "__version__"])
