"""What the models share: the classifier with its head, size checks, convolutional layers and initialisation."""

from typing import TypeVar

from torch import Tensor, nn

from calibrant.predictions.types import Features, Logits

SMALL = 64
"""Images up to this side keep their resolution in the stem; larger ones are reduced fourfold, as on ImageNet."""
PADDING = 0  # the token id of padding; 1 is an unknown word

Network = TypeVar("Network", bound=nn.Module)


class Classifier(nn.Module):
    """A body that maps inputs to features of shape (n, width), and a linear head that maps features to k logits.

    Calibrators and trust scores that need features get them the same way from every model: ``features(inputs)`` is the
    input of ``head``, and the logits are ``head(features(inputs))``.

    Example:
        >>> model = Classifier(torch.nn.Flatten(), width=4, k=3)
        >>> model(torch.zeros(2, 1, 2, 2)).shape
        torch.Size([2, 3])
    """

    def __init__(self, body: nn.Module, width: int, k: int) -> None:
        super().__init__()
        if k < 1:
            raise ValueError(f"k must be a number of classes, at least 1; got {k}.")
        self.body = body
        self.head = nn.Linear(width, k)

    def features(self, inputs: Tensor) -> Features:
        """Return the input of the head, (n, width)."""
        return self.body(inputs)

    def forward(self, inputs: Tensor) -> Logits:
        """Return the logits."""
        return self.head(self.features(inputs))


def check_images(channels: int, side: int) -> None:
    """Raise unless the image size is one that the networks can take."""
    if channels < 1:
        raise ValueError(f"channels must be at least 1; got {channels}. Gray images have 1, colour images 3.")
    if side < 8:
        raise ValueError(f"side must be at least 8 pixels; got {side}. Enlarge the images first.")


def check_tokens(vocabulary: int, length: int) -> None:
    """Raise unless the vocabulary and length are ones that the networks can take."""
    if vocabulary < 2:
        raise ValueError(f"vocabulary must be at least 2, padding and the unknown word; got {vocabulary}.")
    if length < 1:
        raise ValueError(f"length must be at least 1 token; got {length}.")


def convolution(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias and with 'same' padding at stride 1."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


def normed(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    """Return a convolution and BatchNorm."""
    return convolution(inputs, outputs, size, stride), nn.BatchNorm2d(outputs)


def activated(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> tuple[nn.Module, ...]:
    """Return a convolution, BatchNorm and ReLU."""
    return *normed(inputs, outputs, size, stride), nn.ReLU(inplace=True)


def large_stem(channels: int, width: int) -> tuple[nn.Module, ...]:
    """Return the ImageNet stem: a 7x7 convolution and max pooling, each of stride 2."""
    return *activated(channels, width, 7, 2), nn.MaxPool2d(3, 2, padding=1)


def pooled() -> tuple[nn.Module, nn.Module]:
    """Return global average pooling, flattened to (n, width)."""
    return nn.AdaptiveAvgPool2d(1), nn.Flatten()


def he_normal(network: Network) -> Network:
    """He initialisation, in place: convolutions are normal of variance 2 / fan-out; the rest keeps PyTorch's default.

    BatchNorm starts at scale 1 and shift 0, also in the last layer of a residual branch.

    Reference: He, Zhang, Ren & Sun, ICCV 2015.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return network
