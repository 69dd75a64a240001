"""Blurs: out of focus, behind frosted glass, moving, nearing."""

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Vector
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions.drawing import drawn, streams, uniform
from calibrant.training.corruptions.pixels import closed, opened
from calibrant.training.corruptions.severities import blur_growth, constants
from calibrant.training.corruptions.smearing import filtered, streaked, zoomed

DISCS = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))
LARGE_DISCS = ((3.0, 0.1), (4.0, 0.5), (6.0, 0.5), (8.0, 0.5), (10.0, 0.5))
PANES = ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
LARGE_PANES = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))
STREAKS = ((6.0, 1.0), (6.0, 1.5), (6.0, 2.0), (8.0, 2.0), (9.0, 2.5))
LARGE_STREAKS = ((10.0, 3.0), (15.0, 5.0), (15.0, 8.0), (15.0, 12.0), (20.0, 15.0))
ZOOMS = ((0.05, 0.01), (0.10, 0.01), (0.15, 0.01), (0.20, 0.01), (0.25, 0.01))
LARGE_ZOOMS = ((0.10, 0.01), (0.15, 0.01), (0.20, 0.02), (0.24, 0.02), (0.30, 0.03))


@CORRUPTIONS.register(family="blur")
def defocus_blur(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """A lens out of focus: each point becomes a disc.

    The disc holds the pixels whose middle is within a radius, and its edge is softened by a narrow normal curve. Radius
    and softening, in pixels: `DISCS`, `LARGE_DISCS`. At 32 pixels and severities 1 to 3 the disc is one pixel, and the
    softening alone blurs. Nothing is random: the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    radius, softening = constants(images, severity, DISCS, LARGE_DISCS)
    grown = blur_growth(images)
    reach = max(1, round(grown * (1 if radius <= 8 else 2)))
    return closed(filtered(x, disc(radius * grown, softening * grown, reach)), images)


def disc(radius: float, softening: float, reach: int) -> Vector:
    """Return a disc of sum 1, softened by a normal curve that is cut off after so many pixels."""
    whole = int(radius) + reach
    line = np.arange(-whole, whole + 1)
    inside = (line[:, None] ** 2 + line**2 <= radius**2).astype(np.float64)
    curve = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * softening**2))
    for axis in (0, 1):
        inside = np.apply_along_axis(np.convolve, axis, inside, curve, "same")
    return inside / inside.sum()


@CORRUPTIONS.register(family="blur")
def glass_blur(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Frosted glass: pixels change places with near ones, between two slight blurs.

    Each pixel takes the value of one that is :math:`-d, \ldots, d - 1` rows and as many columns away, drawn anew for
    each pixel and each round; at the border, of the last pixel there. The blurs are normal curves. Their width, d and
    the number of rounds: `PANES`, `LARGE_PANES`.

    The benchmark's program goes through the pixels one by one and is written as if it swapped them, but its statement
    copies. What is done here is the same where d is 1, and differs little where it is more. At 32 pixels severities 3
    and 5 are nearer to the clean image, by mean squared difference, than 2 and 4: their blur hides the disorder. More
    and more of the detail, the differences between neighbouring pixels, is lost all the same.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    from scipy.ndimage import gaussian_filter

    x = opened(images, severity)
    sigma, reach, rounds = constants(images, severity, PANES, LARGE_PANES)
    grown = blur_growth(images)
    blur, reach = (0.0, 0.0, sigma * grown, sigma * grown), max(1, round(reach * grown))
    n, c, h, w = x.shape
    shape = (rounds, 2, h, w)
    moves = drawn(streams(n, generator), shape, lambda row: row.integers(-reach, reach, shape)).astype(np.int64)
    x = gaussian_filter(x, blur, mode="nearest").reshape(n, c, h * w)
    for i in range(rounds):
        rows = (np.arange(h)[:, None] + moves[:, i, 0]).clip(0, h - 1)
        columns = (np.arange(w) + moves[:, i, 1]).clip(0, w - 1)
        x = np.take_along_axis(x, (rows * w + columns).reshape(n, 1, h * w), axis=2)
    return closed(gaussian_filter(x.reshape(n, c, h, w), blur, mode="nearest"), images)


@CORRUPTIONS.register(family="blur")
def motion_blur(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """A camera that moves: each point becomes a streak, at an angle drawn from -45 to 45 degrees for each image.

    The streak runs to one side and fades as half a normal curve does, see `streaked`. Radius and width in pixels:
    `STREAKS`, `LARGE_STREAKS`. A part of the change is a shift of the image, along the streak.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    radius, sigma = constants(images, severity, STREAKS, LARGE_STREAKS)
    angles = uniform(streams(len(x), generator), -45.0, 45.0)
    return closed(streaked(x, angles, radius * blur_growth(images), sigma * blur_growth(images)), images)


@CORRUPTIONS.register(family="blur")
def zoom_blur(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""A camera that nears its object: the mean of the image at a series of zooms.

    .. math:: x' = \Big( x + \sum_{i=0}^{m} \mathrm{zoom}(x, 1 + i s) \Big) / (m + 2)

    The zoom is about the middle and linear between pixels; :math:`m s` and the step s are `ZOOMS`, `LARGE_ZOOMS`. The
    image itself counts twice, as in the benchmark's program. Nothing is random: the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    top, step = constants(images, severity, ZOOMS, LARGE_ZOOMS)
    steps = round(top / step)
    total = 2 * x
    for i in range(1, steps + 1):
        total += zoomed(x, 1 + i * step)
    return closed(total / (steps + 2), images)
