"""Weather: snow, frost, fog and brightness."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from calibrant.predictions.types import Vector
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions._images import blur_scale, constants, normal, streams, to_bytes, to_float, uniform
from calibrant.training.corruptions.blur import streaked, zoomed

# flakes: mean, standard deviation, size, threshold, streak radius and standard deviation; then the image weight
FLAKES = (
    (0.1, 0.2, 1.0, 0.6, 8.0, 3.0, 0.95),
    (0.1, 0.2, 1.0, 0.5, 10.0, 4.0, 0.9),
    (0.15, 0.3, 1.75, 0.55, 10.0, 4.0, 0.9),
    (0.25, 0.3, 2.25, 0.6, 12.0, 6.0, 0.85),
    (0.3, 0.3, 1.25, 0.65, 14.0, 12.0, 0.8),
)
LARGE_FLAKES = (
    (0.1, 0.3, 3.0, 0.5, 10.0, 4.0, 0.8),
    (0.2, 0.3, 2.0, 0.5, 12.0, 4.0, 0.7),
    (0.55, 0.3, 4.0, 0.9, 12.0, 8.0, 0.7),
    (0.55, 0.3, 4.5, 0.85, 12.0, 8.0, 0.65),
    (0.55, 0.3, 2.5, 0.85, 12.0, 12.0, 0.55),
)
FOGS = ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))
LARGE_FOGS = ((1.5, 2.0), (2.0, 2.0), (2.5, 1.7), (2.5, 1.5), (3.0, 1.4))
# weight of the image, weight of the frost
FROSTS = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
LARGE_FROSTS = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
ICE = np.array([0.86, 0.94, 1.0])[:, None, None]  # bluish white
FEATHERS = 9
COT_60 = 3**-0.5  # ice grows its barbs at 60 degrees
LUMINANCE = np.array([0.299, 0.587, 0.114])[:, None, None]


@CORRUPTIONS.register(family="weather")
def snow(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Falling snow: white streaks over a whitened image.

    Flakes are Gaussian noise, zoomed, set to 0 below a threshold and motion-blurred downwards at a random angle for
    each image. They and their copy rotated by 180 degrees are added to the whitened image
    :math:`a x + (1 - a) \max(x, 1.5 g + 0.5)`, where g is the grey value of x. The constants: `FLAKES`, `LARGE_FLAKES`.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = to_float(images, severity)
    mean, spread, size, threshold, radius, sigma, kept = constants(images, severity, FLAKES, LARGE_FLAKES)
    scale = blur_scale(images)
    rows = streams(len(x), generator)
    angles = uniform(rows, -135.0, -45.0)
    flakes = zoomed(mean + spread * normal(rows, (1, *x.shape[2:])), max(1.0, size * scale))
    flakes = np.where(flakes < threshold, 0.0, flakes.clip(0.0, 1.0))
    flakes = streaked(flakes, angles, radius * scale, sigma * scale)
    grey = x if x.shape[1] == 1 else (x * LUMINANCE).sum(1, keepdims=True)
    pale = kept * x + (1 - kept) * np.maximum(x, 1.5 * grey + 0.5)
    return to_bytes(pale + flakes + flakes[:, :, ::-1, ::-1], images)


@CORRUPTIONS.register(family="weather")
def frost(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Ice on a window pane: a texture of frost is added to a darkened image.

    .. math:: x' = a x + b z

    a and b: `FROSTS`, `LARGE_FROSTS`. The benchmark crops z from six photographs. Here z is generated for
    each image: feathers of ice that grow from random points in random directions, each a spine with barbs at 60
    degrees, distorted and mottled by plasma noise; see `feathers`. It is bluish white with a mean of about 0.5. It is
    not the frost of the published files: compare results on frost within this package only. At 32 pixels severity 3 is
    farthest from the clean image in mean squared error, since 4 and 5 darken what frost lightens; the correlation with
    the clean image falls monotonically.

    Reference: Hendrycks & Dietterich, ICLR 2019, for the corruption; the texture is this package's own.
    """
    x = to_float(images, severity)
    kept, added = constants(images, severity, FROSTS, LARGE_FROSTS)
    ice = feathers(streams(len(x), generator), x.shape[2], x.shape[3])[:, None]
    return to_bytes(kept * x + added * (ice if x.shape[1] == 1 else ice * ICE), images)


