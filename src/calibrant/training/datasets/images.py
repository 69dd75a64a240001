"""Images that stay in their files until they are asked for."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions.types import Array

THREADS = 8  # Pillow lets go of the interpreter while it decodes; more threads than cores hide the disk


@dataclass(frozen=True, eq=False)
class Images:
    """Image files as rows: ``images[rows]`` decodes them to uint8 of shape (m, 3, side, side).

    The shorter side is resized to ``shorter`` (bilinear, with antialiasing) and the centre cut out, so that two
    readings of a file are equal. Any file that Pillow reads will do; grey ones get three equal channels.
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
        """Return some of the files, still undecoded."""
        return Images(tuple(self.files[row] for row in rows.tolist()), self.side, self.shorter)

    def __getitem__(self, rows: Tensor) -> Tensor:
        files = self.take(rows).files
        out = torch.empty(len(files), 3, self.side, self.side, dtype=torch.uint8)

        def fill(place: int) -> None:
            out[place] = torch.from_numpy(decoded(files[place], self.side, self.shorter))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fill, range(len(files))))  # the list makes an error in a thread an error here
        return out


def decoded(path: Path, side: int, shorter: int) -> Array:
    """Decode one file: resize its shorter side, cut out the centre; uint8 of shape (3, side, side)."""
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
