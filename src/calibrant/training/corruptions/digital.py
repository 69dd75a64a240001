"""What happens to an image on its way: weak contrast, warping, coarse pixels, lossy compression."""

import io

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array, Vector
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions.drawing import streams, uniform
from calibrant.training.corruptions.pixels import closed, opened, pixels
from calibrant.training.corruptions.severities import constants, growth

WARPS = ((0.0, 0.0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96))
LARGE_WARPS = ((488.0, 170.8, 24.4), (488.0, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88))


@CORRUPTIONS.register(family="digital")
def contrast(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Weak contrast: each channel is drawn towards its mean over the image.

    .. math:: x' = m + a (x - m)

    a is 0.75, 0.5, 0.4, 0.3, 0.15 for small images and 0.4, 0.3, 0.2, 0.1, 0.05 for large ones. Nothing is random:
    the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    kept = constants(images, severity, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05))
    sums = pixels(images).sum((2, 3), keepdims=True, dtype=np.int64)  # whole numbers: exact in any order
    mean = sums / (255.0 * x.shape[2] * x.shape[3])
    return closed(mean + kept * (x - mean), images)


@CORRUPTIONS.register(family="digital")
def elastic_transform(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Stretch and wobble: a random affine map, then a random smooth displacement of each pixel.

    The affine map takes three corners of a square about the middle, two thirds of the side wide, to points moved by up
    to the tilt in each direction. The displacement is uniform noise, smoothed by a normal curve and multiplied by a
    strength. Strength, smoothness and tilt, in pixels at 32 and at 224, are `WARPS` and `LARGE_WARPS`; they grow and
    shrink with the shorter side. Both maps are joined and the image is read once, linearly between pixels; outside it
    is mirrored. The benchmark's program reads it twice, which blurs a little more. At 32 pixels the wobble grows with
    the severity and the tilt shrinks, and with it the mean squared difference from the clean image.

    Reference: Hendrycks & Dietterich, ICLR 2019; Simard, Steinkraus & Platt, ICDAR 2003, on the displacement.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    x = opened(images, severity)
    n, _, h, w = x.shape
    strength, smoothness, tilt = np.multiply(constants(images, severity, WARPS, LARGE_WARPS), growth(images))
    rows = streams(n, generator)
    moved = tilt * uniform(rows, -1.0, 1.0, (3, 2))
    noise = uniform(rows, -1.0, 1.0, (2, h, w))
    wobble = strength * gaussian_filter(noise, (0.0, 0.0, smoothness, smoothness), mode="reflect", truncate=3.0)
    for image, corners, offset in zip(x, moved, wobble, strict=True):
        places, source = _tilted(np.indices((h, w)) + offset, corners), image.copy()
        for out, channel in zip(image, source, strict=True):
            map_coordinates(channel, places, output=out, order=1, mode="mirror")
    return closed(x, images)


def _tilted(places: Vector, moved: Vector) -> Vector:
    """Return where places (2, h, w) came from, under the affine map that moved three corners by so much."""
    h, w = places.shape[1:]
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * (min(h, w) / 3) + [h / 2, w / 2]
    after = np.concatenate([corners + moved, np.ones((3, 1))], axis=1)
    back = np.linalg.solve(after, corners)  # after @ back = corners
    return back[0, :, None, None] * places[0] + back[1, :, None, None] * places[1] + back[2, :, None, None]


@CORRUPTIONS.register(family="digital")
def pixelate(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Coarse pixels: each value becomes the mean over a cell of a coarser grid.

    A side of s pixels gets :math:`\lfloor a s \rfloor` cells, and a pixel is in the cell that holds its middle. This is
    what shrinking and enlarging with a box filter does, but rounded once. a is 0.95, 0.9, 0.85, 0.75, 0.65 for small
    images, so that some cells hold one pixel and do not change it, and 0.6, 0.5, 0.4, 0.3, 0.25 for large ones.
    Nothing is random: the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    share = constants(images, severity, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25))
    sums, sizes = pixels(images).astype(np.int64), np.ones(x.shape[2:], dtype=np.int64)
    for axis in (-2, -1):
        cell = _cells(x.shape[axis], share)
        starts = np.searchsorted(cell, np.arange(cell[-1] + 1))
        sums = np.add.reduceat(sums, starts, axis).take(cell, axis)
        sizes = np.add.reduceat(sizes, starts, axis).take(cell, axis)
    return closed(sums / (255.0 * sizes), images)


def _cells(size: int, share: float) -> Array:
    """Return the number of the cell that each pixel of a line is in."""
    return (2 * np.arange(size) + 1) * int(size * share) // (2 * size)


@CORRUPTIONS.register(family="digital")
def jpeg_compression(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Lossy compression: the image is written as JPEG and read back.

    The quality is 80, 65, 58, 50, 40 for small images and 25, 18, 15, 10, 7 for large ones; colours are kept at half
    the resolution, as is usual. Blocks are 8 pixels wide at any size. Nothing is random: the generator is not used. The
    last bit of a value may depend on the JPEG library that Pillow was built with.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    from PIL import Image

    x = opened(images, severity)
    quality = constants(images, severity, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7))
    for row, image in zip(x, pixels(images), strict=True):
        written = io.BytesIO()
        Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))).save(
            written, "JPEG", quality=quality
        )
        read = np.asarray(Image.open(written))
        row[...] = (read if len(image) == 1 else read.transpose(2, 0, 1)) / 255.0
    return closed(x, images)
