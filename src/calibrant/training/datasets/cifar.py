"""CIFAR-10 and CIFAR-100 from binary files, pickles or an .npz; CIFAR-10-C from .npy files."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from calibrant.io.npz import read_arrays
from calibrant.predictions.types import Array
from calibrant.registry import DATASETS, nearest
from calibrant.training.datasets import pickles
from calibrant.training.datasets.dataset import Dataset, Part, Source

Reader = Callable[[Sequence[Path]], tuple[Part, Part]]

PUBLISHER = "from the CIFAR page of the University of Toronto"
CIFAR10 = Source(
    "cifar10", f"cifar-10-binary.tar.gz {PUBLISHER}", ("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py")
)
CIFAR100 = Source(
    "cifar100", f"cifar-100-binary.tar.gz {PUBLISHER}", ("cifar100", "cifar-100-binary", "cifar-100-python")
)
MEAN10, STD10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
MEAN100, STD100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
CLASSES10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
NAMES100 = """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
    caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
    flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
    motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
    poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
    squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
    wardrobe whale willow_tree wolf woman worm
"""
CLASSES100 = tuple(NAMES100.split())
CIFAR10_C = Source("cifar10_c", "CIFAR-10-C.tar of Hendrycks & Dietterich from Zenodo", ("cifar10_c", "CIFAR-10-C"))
NAMES10_C = """
    brightness contrast defocus_blur elastic_transform fog frost gaussian_blur gaussian_noise glass_blur
    impulse_noise jpeg_compression motion_blur pixelate saturate shot_noise snow spatter speckle_noise
    zoom_blur
"""
CORRUPTIONS10_C = tuple(NAMES10_C.split())


@DATASETS.register(kind="images", k=10, channels=3, side=32)
def cifar10(folder: Path) -> Dataset:
    """CIFAR-10: 50 000 + 10 000 small photographs of ten things, 32 x 32, colour.

    Reads the published ``data_batch_1.bin`` to ``test_batch.bin``, or ``cifar10.npz`` (``x_train``, ``y_train``,
    ``x_test``, ``y_test``, uint8, channels last), or the pickled ``data_batch_1`` to ``test_batch``, by a restricted
    unpickler. About 3 % of the test images have a near-duplicate among the training images.

    Reference: Krizhevsky, technical report, University of Toronto, 2009.
    """
    batches = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
    forms: dict[Reader, Sequence[str]] = {
        partial(_from_binary, label_bytes=1): [f"{name}.bin" for name in batches],
        _from_npz: ["cifar10.npz"],
        partial(_from_pickles, labels="labels"): batches,
    }
    read, files = CIFAR10.find(folder, forms)
    return Dataset("cifar10", *read(files), CLASSES10, MEAN10, STD10)


@DATASETS.register(kind="images", k=100, channels=3, side=32)
def cifar100(folder: Path) -> Dataset:
    """CIFAR-100: 50 000 + 10 000 small photographs of a hundred things, 32 x 32, colour; the fine labels.

    Reads the published ``train.bin`` and ``test.bin``, or ``cifar100.npz`` (``x_train``, ``y_train``, ``x_test``,
    ``y_test``, uint8, channels last), or the pickled ``train`` and ``test``, by a restricted unpickler. About 10 % of
    the test images have a near-duplicate among the training images.

    Reference: Krizhevsky, technical report, University of Toronto, 2009.
    """
    forms: dict[Reader, Sequence[str]] = {
        partial(_from_binary, label_bytes=2): ["train.bin", "test.bin"],
        _from_npz: ["cifar100.npz"],
        partial(_from_pickles, labels="fine_labels"): ["train", "test"],
    }
    read, files = CIFAR100.find(folder, forms)
    return Dataset("cifar100", *read(files), CLASSES100, MEAN100, STD100)


@DATASETS.register(kind="images", k=10, channels=3, side=32)
def cifar10_c(folder: Path, *, corruption: str = "gaussian_noise", severity: int = 5) -> Dataset:
    """CIFAR-10-C: the test images of CIFAR-10 under one of 19 corruptions, at a severity from 1 to 5.

    Reads ``labels.npy`` and ``NAME.npy``, which holds the five severities one after the other. The training part is
    empty: models are trained on clean images. Mean and standard deviation are those of clean CIFAR-10.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    if corruption not in CORRUPTIONS10_C:
        near = nearest(corruption, CORRUPTIONS10_C) or ", ".join(CORRUPTIONS10_C)
        raise ValueError(f"corruption must be one of CIFAR-10-C's; got {corruption!r}. Did you mean {near}?")
    if severity not in range(1, 6):
        raise ValueError(f"severity must be a whole number from 1 to 5; got {severity}.")
    _, files = CIFAR10_C.find(folder, {"npy": [f"{corruption}.npy", "labels.npy"]})
    images, labels = map(_mapped, files)
    n = len(labels) // 5
    if images.dtype != np.uint8 or images.shape != (5 * n, 32, 32, 3) or labels.shape != (5 * n,):
        raise ValueError(
            f"{files[0]} must hold uint8 images (n, 32, 32, 3), one a label and the same number for each of five "
            f"severities; got {images.dtype} {images.shape} and {len(labels)} labels."
        )
    if labels.dtype.kind not in "iu":
        raise ValueError(f"{files[1]} must hold whole numbers; got {labels.dtype}.")
    rows = slice((severity - 1) * n, severity * n)
    test = Part.of(images[rows].transpose(0, 3, 1, 2), labels[rows])
    empty = Part(torch.empty(0, 3, 32, 32, dtype=torch.uint8), torch.empty(0, dtype=torch.int64))
    return Dataset("cifar10_c", empty, test, CLASSES10, MEAN10, STD10)


