"""Digital corruptions: contrast, elastic transform, pixelation and JPEG compression."""

import io

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array, Vector
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions._images import constants, pixels, scale, streams, to_bytes, to_float, uniform

WARPS = ((0.0, 0.0, 2.56), (1.6, 6.4, 2.24), (2.56, 1.92, 1.92), (3.2, 1.28, 1.6), (3.2, 0.96, 0.96))
LARGE_WARPS = ((488.0, 170.8, 24.4), (488.0, 19.52, 48.8), (12.2, 2.44, 4.88), (17.08, 2.44, 4.88), (29.28, 2.44, 4.88))


@CORRUPTIONS.register(family="digital")
def contrast(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Weak contrast: each channel is drawn towards its mean over the image.

    .. math:: x' = m + a (x - m)

    a is 0.75, 0.5, 0.4, 0.3, 0.15 for small images and 0.4, 0.3, 0.2, 0.1, 0.05 for large ones. Deterministic: the
    generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = to_float(images, severity)
    kept = constants(images, severity, (0.75, 0.5, 0.4, 0.3, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05))
    sums = pixels(images).sum((2, 3), keepdims=True, dtype=np.int64)  # integers: exact in any order
    mean = sums / (255.0 * x.shape[2] * x.shape[3])
    return to_bytes(mean + kept * (x - mean), images)


@CORRUPTIONS.register(family="digital")
def elastic_transform(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Elastic deformation: a random affine map, then a random smooth displacement of each pixel.

    The affine map takes three corners of a centred square, two thirds of the side wide, to points displaced by up to
    the tilt in each direction. The displacement field is uniform noise, smoothed by a Gaussian and multiplied by a
    strength. Strength, smoothness and tilt, in pixels at 32 and at 224, are `WARPS` and `LARGE_WARPS`; they scale with
    the shorter side. Both maps are composed and the image is interpolated once, bilinearly, with mirror padding. The
    benchmark's code interpolates twice, which blurs a little more. At 32 pixels the displacement grows with the
    severity while the tilt shrinks, and with it the mean squared error to the clean image.

    Reference: Hendrycks & Dietterich, ICLR 2019; Simard, Steinkraus & Platt, ICDAR 2003, on the displacement.
    """
    from scipy.ndimage import gaussian_filter, map_coordinates

    x = to_float(images, severity)
    n, _, h, w = x.shape
    strength, smoothness, tilt = np.multiply(constants(images, severity, WARPS, LARGE_WARPS), scale(images))
    rows = streams(n, generator)
    moved = tilt * uniform(rows, -1.0, 1.0, (3, 2))
    noise = uniform(rows, -1.0, 1.0, (2, h, w))
    wobble = strength * gaussian_filter(noise, (0.0, 0.0, smoothness, smoothness), mode="reflect", truncate=3.0)
    for image, corners, offset in zip(x, moved, wobble, strict=True):
        places, source = _tilted(np.indices((h, w)) + offset, corners), image.copy()
        for out, channel in zip(image, source, strict=True):
            map_coordinates(channel, places, output=out, order=1, mode="mirror")
    return to_bytes(x, images)


def _tilted(places: Vector, moved: Vector) -> Vector:
    """Return the source coordinates of (2, h, w) points under the affine map that moved three corners by ``moved``."""
    h, w = places.shape[1:]
    corners = np.array([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]]) * (min(h, w) / 3) + [h / 2, w / 2]
    after = np.concatenate([corners + moved, np.ones((3, 1))], axis=1)
    back = np.linalg.solve(after, corners)  # after @ back = corners
    return back[0, :, None, None] * places[0] + back[1, :, None, None] * places[1] + back[2, :, None, None]


@CORRUPTIONS.register(family="digital")
def pixelate(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Pixelation: each value becomes the mean over a cell of a coarser grid.

    A side of s pixels gets :math:`\lfloor a s \rfloor` cells, and a pixel is in the cell that contains its centre. This
    is downsampling and upsampling with a box filter, but rounded once. a is 0.95, 0.9, 0.85, 0.75, 0.65 for small
    images, so that some cells hold a single, unchanged pixel, and 0.6, 0.5, 0.4, 0.3, 0.25 for large ones.
    Deterministic: the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = to_float(images, severity)
    share = constants(images, severity, (0.95, 0.9, 0.85, 0.75, 0.65), (0.6, 0.5, 0.4, 0.3, 0.25))
    sums, sizes = pixels(images).astype(np.int64), np.ones(x.shape[2:], dtype=np.int64)
    for axis in (-2, -1):
        cell = _cells(x.shape[axis], share)
        starts = np.searchsorted(cell, np.arange(cell[-1] + 1))
        sums = np.add.reduceat(sums, starts, axis).take(cell, axis)
        sizes = np.add.reduceat(sizes, starts, axis).take(cell, axis)
    return to_bytes(sums / (255.0 * sizes), images)


def _cells(size: int, share: float) -> Array:
    """Return the index of the cell of each pixel along one axis."""
    return (2 * np.arange(size) + 1) * int(size * share) // (2 * size)


@CORRUPTIONS.register(family="digital")
def jpeg_compression(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """JPEG compression: the image is encoded and decoded.

    The quality is 80, 65, 58, 50, 40 for small images and 25, 18, 15, 10, 7 for large ones; chroma is
    subsampled 4:2:0, the default. Blocks are 8 pixels wide at any size. Deterministic: the generator is not used. The
    last bit of a value may depend on the JPEG library that Pillow was built with.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    from PIL import Image

    x = to_float(images, severity)
    quality = constants(images, severity, (80, 65, 58, 50, 40), (25, 18, 15, 10, 7))
    for row, image in zip(x, pixels(images), strict=True):
        written = io.BytesIO()
        Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(image.transpose(1, 2, 0))).save(
            written, "JPEG", quality=quality
        )
        read = np.asarray(Image.open(written))
        row[...] = (read if len(image) == 1 else read.transpose(2, 0, 1)) / 255.0
    return to_bytes(x, images)
