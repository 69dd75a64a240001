"""A calibrator as one .safetensors file: its tensors, and one JSON text that says what they are. No pickle.

The JSON text (key ``calibrant`` of the file's metadata) holds the format and its version, the method, its settings, the
story of the fit, package versions, and a digest of the whole file as it reads with the digest's own place zeroed: no
byte can change unnoticed. JSON has no infinity and no NaN; they are written as ``{"float": "inf"}``.
"""

import json
import math
import os
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of
from torch import Tensor

from calibrant.calibrators.calibrator import Calibrator, Fit
from calibrant.calibrators.probing import probe
from calibrant.records import versions
from calibrant.registry import CALIBRATORS
from calibrant.writing import write_whole

FORMAT = "calibrant.calibrator"
VERSION = 1
KEY = "calibrant"
UNSEALED = "0" * 64
LONGEST_HEADER = 100_000_000  # bytes, as safetensors itself allows
PROBED = 1_000_000  # classes up to which a loaded calibrator is tried on a row


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write the calibrator to a file, all of it or nothing: an older file stays until the new one is on the disk.

    Example:
        >>> import tempfile
        >>> from calibrant.calibrators.temperature import Temperature
        >>> cal = Temperature.fit(torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(cal, f"{folder}/cal.safetensors")
        ...     load(f"{folder}/cal.safetensors").temperature == cal.temperature
        tensor(True)
    """
    path = Path(path)
    state = {name: value.detach().cpu().clone().contiguous() for name, value in calibrator.state_dict().items()}
    record = {
        "format": FORMAT,
        "version": VERSION,
        "digest": UNSEALED,
        "method": calibrator.name,
        "settings": _encoded_settings(calibrator),
        "fit": _encoded(asdict(calibrator.fitted)),
        "tensors": {name: list(value.shape) for name, value in state.items()},
        "versions": versions(),
    }
    blob = bytes_of(state, {KEY: json.dumps(record, allow_nan=False, separators=(",", ":"))})
    blob = blob.replace(UNSEALED.encode(), _digest(blob).encode(), 1)
    _calibrator(blob, _record(blob[8 : 8 + _header_length(blob, len(blob), path)], path), path)
    write_whole(blob, path)


def load(path: str | Path) -> Calibrator:
    """Read a calibrator; it gives the same output as the one that was saved, to the last bit.

    Whatever is wrong with the file is a ValueError of one sentence (FileNotFoundError if there is none), and nothing in
    it is ever executed.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist.")
    if not path.is_file():
        raise ValueError(f"{path} must be a file; it is a folder or a device.")
    with path.open("rb") as file:  # the header first: a foreign file may be large, and may promise anything
        start = file.read(8)
        header = file.read(_header_length(start, os.fstat(file.fileno()).st_size, path))
        record = _record(header, path)
        return _calibrator(start + header + file.read(), record, path)


def _header_length(start: bytes, size: int, path: Path) -> int:
    length = int.from_bytes(start[:8], "little")
    if size < 8 or not 0 < length <= min(size - 8, LONGEST_HEADER):
        raise ValueError(f"{path} must be a whole .safetensors file; it is truncated or damaged, or something else.")
    return length


def _record(header: bytes, path: Path) -> dict[str, Any]:
    """Return the JSON text as a dict, if the file is one of ours and not of a later version."""
    try:
        text = json.loads(header)["__metadata__"][KEY]
        record = json.loads(text)
        ours = record["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError):
        ours = False
    if not ours:
        raise ValueError(f"{path} must be written by Calibrator.save; it is damaged, or from another program.")
    version = record.get("version")
    if type(version) is not int or version < 1:
        raise ValueError(f"{path} must state its format version; got {version!r}.")
    if version > VERSION:
        raise ValueError(
            f"{path} has format version {version}; this calibrant reads up to {VERSION}. Update calibrant."
        )
    return record


def _calibrator(blob: bytes, record: dict[str, Any], path: Path) -> Calibrator:
    digest = record.get("digest")
    if type(digest) is not str or len(digest) != 64 or not digest.isascii():
        raise ValueError(f"{path} must hold a digest of 64 characters; got {digest!r}.")
    if _digest(blob.replace(digest.encode(), UNSEALED.encode(), 1)) != digest:
        raise ValueError(f"{path} was changed or damaged after it was written: its digest does not match.")
    try:
        method = CALIBRATORS[_entry(record, "method", str)]
        settings, fit = _decoded(_entry(record, "settings", dict)), _fit(_decoded(_entry(record, "fit", dict)))
        state = _state(tensors_of(blob), _entry(record, "tensors", dict))
        calibrator: Calibrator = method(state, settings, fit)
        _try(calibrator)
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error.args[0] if error.args else error).split()).rstrip(".")
        raise ValueError(f"{path} holds no calibrator that can be used: {reason}.") from None
    return calibrator


def _entry(record: dict[str, Any], name: str, kind: type) -> Any:
    if type(record.get(name)) is not kind:
        raise TypeError(f"{name} must be a {kind.__name__}; got {record.get(name)!r:.100}")
    return record[name]


def _digest(blob: bytes) -> str:
    return blake2b(blob, digest_size=32).hexdigest()


def _state(tensors: dict[str, Tensor], told: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors in the order they had, if they are those that were saved."""
    for name in (*told, *tensors):
        given = list(tensors[name].shape) if name in tensors else "none"
        if given != told.get(name):
            raise ValueError(f"tensor {name!r} must have shape {told.get(name, 'none')}; got {given}")
    return {name: tensors[name] for name in told}


def _try(calibrator: Calibrator) -> None:
    """Let tensors that do not fit the method fail now, by name of the file, and not in production."""
    if calibrator.fitted.k <= PROBED:
        with torch.no_grad():
            out = calibrator(*probe(calibrator, 1))
        if not bool(out.isfinite().all()):
            raise ValueError("its numbers are not finite")


def _encoded_settings(calibrator: Calibrator) -> Any:
    encoded = _encoded(calibrator.settings)
    try:
        same = repr(_decoded(json.loads(json.dumps(encoded)))) == repr(calibrator.settings)
    except (TypeError, ValueError):
        same = False
    if not same:
        raise ValueError(f"settings must be plain JSON, which gives back what it was given; got {calibrator.settings}.")
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


def _fit(told: dict[str, Any]) -> Fit:
    """Return the story of the fit; a tuple came as a list."""
    hints = get_type_hints(Fit)
    strange = next((name for name in told if name not in hints), None)
    if strange:
        raise KeyError(f"a fit has no entry {strange!r:.100}")
    return Fit(**{name: _typed(value, hints[name], name) for name, value in told.items()})


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
