"""Read arrays from .npz archives: only those asked for, no Python objects, and no more work than the file is long."""

import zipfile
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.predictions.types import Array

PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy writes; others may blow up a byte to millions
MOST = 1100  # bytes that deflate can make of one


def read_arrays(path: Path, wanted: Container[str]) -> tuple[dict[str, Array], list[str]]:
    """Return the wanted arrays of an archive, and the names of all that it holds.

    Whatever is wrong with the file is a ValueError of one sentence; arrays that are not wanted are not looked at.
    """
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path.name} must be a whole .npz archive; it is truncated or damaged, or no archive.")
    try:
        with zipfile.ZipFile(path) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
            arrays = {name: _array(archive, member) for name, member in members.items() if name in wanted}
    except (MemoryError, _Objects):
        raise
    except Exception as error:  # a damaged archive can fail in any way; nothing in it is ever executed
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{path.name} must be a whole .npz archive; it is truncated or damaged ({reason}).") from None
    return arrays, list(members)


class _Objects(ValueError):
    """An array of Python objects, which could only be read by running code."""


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    if member.flag_bits & 1:
        raise ValueError(f"{member.filename} is encrypted")
    if member.compress_type not in PLAIN or member.file_size > MOST * member.compress_size + 1000:
        raise ValueError(f"{member.filename} is packed in a way that numpy does not use")
    with archive.open(member) as file:
        shape, by_columns, dtype = _header(file)
        if dtype.hasobject:
            name = Path(archive.filename or "").name
            raise _Objects(f"{name} must hold plain arrays; it holds Python objects.")
        size = dtype.itemsize
        for length in shape:
            size *= length
        if min(shape, default=0) < 0 or file.tell() + size != member.file_size:
            raise ValueError(f"{member.filename} does not hold the {shape} values that it promises")
        found = np.empty(shape, dtype, order="F" if by_columns else "C")
        if size:
            _fill(found.reshape(-1, order="A").view(np.uint8), file)
        if file.read(1):  # reading to the end compares the checksum
            raise ValueError(f"{member.filename} is longer than it says")
    return found


def _header(file: Any) -> tuple[tuple[int, ...], bool, Any]:
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(file)
    raise ValueError(f"its format is {version}")


def _fill(place: Array, file: Any) -> None:
    rest = memoryview(place)  # type: ignore[arg-type]
    while len(rest):
        count = file.readinto(rest)
        if not count:
            raise EOFError("it ends early")
        rest = rest[count:]
