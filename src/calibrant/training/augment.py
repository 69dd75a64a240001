"""Images on the device -> shifted, flipped and normalised images, each in its own way."""

import torch
from torch import Tensor


def cropped(pixels: Tensor, moves: Tensor) -> Tensor:
    """Shift each image, fill with zeros, and flip it or not: a random crop of the padded image, then a flip.

    ``pixels`` is (n, h, w, c) of any type; row i of ``moves`` is (down, right, flip): pixel (y, x) of the crop is pixel
    (y + down, x + right) of the image, 0 outside; then columns are reversed where flip is 1. Plain indexing, so that it
    runs anywhere, is captured in a CUDA graph and is fused when compiled.

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


def drawn(n: int, pad: int, generator: torch.Generator) -> Tensor:
    """Draw n moves: shifts of up to ``pad`` pixels either way, and a flip of every second image on average."""
    shifts = torch.randint(-pad, pad + 1, (n, 2), generator=generator)
    return torch.cat([shifts, torch.randint(0, 2, (n, 1), generator=generator)], 1)


def normalised(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return bytes (n, h, w, c) as standardised images (n, c, h, w), laid out channels last."""
    return ((pixels.float() / 255 - mean) / std).permute(0, 3, 1, 2)
