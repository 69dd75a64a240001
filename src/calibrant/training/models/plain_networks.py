"""Plain networks, without shortcuts: VGG, LeNet, a small convolutional network and a perceptron."""

from torch import nn

from calibrant.registry import MODELS
from calibrant.training.models._layers import Classifier, activated, check_images, he_normal, pooled

BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions


@MODELS.register(takes="images")
def vgg16(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """VGG-16 with BatchNorm and dropout, for CIFAR: 13 convolutions, 15.0 million parameters, 512 features.

    Five blocks of 3x3 convolutions with 64, 128, 256, 512 and 512 channels, each followed by 2x2 max pooling, and one
    hidden layer of 512 in place of the paper's two of 4096. Five poolings need images of at least 32 pixels a side. As
    in the code of Corbière et al., BatchNorm comes after ReLU, and dropout follows every convolution but the last of
    its block: 0.3 after the very first, 0.4 after the others; 0.5 before and after the hidden layer. The features are
    the output of that hidden layer in eval mode.

    Zero padding, where that code uses reflection; PyTorch's default initialisation, not ImageNet weights. The hidden
    layer has no BatchNorm: with SGD at a learning rate of 0.1 all its units soon die; at 0.01 it learns.

    Reference: Simonyan & Zisserman, ICLR 2015; Corbière et al., NeurIPS 2019, for this variant; used by Luo et al.,
    NeurIPS 2021.
    """
    check_images(channels, side)
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

    Unpadded convolutions of 32 and 64 channels, ReLU after each, 2x2 max pooling, dropout of 0.25, a hidden layer of
    128 with ReLU, dropout of 0.5, the head. No BatchNorm; PyTorch's default initialisation. Nearly all parameters are
    in the hidden layer.

    Reference: Corbière et al., NeurIPS 2019; used by Luo et al., NeurIPS 2021.
    """
    check_images(channels, side)
    body = nn.Sequential(
        *(nn.Conv2d(channels, 32, 3), nn.ReLU(inplace=True), nn.Conv2d(32, 64, 3), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten()),
        *(nn.Linear(64 * ((side - 4) // 2) ** 2, 128), nn.ReLU(inplace=True), nn.Dropout(0.5)),
    )
    return Classifier(body, 128, k)


@MODELS.register(takes="images")
def vgg_small(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """A small VGG with BatchNorm: six 3x3 convolutions, 1.15 million parameters, 256 features.

    Three pairs of convolutions, of 64, 128 and 256 channels, each followed by 2x2 max pooling. Global average pooling
    replaces the paper's two hidden layers, and BatchNorm is not in the paper. Smaller than any network of the paper.

    Reference: Simonyan & Zisserman, ICLR 2015.
    """
    check_images(channels, side)
    layers: list[nn.Module] = []
    for width in (64, 128, 256):
        layers += [*activated(channels, width), *activated(width, width), nn.MaxPool2d(2)]
        channels = width
    return he_normal(Classifier(nn.Sequential(*layers, *pooled()), 256, k))


@MODELS.register(takes="images")
def lenet(k: int, *, channels: int = 1, side: int = 28) -> Classifier:
    """LeNet-5 with ReLU: two 5x5 convolutions and two hidden layers, 61 706 parameters on 28 pixels, 84 features.

    No BatchNorm. Images of up to 28 pixels are padded by two; below 16 pixels the second convolution is padded as well,
    so that 8x8 digits can be used. ReLU and 2x2 max pooling replace the paper's scaled tanh and trained subsampling,
    the second convolution is fully connected across maps, and the head is linear.

    Reference: LeCun, Bottou, Bengio & Haffner, Proceedings of the IEEE 1998.
    """
    check_images(channels, side)
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
    """A multilayer perceptron with one hidden layer of 128: 9 610 parameters on 8x8 digits, 128 features.

    The image is flattened. ReLU, no BatchNorm, PyTorch's default initialisation.

    Reference: Rumelhart, Hinton & Williams, Nature 1986.
    """
    check_images(channels, side)
    body = nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, 128), nn.ReLU(inplace=True))
    return Classifier(body, 128, k)
