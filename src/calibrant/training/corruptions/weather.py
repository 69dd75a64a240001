"""Weather: snow, fog, glaring light. Frost has a file of its own."""

import numpy as np
import torch
from torch import Tensor

from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions.drawing import normal, streams, uniform
from calibrant.training.corruptions.pixels import closed, opened
from calibrant.training.corruptions.plasma import clouds
from calibrant.training.corruptions.severities import blur_growth, constants
from calibrant.training.corruptions.smearing import streaked, zoomed

# of the flakes: mean, spread, size, threshold, radius and width of the streak; then the share of the image kept
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
LUMINANCE = np.array([0.299, 0.587, 0.114])[:, None, None]


@CORRUPTIONS.register(family="weather")
def snow(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Falling snow: white streaks over an image that has turned paler.

    Flakes are normal noise, enlarged, set to 0 below a threshold and smeared downwards at an angle drawn for each
    image. They are added together with themselves turned by half a turn. Before, the image x of grey value g becomes
    :math:`a x + (1 - a) \max(x, 1.5 g + 0.5)`. The constants: `FLAKES`, `LARGE_FLAKES`.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = opened(images, severity)
    mean, spread, size, threshold, radius, sigma, kept = constants(images, severity, FLAKES, LARGE_FLAKES)
    grown = blur_growth(images)
    rows = streams(len(x), generator)
    angles = uniform(rows, -135.0, -45.0)
    flakes = zoomed(mean + spread * normal(rows, (1, *x.shape[2:])), max(1.0, size * grown))
    flakes = np.where(flakes < threshold, 0.0, flakes.clip(0.0, 1.0))
    flakes = streaked(flakes, angles, radius * grown, sigma * grown)
    grey = x if x.shape[1] == 1 else (x * LUMINANCE).sum(1, keepdims=True)
    pale = kept * x + (1 - kept) * np.maximum(x, 1.5 * grey + 0.5)
    return closed(pale + flakes + flakes[:, :, ::-1, ::-1], images)


@CORRUPTIONS.register(family="weather")
def fog(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Fog in drifts: a cloud is added, and the sum is scaled back.

    .. math:: x' = (x + a z) \, m / (m + a)

    z is a cloud from 0 to 1 made by midpoint displacement, m the largest value of the image. a, and the decay of the
    cloud's roughness: `FOGS`, `LARGE_FOGS`. A black image stays black, since nothing in it is lit.

    Reference: Hendrycks & Dietterich, ICLR 2019; Fournier, Fussell & Carpenter, CACM 1982, on the clouds.
    """
    x = opened(images, severity)
    density, decay = constants(images, severity, FOGS, LARGE_FOGS)
    lightest = x.max((1, 2, 3), keepdims=True)
    drifts = clouds(streams(len(x), generator), x.shape[2], x.shape[3], decay)[:, None]
    return closed((x + density * drifts) * lightest / (lightest + density), images)


@CORRUPTIONS.register(family="weather")
def brightness(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Glaring light: the value of each pixel rises, its hue and saturation stay.

    .. math:: x' = x \, \min(v + a, 1) / v, \quad v = \max(r, g, b)

    This is the sum :math:`v + a` in the space of hue, saturation and value. Black, where v is 0, becomes grey of value
    a. a is 0.05, 0.1, 0.15, 0.2, 0.3 for small images and 0.1, 0.2, 0.3, 0.4, 0.5 for large ones. Nothing is random:
    the generator is not used.

    Reference: Hendrycks & Dietterich, ICLR 2019.

    Example:
        >>> image = torch.tensor([100, 50, 0], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 8, 8)
        >>> brightness(image, 5)[0, :, 0, 0]
        tensor([176,  88,   0], dtype=torch.uint8)
    """
    x = opened(images, severity)
    more = constants(images, severity, (0.05, 0.1, 0.15, 0.2, 0.3), (0.1, 0.2, 0.3, 0.4, 0.5))
    value = x.max(1, keepdims=True)
    lit = (value + more).clip(max=1.0)
    return closed(np.where(value > 0, x * lit / np.where(value > 0, value, 1.0), lit), images)
