"""Which constants of the benchmark hold for images of a given size.

Hendrycks & Dietterich published two sets: one for CIFAR at 32 pixels, one for ImageNet at 224. An image takes the set
whose size is nearer in ratio, so that of CIFAR where its shorter side is below 85 pixels. Lengths in pixels are scaled
with the shorter side. Those of a blur are not made shorter than at 32 pixels: there they are near one pixel already,
and a blur of less does nothing.
"""

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

Row = TypeVar("Row")

SMALL, LARGE = 32, 224


def constants(images: Tensor, severity: int, small: Sequence[Row], large: Sequence[Row]) -> Row:
    """Return the row of a severity from the table for small or for large images."""
    return (small if _is_small(images) else large)[severity - 1]


def growth(images: Tensor) -> float:
    """Return by how much a length grows from the size it was published for to that of the images.

    Example:
        >>> [growth(torch.zeros(1, 3, side, side)) for side in (8, 32, 64, 112, 224)]
        [0.25, 1.0, 2.0, 0.5, 1.0]
    """
    return min(images.shape[2:]) / (SMALL if _is_small(images) else LARGE)


def blur_growth(images: Tensor) -> float:
    """Return the same for the lengths of a blur, which do not shrink below those at 32 pixels."""
    return max(1.0, growth(images)) if _is_small(images) else growth(images)


def _is_small(images: Tensor) -> bool:
    return min(images.shape[2:]) ** 2 < SMALL * LARGE
