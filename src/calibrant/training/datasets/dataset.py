"""The `Dataset` type, and loading a data set by name from files on disk.

The readers of the single data sets are in the other modules of this package and register in `DATASETS`.
"""

import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array
from calibrant.registry import DATASETS, nearest

Form = TypeVar("Form")

VARIABLE = "CALIBRANT_DATA"
THREADS = 8  # Pillow releases the GIL while it decodes; more threads than cores hide the latency of the disk


@dataclass(frozen=True, eq=False)
class Images:
    """Image files, decoded on demand: ``images[rows]`` is uint8 of shape (m, 3, side, side).

    The shorter side is resized to ``shorter`` (bilinear, with antialiasing) and the centre cropped; nothing is random.
    Pillow must be able to read the files; grey images get three equal channels.
    """

    files: tuple[Path, ...]
    side: int
    shorter: int

    def __post_init__(self) -> None:
        if not 1 <= self.side <= self.shorter:
            raise ValueError(f"side must lie in [1, {self.shorter}], the shorter side; got {self.side}.")

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Tensor) -> "Images":
        """Return a subset of the files, without decoding them."""
        return Images(tuple(self.files[row] for row in rows.tolist()), self.side, self.shorter)

    def __getitem__(self, rows: Tensor) -> Tensor:
        files = self.take(rows).files
        out = torch.empty(len(files), 3, self.side, self.side, dtype=torch.uint8)

        def fill(place: int) -> None:
            out[place] = torch.from_numpy(decoded(files[place], self.side, self.shorter))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fill, range(len(files))))  # list() re-raises an error of a thread
        return out


def decoded(path: Path, side: int, shorter: int) -> Array:
    """Decode one file, resize its shorter side and crop the centre; uint8 of shape (3, side, side)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path} does not exist; unpack its archive again.") from None
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{path} must be a whole image file; it is truncated, or something else ({error}).") from None
    width, height = image.size
    if min(width, height) != shorter:
        scale = shorter / min(width, height)
        width, height = (
            (shorter, max(shorter, int(height * scale)))
            if width <= height
            else (max(shorter, int(width * scale)), shorter)
        )
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - side) / 2), round((height - side) / 2)
    pixels = np.asarray(image.crop((left, top, left + side, top + side)))
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a data set, such as its training set: inputs and labels.

    ``inputs`` are uint8 images (n, c, h, w), or int64 tokens (n, length), or `Images`, which are decoded on demand.
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
        """Copy the arrays of a file, images (n, c, h, w) and labels (n,)."""
        pixels = np.array(images, dtype=np.uint8, order="C")  # a copy: torch needs writable memory
        return cls(torch.from_numpy(pixels), torch.from_numpy(np.array(labels, dtype=np.int64)))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> "Part":
        """Return a subset of the rows, in the given order."""
        inputs = self.inputs.take(rows) if isinstance(self.inputs, Images) else self.inputs[rows]
        return Part(inputs, self.labels[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named data set: training and test part, class names, and how the inputs are normalised or tokenised.

    ``mean`` and ``std`` are those of each channel of the training images, scaled to [0, 1]; empty for text.
    ``vocabulary`` maps token ids to words; empty for images.
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
        """A hash of the contents: the labels, and the inputs or their file names."""
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


@dataclass(frozen=True)
class Source:
    """Where the files of a data set come from and where they are looked for.

    ``archive`` says what to download and from whom, ``folders`` are the usual sub-folders. A file name that ends in a
    slash is a folder. ``endings`` are optional suffixes of a file name, such as ``.gz``.
    """

    name: str
    archive: str
    folders: tuple[str, ...]
    endings: tuple[str, ...] = ("",)

    def find(self, folder: Path, forms: Mapping[Form, Sequence[str]]) -> tuple[Form, list[Path]]:
        """Return the first form whose files all exist, and the files; sub-folders are searched before the folder.

        The data set's own sub-folder is searched first because several data sets use the same file names.
        """
        tried = [
            (form, names, [self._file(place, name) for name in names])
            for place in self._places(folder)
            for form, names in forms.items()
        ]
        for form, _, files in tried:
            if None not in files:
                return form, [file for file in files if file is not None]
        _, names, files = max(tried, key=lambda one: sum(file is not None for file in one[2]))
        missing = ", ".join(name for name, file in zip(names, files, strict=True) if file is None)
        there = next((file for file in files if file is not None), None)
        where = f"in {folder}, or its sub-folder {' or '.join(self.folders)}" if there is None else f"beside {there}"
        raise FileNotFoundError(f"{self.name} needs {missing} {where}; fetch {self.archive} and put the files there.")

    def _places(self, folder: Path) -> Iterator[Path]:
        yield from (folder / name for name in self.folders)
        yield folder

    def _file(self, place: Path, name: str) -> Path | None:
        if name.endswith("/"):
            return place / name if (place / name).is_dir() else None
        return next((path for end in self.endings if (path := place / f"{name}{end}").is_file()), None)


def load(name: str, data: str | Path | None = None, options: Mapping[str, Any] | None = None) -> Dataset:
    """Load a data set by name from the folder ``data``, or $CALIBRANT_DATA.

    Nothing is downloaded: the error for a missing file names the archive that contains it. ``options`` are the keyword
    arguments of the reader, such as ``{"severity": 3}``.

    Example:
        >>> load("digits").k
        10
    """
    read = DATASETS.entry(name).method
    parameters = inspect.signature(read).parameters
    known = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    chosen = dict(options or {})
    wrong = next((option for option in chosen if option not in known), None)
    if wrong is not None:
        near = nearest(wrong, known)
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(f"options of {name} must be among {', '.join(known) or 'none'}; got {wrong!r}.{hint}")
    place = data if data is not None else os.environ.get(VARIABLE)
    if parameters["folder"].default is None:
        return read(**chosen)
    if not place:
        raise ValueError(f"data must name the folder with the files of {name}; pass it, or set ${VARIABLE}.")
    if not Path(place).is_dir():
        raise FileNotFoundError(f"data must be a folder that exists, with the files of {name}; got {str(place)!r}.")
    return read(Path(place), **chosen)
