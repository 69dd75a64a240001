"""Densely connected networks: each layer reads the outputs of all earlier layers of its block."""

import torch
from torch import Tensor, nn

from calibrant.registry import MODELS
from calibrant.training.models._layers import (
    SMALL,
    Classifier,
    activated,
    check_images,
    convolution,
    he_normal,
    large_stem,
    pooled,
)

GROWTH = 32


class Dense(nn.Module):
    """A dense layer: the inputs concatenated with the output of a 1x1 and a 3x3 convolution."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.BatchNorm2d(inputs),
            nn.ReLU(inplace=True),
            *activated(inputs, 4 * GROWTH, 1),
            convolution(4 * GROWTH, GROWTH),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """Return (n, c + 32, h, w) of (n, c, h, w)."""
        return torch.cat((inputs, self.branch(inputs)), 1)


@MODELS.register(takes="images")
def densenet121(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """DenseNet-121: blocks of 6, 12, 24 and 16 layers of growth 32, 7.0 million parameters, 1024 features.

    The paper's DenseNet-BC for ImageNet. Up to a side of 64 the stem is one 3x3 convolution of 64 channels, as is usual
    for CIFAR; the paper's own CIFAR networks have three blocks and growth 12 to 40.

    Reference: Huang, Liu, van der Maaten & Weinberger, CVPR 2017.
    """
    check_images(channels, side)
    width = 2 * GROWTH
    layers: list[nn.Module] = [convolution(channels, width)] if side <= SMALL else list(large_stem(channels, width))
    for block, count in enumerate((6, 12, 24, 16)):
        if block > 0:
            layers += _transition(width)
            width //= 2
        for _ in range(count):
            layers.append(Dense(width))
            width += GROWTH
    body = nn.Sequential(*layers, nn.BatchNorm2d(width), nn.ReLU(inplace=True), *pooled())
    return he_normal(Classifier(body, width, k))


def _transition(width: int) -> list[nn.Module]:
    start = [nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return [*start, convolution(width, width // 2, 1), nn.AvgPool2d(2)]
