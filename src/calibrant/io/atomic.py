"""Atomic writes: a file is written completely or not at all, by the one writer of the package."""

import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibrant.predictions.types import Array

TEMPORARY = ".calibrant-*.tmp"


def write_whole(blob: bytes, path: Path) -> None:
    """Write to a temporary file and rename it, so that a reader sees the old file or the new one, never a part.

    Once this returns, the file survives a loss of power: it and its folder's entry are on the disk. A file that is
    replaced keeps its mode, and a symbolic link keeps pointing to it. Temporary files that a killed process left in the
    folder are removed. If the disk is full, or the folder read-only, an OSError says so and the old file is unchanged.
    """
    target = _regular(path)
    try:
        _clean(target.parent)
        with _temporary(target.parent) as (file, beside):
            file.write(blob)
            file.flush()
            if target.exists() and os.name == "posix":
                os.fchmod(file.fileno(), stat.S_IMODE(target.stat().st_mode))
            os.fsync(file.fileno())
            beside.replace(target)
        _sync(target.parent)
    except OSError as error:
        kept = " What was there is unchanged." if target.exists() else ""
        raise OSError(f"{path} could not be written: {_reason(error)}.{kept}") from None


def write_arrays(arrays: dict[str, Array], path: Path) -> None:
    """Write arrays to an .npz atomically."""
    blob = BytesIO()
    np.savez(blob, **arrays)  # type: ignore[arg-type]
    write_whole(blob.getvalue(), path)


def check_target(path: Path, endings: str | Iterable[str], inputs: Iterable[Path] = ()) -> Path:
    """Refuse a place where a file cannot be written; better before the work than after."""
    known = [endings] if isinstance(endings, str) else list(endings)
    if path.suffix not in known:
        raise ValueError(f"{path.name} must end in {' or '.join(known)}; got {path.suffix or 'no ending'!r}.")
    target = _regular(path)
    if target.resolve() in {other.resolve() for other in inputs}:
        raise ValueError(f"{path} must not be a file that is read; name another.")
    check_folder(target.parent)
    return path


def check_folder(folder: Path) -> None:
    """Refuse a folder that no file can be written to, by trying it."""
    try:
        with _temporary(folder):
            pass
    except OSError as error:
        raise OSError(f"{folder} must be a folder that can be written to: {_reason(error)}.") from None


def _regular(path: Path) -> Path:
    """Return the file to write, behind links, if it is a file or not there yet."""
    try:
        target = path.resolve() if path.is_symlink() else path
    except (RuntimeError, OSError):
        raise ValueError(f"{path} must be a file to write; it is a link that leads to itself.") from None
    if target.is_dir():
        raise ValueError(f"{path} must be a file to write; it is a folder.")
    if target.exists() and not target.is_file():
        raise ValueError(f"{path} must be a file to write; it is a device or a pipe.")
    if not target.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path} must lie in a folder that exists; {str(target.parent)!r} does not.")
    return target


@contextmanager
def _temporary(folder: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """Give a new file in a folder, locked as long as its process lives, and remove it unless it was renamed."""
    beside = folder / TEMPORARY.replace("*", uuid.uuid4().hex)
    file = beside.open("xb")
    try:
        _lock(file, wait=True)
        if not beside.exists():  # another process took it for left behind, before it was locked
            file.close()
            file = beside.open("xb")
            _lock(file, wait=True)
        yield file, beside
    finally:
        beside.unlink(missing_ok=True)
        file.close()  # last: on a full disk this fails as the write did


def _clean(folder: Path) -> None:
    """Remove temporary files whose process is gone: a lock ends with its process, even if that is killed."""
    for left in folder.glob(TEMPORARY):
        with suppress(OSError), left.open("rb") as file:
            if _lock(file, wait=False):
                left.unlink()


def _lock(file: BinaryIO, *, wait: bool) -> bool:
    """Lock an open file against other processes; False if another has it, or where there are no locks."""
    if os.name != "posix":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened
        opened = os.open(folder.absolute(), os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).rstrip(".")
