"""Clouds: random surfaces that look alike at every scale."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from calibrant.predictions.types import Vector
from calibrant.training.corruptions.drawing import uniform


def clouds(rows: Sequence[Generator], h: int, w: int, decay: float) -> Vector:
    """Return a cloud from 0 to 1 for each stream, (n, h, w); see `plasma`."""
    size = 1 << (max(h, w) - 1).bit_length()
    return plasma(uniform(rows, -1.0, 1.0, (size, size)), decay)[:, :h, :w]


def plasma(noise: Vector, decay: float) -> Vector:
    """Return surfaces (n, size, size) from 0 to 1 that wrap around, from noise of the same shape; size a power of 2.

    On ever finer grids the middle of each square, then of each side, becomes the mean of its four neighbours plus its
    own noise times an amplitude. The amplitude falls by the square of ``decay`` from one grid to the next: a small
    decay gives rough clouds, a large one smooth ones.
    """
    surface = np.zeros_like(noise)
    step, amplitude = noise.shape[1], 1.0
    while step >= 2:
        half = step // 2
        corners = surface[:, ::step, ::step]
        around = corners + np.roll(corners, -1, 1)
        around = around + np.roll(around, -1, 2)
        middles = around / 4 + amplitude * noise[:, half::step, half::step]
        surface[:, half::step, half::step] = middles
        beside = corners + np.roll(corners, -1, 2) + middles + np.roll(middles, 1, 1)
        surface[:, ::step, half::step] = beside / 4 + amplitude * noise[:, ::step, half::step]
        below = corners + np.roll(corners, -1, 1) + middles + np.roll(middles, 1, 2)
        surface[:, half::step, ::step] = below / 4 + amplitude * noise[:, half::step, ::step]
        step, amplitude = half, amplitude / decay**2
    surface -= surface.min((1, 2), keepdims=True)
    return surface / surface.max((1, 2), keepdims=True)
