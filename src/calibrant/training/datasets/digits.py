"""The UCI handwritten digits, which ship with the package."""

from pathlib import Path

import numpy as np
import torch

from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.datasets.splits import split


@DATASETS.register(kind="images", k=10, channels=1, side=8)
def digits(folder: Path | None = None) -> Dataset:
    """Digits: 1 197 + 600 handwritten digits, 8 x 8, grey; they ship with the package and ``folder`` is not read.

    The rows are the test part of "Optical Recognition of Handwritten Digits" of the UCI Machine Learning Repository
    (E. Alpaydin and C. Kaynak, licence CC BY 4.0), which counts the ink in blocks of 4 x 4 pixels, 0 to 16; here
    scaled to 0 to 255. The split is fixed and stratified. Both parts hold digits of the same 13 writers, so that test
    errors are lower than on new writers; and 600 rows are too few to measure a calibration error of a few percent.

    Reference: Alpaydin & Kaynak, Kybernetika 1998; UCI Machine Learning Repository, CC BY 4.0.

    Example:
        >>> found = digits()
        >>> found.train.inputs.shape, len(found.test)
        (torch.Size([1197, 1, 8, 8]), 600)
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        images, labels = file["images"], file["labels"]
    scaled = torch.from_numpy(images).double().mul(255 / 16).round().to(torch.uint8)[:, None]
    whole = Part(scaled, torch.from_numpy(labels).long())
    rows = split(whole.labels, {"test": 600}, seed=0)
    train, test = whole.take(rows["rest"]), whole.take(rows["test"])
    return Dataset("digits", train, test, tuple("0123456789"), mean=(0.3056,), std=(0.3759,))
