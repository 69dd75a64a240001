"""The pieces that transformers share: self-attention, the two layers after it, the draw of weights."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Network = TypeVar("Network", bound=nn.Module)


class Attention(nn.Module):
    """Self-attention of several heads; positions that are not ``real``, bool of shape (n, 1, 1, length), are not seen.

    Reference: Vaswani et al., NeurIPS 2017.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.read = nn.Linear(width, 3 * width)
        self.write = nn.Linear(width, width)

    def forward(self, hidden: Tensor, real: Tensor | None = None) -> Tensor:
        """Return what every position found at the others, of the shape of ``hidden``, (n, length, width)."""
        n, length, width = hidden.shape
        three = self.read(hidden).view(n, length, 3, self.heads, width // self.heads)
        query, key, value = three.permute(2, 0, 3, 1, 4).unbind(0)  # (n, heads, length, width / heads)
        dropout = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=real, dropout_p=dropout)
        return self.write(found.transpose(1, 2).reshape(n, length, width))


def feed_forward(width: int, inner: int, dropout: float = 0.0) -> nn.Sequential:
    """Return two linear layers with a GELU between them, applied to each position by itself."""
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width), nn.Dropout(dropout))


def truncated_normal(network: Network) -> Network:
    """Draw all weights from a normal of deviation 0.02 cut at two deviations, in place; biases start at 0.

    Weights are matrices, embeddings, patches and positions: all parameters of two or more dimensions. Norms start at
    scale 1 and shift 0.

    Reference: Devlin, Chang, Lee & Toutanova, NAACL 2019, in their code.
    """
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=0.02, a=-0.04, b=0.04)
            elif name.endswith("bias"):
                parameter.zero_()
    return network
