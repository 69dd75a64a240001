"""What blurs are made of: a kernel, a streak along a line, a zoom. Arrays are (n, c, h, w); no image sees another."""

import math

import numpy as np

from calibrant.predictions.types import Array, Vector


def filtered(values: Vector, kernel: Vector) -> Vector:
    """Correlate each channel with a kernel of odd sides; outside, the image is mirrored about its last pixels.

    The sum runs over the kernel, not over the image: its order, and so its rounding, is the same in every batch.
    """
    tall, wide = kernel.shape[0] // 2, kernel.shape[1] // 2
    h, w = values.shape[2:]
    padded = np.pad(values, ((0, 0), (0, 0), (tall, tall), (wide, wide)), mode="reflect")
    out = np.zeros_like(values)
    for i, j in zip(*kernel.nonzero(), strict=True):
        out += kernel[i, j] * padded[:, :, i : i + h, j : j + w]
    return out


def streaked(values: Vector, angles: Vector, radius: float, sigma: float) -> Vector:
    """Smear each image along a line at its own angle, in degrees from the horizontal.

    Pixel p becomes a weighted mean of the pixels nearest to p + i (cos, sin), i = 0, ..., 2 ceil(radius), with weights
    of half a normal curve of width sigma. Outside, the last pixels are repeated.
    """
    length = 2 * math.ceil(radius) + 1
    steps = np.arange(length, dtype=np.float64)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    turned = np.deg2rad(angles)[:, None]
    down, right = _nearest(steps * np.sin(turned)), _nearest(steps * np.cos(turned))
    h, w = values.shape[2:]
    padded = np.pad(values, ((0, 0), (0, 0), (length, length), (length, length)), mode="edge")
    out = np.zeros_like(values)
    for image, source, rows, columns in zip(out, padded, down + length, right + length, strict=True):
        for weight, y, x in zip(weights, rows.tolist(), columns.tolist(), strict=True):
            image += weight * source[:, y : y + h, x : x + w]
    return out


def zoomed(values: Vector, factor: float) -> Vector:
    """Enlarge each image about its middle, by a factor of at least 1 and linearly between pixels; cut the rest off."""
    for axis in (2, 3):
        size = values.shape[axis]
        middle = (size - 1) / 2
        place = middle + (np.arange(size) - middle) / factor
        low = np.floor(place).astype(np.int64).clip(0, size - 2)
        share = np.expand_dims(place - low, 1) if axis == 2 else place - low
        values = values.take(low, axis) * (1 - share) + values.take(low + 1, axis) * share
    return values


def _nearest(offsets: Vector) -> Array:
    return np.ceil(offsets - 0.5).astype(np.int64)
