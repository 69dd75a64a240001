"""Convolutional network for text, with max pooling over time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from calibrant.predictions.types import Features
from calibrant.registry import MODELS
from calibrant.training.models._layers import PADDING, Classifier, check_tokens

SIZES = (3, 4, 5)
FILTERS = 100


class Windows(nn.Module):
    """Word embeddings, filters over windows of 3, 4 and 5 words, and the maximum of each filter over the text.

    A window begins at each word and is zero-padded past the last one, so that padding tokens change nothing and a text
    of one word has windows too.
    """

    def __init__(self, words: nn.Embedding) -> None:
        super().__init__()
        self.words = words
        self.filters = nn.ModuleList(nn.Conv1d(words.embedding_dim, FILTERS, size, padding=size - 1) for size in SIZES)
        self.dropout = nn.Dropout(0.5)

    def forward(self, tokens: Tensor) -> Features:
        """Return (n, 300) of (n, length)."""
        real = (tokens != PADDING)[:, None, :]  # (n, 1, length)
        vectors = self.words(tokens).transpose(1, 2) * real  # (n, width, length)
        found = [F.relu(f(vectors)[:, :, size - 1 :]) * real for f, size in zip(self.filters, SIZES, strict=True)]
        return self.dropout(torch.cat([answers.amax(2) for answers in found], 1))


@MODELS.register(takes="tokens")
def text_cnn(
    k: int,
    *,
    vocabulary: int,
    length: int,
    width: int = 300,
    embeddings: Tensor | None = None,
) -> Classifier:
    """A text CNN with global pooling: 100 filters over each of 3, 4 and 5 words, and word embeddings; 300 features.

    0.36 million parameters besides the embeddings, at their usual ``width`` of 300; 50 is also common.
    ``embeddings`` are initial word vectors, one row a word, such as GloVe's; without them, initialisation is uniform in
    [-0.25, 0.25]. They are copied and fine-tuned. The embedding of padding counts as zero.

    Dropout of 0.5 on the features as in the paper, but without its max-norm constraint on the head. Texts may have any
    length: ``length`` is only checked.

    Reference: Kim, EMNLP 2014.
    """
    check_tokens(vocabulary, length)
    if embeddings is not None and (embeddings.ndim != 2 or len(embeddings) != vocabulary):
        raise ValueError(f"embeddings must have shape ({vocabulary}, width); got {tuple(embeddings.shape)}.")
    words = nn.Embedding(vocabulary, width if embeddings is None else embeddings.shape[1])
    with torch.no_grad():
        if embeddings is None:
            words.weight.uniform_(-0.25, 0.25)
        else:
            words.weight.copy_(embeddings)
    return Classifier(Windows(words), FILTERS * len(SIZES), k)
