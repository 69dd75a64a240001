"""Frost on the pane: feathers of ice, drawn and not photographed."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from calibrant.predictions.types import Vector
from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions.drawing import streams, uniform
from calibrant.training.corruptions.pixels import closed, opened
from calibrant.training.corruptions.plasma import clouds
from calibrant.training.corruptions.severities import constants

# share of the image kept, and share of the frost added
PANES = ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))
LARGE_PANES = ((1.0, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75))
ICE = np.array([0.86, 0.94, 1.0])[:, None, None]  # bluish white
FEATHERS = 9
COT_60 = 3**-0.5  # ice grows its barbs at 60 degrees


@CORRUPTIONS.register(family="weather")
def frost(images: Tensor, severity: int, *, generator: torch.Generator | None = None) -> Tensor:
    r"""Ice on a window pane: a texture of frost is added to a darkened image.

    .. math:: x' = a x + b z

    a and b: `PANES`, `LARGE_PANES`. The benchmark takes z from six photographs. Here z is drawn, for each image anew:
    feathers of ice that grow from random points in random directions, each a spine with barbs at 60 degrees, bent and
    mottled by clouds; see `feathers`. It is bluish white with a mean of about 0.5. It is not the frost of the published
    files: compare frost with frost of this package only. At 32 pixels severity 3 is farthest from the clean image by
    mean squared difference, since 4 and 5 darken what frost lightens; the correlation with it falls throughout.

    Reference: Hendrycks & Dietterich, ICLR 2019, for the corruption; the texture is this package's own.
    """
    x = opened(images, severity)
    kept, added = constants(images, severity, PANES, LARGE_PANES)
    ice = feathers(streams(len(x), generator), x.shape[2], x.shape[3])[:, None]
    return closed(kept * x + added * (ice if x.shape[1] == 1 else ice * ICE), images)


def feathers(rows: Sequence[Generator], h: int, w: int) -> Vector:
    """Return a texture of frost from 0 to 1 for each stream, (n, h, w).

    Each pixel belongs to the feather that is nearest, counting half along the spine. Lengths are shares of the longer
    side, but barbs are at least 5 pixels apart: finer ones would be noise.
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
    """Return lines of uneven strength where the phase is whole, with 0 between; the weaker ones fade sooner."""
    line = np.rint(phase)
    strength = 0.25 + 0.75 * np.abs(np.sin(7.3 * line))  # as good as random from one line to the next
    return (1 - 2 * np.abs(phase - line)) ** 2 * strength * np.exp(-fading / strength)
