"""Save and load fitted objects: one .safetensors file with the tensors and JSON metadata, sealed by a digest.

The JSON text (key ``calibrant`` of the file's metadata) holds the format and its version, the method, its settings, the
story of the fit, package versions, and a digest of the whole file as it reads with the digest's own place zeroed: no
byte can change unnoticed. JSON has no infinity and no NaN; they are written as ``{"float": "inf"}``.
"""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from calibrant.io.atomic import write_whole
from calibrant.io.entries import entry, parsed
from calibrant.records import versions
from calibrant.registry import CALIBRATORS, TRUST

KEY = "calibrant"
UNSEALED = "0" * 64
LONGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
# what reading and building say to contents that make no sense
REFUSALS = (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Contents:
    """What a file holds: the method by its name, its tensors, its settings, and the report of its fit."""

    method: str
    state: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    fit: Any


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is told from others, and how the class of what it holds is found by name.

    ``noun`` is for sentences. The class has a ``story``, the dataclass of its fit, ``infinite``, the names of tensors
    that may hold infinity, and ``rebuilt``, which makes one from contents and tries it: contents that pass every check
    here may still not suit the method.
    """

    format: str
    version: int
    noun: str
    method: Callable[[str], Any]


CALIBRATOR = Kind("calibrant.calibrator", 1, "calibrator", CALIBRATORS.__getitem__)
TRUST_PREDICTOR = Kind("calibrant.trust", 1, "trust predictor", TRUST.__getitem__)


def load(path: str | Path) -> Any:
    """Read what `save` of a calibrator or of a trust predictor wrote; it gives the same output, to the last bit.

    What it is stands in the file. Whatever is wrong with the file is a ValueError of one sentence (FileNotFoundError if
    there is none), and nothing in it is ever executed.

    Example:
        >>> import tempfile
        >>> from calibrant.calibrators.identity import Identity
        >>> cal = Identity.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     cal.save(f"{folder}/cal.safetensors")
        ...     load(f"{folder}/cal.safetensors").name
        'identity'
    """
    return read(Path(path), (CALIBRATOR, TRUST_PREDICTOR))


def write(contents: Contents, kind: Kind, path: Path) -> None:
    """Write the file, all of it or nothing, once it is sure that it can be read back."""
    state = {name: value.detach().cpu().clone().contiguous() for name, value in contents.state.items()}
    record = {
        "format": kind.format,
        "version": kind.version,
        "digest": UNSEALED,  # replaced by `seal`
        "method": contents.method,
        "settings": _encoded_settings(contents.settings),
        "fit": _encoded(asdict(contents.fit)),
        "tensors": {name: list(value.shape) for name, value in state.items()},
        "versions": versions(),
    }
    blob = seal(state, json.dumps(record, allow_nan=False, separators=(",", ":")))
    _opened(blob, _told(blob[8 : _end_of_header(blob, len(blob), path)], [kind], path)[0], kind, path)
    write_whole(blob, path)


def seal(state: Mapping[str, Tensor], record: str) -> bytes:
    """Return a safetensors file of tensors and a JSON text in which `UNSEALED` is replaced by the file's digest."""
    blob = bytes_of(dict(state), {KEY: record})
    return blob.replace(UNSEALED.encode(), _digest(blob, UNSEALED).encode(), 1)


def check_seal(blob: bytes, digest: Any, path: Path) -> None:
    """Refuse a file that is not as it was when it was sealed."""
    if type(digest) is not str or len(digest) != 64 or not digest.isascii():
        raise ValueError(f"{path} must hold a digest of 64 characters; got {digest!r:.100}.")
    if _digest(blob, digest) != digest:
        raise ValueError(f"{path} was changed or damaged after it was written: its digest does not match.")


def read(path: Path, kinds: Sequence[Kind]) -> Any:
    """Return what was saved, if the file is of one of these kinds.

    Whatever is wrong with the file is a ValueError of one sentence (FileNotFoundError if there is none), and nothing in
    it is ever executed.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_file():
        raise ValueError(f"{path} must be a file; it is a folder or a device.")
    with path.open("rb") as file:  # the header first: a foreign file may be large, and may promise anything
        start = file.read(8)
        header = file.read(_end_of_header(start, os.fstat(file.fileno()).st_size, path) - 8)
        record, kind = _told(header, kinds, path)
        return _opened(start + header + file.read(), record, kind, path)


def _end_of_header(start: bytes, size: int, path: Path) -> int:
    length = int.from_bytes(start[:8], "little")
    if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
        raise ValueError(f"{path} must be a whole .safetensors file; it is truncated or damaged, or something else.")
    return 8 + length


def _told(header: bytes, kinds: Sequence[Kind], path: Path) -> tuple[dict[str, Any], Kind]:
    """Return the JSON text as a dict, if the file is of one of these kinds and not of a later version."""
    nouns = " or ".join(f"a {kind.noun}" for kind in kinds)
    try:
        record = parsed(parsed(header)["__metadata__"][KEY])
        told = record["format"]
    except (ValueError, KeyError, TypeError):
        told = None
    if type(told) is not str:
        raise ValueError(f"{path} must hold {nouns}, written by its save; it is damaged, or from another program.")
    kind = next((kind for kind in kinds if kind.format == told), None)
    if kind is None:
        raise ValueError(f"{path} must hold {nouns}; its format is {told!r:.100}.")
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{path} must state its format version; got {version!r:.100}.")
    if version > kind.version:
        raise ValueError(
            f"{path} has format version {version}; this calibrant reads up to {kind.version}. Update calibrant."
        )
    return record, kind


def _opened(blob: bytes, record: dict[str, Any], kind: Kind, path: Path) -> Any:
    check_seal(blob, record.get("digest"), path)
    try:
        name = entry(record, "method", str)
        method = kind.method(name)
        contents = Contents(
            name,
            _state(tensors_of(blob), entry(record, "tensors", dict), method.infinite),
            _decoded(entry(record, "settings", dict)),
            _story(_decoded(entry(record, "fit", dict)), method.story),
        )
        return method.rebuilt(contents)
    except REFUSALS as error:
        reason = " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")
        raise ValueError(f"{path} holds no {kind.noun} that can be used: {reason}.") from None


def _digest(blob: bytes, own: str) -> str:
    """Return the digest of a file, its ``own`` zeroed; the data, which may be large, are not copied for that."""
    end = 8 + int.from_bytes(blob[:8], "little")
    whole = blake2b(blob[:end].replace(own.encode(), UNSEALED.encode(), 1), digest_size=32)
    whole.update(memoryview(blob)[end:])
    return whole.hexdigest()


def _state(tensors: dict[str, Tensor], told: dict[str, Any], infinite: Sequence[str]) -> dict[str, Tensor]:
    """Return the tensors in the order they had, if they are those that were saved and their numbers are finite."""
    for name in (*told, *tensors):
        given = list(tensors[name].shape) if name in tensors else "none"
        if given != told.get(name):
            raise ValueError(f"tensor {name!r} must have shape {told.get(name, 'none')}; got {given}")
        odd = tensors[name].isnan() if name in infinite else ~tensors[name].isfinite()
        if bool(odd.any()):
            raise ValueError(f"tensor {name!r} must be finite; it holds {float(tensors[name][odd][0])}")
    return {name: tensors[name] for name in told}


def _encoded_settings(settings: Mapping[str, Any]) -> Any:
    encoded = _encoded(settings)
    try:
        same = repr(_decoded(json.loads(json.dumps(encoded)))) == repr(settings)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(f"settings must be plain JSON, which gives back what it was given; got {settings}.")
    return encoded


def _encoded(value: Any) -> Any:
    """Return the same value in types that JSON knows."""
    if isinstance(value, dict):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    return {"float": str(value)} if isinstance(value, float) and not math.isfinite(value) else value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        return float(value["float"]) if set(value) == {"float"} else {key: _decoded(v) for key, v in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _story(told: dict[str, Any], story: type) -> Any:
    """Return the story of the fit; a tuple came as a list."""
    hints = get_type_hints(story)
    strange = next((name for name in told if name not in hints), None)
    if strange is not None:
        raise KeyError(f"a fit has no entry {strange!r:.100}")
    return story(**{name: _typed(value, hints[name], name) for name, value in told.items()})


def _typed(value: Any, hint: Any, name: str) -> Any:
    if get_origin(hint) is tuple and type(value) is list:
        kinds = get_args(hint)
        kinds = kinds[:1] * len(value) if kinds[-1] is ... else kinds
        if len(kinds) == len(value):
            return tuple(_typed(item, kind, name) for item, kind in zip(value, kinds, strict=True))
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise TypeError(f"{name} of a fit must be {getattr(hint, '__name__', hint)}; got {value!r:.100}")
    return value
