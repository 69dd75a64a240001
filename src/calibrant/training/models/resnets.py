"""The residual networks of ImageNet, with a smaller stem for smaller images."""

from collections.abc import Sequence

from torch import nn

from calibrant.registry import MODELS
from calibrant.training.models.classifier import Classifier
from calibrant.training.models._layers import SMALL, activated, admit, he_normal, large_stem, pooled
from calibrant.training.models.residual import Block, basic, bottleneck, projection, stages


@MODELS.register(takes="images")
def resnet18(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-18: basic blocks in four stages of 2, 11.2 million parameters, 512 features.

    Up to a side of 64 the stem is one 3x3 convolution of stride 1 without pooling, as is usual on CIFAR and not in the
    paper; above it is the paper's 7x7 convolution and pooling. Shortcuts that change the shape are 1x1 convolutions
    with BatchNorm (option B).

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _four_stages(basic, (64, 128, 256, 512), (2, 2, 2, 2), k, channels, side)


@MODELS.register(takes="images")
def resnet50(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """ResNet-50: bottlenecks in four stages of 3, 4, 6 and 3, 23.5 million parameters, 2048 features.

    Stem and shortcuts as in resnet18. The stride is at the 3x3 convolution, where the paper has it at the 1x1 before
    it; the pretrained networks in common use have it so too.

    Reference: He, Zhang, Ren & Sun, CVPR 2016.
    """
    return _four_stages(bottleneck, (256, 512, 1024, 2048), (3, 4, 6, 3), k, channels, side)


def _four_stages(
    block: Block, widths: Sequence[int], counts: Sequence[int], k: int, channels: int, side: int
) -> Classifier:
    admit(channels, side)
    stem = activated(channels, 64) if side <= SMALL else large_stem(channels, 64)
    body = nn.Sequential(*stem, *stages(block, 64, widths, counts, projection), *pooled())
    return he_normal(Classifier(body, widths[-1], k))
