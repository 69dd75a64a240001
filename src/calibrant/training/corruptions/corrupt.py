"""Apply a corruption by name, in chunks that bound the memory."""

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.records import count
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions._images import check_images, check_severity

CHUNK = 1 << 21  # values in a chunk: float64 copies of it, of which a corruption holds several, take 16 MB each


def corrupt(
    images: Tensor, name: str, severity: int, *, seed: int = 0, on_step: Callable[[str], None] | None = None
) -> Tensor:
    """Apply a corruption of `CORRUPTIONS` to uint8 images (n, c, h, w), at a severity from 1 to 5.

    The noise of an image depends only on the seed and its row: it is the same in every run and at every severity. The
    images are not modified, nor is any global random state.

    The constants are those of Hendrycks & Dietterich (2019): those for CIFAR where the shorter side is below 85 pixels,
    those for ImageNet above, with lengths scaled to the side. The results are not the published CIFAR-10-C and
    ImageNet-C: the random numbers differ, values are rounded instead of truncated, and frost is synthetic instead of
    photographed. A higher severity is harder in the benchmark's sense, but not always farther from the clean image: see
    `glass_blur`, `frost` and `elastic_transform`.

    ``on_step`` is called with the progress, as text.

    Example:
        >>> images = torch.randint(256, (20, 3, 32, 32), dtype=torch.uint8)
        >>> corrupt(images, "fog", 3).shape
        torch.Size([20, 3, 32, 32])
    """
    check_images(images)
    check_severity(severity)
    method = CORRUPTIONS[name]
    generator = torch.Generator().manual_seed(seed)
    result = torch.empty_like(images)
    rows = max(1, CHUNK // images.shape[1:].numel())
    for start in range(0, len(images), rows):
        part = images[start : start + rows]
        result[start : start + rows] = method(part, severity, generator=generator)
        if on_step is not None:
            on_step(f"{count(start + len(part))} of {count(len(images))} images")
    return result
