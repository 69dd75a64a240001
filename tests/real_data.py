"""Real data for tests: small files in tests/data, and larger ones in the folder that CALIBRANT_SHARED names.

CALIBRANT_SHARED has no default. Where it is not set, tests of the larger files are skipped; where it is set, a file
that is missing is a failure.
"""

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import calibrant

DATA = Path(__file__).parent / "data"
DEMO = next(Path(calibrant.__file__).parent.rglob("cifar100_resnet32.npz"))  # the logits that come with the package
VARIABLE = "CALIBRANT_SHARED"


def small(path: str) -> Path:
    """Return a file of tests/data."""
    return DATA / path


def larger(path: str) -> Path:
    """Return a file of the folder that CALIBRANT_SHARED names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} is not set: larger real data are not here")
    found = Path(folder) / path
    if not found.is_file():
        pytest.fail(f"{VARIABLE} is set, so {found} must be there.")
    return found


both_sizes = pytest.mark.parametrize("real", [small, larger])


def tiles(path: Path) -> np.ndarray:
    """Return the images of a mosaic of 32 x 32 pixels, row by row, (n, 32, 32, 3)."""
    with Image.open(path) as file:
        mosaic = np.asarray(file.convert("RGB"))
    rows, columns = (side // 32 for side in mosaic.shape[:2])
    return mosaic.reshape(rows, 32, columns, 32, 3).transpose(0, 2, 1, 3, 4).reshape(-1, 32, 32, 3)
