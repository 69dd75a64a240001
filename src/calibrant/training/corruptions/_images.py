"""Images as tensors of bytes -> arrays of numbers from 0 to 1, and back."""

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array, Vector

LEAST = 8  # pixels a side: below it a blur is wider than the image


def check_images(images: Tensor) -> None:
    """Refuse what is not a batch of grey or colour images of bytes."""
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
    """Refuse what is not one of the five severities."""
    if isinstance(severity, bool) or not isinstance(severity, int) or not 1 <= severity <= 5:
        raise ValueError(f"severity must be a whole number from 1 to 5; got {severity!r}.")


def opened(images: Tensor, severity: int) -> Vector:
    """Check the images and the severity, and return the images as a new float64 array of values from 0 to 1."""
    check_severity(severity)
    return pixels(images) / 255.0


def pixels(images: Tensor) -> Array:
    """Check the images and return their bytes as an array, which must not be written to."""
    check_images(images)
    return images.detach().cpu().numpy()


def closed(values: Vector, images: Tensor) -> Tensor:
    """Clip values to [0, 1] and round them to bytes, on the device of the images that they were made from."""
    return torch.from_numpy(np.rint(values.clip(0.0, 1.0) * 255.0).astype(np.uint8)).to(images.device)
