"""The thin residual networks for images of 32 pixels: three stages of 16, 32 and 64 channels."""

from torch import nn

from calibrant.registry import MODELS
from calibrant.training.models.classifier import Classifier
from calibrant.training.models._layers import activated, admit, he_normal, pooled
from calibrant.training.models.residual import basic, stages, without_parameters


@MODELS.register(takes="images")
def resnet20(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-20 for CIFAR: 3 blocks a stage, 0.27 million parameters, 64 features.

    The network of section 4.2 of the paper: a 3x3 convolution of 16 channels, three stages of basic blocks with 16, 32
    and 64 channels, the mean over the image, a linear head. Shortcuts have no parameters (option A: every second pixel,
    new channels are zero). The head starts as PyTorch starts a linear layer.

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

    As resnet20, but deeper. The paper warms up with a learning rate of 0.01 before it uses 0.1. The code of Mukhoti et
    al. (NeurIPS 2020) calls another network ResNet-110: bottlenecks in four stages of 3, 4, 26 and 3, much wider.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _thin(18, k, channels, side)


def _thin(n: int, k: int, channels: int, side: int) -> Classifier:
    admit(channels, side)
    blocks = stages(basic, 16, (16, 32, 64), (n, n, n), without_parameters)
    body = nn.Sequential(*activated(channels, 16), *blocks, *pooled())
    return he_normal(Classifier(body, 64, k))
