"""Residual blocks that activate after the sum, their shortcuts, and stages of them."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.training.models._layers import activated, normed

Shortcut: TypeAlias = Callable[[int, int, int], nn.Module]
Block: TypeAlias = Callable[[int, int, int, Shortcut], nn.Module]


class Residual(nn.Module):
    """The ReLU of a branch plus a shortcut."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Return relu(branch + shortcut)."""
        return F.relu(self.branch(inputs) + self.shortcut(inputs))


class Halved(nn.Module):
    """Every second pixel, and as many channels of zeros as there are channels: a shortcut without parameters.

    Zeros are concatenated and not padded: compiled padding does not keep the channels_last memory format.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, 2 c, h / 2, w / 2) of (n, c, h, w)."""
        small = inputs[:, :, ::2, ::2]
        return torch.cat((small, torch.zeros_like(small)), 1)


def without_parameters(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the shortcut called option A: the identity, or `Halved` where the channels double."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else Halved()


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the shortcut called option B: the identity, or a normed 1x1 convolution where the shape changes."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else nn.Sequential(*normed(inputs, outputs, 1, stride))


def basic(inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> Residual:
    """Return a block of two 3x3 convolutions."""
    branch = nn.Sequential(*activated(inputs, outputs, 3, stride), *normed(outputs, outputs))
    return Residual(branch, shortcut(inputs, outputs, stride))


def bottleneck(inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> Residual:
    """Return a block of convolutions 1x1, 3x3, 1x1, the inner two of a quarter of the width; the 3x3 has the stride."""
    inner = outputs // 4
    branch = nn.Sequential(
        *activated(inputs, inner, 1), *activated(inner, inner, 3, stride), *normed(inner, outputs, 1)
    )
    return Residual(branch, shortcut(inputs, outputs, stride))


def stages(
    block: Block, inputs: int, widths: Sequence[int], counts: Sequence[int], shortcut: Shortcut
) -> list[nn.Module]:
    """Return the blocks of all stages; each stage but the first begins with stride 2."""
    blocks = []
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
        for i in range(count):
            blocks.append(block(inputs, width, 2 if stage > 0 and i == 0 else 1, shortcut))
            inputs = width
    return blocks
