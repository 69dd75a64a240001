"""Build a model by name, with seeded initial weights: registered models, and those of timm."""

import importlib
from functools import partial
from typing import Any

import torch

from calibrant.registry import MODELS, nearest
from calibrant.training.models._layers import Classifier

TIMM = "timm:"


def make(
    name: str,
    k: int,
    *,
    channels: int = 0,
    side: int = 0,
    vocabulary: int = 0,
    length: int = 0,
    seed: int = 0,
) -> Classifier:
    """Build a model for k classes, with weights initialised from the seed, on the CPU.

    ``name`` is a registered model, or ``timm:NAME`` for one of timm, which must be installed. ``channels`` and ``side``
    describe square images, ``vocabulary`` and ``length`` tokens: pass one pair. PyTorch's global random state is not
    changed.

    Example:
        >>> model = make("lenet", 10, channels=1, side=28)
        >>> model(torch.zeros(5, 1, 28, 28)).shape, model.features(torch.zeros(5, 1, 28, 28)).shape
        (torch.Size([5, 10]), torch.Size([5, 84]))
    """
    given, sizes = _sizes(channels, side, vocabulary, length)
    if name.startswith(TIMM):
        takes, method = "images", partial(from_timm, name.removeprefix(TIMM))
    else:
        takes, method = MODELS.entry(name).facts["takes"], MODELS[name]
    if takes != given:
        others = ", ".join(entry.name for entry in MODELS.entries() if entry.facts["takes"] == given)
        raise ValueError(f"name must be a model that takes {given}; {name!r} takes {takes}. Choose one of {others}.")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed every GPU as well
        return method(k, **sizes)


def _sizes(channels: int, side: int, vocabulary: int, length: int) -> tuple[str, dict[str, int]]:
    """Return the kind of the inputs, by which sizes are given, and those sizes."""
    images, tokens = {"channels": channels, "side": side}, {"vocabulary": vocabulary, "length": length}
    if all(images.values()) and not any(tokens.values()):
        return "images", images
    if all(tokens.values()) and not any(images.values()):
        return "tokens", tokens
    raise ValueError(
        "channels and side must be given for images, or vocabulary and length for tokens; "
        f"got channels={channels}, side={side}, vocabulary={vocabulary}, length={length}."
    )


def from_timm(name: str, k: int, *, channels: int, side: int) -> Classifier:
    """Return a timm model without pretrained weights, its head replaced by a linear one.

    Models with a fixed input size, such as vision transformers, are built for ``side``.
    """
    timm = _timm(name)
    if not timm.is_model(name):
        near = nearest(name, timm.list_models())
        raise KeyError(f"timm has no {name!r}." + (f" Did you mean {near}?" if near else ""))
    fixed = getattr(timm.get_pretrained_cfg(name), "fixed_input_size", False)
    size = {"img_size": side} if fixed else {}
    body = timm.create_model(name, pretrained=False, num_classes=0, in_chans=channels, **size)
    width = getattr(body, "head_hidden_size", None) or body.num_features  # the output width without a head
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
