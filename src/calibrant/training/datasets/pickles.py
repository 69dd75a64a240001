"""A restricted unpickler for the published CIFAR files, which executes nothing of their contents.

Unpickling can import and call any function. The CIFAR pickles are dicts of lists, strings and one uint8 array. This
reader imports nothing: the few globals that such an array needs are replaced by stand-ins that only store their
arguments, created per file; every other global is refused. The numpy array is built afterwards, from bytes and a shape.
"""

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.predictions.types import Array

BYTES = ("u1", b"u1")
TUPLES = 32  # an array takes about six


def read(path: Path) -> dict[str, Any]:
    """Return the pickled dict, with uint8 arrays as numpy arrays and byte strings as text."""
    try:
        content = path.read_bytes()
        _measure(content)
        reader = _Reader(content)
        held = reader.load()
        if not isinstance(held, dict):
            raise TypeError(f"it holds a {type(held).__name__}")
        if odd := [key for key in held if not isinstance(key, str | bytes)]:
            raise TypeError(f"it has a key that is a {type(odd[0]).__name__}")
        return {_text(key): reader.value(value) for key, value in held.items()}
    except OSError:
        raise
    except Exception as error:  # a damaged or malicious file can fail in any way; none of it has been executed
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        raise ValueError(f"{path} must be a pickle of plain lists and byte arrays; {reason}.") from None


class _Reader(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")

        # New classes for each file: a pickle may set attributes on the objects it is given.
        class Kind:
            def __init__(self, code: Any = None, *_: Any) -> None:
                self.code = code

            def __setstate__(self, state: Any) -> None:
                """Ignore byte order and alignment, which do not matter for bytes."""

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
        """Return the stand-in of a global that a uint8 array needs; refuse all others."""
        if (module_name, global_name) not in self._known:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, and nothing was run")
        return self._known[module_name, global_name]

    def value(self, value: Any) -> Any:
        """Convert stand-ins to plain values."""
        if isinstance(value, list):
            return [_plain(one) for one in value]
        return self._array(value.state) if isinstance(value, self._held) else _plain(value)

    def _array(self, state: Any) -> Array:
        _, shape, kind, by_columns, content = state
        if not isinstance(kind, self._kind) or kind.code not in BYTES:
            raise TypeError("it holds an array that is not of bytes")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _measure(content: bytes) -> None:
    """Refuse, before unpickling, a file that would take more memory or time than its size says.

    A tuple of twice the same tuple, sixty times over, is short to write, and takes years to hash as a key.
    """
    tuples = 0
    for operation, argument, _ in pickletools.genops(content):  # genops checks the lengths declared in the file
        if operation.name.endswith("PUT") and (argument is None or argument > len(content)):
            raise ValueError("it asks for more memory than it has bytes")
        tuples += operation.name.startswith(("TUPLE", "FROZENSET"))
    if tuples > TUPLES:
        raise ValueError(f"it has {tuples} tuples, and an array needs few")


def _plain(value: Any) -> int | str:
    if not isinstance(value, int | str | bytes):
        raise TypeError(f"it holds a {type(value).__name__}")
    return _text(value) if isinstance(value, bytes) else value


def _text(value: Any) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)
