"""Input pipeline on the device: rows, batches, augmentation and normalisation."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from calibrant.training.datasets.dataset import Part


class Feed:
    """The inputs and labels of a data set on the device, converted to model inputs batch by batch.

    Images are kept as bytes, laid out (n, h, w, c). Inputs that are decoded on demand stay on disk.
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
        """Return the raw inputs of the given rows, on the device; images as (n, h, w, c)."""
        if self.resident:
            return self.inputs[rows]
        return self.inputs[rows.cpu()].to(self.device, non_blocking=True).permute(0, 2, 3, 1)

    def ready(self, raw: Tensor, moves: Tensor | None = None) -> Tensor:
        """Return model inputs: augmented if ``moves`` are given, and normalised."""
        if not self.images:
            return raw
        return normalised(raw if moves is None else cropped(raw, moves), self.mean, self.std)

    def batches(self, size: int, rows: Tensor) -> Iterator[Tensor]:
        """Yield the model inputs of the rows in order."""
        for some in rows.to(self.device).split(size):
            yield self.ready(self.fetch(some))


def order(n: int, length: int, *, seed: int, epoch: int, pad: int | None) -> tuple[Tensor, Tensor | None]:
    """Return the first ``length`` of n rows in the random order of an epoch, and the augmentation of each.

    They depend on seed and epoch only, so that a run can resume at any epoch, on any device and number of ranks.
    """
    generator = torch.Generator().manual_seed(seed_of(seed, epoch))
    rows = torch.randperm(n, generator=generator)[:length]
    return rows, None if pad is None else random_moves(length, pad, generator)


def seed_of(*numbers: int) -> int:
    """Return a seed for torch, derived from all of the numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0]) % 2**63


def cropped(pixels: Tensor, moves: Tensor) -> Tensor:
    """Crop each zero-padded image at its offset and flip it if asked.

    ``pixels`` is (n, h, w, c) of any type; row i of ``moves`` is (down, right, flip): pixel (y, x) of the crop is pixel
    (y + down, x + right) of the image, 0 outside; then columns are reversed where flip is 1. Plain indexing, so that it
    can be captured in a CUDA graph and is fused when compiled.

    Example:
        >>> image = torch.tensor([[1, 2], [3, 4]]).reshape(1, 2, 2, 1)
        >>> cropped(image, torch.tensor([[1, 0, 1]])).squeeze()
        tensor([[4, 3],
                [0, 0]])
    """
    n, h, w, _ = pixels.shape
    rows, columns = torch.arange(h, device=pixels.device), torch.arange(w, device=pixels.device)
    down, right, flip = moves.unsqueeze(2).unbind(1)
    y = rows + down
    x = torch.where(flip > 0, w - 1 - columns, columns) + right
    inside = ((y >= 0) & (y < h))[:, :, None] & ((x >= 0) & (x < w))[:, None, :]
    which = torch.arange(n, device=pixels.device)[:, None, None]
    found = pixels[which, y.clamp(0, h - 1)[:, :, None], x.clamp(0, w - 1)[:, None, :]]
    return found * inside.unsqueeze(3).to(found.dtype)


def random_moves(n: int, pad: int, generator: torch.Generator) -> Tensor:
    """Return n random moves: offsets of up to ``pad`` pixels either way, and a flip with probability 1/2."""
    shifts = torch.randint(-pad, pad + 1, (n, 2), generator=generator)
    return torch.cat([shifts, torch.randint(0, 2, (n, 1), generator=generator)], 1)


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return bytes (n, h, w, c) as normalised float images (n, c, h, w), in channels_last memory format."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
