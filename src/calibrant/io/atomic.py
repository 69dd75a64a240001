"""Atomic writes: a file is written completely or not at all."""

import os
import uuid
from io import BytesIO
from pathlib import Path

import numpy as np

from calibrant.predictions.types import Array


def write_whole(blob: bytes, path: Path) -> None:
    """Write to a temporary file and rename it, so that a reader sees the old file or the new one, never a part.

    Once this returns, the file survives a loss of power: it and its folder's entry are on the disk.
    """
    if path.is_dir():
        raise ValueError(f"{path} must be a file name; it is a folder.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} does not exist; make the folder first.")
    beside = path.parent / f".{uuid.uuid4().hex}.tmp"
    try:
        with beside.open("xb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            folder = os.open(path.absolute().parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        beside.unlink(missing_ok=True)


def write_arrays(arrays: dict[str, Array], path: Path) -> None:
    """Write arrays to an .npz atomically."""
    blob = BytesIO()
    np.savez(blob, **arrays)  # type: ignore[arg-type]
    write_whole(blob.getvalue(), path)
