"""Transformer encoders of text, made from scratch."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.predictions.types import Features
from calibrant.registry import MODELS
from calibrant.training.models.attention import Attention, feed_forward, truncated_normal
from calibrant.training.models.classifier import Classifier
from calibrant.training.models.vocabularies import PADDING, admit

DROPOUT = 0.1


class PostNorm(nn.Module):
    """Attention and two layers, each added to what it read, and the sum normed."""

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
    """Tokens -> one row of features: what the first position holds at the end, through a layer and a tanh.

    The first position is a token of the encoder's own, put before the text; so a text may be empty.
    """

    def __init__(self, vocabulary: int, length: int, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.length = length
        self.first = vocabulary  # the number of the token that stands before every text
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
    """BERT-small from scratch: 4 layers of width 512, 12.9 million parameters and 512 a word and position.

    8 heads, inner width 2048, norm after the sum, GELU, dropout 0.1; padding is not looked at. There is one kind of
    segment, so no segment embedding. The features are the paper's pooled output: first position, linear, tanh. Nothing
    is pretrained, and without that a small convolutional network is often as good.

    Reference: Turc, Chang, Lee & Toutanova, arXiv 1908.08962, 2019, for the size; Devlin et al., NAACL 2019.
    """
    admit(vocabulary, length)
    return truncated_normal(Classifier(Encoder(vocabulary, length, 4, 512, 8), 512, k))


@MODELS.register(takes="tokens")
def bert_base(k: int, *, vocabulary: int, length: int) -> Classifier:
    """BERT-base from scratch: 12 layers of width 768, 85.6 million parameters and 768 a word and position.

    12 heads, inner width 3072; the rest as in bert_small.

    Reference: Devlin, Chang, Lee & Toutanova, NAACL 2019.
    """
    admit(vocabulary, length)
    return truncated_normal(Classifier(Encoder(vocabulary, length, 12, 768, 12), 768, k))
