"""A recipe and a step -> the learning rate."""

import math
from collections.abc import Callable

from calibrant.training.recipe import Recipe

Shape = Callable[[Recipe, float, int], float]


def constant(recipe: Recipe, done: float, epoch: int) -> float:
    """The same rate throughout."""
    return 1.0


def multistep(recipe: Recipe, done: float, epoch: int) -> float:
    """Multiply by ``factor`` once each of the ``milestones`` (numbers of epochs done) is reached."""
    return recipe.factor ** sum(epoch >= milestone for milestone in recipe.milestones)


def cosine(recipe: Recipe, done: float, epoch: int) -> float:
    """Half a cosine, from 1 after the warm-up to 0 after the last step."""
    return 0.5 * (1 + math.cos(math.pi * done))


def linear(recipe: Recipe, done: float, epoch: int) -> float:
    """A line, from 1 after the warm-up to 0 after the last step."""
    return 1 - done


SHAPES: dict[str, Shape] = {shape.__name__: shape for shape in (constant, multistep, cosine, linear)}


def rates(recipe: Recipe, epoch: int, steps: int) -> list[float]:
    """Return the learning rate of each step of an epoch; epochs and steps count from 0.

    During the warm-up the rate rises on a line, from that of one step to the full one.

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
