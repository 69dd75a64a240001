"""Set up a run: split the data set, and create the optimiser and the learning-rate schedule."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.training.datasets import splits
from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.recipe import Recipe

Shape = Callable[[Recipe, float, int], float]

SPLIT = 0  # the seed of the splits: runs of all seeds use the same training and test rows


def parted(recipe: Recipe, data: Dataset) -> tuple[dict[str, Part], dict[str, Tensor]]:
    """Return the parts of the data set that a run uses, and their row indices in the training or test set.

    Held-out rows are split off before the rest is made imbalanced, so that they keep the original class balance.
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
    """Raise if a folder holds a run of another recipe or other data."""
    other = "recipe" if not Recipe.from_data(facts["recipe"]).same(recipe) else ""
    if data is not None and facts.get("data") != data:
        other = other or "data set"
    if other:
        raise ValueError(f"{folder} holds a run of another {other}; name another folder, or remove it.")


def shape_of(data: Dataset) -> dict[str, int]:
    """Return the input sizes that a model needs: channels and side, or vocabulary and length."""
    some = data.train.inputs[torch.arange(1)]
    if some.ndim == 4:
        return {"channels": some.shape[1], "side": some.shape[2]}
    return {"vocabulary": len(data.vocabulary), "length": some.shape[1]}


def optimiser_of(recipe: Recipe, model: nn.Module, device: torch.device) -> torch.optim.Optimizer:
    """Return the optimiser, its learning rate a tensor on the device, so that a CUDA graph reads its current value."""
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
    """Return the name of the GPU, or cpu."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def constant(recipe: Recipe, done: float, epoch: int) -> float:
    """Return 1 throughout."""
    return 1.0


def multistep(recipe: Recipe, done: float, epoch: int) -> float:
    """Multiply by ``factor`` at each of the ``milestones``, in epochs."""
    return recipe.factor ** sum(epoch >= milestone for milestone in recipe.milestones)


def cosine(recipe: Recipe, done: float, epoch: int) -> float:
    """Cosine annealing, from 1 after the warm-up to 0 after the last step."""
    return 0.5 * (1 + math.cos(math.pi * done))


def linear(recipe: Recipe, done: float, epoch: int) -> float:
    """Linear decay, from 1 after the warm-up to 0 after the last step."""
    return 1 - done


SHAPES: dict[str, Shape] = {shape.__name__: shape for shape in (constant, multistep, cosine, linear)}


def rates(recipe: Recipe, epoch: int, steps: int) -> list[float]:
    """Return the learning rate of each step of an epoch; epochs and steps count from 0.

    The warm-up is linear.

    Example:
        >>> recipe = Recipe("digits", "mlp", 2, 0.1, schedule="linear", warmup=0.5)
        >>> [round(rate, 3) for rate in rates(recipe, 0, 2) + rates(recipe, 1, 2)]
        [0.05, 0.1, 0.1, 0.05]
    """
    every = recipe.epochs * steps
    warm = round(recipe.warmup * every)
    shape = SHAPES[recipe.schedule]
    return [
        recipe.lr * ((step + 1) / warm if step < warm else shape(recipe, (step - warm) / (every - warm), epoch))
        for step in range(epoch * steps, (epoch + 1) * steps)
    ]
