"""What every reader gives: training rows and test rows, as images or tokens, with labels and the names of classes."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array
from calibrant.training.datasets.images import Images


@dataclass(frozen=True, eq=False)
class Part:
    """Rows of a data set: what a model is shown, and what is true.

    ``inputs`` are uint8 images (n, c, h, w), or int64 tokens (n, length), or `Images` that are decoded when asked for.
    ``labels`` are int64 (n,).

    Example:
        >>> part = Part(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), torch.arange(5))
        >>> len(part), part.take(torch.tensor([4, 0])).labels
        (5, tensor([4, 0]))
    """

    inputs: Tensor | Images
    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(f"labels must be int64 of shape (n,); got {_described(self.labels)}.")
        if len(self.inputs) != len(self.labels):
            raise ValueError(f"labels must be one a row of inputs, {len(self.inputs)}; got {len(self.labels)}.")
        if isinstance(self.inputs, Tensor) and (self.inputs.dtype, self.inputs.ndim) not in (
            (torch.uint8, 4),
            (torch.int64, 2),
        ):
            raise ValueError(
                "inputs must be uint8 images of shape (n, c, h, w) or int64 tokens of shape (n, length); "
                f"got {_described(self.inputs)}."
            )

    @classmethod
    def of(cls, images: Array, labels: Array) -> "Part":
        """Copy arrays of a file, images (n, c, h, w) and labels (n,), into rows."""
        pixels = np.array(images, dtype=np.uint8, order="C")  # a copy: torch wants memory that may be written
        return cls(torch.from_numpy(pixels), torch.from_numpy(np.array(labels, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Part":
        """Return some rows, in the order asked for."""
        inputs = self.inputs.take(rows) if isinstance(self.inputs, Images) else self.inputs[rows]
        return Part(inputs, self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: ``classes`` by label, and what a model needs to read its rows.

    ``mean`` and ``std`` are those of each channel of the training images, of values in [0, 1]; empty for text.
    ``vocabulary`` holds the words by token number; empty for images.
    """

    name: str
    train: Part
    test: Part
    classes: tuple[str, ...]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    vocabulary: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for part in (self.train, self.test):
            if len(part) and not 0 <= int(part.labels.min()) <= int(part.labels.max()) < self.k:
                low, high = int(part.labels.min()), int(part.labels.max())
                raise ValueError(f"{self.name}: labels must lie in [0, {self.k}), the classes; got [{low}, {high}].")

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @cached_property
    def fingerprint(self) -> str:
        """A short name for what is in it: the labels, and the inputs or the names of their files."""
        seen = blake2b(digest_size=12)
        for part in (self.train, self.test):
            seen.update(part.labels.numpy().tobytes())
            if isinstance(part.inputs, Tensor):
                seen.update(part.inputs.contiguous().numpy().data)
            else:
                seen.update("\n".join(path.name for path in part.inputs.files).encode())
        return seen.hexdigest()


def _described(values: Tensor) -> str:
    return f"{str(values.dtype).removeprefix('torch.')} of shape {tuple(values.shape)}"
