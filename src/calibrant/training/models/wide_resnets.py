"""Pre-activation and wide residual networks."""

from torch import Tensor, nn

from calibrant.registry import MODELS
from calibrant.training.models._layers import Classifier, activated, check_images, convolution, he_normal, pooled
from calibrant.training.models.resnets import basic, projection, stages


class PreActivation(nn.Module):
    """A pre-activation block: two 3x3 convolutions, each after BatchNorm and ReLU, plus the shortcut.

    Where the shape changes, the shortcut is a 1x1 convolution of the activated inputs, which both paths share.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True))
        self.branch = nn.Sequential(
            *activated(inputs, outputs, 3, stride),
            nn.Dropout(dropout) if dropout else nn.Identity(),
            convolution(outputs, outputs),
        )
        self.project = None if (inputs, stride) == (outputs, 1) else convolution(inputs, outputs, 1, stride)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return branch + shortcut."""
        active = self.start(inputs)
        return self.branch(active) + (inputs if self.project is None else self.project(active))


@MODELS.register(takes="images")
def preresnet56(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """PreResNet-56 for CIFAR: 9 pre-activation basic blocks a stage, 0.86 million parameters, 64 features.

    Depth 6 n + 2 with n = 9 basic blocks, as in common CIFAR code; the paper's own networks of depth 164 and more are
    bottlenecks, 9 n + 2. Where the shape changes, the shortcut is a 1x1 convolution of the activated inputs, as in the
    paper's code; some code convolves the raw inputs.

    Reference: He, Zhang, Ren & Sun, ECCV 2016, Identity mappings in deep residual networks.
    """
    return _pre_activated(9, 1, k, channels, side)


@MODELS.register(takes="images")
def wrn_28_10(k: int, *, channels: int = 3, side: int = 32, dropout: float = 0.0) -> Classifier:
    """Wide ResNet 28-10: 4 pre-activation blocks a stage, ten times as wide, 36.5 million parameters, 640 features.

    The depth counts the three projections: 6 n + 4 with n = 4. ``dropout`` is the rate between the two
    convolutions of a block; the paper tries 0.3, the default is 0.

    Reference: Zagoruyko & Komodakis, BMVC 2016.
    """
    return _pre_activated(4, 10, k, channels, side, dropout)


@MODELS.register(takes="images")
def wrn_26_10(k: int, *, channels: int = 3, side: int = 32) -> Classifier:
    """Wide ResNet 26-10: 4 basic blocks a stage, ten times as wide, 36.5 million parameters, 640 features.

    The network of this name in the calibration literature, which is not a pre-activation network: its blocks activate
    after the sum, and projections have BatchNorm. The depth does not count the projections, 6 n + 2 with n = 4; with
    pre-activation blocks it would be wrn_28_10 itself.

    Reference: Zagoruyko & Komodakis, BMVC 2016; Mukhoti et al., NeurIPS 2020, for this variant.
    """
    check_images(channels, side)
    blocks = stages(basic, 16, (160, 320, 640), (4, 4, 4), projection)
    return he_normal(Classifier(nn.Sequential(*activated(channels, 16), *blocks, *pooled()), 640, k))


def _pre_activated(n: int, factor: int, k: int, channels: int, side: int, dropout: float = 0.0) -> Classifier:
    check_images(channels, side)
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1); got {dropout}.")
    layers: list[nn.Module] = [convolution(channels, 16)]
    inputs = 16
    for stage, width in enumerate((16 * factor, 32 * factor, 64 * factor)):
        for i in range(n):
            layers.append(PreActivation(inputs, width, 2 if stage > 0 and i == 0 else 1, dropout))
            inputs = width
    body = nn.Sequential(*layers, nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), *pooled())
    return he_normal(Classifier(body, inputs, k))
