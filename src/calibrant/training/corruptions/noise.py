"""Sensor noise, independent for each value of each pixel: Gaussian, shot and impulse."""

import numpy as np
import torch
from torch import Tensor

from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions._images import constants, normal, streams, to_bytes, to_float, uniform


@CORRUPTIONS.register(family="noise")
def gaussian_noise(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Gaussian noise on each value, as from a sensor in poor light.

    .. math:: x' = x + \sigma \varepsilon, \quad \varepsilon \sim N(0, 1)

    Values run from 0 to 1 and are clipped, so near black and white the noise is one-sided and weaker than σ.
    σ is 0.04, 0.06, 0.08, 0.09, 0.10 for small images and 0.08, 0.12, 0.18, 0.26, 0.38 for large ones.

    Reference: Hendrycks & Dietterich, ICLR 2019.

    Example:
        >>> images = torch.full((1, 3, 32, 32), 128, dtype=torch.uint8)
        >>> round(float((gaussian_noise(images, 5) / 255).std()), 2)
        0.1
    """
    x = to_float(images, severity)
    sigma = constants(images, severity, (0.04, 0.06, 0.08, 0.09, 0.10), (0.08, 0.12, 0.18, 0.26, 0.38))
    return to_bytes(x + sigma * normal(streams(len(x), generator), x.shape[1:]), images)


@CORRUPTIONS.register(family="noise")
def shot_noise(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Poisson noise on each value: light comes in whole photons.

    .. math:: x' = \mathrm{Poisson}(\lambda x) / \lambda

    The variance :math:`x / \lambda` grows with brightness; black stays black. λ is 500, 250, 100, 75, 50 for small
    images and 60, 25, 12, 5, 3 for large ones.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = to_float(images, severity)
    rate = constants(images, severity, (500.0, 250.0, 100.0, 75.0, 50.0), (60.0, 25.0, 12.0, 5.0, 3.0))
    for row, stream in zip(x, streams(len(x), generator), strict=True):
        row[...] = stream.poisson(row * rate) / rate
    return to_bytes(x, images)


@CORRUPTIONS.register(family="noise")
def impulse_noise(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    """Salt-and-pepper noise: a fraction of the values becomes 0 or 255, with equal probability.

    Channels are corrupted independently, so the specks of a colour image are coloured. The fraction is 0.01, 0.02,
    0.03, 0.05, 0.07 for small images and 0.03, 0.06, 0.09, 0.17, 0.27 for large ones. A value that is 0 or 255 already
    may be hit without changing.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    x = to_float(images, severity)
    share = constants(images, severity, (0.01, 0.02, 0.03, 0.05, 0.07), (0.03, 0.06, 0.09, 0.17, 0.27))
    u = uniform(streams(len(x), generator), 0.0, 1.0, x.shape[1:])
    return to_bytes(np.where(u < share / 2, 0.0, np.where(u > 1 - share / 2, 1.0, x)), images)
