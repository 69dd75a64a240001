"""Parts of torch-uncertainty 0.13.0 without the rest of it.

Importing the package runs ``torch_uncertainty/__init__.py``, which imports lightning, torchvision and timm. So parent
packages are put into ``sys.modules`` as empty modules that know only their folder; below them the released files are
imported and run as they are.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def classwise_calibration_error():
    """Import its class-wise ECE."""
    _bare("", ".metrics", ".metrics.classification")
    module = import_module("torch_uncertainty.metrics.classification.calibration.classwise_calibration_error")
    return module.ClasswiseCalibrationError


def temperature_scaler():
    """Import its temperature scaling."""
    parent = _bare("", ".post_processing")
    parent.PostProcessing = import_module("torch_uncertainty.post_processing.abstract").PostProcessing
    return import_module("torch_uncertainty.post_processing.calibration").TemperatureScaler


def _bare(*parts):
    """Replace packages by empty ones, and return the last."""
    folder = find_spec("torch_uncertainty").submodule_search_locations[0]
    for part in parts:
        parent = ModuleType("torch_uncertainty" + part)
        parent.__path__ = [folder + part.replace(".", "/")]
        sys.modules[parent.__name__] = parent
    return parent
