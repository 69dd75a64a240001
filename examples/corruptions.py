"""A contact sheet: every corruption at every severity, on a CIFAR image and on a photograph.

Run it as ``python examples/corruptions.py [SHEET.png]``.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_sample_image
from torch import Tensor

from calibrant.registry import CORRUPTIONS
from calibrant.training.corruptions.corrupt import corrupt

FAMILIES = ("noise", "blur", "weather", "digital")
MOSAIC = Path(__file__).parents[1] / "tests" / "data" / "cifar100" / "test.webp"
SMALL, LARGE, TILE, GAP, LABEL, HEAD = 32, 224, 96, 4, 150, 44
ROW, COLUMN = 2, 2  # the place in the mosaic of a lion: fine and coarse detail, dark and light


def photograph(side: int) -> Tensor:
    """Return the left part of a photograph that comes with scikit-learn, (1, 3, side, side)."""
    image = Image.fromarray(load_sample_image("china.jpg"))
    return as_tensor(image.crop((0, 0, 427, 427)).resize((side, side), Image.Resampling.LANCZOS))


def cifar() -> Tensor:
    """Return a CIFAR-100 image from the mosaic that the tests read."""
    left, top = SMALL * COLUMN, SMALL * ROW
    return as_tensor(Image.open(MOSAIC).convert("RGB").crop((left, top, left + SMALL, top + SMALL)))


def as_tensor(image: Image.Image) -> Tensor:
    """Return an image as a batch of one."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None]


def tile(images: Tensor) -> Image.Image:
    """Return the first image of a batch at the size of a tile: small ones enlarged, large ones cut."""
    image = Image.fromarray(images[0].permute(1, 2, 0).numpy())
    if image.width < TILE:
        return image.resize((TILE, TILE), Image.Resampling.NEAREST)
    left = (image.width - TILE) // 2
    return image.crop((left, 0, left + TILE, TILE))


def sheet(blocks: list[Tensor]) -> Image.Image:
    """Return the contact sheet: a row a corruption, and for each image a block of five columns, its severities."""
    entries = sorted(CORRUPTIONS.entries(), key=lambda entry: FAMILIES.index(entry.facts["family"]))
    wide, step = 5 * (TILE + GAP) + 3 * GAP, TILE + GAP
    page = Image.new("RGB", (LABEL + len(blocks) * wide, HEAD + step * (1 + len(entries))), "white")
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(15)
    for i, images in enumerate(blocks):
        left, side = LABEL + i * wide, images.shape[2]
        note = f"{side} x {side} pixels" + (f", {TILE} x {TILE} of them" if side > TILE else "")
        draw.text((left, 4), f"{note}; severity", "black", font)
        for severity in range(1, 6):
            x = left + (severity - 1) * step
            draw.text((x + TILE // 2, 24), str(severity), "black", font)
            page.paste(tile(images), (x, HEAD))
            for j, entry in enumerate(entries, 1):
                page.paste(tile(corrupt(images, entry.name, severity)), (x, HEAD + j * step))
    for j, name in enumerate(["clean", *(entry.name for entry in entries)]):
        draw.text((4, HEAD + j * step + TILE // 2 - 8), name.replace("_", " "), "black", font)
    return page


def main(path: Path) -> None:
    """Write the sheet as a PNG, each colour rounded to 32 levels, which keeps it small."""
    page = sheet([cifar(), photograph(LARGE)])
    page.point([round(round(value * 31 / 255) * 255 / 31) for value in range(256)] * 3).save(path, optimize=True)
    print(f"written: {path}, {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("corruptions.png"))