def _from_binary(files: Sequence[Path], *, label_bytes: int) -> tuple[Part, Part]:
    """Read records of 1 or 2 label bytes, of which the last is used, and 3 072 image bytes, channels first."""

    def records(path: Path) -> Array:
        content, size = np.fromfile(path, np.uint8), label_bytes + 3072
        if len(content) == 0 or len(content) % size:
            raise ValueError(
                f"{path} must hold records of {size} bytes; it holds {len(content)} bytes. Fetch it again."
            )
        return content.reshape(-1, size)

    train, test = np.concatenate([records(path) for path in files[:-1]]), records(files[-1])
    return _part(train[:, label_bytes:], train[:, label_bytes - 1]), _part(
        test[:, label_bytes:], test[:, label_bytes - 1]
    )


def _from_pickles(files: Sequence[Path], *, labels: str) -> tuple[Part, Part]:
    def batch(path: Path) -> tuple[Array, Array]:
        held = pickles.read(path)
        data, truth = held.get("data"), held.get(labels)
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3072,) or not isinstance(truth, list):
            raise ValueError(f"{path} must hold data of shape (n, 3072) and a list {labels}; it holds {list(held)}.")
        if len(data) != len(truth) or not all(isinstance(label, int) and 0 <= label < 256 for label in truth):
            raise ValueError(f"{path} must hold {labels}, a whole number for each of its {len(data)} images.")
        return data, np.array(truth, np.int64)

    *train, test = map(batch, files)
    return _part(np.concatenate([x for x, _ in train]), np.concatenate([y for _, y in train])), _part(*test)


def _part(flat: Array, labels: Array) -> Part:
    return Part.of(flat.reshape(-1, 3, 32, 32), labels)


def _from_npz(files: Sequence[Path]) -> tuple[Part, Part]:
    path, names = files[0], ("x_train", "y_train", "x_test", "y_test")
    arrays, _ = read_arrays(path, names)
    if missing := [name for name in names if name not in arrays]:
        raise ValueError(f"{path} must hold {', '.join(names)}; {' and '.join(missing)} are missing.")
    found = [arrays[name] for name in names]
    for images, labels in (found[:2], found[2:]):
        if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
            raise ValueError(f"{path} must hold uint8 images (n, 32, 32, 3); got {images.dtype} {images.shape}.")
        if labels.dtype.kind not in "iu" or labels.size != len(images):
            raise ValueError(f"{path} must hold a whole number a label; got {labels.dtype} {labels.shape}.")
    return Part.of(found[0].transpose(0, 3, 1, 2), found[1].reshape(-1)), Part.of(
        found[2].transpose(0, 3, 1, 2), found[3].reshape(-1)
    )


def _mapped(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # a fifth of 150 MB is read, not all of it
    except Exception as error:  # a damaged file can fail in any way; nothing in it is ever executed
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"{path} must be a whole .npy file of one plain array; {reason}.") from None
