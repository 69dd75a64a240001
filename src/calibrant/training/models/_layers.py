"""The pieces that convolutional networks share: convolution, stem, pooling, the draw of weights."""

from typing import TypeVar

from torch import nn

SMALL = 64
"""Images up to this side keep their resolution in the stem; larger ones are reduced fourfold, as on ImageNet."""

Network = TypeVar("Network", bound=nn.Module)


def admit(channels: int, side: int) -> None:
    """Refuse images that no network here can take."""
    if channels < 1:
        raise ValueError(f"channels must be at least 1; got {channels}. Gray images have 1, colour images 3.")
    if side < 8:
        raise ValueError(f"side must be at least 8 pixels; got {side}. Enlarge the images first.")


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the side where the stride is 1."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def normed(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution and its BatchNorm."""
    return convolution(inputs, outputs, size, stride), nn.BatchNorm2d(outputs)


def activated(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    """Return a convolution, its BatchNorm and a ReLU."""
    return *normed(inputs, outputs, size, stride), nn.ReLU(inplace=True)


def large_stem(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return the first layers for ImageNet: a 7x7 convolution and a pooling, each of stride 2."""
    return *activated(channels, width, 7, 2), nn.MaxPool2d(3, 2, padding=1)


def pooled() -> tuple[nn.Module, nn.Module]:
    """Return the last layers of a body: the mean over the image, as a row."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()


def he_normal(network: Network) -> Network:
    """Draw every convolution from a normal of variance 2 / fan-out, in place; the rest keeps PyTorch's start.

    BatchNorm starts at scale 1 and shift 0, also in the last layer of a residual branch.

    Reference: He, Zhang, Ren & Sun, ICCV 2015.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network
