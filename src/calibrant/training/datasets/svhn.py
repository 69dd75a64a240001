"""Street View House Numbers, from MATLAB files."""

from pathlib import Path

from calibrant.registry import DATASETS
from calibrant.training.datasets.dataset import Dataset, Part, Source

FILES = ("train_32x32.mat", "test_32x32.mat")
SVHN = Source(
    "svhn", "the cropped digits from the Street View House Numbers page of Stanford University", ("svhn", "SVHN")
)


@DATASETS.register(kind="images", k=10, channels=3, side=32)
def svhn(folder: Path) -> Dataset:
    """Street View House Numbers, cropped digits: 73 257 + 26 032 photographs, 32 x 32, colour.

    Reads ``train_32x32.mat`` and ``test_32x32.mat``. The files label the digit zero as 10; here it is 0. Classes are
    imbalanced: 19 % of the training rows are a one, 6 % a nine.

    Reference: Netzer, Wang, Coates, Bissacco, Wu & Ng, NIPS workshop on deep learning 2011.
    """
    _, files = SVHN.find(folder, {"mat": FILES})
    train, test = map(_part, files)
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    return Dataset("svhn", train, test, tuple("0123456789"), mean, std)


def _part(path: Path) -> Part:
    from scipy.io import loadmat

    try:
        held = loadmat(path, variable_names=("X", "y"))
        images, labels = held["X"], held["y"].reshape(-1)
    except Exception as error:  # a damaged file can make loadmat fail in any way
        raise ValueError(f"{path} must be a whole MATLAB file with X and y; {type(error).__name__}: {error}.") from None
    if images.dtype != "uint8" or images.shape != (32, 32, 3, len(labels)) or labels.dtype.kind not in "iu":
        raise ValueError(f"{path} must hold X of uint8 (32, 32, 3, n) and n labels; got {images.dtype} {images.shape}.")
    if len(labels) and not 1 <= labels.min() <= labels.max() <= 10:
        raise ValueError(f"{path} must hold labels 1 to 10; got [{labels.min()}, {labels.max()}].")
    return Part.of(images.transpose(3, 2, 0, 1), labels % 10)
