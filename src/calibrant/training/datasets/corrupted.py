"""CIFAR-10-C: the test images of CIFAR-10, spoilt in known ways."""

from pathlib import Path

import numpy as np
import torch

from calibrant.predictions.types import Array
from calibrant.registry import DATASETS, nearest
from calibrant.training.datasets.cifar import CLASSES10, MEAN10, STD10
from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.datasets.sources import Source

CIFAR10_C = Source("cifar10_c", "CIFAR-10-C.tar of Hendrycks & Dietterich from Zenodo", ("cifar10_c", "CIFAR-10-C"))
NAMES = """
    brightness contrast defocus_blur elastic_transform fog frost gaussian_blur gaussian_noise glass_blur
    impulse_noise jpeg_compression motion_blur pixelate saturate shot_noise snow spatter speckle_noise
    zoom_blur
"""
CORRUPTIONS = tuple(NAMES.split())


@DATASETS.register(kind="images", k=10, channels=3, side=32)
def cifar10_c(folder: Path, *, corruption: str = "gaussian_noise", severity: int = 5) -> Dataset:
    """CIFAR-10-C: the test images of CIFAR-10 under one of 19 corruptions, at a severity from 1 to 5.

    Reads ``labels.npy`` and ``NAME.npy``, in which the five severities follow each other. There are no training rows:
    a model is trained on clean images. Mean and standard deviation are those of clean CIFAR-10.

    Reference: Hendrycks & Dietterich, ICLR 2019.
    """
    if corruption not in CORRUPTIONS:
        near = nearest(corruption, CORRUPTIONS) or ", ".join(CORRUPTIONS)
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


def _mapped(path: Path) -> Array:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # a fifth of 150 MB is read, not all of it
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path} must be a whole .npy file of one plain array; {error}.") from None
