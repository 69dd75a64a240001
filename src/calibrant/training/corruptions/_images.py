"""What all corruptions share: checks, bytes to floats and back, severity tables, and random streams for each image.

Hendrycks & Dietterich published two sets of constants: one for CIFAR at 32 pixels, one for ImageNet at 224. An image
takes the set whose size is nearer in ratio, so that of CIFAR where its shorter side is below 85 pixels. Lengths in
pixels are scaled with the shorter side. Those of a blur are not made shorter than at 32 pixels: there they are near one
pixel already, and a blur of less does nothing.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from calibrant.predictions.types import Array, Vector

Row = TypeVar("Row")

LEAST = 8  # pixels a side: below it a blur is wider than the image
SMALL, LARGE = 32, 224


def check_images(images: Tensor) -> None:
    """Raise unless images are uint8, (n, c, h, w), grey or colour."""
    if not isinstance(images, Tensor):
        raise TypeError(f"images must be a torch tensor; got {type(images).__name__}. Did you mean torch.from_numpy?")
    if images.dtype != torch.uint8:
        hint = " Multiply by 255, round and cast." if images.is_floating_point() else ""
        raise TypeError(f"images must be uint8, from 0 to 255; got {str(images.dtype).removeprefix('torch.')}.{hint}")
    if images.ndim != 4 or images.shape[1] not in (1, 3):
        last = images.ndim == 4 and images.shape[3] in (1, 3)
        hint = " Did you mean images.permute(0, 3, 1, 2)?" if last else ""
        raise ValueError(f"images must have shape (n, c, h, w) with c of 1 or 3; got {tuple(images.shape)}.{hint}")
    if min(images.shape[2:]) < LEAST:
        size = " x ".join(map(str, images.shape[2:]))
        raise ValueError(f"images must be at least {LEAST} x {LEAST} pixels; got {size}.")


def check_severity(severity: int) -> None:
    """Raise unless the severity is an int from 1 to 5."""
    if isinstance(severity, bool) or not isinstance(severity, int) or not 1 <= severity <= 5:
        raise ValueError(f"severity must be a whole number from 1 to 5; got {severity!r}.")


def to_float(images: Tensor, severity: int) -> Vector:
    """Check images and severity, and return the images as a new float64 array in [0, 1]."""
    check_severity(severity)
    return pixels(images) / 255.0


def pixels(images: Tensor) -> Array:
    """Check the images and return their bytes as a read-only array."""
    check_images(images)
    return images.detach().cpu().numpy()


def to_bytes(values: Vector, images: Tensor) -> Tensor:
    """Clip values to [0, 1] and round them to uint8, on the device of the original images."""
    return torch.from_numpy(np.rint(values.clip(0.0, 1.0) * 255.0).astype(np.uint8)).to(images.device)


def constants(images: Tensor, severity: int, small: Sequence[Row], large: Sequence[Row]) -> Row:
    """Return the row of a severity from the table for small or for large images."""
    return (small if _is_small(images) else large)[severity - 1]


def scale(images: Tensor) -> float:
    """Return the factor from the image size that a length was published for to that of the images.

    Example:
        >>> [scale(torch.zeros(1, 3, side, side)) for side in (8, 32, 64, 112, 224)]
        [0.25, 1.0, 2.0, 0.5, 1.0]
    """
    return min(images.shape[2:]) / (SMALL if _is_small(images) else LARGE)


def blur_scale(images: Tensor) -> float:
    """Return the `scale` of a blur radius, which is not reduced below its value at 32 pixels."""
    return max(1.0, scale(images)) if _is_small(images) else scale(images)


def _is_small(images: Tensor) -> bool:
    return min(images.shape[2:]) ** 2 < SMALL * LARGE


def streams(n: int, generator: torch.Generator | None) -> list[Generator]:
    """Return one random generator for each of n images, each seeded by one draw from ``generator``.

    Without a generator, one with seed 0 is used. Calls for n and then m streams return the same streams as one call for
    n + m, so an image's noise does not depend on the batch size. A corruption calls this once and draws from nothing
    else.
    """
    source = torch.Generator().manual_seed(0) if generator is None else generator
    seeds = torch.randint(2**62, (n,), generator=source, device=source.device)
    return [np.random.default_rng(seed) for seed in seeds.tolist()]


def drawn(rows: Sequence[Generator], shape: tuple[int, ...], draw: Callable[[Generator], Array]) -> Vector:
    """Return an array (n, *shape), each row drawn from its own stream."""
    values = np.empty((len(rows), *shape))
    for i, row in enumerate(rows):
        values[i] = draw(row)
    return values


def uniform(rows: Sequence[Generator], low: float, high: float, shape: tuple[int, ...] = ()) -> Vector:
    """Return uniform samples in [low, high), (n, *shape)."""
    return drawn(rows, shape, lambda row: np.asarray(row.uniform(low, high, shape)))


def normal(rows: Sequence[Generator], shape: tuple[int, ...]) -> Vector:
    """Return standard normal samples, (n, *shape)."""
    return drawn(rows, shape, lambda row: row.standard_normal(shape))
