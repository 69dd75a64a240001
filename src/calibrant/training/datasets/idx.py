"""MNIST and Fashion-MNIST, from idx files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from calibrant.predictions.types import Array
from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Part, Source

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ENDINGS = ("", ".gz")
MNIST = Source(
    "mnist", "the MNIST database (four .gz files) from the page of Yann LeCun", ("mnist", "MNIST/raw"), ENDINGS
)
FASHION = Source(
    "fashion_mnist",
    "the four .gz files from the Fashion-MNIST repository of Zalando Research",
    ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    ENDINGS,
)
GARMENTS = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"
# Both data sets use the same file names; the first training labels tell them apart.
OPENINGS = {"mnist": (5, 0, 4, 1, 9, 2, 1, 3, 1, 4), "fashion_mnist": (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)}


@DATASETS.register(kind="images", k=10, channels=1, side=28)
def mnist(folder: Path) -> Dataset:
    """MNIST: 60 000 + 10 000 handwritten digits, 28 x 28, grey.

    Reads the four idx files, gzipped or not, in ``folder``, ``folder/mnist`` or ``folder/MNIST/raw``.
    Saturated: small networks reach 99 %, and a calibration error measured on 100 mistakes is mostly noise.

    Reference: LeCun, Bottou, Bengio & Haffner, Proceedings of the IEEE 1998.
    """
    train, test = _parts(folder, MNIST)
    return Dataset("mnist", train, test, tuple("0123456789"), mean=(0.1307,), std=(0.3081,))


@DATASETS.register(kind="images", k=10, channels=1, side=28)
def fashion_mnist(folder: Path) -> Dataset:
    """Fashion-MNIST: 60 000 + 10 000 pictures of clothes, 28 x 28, grey.

    Reads the four idx files, gzipped or not, in ``folder``, ``folder/fashion_mnist`` or ``folder/FashionMNIST/raw``.
    The classes T-shirt, pullover, coat and shirt are inherently ambiguous.

    Reference: Xiao, Rasul & Vollgraf, arXiv:1708.07747, 2017.
    """
    train, test = _parts(folder, FASHION)
    return Dataset("fashion_mnist", train, test, tuple(GARMENTS.split(",")), mean=(0.2860,), std=(0.3530,))


def read_idx(path: Path, ndim: int) -> Array:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, a big-endian size for each, the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path} must be a whole gzip file; it is truncated, or something else ({error}).") from None
    head = 4 + 4 * ndim
    magic = bytes((0, 0, 8, ndim))
    if len(content) < head or content[:4] != magic:
        raise ValueError(f"{path} must be an idx file that begins with {magic.hex()}; got {content[:4].hex()!r}.")
    shape = struct.unpack(f">{ndim}I", content[4:head])
    if len(content) - head != math.prod(shape):
        raise ValueError(
            f"{path} must hold {' x '.join(map(str, shape))} bytes, as it says; it holds {len(content) - head}. "
            "Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)


def _parts(folder: Path, source: Source) -> tuple[Part, Part]:
    _, files = source.find(folder, {"idx": FILES})
    train, test = (_part(*files[i : i + 2]) for i in (0, 2))
    opening = tuple(train.labels[:10].tolist())
    other = next((name for name, labels in OPENINGS.items() if labels == opening and name != source.name), None)
    if other is not None:
        raise ValueError(f"{files[1]} must belong to {source.name}; its labels are those of {other}.")
    return train, test


def _part(images: Path, labels: Path) -> Part:
    pixels, truth = read_idx(images, 3), read_idx(labels, 1)
    if len(pixels) != len(truth) or pixels.shape[1:] != (28, 28):
        raise ValueError(f"{images} must hold {len(truth)} images of 28 x 28, one a label; got {pixels.shape}.")
    return Part.of(pixels[:, None], truth)
