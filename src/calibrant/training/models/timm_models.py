"""Networks of timm, an optional package, with features and a head as every model here has them."""

import importlib
from typing import Any

from calibrant.registry import nearest
from calibrant.training.models.classifier import Classifier


def from_timm(name: str, k: int, *, channels: int, side: int) -> Classifier:
    """Return a network of timm, without pretrained weights, whose own head is replaced by a linear one.

    Networks made for one side of images, such as vision transformers, are made for this one.
    """
    timm = _timm(name)
    if not timm.is_model(name):
        near = nearest(name, timm.list_models())
        raise KeyError(f"timm has no {name!r}." + (f" Did you mean {near}?" if near else ""))
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": side} if fixed else {}
    body = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **size)
    width = getattr(body, "head_hidden_size", None) or body.num_features  # what comes out without a head
    return Classifier(body, width, k)


def _timm(name: str) -> Any:
    try:
        return importlib.import_module("timm")
    except ModuleNotFoundError as missing:
        if missing.name != "timm":
            raise
        raise ModuleNotFoundError(
            f"timm:{name} needs the package timm; install calibrant[timm].", name="timm"
        ) from None
