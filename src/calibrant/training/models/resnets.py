"""Residual networks: the thin ones for CIFAR, and those for ImageNet with a smaller stem for smaller images."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.registry import MODELS
from calibrant.training.models._layers import (
    SMALL,
    Classifier,
    activated,
    check_images,
    he_normal,
    large_stem,
    normed,
    pooled,
)

Shortcut: TypeAlias = Callable[[int, int, int], nn.Module]
Block: TypeAlias = Callable[[int, int, int, Shortcut], nn.Module]


class Residual(nn.Module):
    """A residual block, relu(branch + shortcut)."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Return relu(branch + shortcut)."""
        return F.relu(self.branch(inputs) + self.shortcut(inputs))


class Halved(nn.Module):
    """The parameter-free shortcut: subsampling by 2, and zero channels to double the width.

    Zeros are concatenated instead of padded, because compiled padding does not keep the channels_last memory format.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, 2 c, h / 2, w / 2) of (n, c, h, w)."""
        small = inputs[:, :, ::2, ::2]
        return torch.cat((small, torch.zeros_like(small)), 1)


def without_parameters(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the shortcut of option A: the identity, or `Halved` where the channels double."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else Halved()


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the shortcut of option B: the identity, or a 1x1 convolution with BatchNorm where the shape changes."""
    return nn.Identity() if (inputs, stride) == (outputs, 1) else nn.Sequential(*normed(inputs, outputs, 1, stride))


def basic(inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> Residual:
    """Return a basic block, of two 3x3 convolutions."""
    branch = nn.Sequential(*activated(inputs, outputs, 3, stride), *normed(outputs, outputs))
    return Residual(branch, shortcut(inputs, outputs, stride))


def bottleneck(inputs: int, outputs: int, stride: int, shortcut: Shortcut) -> Residual:
    """Return a bottleneck: convolutions 1x1, 3x3, 1x1, the inner width a quarter; the 3x3 has the stride."""
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


@MODELS.register(takes="images")
def resnet20(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-20 for CIFAR: 3 blocks a stage, 0.27 million parameters, 64 features.

    The network of section 4.2 of the paper: a 3x3 convolution of 16 channels, three stages of basic blocks with 16, 32
    and 64 channels, global average pooling, a linear head. Shortcuts have no parameters (option A: subsampling, zeros
    for new channels). The head has PyTorch's default initialisation.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(3, k, channels, side)


@MODELS.register(takes="images")
def resnet32(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-32 for CIFAR: 5 blocks a stage, 0.46 million parameters, 64 features.

    As resnet20, but deeper.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(5, k, channels, side)


@MODELS.register(takes="images")
def resnet44(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-44 for CIFAR: 7 blocks a stage, 0.66 million parameters, 64 features.

    As resnet20, but deeper.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(7, k, channels, side)


@MODELS.register(takes="images")
def resnet56(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-56 for CIFAR: 9 blocks a stage, 0.85 million parameters, 64 features.

    As resnet20, but deeper.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(9, k, channels, side)


@MODELS.register(takes="images")
def resnet110(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-110 for CIFAR: 18 blocks a stage, 1.73 million parameters, 64 features.

    As resnet20, but deeper. The paper warms up with a learning rate of 0.01 before 0.1. The code of Mukhoti et al.
    (NeurIPS 2020) calls another network ResNet-110: bottlenecks in four stages of 3, 4, 26 and 3, much wider.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(18, k, channels, side)


@MODELS.register(takes="images")
def resnet18(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-18: basic blocks in four stages of 2, 11.2 million parameters, 512 features.

    Up to a side of 64 the stem is one 3x3 convolution of stride 1 without pooling, as is usual for CIFAR but not in
    the paper; above, it is the paper's 7x7 convolution and pooling. Shortcuts that change the shape are 1x1
    convolutions with BatchNorm (option B).

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _four_stages(basic, (64, 128, 256, 512), (2, 2, 2, 2), k, channels, side)


@MODELS.register(takes="images")
def resnet50(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-50: bottlenecks in four stages of 3, 4, 6 and 3, 23.5 million parameters, 2048 features.

    Stem and shortcuts as in resnet18. The stride is in the 3x3 convolution, where the paper has it in the 1x1 before
    it; common pretrained networks do the same (ResNet v1.5).

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _four_stages(bottleneck, (256, 512, 1024, 2048), (3, 4, 6, 3), k, channels, side)


def _thin(n: int, k: int, channels: int, side: int) -> Classifier:
    check_images(channels, side)
    blocks = stages(basic, 16, (16, 32, 64), (n, n, n), without_parameters)
    body = nn.Sequential(*activated(channels, 16), *blocks, *pooled())
    return he_normal(Classifier(body, 64, k))


def _four_stages(
    block: Block, widths: Sequence[int], counts: Sequence[int], k: int, channels: int, side: int
) -> Classifier:
    check_images(channels, side)
    stem = activated(channels, 64) if side <= SMALL else large_stem(channels, 64)
    body = nn.Sequential(*stem, *stages(block, 64, widths, counts, projection), *pooled())
    return he_normal(Classifier(body, widths[-1], k))
