"""Texts -> numbers, a word a number."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

PADDING, UNKNOWN = 0, 1
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+")  # a word, with its apostrophe inside, or a number


@dataclass(frozen=True)
class Words:
    """A vocabulary, made by `fit`: words by token number, 0 for padding and 1 for a word that is not in it.

    Example:
        >>> words = Words.fit(["The cat sat.", "The cat's 2 mats"], size=4)
        >>> words.vocabulary
        ('<padding>', '<unknown>', 'the', '2')
        >>> words(["the mat 2"], length=4)
        tensor([[2, 1, 3, 0]])
    """

    vocabulary: tuple[str, ...]

    @classmethod
    def fit(cls, texts: Iterable[str], size: int) -> "Words":
        """Keep the most frequent words, so that there are at most ``size`` tokens; ties are broken by the alphabet.

        Give it training rows only: a word that only test rows have must stay unknown.
        """
        if size < 3:
            raise ValueError(f"vocabulary must be at least 3: padding, unknown, and a word; got {size}.")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(parted(text))
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
        return cls(("<padding>", "<unknown>", *kept))

    def __call__(self, texts: Sequence[str], length: int) -> Tensor:
        """Return int64 tokens (n, length): the first words of each text, then padding.

        A text without words becomes one unknown word, because a row of padding alone has nothing to attend to.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1; got {length}.")
        number = {word: token for token, word in enumerate(self.vocabulary)}
        tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
        for row, text in enumerate(texts):
            numbers = [number.get(word, UNKNOWN) for word in _first(text, length)] or [UNKNOWN]
            tokens[row, : len(numbers)] = numbers
        return torch.from_numpy(tokens)


def parted(text: str) -> list[str]:
    """Return the words and numbers of a text, in lower case.

    Example:
        >>> parted("Don't panic: 42 e-mails")
        ["don't", 'panic', '42', 'e', 'mails']
    """
    return WORD.findall(text.lower())


def _first(text: str, length: int) -> list[str]:
    """The first words of a text; the rest of a long one is not parted. A last word that was cut is never used."""
    opening = parted(text[: 10 * length])
    return (opening if len(opening) > length else parted(text))[:length]
