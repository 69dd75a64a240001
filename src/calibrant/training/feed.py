"""Rows of a data set on the device, and the batches made of them."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from calibrant.training import augment
from calibrant.training.datasets.dataset import Part


class Feed:
    """The inputs and labels of some rows, on the device, and what turns them into the model's inputs.

    Images stay bytes until they are used, laid out (n, h, w, c). Inputs that are decoded when asked stay where they
    are.
    """

    def __init__(
        self, part: Part, device: torch.device, *, mean: tuple[float, ...] = (), std: tuple[float, ...] = ()
    ) -> None:
        self.device, self.labels = device, part.labels.to(device)
        self.inputs, self.resident, self.images = part.inputs, False, True
        if isinstance(part.inputs, Tensor):
            self.resident, self.images = True, part.inputs.ndim == 4
            self.inputs = (part.inputs.permute(0, 2, 3, 1).contiguous() if self.images else part.inputs).to(device)
        if self.images and not len(mean) == len(std) == self._channels():
            raise ValueError(f"mean and std must have {self._channels()} numbers, one a channel; got {mean} and {std}.")
        self.mean, self.std = (torch.tensor(values, device=device) for values in (mean, std))

    def __len__(self) -> int:
        return len(self.labels)

    def _channels(self) -> int:
        return self.inputs.shape[3] if isinstance(self.inputs, Tensor) else 3

    def fetch(self, rows: Tensor) -> Tensor:
        """Return the raw inputs of some rows, on the device; images as (n, h, w, c)."""
        if self.resident:
            return self.inputs[rows]
        return self.inputs[rows.cpu()].to(self.device, non_blocking=True).permute(0, 2, 3, 1)

    def ready(self, raw: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return raw inputs as the model takes them: shifted and flipped if ``moves`` are given, and normalised."""
        if not self.images:
            return raw
        return augment.normalised(raw if moves is None else augment.cropped(raw, moves), self.mean, self.std)

    def batches(self, size: int, rows: Tensor) -> Iterator[Tensor]:
        """Yield model inputs of the rows in order."""
        for some in rows.to(self.device).split(size):
            yield self.ready(self.fetch(some))


def order(n: int, length: int, *, seed: int, epoch: int, pad: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the first ``length`` of n rows in the random order of an epoch, and how each image is moved.

    They depend on seed and epoch alone: a run can go on from any epoch, on any device, over any number of ranks.
    """
    generator = torch.Generator().manual_seed(seed_of(seed, epoch))
    rows = torch.randperm(n, generator=generator)[:length]
    return rows, None if pad is None else augment.drawn(length, pad, generator)


def seed_of(*numbers: int) -> int:
    """Return a seed for torch that differs wherever one of the numbers does."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) % 2**63
