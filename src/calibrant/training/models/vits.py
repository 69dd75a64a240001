"""Vision transformers."""

import torch
from torch import Tensor, nn

from calibrant.predictions.types import Features
from calibrant.registry import MODELS
from calibrant.training.models.attention import Attention, feed_forward, truncated_normal
from calibrant.training.models.classifier import Classifier
from calibrant.training.models._layers import SMALL, admit


class PreNorm(nn.Module):
    """Attention and two layers, each of normed inputs and added to them."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(width, eps=1e-6)
        self.attention = Attention(width, heads)
        self.second_norm = nn.LayerNorm(width, eps=1e-6)
        self.layers = feed_forward(width, inner)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the next states of all positions."""
        hidden = hidden + self.attention(self.first_norm(hidden))
        return hidden + self.layers(self.second_norm(hidden))


class Patches(nn.Module):
    """Images cut into patches -> one row of features: the class token, normed, after all layers."""

    def __init__(self, channels: int, count: int, patch: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 1 + count, width))
        self.blocks = nn.Sequential(*(PreNorm(width, heads, 4 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, images: Tensor) -> Features:
        """Return (n, width) of (n, c, side, side)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (n, count, width)
        hidden = torch.cat((self.token.expand(len(patches), -1, -1), patches), 1) + self.positions
        return self.norm(self.blocks(hidden)[:, 0])


@MODELS.register(takes="images")
def vit_small(k: int, *, channels: int = 3, side: int = 224) -> Classifier:
    """ViT-S: 12 pre-norm layers of width 384 and 6 heads, 21.7 million parameters, 384 features.

    Patches of 16 pixels, of 4 up to a side of 64. The features are the class token after the last norm, as in the
    paper, not the mean over patches. Positions are learned, for one side of images only. No dropout and no stochastic
    depth, which training from scratch on small data misses.

    Reference: Dosovitskiy et al., ICLR 2021; Touvron et al., ICML 2021, for the size.
    """
    admit(channels, side)
    patch = 4 if side <= SMALL else 16
    if side % patch:
        raise ValueError(f"side must be a multiple of the patch of {patch} pixels; got {side}. Resize the images.")
    return truncated_normal(Classifier(Patches(channels, (side // patch) ** 2, patch, 12, 384, 6), 384, k))
