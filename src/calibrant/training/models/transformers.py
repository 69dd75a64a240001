"""Transformers: encoders of text (BERT) and of images (ViT), trained from scratch."""

from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.predictions.types import Features
from calibrant.registry import MODELS
from calibrant.training.models._layers import PADDING, SMALL, Classifier, check_images, check_tokens

Network = TypeVar("Network", bound=nn.Module)

DROPOUT = 0.1


class Attention(nn.Module):
    """Multi-head self-attention; positions where ``real``, bool of shape (n, 1, 1, length), is false are masked.

    Reference: Vaswani et al., NeurIPS 2017.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.register_load_state_dict_pre_hook(_rename_projections)  # type: ignore[no-untyped-call]

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the attended states, of the shape of ``hidden``, (n, length, width)."""
        n, length, width = hidden.shape
        qkv = self.qkv(hidden).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (n, heads, length, width / heads)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=dropout)
        return self.proj(attended.transpose(1, 2).reshape(n, length, width))


def _rename_projections(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Accept state dicts of earlier versions, in which ``qkv`` and ``proj`` were called ``read`` and ``write``."""
    for key in [key for key in state if key.startswith((f"{prefix}read.", f"{prefix}write."))]:
        old, kind = key.removeprefix(prefix).split(".", 1)
        state[f"{prefix}{'qkv' if old == 'read' else 'proj'}.{kind}"] = state.pop(key)


def feed_forward(width: int, inner: int, dropout: float = 0.0) -> nn.Sequential:
    """Return the position-wise feed-forward network: two linear layers with a GELU between them."""
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(dropout))


class PostNorm(nn.Module):
    """A post-norm transformer block: attention and feed-forward, each added to its input and then normalised."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout)
        self.dropout = nn.Dropout(dropout)
        self.first_norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = feed_forward(width, inner, dropout)
        self.second_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, hidden: Tensor, real: Tensor) -> Tensor:
        """Return the next states of all positions."""
        hidden = self.first_norm(hidden + self.dropout(self.attention(hidden, real)))
        return self.second_norm(hidden + self.layers(hidden))


class Encoder(nn.Module):
    """Transformer encoder of tokens; the features are the final class token, through a linear layer and tanh.

    The class token is prepended by the encoder, so that a text may be empty.
    """

    def __init__(self, vocabulary: int, length: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.length = length
        self.first = vocabulary  # the id of the class token
        self.words = nn.Embedding(vocabulary + 1, width)
        self.positions = nn.Parameter(torch.zeros(length + 1, width))
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(DROPOUT)
        self.blocks = nn.ModuleList(PostNorm(width, heads, 4 * width) for _ in range(depth))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Features:
        """Return (n, width) of (n, length)."""
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"tokens must be at most {self.length} long, as the model was made; got {tokens.shape[1]}. Cut them."
            )
        tokens = F.pad(tokens, (1, 0), value=self.first)
        real = (tokens != PADDING)[:, None, None, :]
        hidden = self.dropout(self.norm(self.words(tokens) + self.positions[: tokens.shape[1]]))
        for block in self.blocks:
            hidden = block(hidden, real)
        return torch.tanh(self.pool(hidden[:, 0]))


@MODELS.register(takes="tokens")
def bert_small(k: int, *, vocabulary: int, length: int) -> Classifier:
    """BERT-small from scratch: 4 layers of width 512, 12.9 million parameters plus 512 per word and position.

    8 heads, inner width 2048, post-norm, GELU, dropout 0.1; padding is masked. There is a single segment, so no segment
    embedding. The features are the paper's pooled output: first position, linear, tanh. Nothing is pretrained, and
    without pretraining a small convolutional network is often as good.

    Reference: Turc, Chang, Lee & Toutanova, arXiv 1908.08962, 2019, for the size; Devlin et al., NAACL 2019.
    """
    check_tokens(vocabulary, length)
    return truncated_normal(Classifier(Encoder(vocabulary, length, 4, 512, 8), 512, k))


@MODELS.register(takes="tokens")
def bert_base(k: int, *, vocabulary: int, length: int) -> Classifier:
    """BERT-base from scratch: 12 layers of width 768, 85.6 million parameters plus 768 per word and position.

    12 heads, inner width 3072; the rest as in bert_small.

    Reference: Devlin, Chang, Lee & Toutanova, NAACL 2019.
    """
    check_tokens(vocabulary, length)
    return truncated_normal(Classifier(Encoder(vocabulary, length, 12, 768, 12), 768, k))


class PreNorm(nn.Module):
    """A pre-norm transformer block: attention and feed-forward of normalised inputs, each added to its input."""

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
    """Vision transformer over patches; the features are the final class token, normalised."""

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
    paper, not the mean over patches. Position embeddings are learned, for a fixed image size. No dropout and no
    stochastic depth, whose absence hurts when training from scratch on small data.

    Reference: Dosovitskiy et al., ICLR 2021; Touvron et al., ICML 2021, for the size.
    """
    check_images(channels, side)
    patch = 4 if side <= SMALL else 16
    if side % patch:
        raise ValueError(f"side must be a multiple of the patch of {patch} pixels; got {side}. Resize the images.")
    return truncated_normal(Classifier(Patches(channels, (side // patch) ** 2, patch, 12, 384, 6), 384, k))


def truncated_normal(network: Network) -> Network:
    """Initialise weights in place from a normal of standard deviation 0.02, truncated at two; biases are 0.

    Weights are all parameters of two or more dimensions, embeddings included. Norms start at scale 1 and shift 0.

    Reference: Devlin, Chang, Lee & Toutanova, NAACL 2019, in their code.
    """
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                parameter.zero_()
    return network
