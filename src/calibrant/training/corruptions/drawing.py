"""A torch generator -> randomness of each image's own, the same however the images are cut into batches."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.random import Generator

from calibrant.predictions.types import Array, Vector


def streams(n: int, generator: torch.Generator | None) -> list[Generator]:
    """Return a stream of random numbers for each of n images, seeded by one number drawn from the generator each.

    Without a generator one with seed 0 is made. Two calls that draw n and m streams give those of one call that draws
    n + m, so an image's randomness depends on its place alone. A corruption calls this once, and only this.
    """
    source = torch.Generator().manual_seed(0) if generator is None else generator
    seeds = torch.randint(2**62, (n,), generator=source, device=source.device)
    return [np.random.default_rng(seed) for seed in seeds.tolist()]


def drawn(rows: Sequence[Generator], shape: tuple[int, ...], draw: Callable[[Generator], Array]) -> Vector:
    """Return an array (n, *shape), each row drawn from a stream of its own."""
    values = np.empty((len(rows), *shape))
    for i, row in enumerate(rows):
        values[i] = draw(row)
    return values


def uniform(rows: Sequence[Generator], low: float, high: float, shape: tuple[int, ...] = ()) -> Vector:
    """Return numbers from low to high, (n, *shape)."""
    return drawn(rows, shape, lambda row: np.asarray(row.uniform(low, high, shape)))


def normal(rows: Sequence[Generator], shape: tuple[int, ...]) -> Vector:
    """Return numbers of mean 0 and variance 1, (n, *shape)."""
    return drawn(rows, shape, lambda row: row.standard_normal(shape))
