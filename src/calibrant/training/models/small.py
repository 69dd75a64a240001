"""Networks that train in seconds: two of convolutions and one without."""

from torch import nn

from calibrant.registry import MODELS
from calibrant.training.models.classifier import Classifier
from calibrant.training.models._layers import activated, admit, he_normal, pooled


@MODELS.register(takes="images")
def vgg_small(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """A small VGG with BatchNorm: six 3x3 convolutions, 1.15 million parameters, 256 features.

    Three times two convolutions, of 64, 128 and 256 channels, and a maximum over 2x2 pixels after each two. The mean
    over the image takes the place of the paper's two hidden layers, and BatchNorm is not in the paper. Smaller than any
    network of the paper.

    Reference: Simonyan & Zisserman, ICLR 2015.
    """
    admit(channels, side)
    layers: list[nn.Module] = []
    for width in (64, 128, 256):
        layers += [*activated(channels, width), *activated(width, width), nn.MaxPool2d(2)]
        channels = width
    return he_normal(Classifier(nn.Sequential(*layers, *pooled()), 256, k))


@MODELS.register(takes="images")
def lenet(k: int, *, channels: int = 1, side: int = 28) -> Classifier:
    """LeNet-5 with ReLU: two 5x5 convolutions and two hidden layers, 61 706 parameters on 28 pixels, 84 features.

    No BatchNorm. Images of up to 28 pixels get a border of two; below 16 pixels the second convolution keeps the side
    too, so that 8x8 digits leave something to read. ReLU and the maximum over 2x2 pixels take the place of the paper's
    scaled tanh and trained means, every map reads all maps, and the head is linear.

    Reference: LeCun, Bottou, Bengio & Haffner, Proceedings of the IEEE 1998.
    """
    admit(channels, side)
    first, second = 2 if side <= 28 else 0, 2 if side < 16 else 0
    left = ((side + 2 * first - 4) // 2 + 2 * second - 4) // 2  # the side of the last maps
    body = nn.Sequential(
        *(nn.Conv2d(channels, 6, 5, padding=first), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5, padding=second), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * left * left, 120), nn.ReLU(inplace=True)),
        *(nn.Linear(120, 84), nn.ReLU(inplace=True)),
    )
    return he_normal(Classifier(body, 84, k))


@MODELS.register(takes="images")
def mlp(k: int, *, channels: int = 1, side: int = 8) -> Classifier:
    """A perceptron of one hidden layer of 128 with ReLU: 9 610 parameters on 8x8 digits, 128 features.

    No BatchNorm; the image is read as a row. PyTorch's start.

    Reference: Rumelhart, Hinton & Williams, Nature 1986.
    """
    admit(channels, side)
    body = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 128), nn.ReLU(inplace=True))
    return Classifier(body, 128, k)
