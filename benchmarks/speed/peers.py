"""torch-uncertainty's class-wise ECE without the rest of torch-uncertainty."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def classwise_calibration_error():
    """Import one metric of torch-uncertainty 0.13.0.

    Importing the package runs ``torch_uncertainty/__init__.py``, which imports lightning, torchvision and timm. So its
    three parent packages are put into ``sys.modules`` as empty modules that know only their folder; below them the
    released files are imported and run as they are.
    """
    folder = find_spec("torch_uncertainty").submodule_search_locations[0]
    for part in ("", ".metrics", ".metrics.classification"):
        parent = ModuleType("torch_uncertainty" + part)
        parent.__path__ = [folder + part.replace(".", "/")]
        sys.modules[parent.__name__] = parent
    module = import_module("torch_uncertainty.metrics.classification.calibration.classwise_calibration_error")
    return module.ClasswiseCalibrationError
