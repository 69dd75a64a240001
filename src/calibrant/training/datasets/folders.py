"""Tiny ImageNet and ImageNet, from folders of image files."""

from pathlib import Path

import torch
from torch import Tensor

from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Images, Part, Source

TINY = Source(
    "tiny_imagenet",
    "tiny-imagenet-200.zip from the CS231n page of Stanford University",
    ("tiny_imagenet", "tiny-imagenet-200"),
)
IMAGENET = Source(
    "imagenet",
    "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar from the ImageNet page",
    ("imagenet", "ILSVRC2012", "ILSVRC/Data/CLS-LOC"),
)
ENDINGS = {".jpeg", ".jpg", ".png"}


@DATASETS.register(kind="images", k=200, channels=3, side=64)
def tiny_imagenet(folder: Path, *, side: int = 64) -> Dataset:
    """Tiny ImageNet: 100 000 + 10 000 photographs of two hundred things, 64 x 64, colour.

    Reads ``wnids.txt``, ``train/WNID/images`` and ``val/images`` with ``val/val_annotations.txt``; the validation
    images are the test part, because the labels of the test images were never published. Labels follow the sorted
    WNIDs; class names come from ``words.txt`` if present. At another ``side`` images are resized. Up to 64 pixels all
    are decoded at once (1.4 GB of memory at 64), above on demand.

    Reference: Le & Yang, course report CS 231N, Stanford University, 2015.
    """
    if side < 1:
        raise ValueError(f"side must be at least 1; got {side}.")
    names = ["wnids.txt", "val/val_annotations.txt", "train/", "val/images/"]
    _, (listing, annotations, train, val) = TINY.find(folder, {"folders": names})
    wnids = sorted(listing.read_text().split())
    if wnids != _folders(train):
        raise ValueError(f"{listing} must name the folders of {train}, a WNID a line; got {', '.join(wnids[:3])!r}.")
    label_of = {wnid: label for label, wnid in enumerate(wnids)}
    rows = [(path, label) for wnid, label in label_of.items() for path in _images(train / wnid / "images")]
    lines = [line.split("\t") for line in annotations.read_text().splitlines()]
    odd = next((line for line in lines if len(line) < 2 or line[1] not in label_of), None)
    without = {path.name for path in _images(val)} - {line[0] for line in lines}
    if odd is not None or without:
        wrong = f"got {odd}" if odd is not None else f"{len(without)} images are without a line"
        raise ValueError(f"{annotations} must name each image and a WNID of wnids.txt, a line each; {wrong}.")
    parts = [
        Part(_held(Images(tuple(files), side, side)), torch.tensor(labels))
        for files, labels in (zip(*rows, strict=True), ([val / x[0] for x in lines], [label_of[x[1]] for x in lines]))
    ]
    mean, std = (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821)
    return Dataset("tiny_imagenet", parts[0], parts[1], _names(listing.parent / "words.txt", wnids), mean, std)


@DATASETS.register(kind="images", k=1000, channels=3, side=224)
def imagenet(folder: Path, *, side: int = 224) -> Dataset:
    """ImageNet (ILSVRC 2012): 1 281 167 + 50 000 photographs of a thousand things, decoded on demand.

    Reads ``train/WNID`` and ``val/WNID``; the validation images are the test part. Labels follow the sorted WNIDs. The
    shorter side is resized to 256/224 of ``side`` and the centre cropped, for training images too. Subsets with fewer
    classes work as well. Northcutt, Athalye & Mueller (2021) estimate that 6 % of the test labels are wrong.

    Reference: Russakovsky et al., International Journal of Computer Vision 2015.
    """
    if side < 1:
        raise ValueError(f"side must be at least 1; got {side}.")
    _, (train, val) = IMAGENET.find(folder, {"folders": ["train/", "val/"]})
    wnids = _folders(train)
    if _folders(val) != wnids:
        raise ValueError(
            f"{val} must hold the same folders as {train}, one a class; it holds {len(_folders(val))} and not "
            f"{len(wnids)}. Sort the validation images into folders by their WNID."
        )
    parts = []
    for place in (train, val):
        rows = [(path, label) for label, wnid in enumerate(wnids) for path in _images(place / wnid)]
        files, labels = zip(*rows, strict=True)
        parts.append(Part(Images(files, side, round(side * 256 / 224)), torch.tensor(labels)))
    names = _names(train.parent / "words.txt", wnids)
    return Dataset("imagenet", parts[0], parts[1], names, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def _held(images: Images) -> Images | Tensor:
    """Decode images that are small enough to hold in memory."""
    return images[torch.arange(len(images))] if images.side <= 64 else images


def _folders(place: Path) -> list[str]:
    found = sorted(path.name for path in place.iterdir() if path.is_dir())
    if not found:
        raise ValueError(f"{place} must hold a folder for each class, named by its WNID; it holds none.")
    return found


def _images(place: Path) -> list[Path]:
    found = sorted(path for path in place.iterdir() if path.suffix.lower() in ENDINGS) if place.is_dir() else []
    if not found:
        raise FileNotFoundError(f"{place} must hold image files; it holds none. Unpack the archive again.")
    return found


def _names(listing: Path, wnids: list[str]) -> tuple[str, ...]:
    """Return the class names of WNIDs, from lines ``WNID<tab>words`` if the file exists."""
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    words = {wnid: text for wnid, _, text in (line.partition("\t") for line in lines)}
    return tuple(words.get(wnid, wnid) for wnid in wnids)
