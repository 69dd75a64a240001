"""The two classifiers with dropout whose failures ConfidNet predicts: a VGG-16 for CIFAR and a small one for MNIST."""

from torch import nn

from calibrant.registry import MODELS
from calibrant.training.models.classifier import Classifier
from calibrant.training.models._layers import admit

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


@MODELS.register(takes="images")
def vgg16(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """VGG-16 with BatchNorm and dropout, for CIFAR: 13 convolutions, 15.0 million parameters, 512 features.

    Five blocks of 3x3 convolutions with 64, 128, 256, 512 and 512 channels, each ended by a maximum over 2x2 pixels,
    and one hidden layer of 512 in place of the paper's two of 4096. Images of less than 32 pixels a side do not survive
    five halvings and are refused. As in the code that Corbière et al. published, BatchNorm comes after ReLU, and
    dropout follows every convolution but the last of its block: 0.3 after the very first, 0.4 after the others; 0.5
    before the hidden layer, and after it. The features are what that hidden layer gives in evaluation.

    Borders are zeros, where that code mirrors the image; the weights start as PyTorch draws them, not from ImageNet.
    The hidden layer has no BatchNorm: SGD at a rate of 0.1 soon leaves all its units at 0; at 0.01 it learns.

    Reference: Simonyan & Zisserman, ICLR 2015; Corbière et al., NeurIPS 2019, for this variant; used by Luo et al.,
    NeurIPS 2021.
    """
    admit(channels, side)
    if side < 32:
        raise ValueError(
            f"side must be at least 32 pixels for five halvings; got {side}. Pad the images, or use convnet."
        )
    layers: list[nn.Module] = []
    for block, (width, depth) in enumerate(BLOCKS):
        for i in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True), nn.BatchNorm2d(width)]
            if i < depth - 1:
                layers.append(nn.Dropout(0.3 if block == 0 else 0.4))
            channels = width
        layers.append(nn.MaxPool2d(2))
    hidden = nn.Linear(512 * (side // 32) ** 2, 512)
    body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), hidden, nn.ReLU(inplace=True), nn.Dropout(0.5))
    return Classifier(body, 512, k)


@MODELS.register(takes="images")
def convnet(k: int, *, channels: int = 1, side: int = 28) -> Classifier:
    """Two 3x3 convolutions and a hidden layer, with dropout, for MNIST: 1.2 million parameters, 128 features.

    Convolutions of 32 and 64 channels without a border, ReLU after each, a maximum over 2x2 pixels, dropout of 0.25, a
    hidden layer of 128 with ReLU, dropout of 0.5, the head. No BatchNorm; PyTorch's start. Nearly all parameters are
    the hidden layer's.

    Reference: Corbière et al., NeurIPS 2019; used by Luo et al., NeurIPS 2021.
    """
    admit(channels, side)
    body = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(inplace=True), nn.Dropout(0.5)),
    )
    return Classifier(body, 128, k)
