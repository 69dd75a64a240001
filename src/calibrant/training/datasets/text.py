"""Text data sets, 20 Newsgroups and DBpedia, and a word-level tokeniser."""

import csv
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Part, Source

NEWSGROUPS = Source(
    "newsgroups20",
    "20news-bydate.tar.gz from the 20 Newsgroups page of Jason Rennie",
    ("newsgroups20", "20news-bydate", "20newsgroups"),
)
DBPEDIA = Source("dbpedia", "dbpedia_csv.tar.gz of Zhang, Zhao & LeCun", ("dbpedia", "dbpedia_csv", "dbpedia_14"))
ONTOLOGY = (
    "Company,EducationalInstitution,Artist,Athlete,OfficeHolder,MeanOfTransportation,Building,NaturalPlace,Village,"
    "Animal,Plant,Album,Film,WrittenWork"
)
PADDING, UNKNOWN = 0, 1
WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)?|\d+")  # a word, with an inner apostrophe, or a number


@dataclass(frozen=True)
class Texts:
    """Texts and their labels."""

    texts: list[str]
    labels: list[int]


@dataclass(frozen=True)
class Words:
    """A word-level tokeniser: the vocabulary in the order of token ids, 0 for padding and 1 for unknown words.

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
        """Keep the most frequent words, at most ``size`` tokens in total; ties are broken alphabetically.

        Fit it on training texts only: words that occur in the test set alone must stay unknown.
        """
        if size < 3:
            raise ValueError(f"vocabulary must be at least 3: padding, unknown, and a word; got {size}.")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(words_of(text))
        kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - 2]
        return cls(("<padding>", "<unknown>", *kept))

    def __call__(self, texts: Sequence[str], length: int) -> Tensor:
        """Return int64 tokens (n, length): the first words of each text, then padding.

        A text without words becomes one unknown word, because attention over padding alone is undefined.
        """
        if length < 1:
            raise ValueError(f"length must be at least 1; got {length}.")
        number = {word: token for token, word in enumerate(self.vocabulary)}
        tokens = np.full((len(texts), length), PADDING, dtype=np.int64)
        for row, text in enumerate(texts):
            numbers = [number.get(word, UNKNOWN) for word in _first(text, length)] or [UNKNOWN]
            tokens[row, : len(numbers)] = numbers
        return torch.from_numpy(tokens)


def words_of(text: str) -> list[str]:
    """Split a text into lower-case words and numbers.

    Example:
        >>> words_of("Don't panic: 42 e-mails")
        ["don't", 'panic', '42', 'e', 'mails']
    """
    return WORD.findall(text.lower())


def _first(text: str, length: int) -> list[str]:
    """Return the first words of a text without tokenising the rest of a long one; a word cut off is never used."""
    opening = words_of(text[: 10 * length])
    return (opening if len(opening) > length else words_of(text))[:length]


@DATASETS.register(kind="tokens", k=20)
def newsgroups20(folder: Path, *, vocabulary: int = 30_000, length: int = 256) -> Dataset:
    """20 Newsgroups by date: 11 314 + 7 532 posts to twenty groups, as their first ``length`` words.

    Reads ``20news-bydate-train/GROUP/ID`` and ``20news-bydate-test/GROUP/ID``, or ``20news_bydate.json`` (or
    ``.json.xz``) with ``target_names`` and ``train`` and ``test``, each a dict of lists ``target`` and ``data``. The
    vocabulary is built from the training part. Headers, footers and quotes are kept: they leak the group through its
    authors, and accuracy is higher than on the text alone.

    Reference: Lang, ICML 1995.
    """
    forms = {
        _posts_in_folders: ["20news-bydate-train/", "20news-bydate-test/"],
        _posts_in_json: ["20news_bydate.json"],
        _posts_in_xz: ["20news_bydate.json.xz"],
    }
    read, files = NEWSGROUPS.find(folder, forms)
    classes, train, test = read(files)
    return _tokenise("newsgroups20", classes, train, test, vocabulary, length)


@DATASETS.register(kind="tokens", k=14)
def dbpedia(folder: Path, *, vocabulary: int = 30_000, length: int = 128) -> Dataset:
    """DBpedia ontology: 560 000 + 70 000 openings of encyclopaedia articles in fourteen classes, title first.

    Reads ``train.csv`` and ``test.csv`` (label from 1, title, text, no header), or ``train.parquet`` and
    ``test.parquet`` (``label`` from 0, ``title``, ``content``; needs pyarrow). The vocabulary is built from the
    training part. Saturated: simple models reach 98 % accuracy.

    Reference: Zhang, Zhao & LeCun, NeurIPS 2015; Lehmann et al., Semantic Web 2015.
    """
    forms = {_from_csv: ["train.csv", "test.csv"], _from_parquet: ["train.parquet", "test.parquet"]}
    read, files = DBPEDIA.find(folder, forms)
    train, test = map(read, files)
    return _tokenise("dbpedia", tuple(ONTOLOGY.split(",")), train, test, vocabulary, length)


def _tokenise(name: str, classes: tuple[str, ...], train: Texts, test: Texts, size: int, length: int) -> Dataset:
    words = Words.fit(train.texts, size)
    parts = [Part(words(part.texts, length), torch.tensor(part.labels)) for part in (train, test)]
    return Dataset(name, parts[0], parts[1], classes, vocabulary=words.vocabulary)


def _posts_in_folders(files: Sequence[Path]) -> tuple[tuple[str, ...], Texts, Texts]:
    classes = tuple(sorted(path.name for path in files[0].iterdir() if path.is_dir()))

    def posts(place: Path) -> Texts:
        found = [
            (path.read_text(encoding="latin1"), label)
            for label, group in enumerate(classes)
            for path in sorted((place / group).glob("*"), key=lambda path: (len(path.name), path.name))
        ]
        if not found:
            raise ValueError(f"{place} must hold a folder of posts for each group; it holds none.")
        return Texts([text for text, _ in found], [label for _, label in found])

    return classes, posts(files[0]), posts(files[1])


def _posts_in_json(files: Sequence[Path]) -> tuple[tuple[str, ...], Texts, Texts]:
    return _posts(files[0], files[0].read_bytes())


def _posts_in_xz(files: Sequence[Path]) -> tuple[tuple[str, ...], Texts, Texts]:
    try:
        return _posts(files[0], lzma.decompress(files[0].read_bytes()))
    except lzma.LZMAError as error:
        raise ValueError(f"{files[0]} must be a whole .xz file; {error}.") from None


def _posts(path: Path, content: bytes) -> tuple[tuple[str, ...], Texts, Texts]:
    try:
        held = json.loads(content)
        parts = [Texts(held[part]["data"], held[part]["target"]) for part in ("train", "test")]
        for part in parts:
            _check(part)
        return tuple(held["target_names"]), parts[0], parts[1]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} must hold target_names, and train and test with as many data as targets; "
            f"{type(error).__name__}: {error}."
        ) from None


def _check(part: Texts) -> None:
    if len(part.texts) != len(part.labels) or not part.texts:
        raise ValueError(f"{len(part.texts)} texts and {len(part.labels)} labels")
    odd: list[Any] = [text for text in part.texts if not isinstance(text, str)]
    odd += [label for label in part.labels if not isinstance(label, int)]
    if odd:
        raise TypeError(f"a {type(odd[0]).__name__}")


def _from_csv(path: Path) -> Texts:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, strict=True))
        part = Texts([f"{title} {text}" for _, title, text in rows], [int(label) - 1 for label, _, _ in rows])
        _check(part)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} must hold a label from 1, a title and a text in each line; {error}.") from None
    return part


def _from_parquet(path: Path) -> Texts:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("reading .parquet needs pyarrow; install calibrant[parquet].") from None
    try:
        table = parquet.read_table(path, columns=["label", "title", "content"])
        label, title, content = (table[name].to_pylist() for name in ("label", "title", "content"))
        part = Texts([f"{t} {c}" for t, c in zip(title, content, strict=True)], label)
        _check(part)
    except (pyarrow.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path} must be a whole .parquet file with label, title and content; {reason}.") from None
    return part
