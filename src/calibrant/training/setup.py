"""A recipe and a data set -> the parts, the shape of the inputs, and the optimiser."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.training.datasets import splits
from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.recipe import Recipe

SPLIT = 0  # the seed of the splits: runs of any seed learn from and are judged on the same rows


def parted(recipe: Recipe, data: Dataset) -> tuple[dict[str, Part], dict[str, Tensor]]:
    """Return the parts that a run uses, and the places of their rows in the training or test set they come from.

    Held-out rows are taken before the rest is made imbalanced, so that they keep every class as it was.
    """
    if data.name != recipe.dataset:
        raise ValueError(f"data must be the recipe's data set, {recipe.dataset!r}; got {data.name!r}.")
    if not len(data.train):
        raise ValueError(f"dataset {data.name!r} has no rows to train on; use it to test.")
    every = torch.arange(len(data.test))
    sizes = {"calibration": recipe.calibration} if recipe.calibration else {}
    rows = {"test": every}
    if recipe.validation and recipe.validation_from == "test":
        found = splits.split(data.test.labels, {"validation": recipe.validation}, seed=SPLIT)
        rows = {"validation": found["validation"], "test": found["rest"]}
    elif recipe.validation:
        sizes = {"validation": recipe.validation, **sizes}
    held = splits.split(data.train.labels, sizes, seed=SPLIT)
    train = held.pop("rest")
    if recipe.imbalance_factor > 1:
        train = train[splits.imbalanced(data.train.labels[train], float(recipe.imbalance_factor), seed=SPLIT)]
    rows |= held | {"train": train}
    for name in ("train", "test"):
        if not len(rows[name]):
            raise ValueError(f"validation and calibration must leave rows to {name} on; they leave none.")
    from_test = {"test", "validation"} if recipe.validation_from == "test" else {"test"}
    return {name: (data.test if name in from_test else data.train).take(some) for name, some in rows.items()}, rows


def check_same(folder: Path, facts: Mapping[str, Any], recipe: Recipe, data: str | None) -> None:
    """Refuse to go on in a folder with another recipe, or other data."""
    other = "recipe" if not Recipe.from_data(facts["recipe"]).same(recipe) else ""
    if data is not None and facts.get("data") != data:
        other = other or "data set"
    if other:
        raise ValueError(f"{folder} holds a run of another {other}; name another folder, or remove it.")


def shape_of(data: Dataset) -> dict[str, int]:
    """Return what a model must know of the inputs: channels and side, or vocabulary and length."""
    some = data.train.inputs[torch.arange(1)]
    if some.ndim == 4:
        return {"channels": some.shape[1], "side": some.shape[2]}
    return {"vocabulary": len(data.vocabulary), "length": some.shape[1]}


def optimiser_of(recipe: Recipe, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser, its rate a tensor on the device, so that a captured step reads what is in it then."""
    rate = torch.tensor(recipe.lr, device=device)
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=rate,
            momentum=recipe.momentum,
            nesterov=recipe.nesterov,
            weight_decay=recipe.weight_decay,
            fused=True,
        )
    return torch.optim.AdamW(
        model.parameters(), lr=rate, weight_decay=recipe.weight_decay, fused=True, capturable=device.type == "cuda"
    )


def device_name(device: torch.device) -> str:
    """Say what a device is."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
