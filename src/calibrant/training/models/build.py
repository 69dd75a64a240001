"""A name, a number of classes and the shape of the inputs -> a model with its first weights."""

from functools import partial

import torch

from calibrant.registry import MODELS
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.timm_models import from_timm

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
    """Make a model for k classes, with weights drawn from the seed, on the CPU.

    ``name`` is a registered model, or ``timm:NAME`` for one of timm, which must be installed. ``channels`` and ``side``
    describe square images, ``vocabulary`` and ``length`` tokens: one pair is given. PyTorch's random state is left as
    found.

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
    """Return what the inputs are, by which sizes are given, and those sizes."""
    images, tokens = {"channels": channels, "side": side}, {"vocabulary": vocabulary, "length": length}
    if all(images.values()) and not any(tokens.values()):
        return "images", images
    if all(tokens.values()) and not any(images.values()):
        return "tokens", tokens
    raise ValueError(
        "channels and side must be given for images, or vocabulary and length for tokens; "
        f"got channels={channels}, side={side}, vocabulary={vocabulary}, length={length}."
    )