def feathers(rows: Sequence[Generator], h: int, w: int) -> Vector:
    """Return a frost texture in [0, 1] for each stream, (n, h, w).

    Each pixel belongs to the nearest feather, where distance along the spine counts half. Lengths are fractions of the
    longer side, but barbs are at least 5 pixels apart: finer ones would look like noise.
    """
    size = max(h, w)
    bend, mottle, dust = (clouds(rows, h, w, decay) for decay in (1.5, 1.4, 1.02))
    gap = max(0.06, 5 / size)
    y, x = np.indices((h, w))[:, None] / size + 0.12 * np.stack([bend, mottle]) + 0.25 * gap * (dust - 0.5)
    ice, nearest = np.zeros_like(x), np.full_like(x, np.inf)
    roots, turns = uniform(rows, -0.1, 1.2, (2, FEATHERS)), uniform(rows, 0.0, 2 * np.pi, (FEATHERS,))
    for top, left, turn in zip(*roots.transpose(1, 2, 0)[..., None, None], turns.T[..., None, None], strict=True):
        dy, dx = y - top, x - left
        along, across = dx * np.cos(turn) + dy * np.sin(turn), np.abs(dy * np.cos(turn) - dx * np.sin(turn))
        barbs = _ridges((along - across * COT_60) / gap + 1.5 * bend, across / 0.25)
        hairs = _ridges((along + across * COT_60) / (0.4 * gap) + 1.5 * dust, across / 0.5)
        feather = np.maximum(np.exp(-4 * across / gap), barbs + hairs * (0.25 + barbs))
        distance = np.hypot(0.5 * along, across)
        ice, nearest = np.where(distance < nearest, feather, ice), np.minimum(distance, nearest)
    return (0.12 + 0.45 * mottle + 0.3 * (dust - 0.5) + 0.75 * ice * (0.4 + 0.6 * bend)).clip(0.0, 1.0)


def _ridges(phase: Vector, fading: Vector) -> Vector:
    """Return ridges of varying strength at integer phases, 0 between them; the weaker ones fade sooner."""
    line = np.rint(phase)
    strength = 0.25 + 0.75 * np.abs(np.sin(7.3 * line))  # pseudo-random from one line to the next
    return (1 - 2 * np.abs(phase - line)) ** 2 * strength * np.exp(-fading / strength)


@CORRUPTIONS.register(family="weather")
def fog(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Fog: plasma noise is added, and the sum is rescaled.

    .. math:: x' = (x + a z) \, m / (m + a)

    z is plasma noise in [0, 1], generated by midpoint displacement, and m the largest value of the image. a, and the
    decay of the roughness of z: `FOGS`, `LARGE_FOGS`. A black image stays black, since m is 0.

    Reference: Hendrycks & Dietterich, ICLR 2019; Fournier, Fussell & Carpenter, CACM 1982, on the plasma noise.
    """
    x = to_float(images, severity)
    density, decay = constants(images, severity, FOGS, LARGE_FOGS)
    lightest = x.max((1, 2, 3), keepdims=True)
    drifts = clouds(streams(len(x), generator), x.shape[2], x.shape[3], decay)[:, None]
    return to_bytes((x + density * drifts) * lightest / (lightest + density), images)


@CORRUPTIONS.register(family="weather")
def brightness(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Brightness: the value of each pixel rises, its hue and saturation stay.

    .. math:: x' = x \, \min(v + a, 1) / v, \quad v = \max(r, g, b)

    This adds a to the value in HSV space. Black, where v is 0, becomes grey of value a. a is 0.05, 0.1, 0.15, 0.2, 0.3
    for small images and 0.1, 0.2, 0.3, 0.4, 0.5 for large ones. Deterministic: the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.

    Example:
        >>> image = torch.tensor([100, 50, 0], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
        >>> brightness(image, 5)[0, :, 0, 0]
        tensor([176,  88,   0], dtype=torch.uint8)
    """
    x = to_float(images, severity)
    more = constants(images, severity, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5))
    value = x.max(1, keepdims=True)
    lit = (value + more).clip(max=1.0)
    return to_bytes(np.where(value > 0, x * lit / np.where(value > 0, value, 1.0), lit), images)


def clouds(rows: Sequence[Generator], h: int, w: int, decay: float) -> Vector:
    """Return plasma noise in [0, 1] for each stream, (n, h, w); see `plasma`."""
    size = 1 << (max(h, w) - 1).bit_length()
    return plasma(uniform(rows, -1.0, 1.0, (size, size)), decay)[:, :h, :w]


def plasma(noise: Vector, decay: float) -> Vector:
    """Return periodic plasma fractals (n, size, size) in [0, 1] from noise of the same shape; size is a power of 2.

    Diamond-square algorithm: on ever finer grids the centre of each square, then of each side, becomes the mean of its
    four neighbours plus its noise times an amplitude. The amplitude is divided by the square of ``decay`` from one grid
    to the next: a small decay gives rough surfaces, a large one smooth ones.
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
