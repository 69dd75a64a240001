"""Old pickles of byte arrays, read without running anything that stands in them.

A pickle is a program: it may name any function of the machine and call it. The CIFAR sets are published in this form
too, as a dict of lists, text and one uint8 array. Here no name is ever looked up. The few names that such an array
needs are answered with stand-ins that only keep what they are given, made anew for each file; every other name is
refused. Numpy is given bytes and a shape, after the pickle has been read.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.predictions.types import Array

BYTES = ("u1", b"u1")


def read(path: Path) -> dict[str, Any]:
    """Return the dict that a pickle holds, byte arrays as numpy arrays and byte strings as text."""
    try:
        content = path.read_bytes()
        _measure(content)
        reader = _Reader(content)
        held = reader.load()
        if not isinstance(held, dict):
            raise TypeError(f"it holds a {type(held).__name__}")
        return {_text(key): reader.value(value) for key, value in held.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged or hostile file can fail in any way; nothing of it has been run
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{path} must be a pickle of plain lists and byte arrays; {reason}.") from None


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")

        # Classes of their own for each file: a pickle may set attributes of what it was given.
        class Kind:
            def __init__(self, code: Any = None, *_: Any) -> None:
                self.code = code

            def __setstate__(self, state: Any) -> None:
                """Byte order and alignment say nothing about bytes."""

        class Held:
            def __init__(self, *_: Any) -> None:
                self.state: Any = None

            def __setstate__(self, state: Any) -> None:
                self.state = state

        class Encoded(bytes):
            def __new__(cls, text: str, code: str) -> "Encoded":
                return super().__new__(cls, text, {"latin1": "latin1"}[code])

        self._held, self._kind = Held, Kind
        self._known: dict[tuple[str, str], type] = {
            ("numpy.core.multiarray", "_reconstruct"): Held,
            ("numpy._core.multiarray", "_reconstruct"): Held,
            ("numpy", "ndarray"): Held,
            ("numpy", "dtype"): Kind,
            ("_codecs", "encode"): Encoded,
        }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Answer the names that a byte array needs; refuse all others."""
        if (module_name, global_name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, and nothing was run")
        return self._known[module_name, global_name]

    def value(self, value: Any) -> Any:
        """Turn what was kept into plain values."""
        if isinstance(value, list):
            return [_plain(one) for one in value]
        return self._array(value.state) if isinstance(value, self._held) else _plain(value)

    def _array(self, state: Any) -> Array:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, self._kind) or kind.code not in BYTES:
            raise TypeError("it holds an array that is not of bytes")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _measure(content: bytes) -> None:
    """Refuse, before anything is built, a file that asks for more memory than it has bytes."""
    for operation, argument, _ in pickletools.genops(content):  # it checks the lengths that stand in the file
        if operation.name.endswith("PUT") and (argument is None or argument > len(content)):
            raise ValueError("it asks for more memory than it has bytes")


def _plain(value: Any) -> int | str:
    if not isinstance(value, int | str | bytes):
        raise TypeError(f"it holds a {type(value).__name__}")
    return _text(value) if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
