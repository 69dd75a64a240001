"""Which epoch's weights are kept."""

from collections.abc import Sequence
from typing import TypeAlias

from calibrant.training.recipe import Recipe

Epoch: TypeAlias = dict[str, int | float]  # its number, its rate, and what was measured


def kept(recipe: Recipe, history: Sequence[Epoch]) -> int:
    """Return the place of the epoch to keep, in a history that may still grow; -1 while none qualifies.

    Among epochs after ``select_after``: the best so far, the earlier of equals. A good epoch during the warm-up is
    forgotten, so that it cannot keep later ones from being chosen.

    Example:
        >>> recipe = Recipe("digits", "mlp", 3, 0.1, select="accuracy", select_after=1)
        >>> kept(recipe, [{"accuracy": 0.9}, {"accuracy": 0.7}, {"accuracy": 0.8}])
        2
    """
    if recipe.select == "last":
        return len(history) - 1
    sign = 1 if recipe.select == "accuracy" else -1
    name = "accuracy" if recipe.select == "accuracy" else "validation_loss"
    places = range(recipe.select_after, len(history))
    return max(places, key=lambda place: (sign * history[place][name], -place), default=-1)
