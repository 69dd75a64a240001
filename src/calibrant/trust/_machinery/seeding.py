"""Random numbers from a seed for a while, and then as they were."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn


@contextmanager
def drawing(model: nn.Module, seed: int) -> Iterator[None]:
    """Start the random numbers of the CPU and of the model's devices from the seed, and put their states back."""
    held = {value.device for value in chain(model.parameters(), model.buffers())}
    devices = sorted(d.index or 0 for d in held if d.type == "cuda")
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would reach devices of others
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield
