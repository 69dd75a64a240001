"""Read predictions from .npz, .csv and .parquet files, and write them to .npz. No pickle is read or written."""

import csv
import zipfile
import zlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.io.atomic import write_arrays
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array

SCORES = ("logits", "probs", "log_probs")
COLUMNS = ("confidence", "correct", "labels", "groups", "weights")
NAMES = (*SCORES, *COLUMNS, "features", "classes")


def read(path: str | Path, *, ignore_index: int | None = None, labelled: bool = True) -> Predictions:
    """Read predictions; every failure is a ValueError or OSError of one sentence that names the file.

    A .npz holds arrays named as the parameters of `Predictions`. A .csv or .parquet holds columns ``labels`` or
    ``correct``, ``confidence``, ``groups``, ``weights``, and scores as ``logits_NAME``, ``probs_NAME`` or
    ``log_probs_NAME``, one per class, NAME being the class (names 0, 1, ... in order mean indices).
    ``labelled=False`` reads scores without labels too.
    """
    path = Path(path)
    readers = {".npz": _npz, ".csv": _csv, ".parquet": _parquet}
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{path.name} must end in .npz, .csv or .parquet; got {path.suffix or 'no ending'!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    arrays = readers[suffix](path)
    if not set(arrays) & {*SCORES, "confidence"}:
        raise ValueError(
            f"{path.name} must hold one of {', '.join(SCORES)}, confidence; it holds {_list(arrays) or 'nothing'}."
        )
    truth = "correct" if "confidence" in arrays else "labels"
    if truth not in arrays and (labelled or truth == "correct"):
        raise ValueError(f"{path.name} must hold {truth}; it holds {_list(arrays)}.")
    return Predictions(**{name: arrays[name] for name in NAMES if name in arrays}, ignore_index=ignore_index)


def write(path: str | Path, predictions: Predictions) -> None:
    """Write logits to a .npz that `read` reads, with the labels, classes, groups, weights and features that came.

    Scores that came as one column, that of class 1 of two, leave as one: its logit.
    """
    z, classes = predictions.logits.detach().cpu(), predictions.classes
    arrays: dict[str, Any] = {"logits": (z[:, 1] - z[:, 0] if predictions.rows.one_column else z).numpy()}
    if predictions.rows.labels is not None:
        labels = predictions.labels.numpy()
        arrays["labels"] = labels if classes is None else np.array(classes)[labels]
    if classes is not None:
        arrays["classes"] = np.array(classes)
    if predictions.groups is not None:
        arrays["groups"] = predictions.groups.astype(str)
    if predictions.weights is not None:
        arrays["weights"] = predictions.weights.numpy()
    with suppress(ValueError):  # raised where no features came
        arrays["features"] = predictions.features.detach().cpu().numpy()
    write_arrays(arrays, Path(path))


def check_target(path: Path, ending: str, inputs: Iterable[Path] = ()) -> None:
    """Refuse a place where a file cannot be written; better before the work than after."""
    if path.suffix != ending:
        raise ValueError(f"{path.name} must end in {ending}; got {path.suffix or 'no ending'!r}.")
    if path.is_dir():
        raise ValueError(f"{path} must be a file to write; it is a folder.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path} must lie in a folder that exists; {str(path.parent)!r} does not.")
    if path.resolve() in {other.resolve() for other in inputs}:
        raise ValueError(f"{path} must not be a file that is read; name another.")


def _list(arrays: dict[str, Any]) -> str:
    return ", ".join(list(arrays)[:8])


def _npz(path: Path) -> dict[str, Any]:
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path.name} must be a whole .npz archive; it is truncated or damaged, or no archive.")
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
        raise ValueError(f"{path.name} must be a whole .npz archive; it is truncated or damaged ({error}).") from None
    except ValueError as error:
        reason = "Python objects" if "pickle" in str(error) else f"something else ({error})"
        raise ValueError(f"{path.name} must hold plain arrays; it holds {reason}.") from None


def _csv(path: Path) -> dict[str, Any]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path.name} must be a UTF-8 csv file; {error}.") from None
    if len(rows) < 2:
        raise ValueError(f"{path.name} must have a header and at least one row; it has {len(rows)} lines.")
    header = [name.strip() for name in rows[0]]
    twice = next((name for i, name in enumerate(header) if name in header[:i]), None)
    if twice is not None:
        raise ValueError(f"{path.name} must have distinct columns; {twice!r} is there twice.")
    body = [(line, row) for line, row in enumerate(rows[1:], 2) if row]
    short = next((line for line, row in body if len(row) != len(header)), None)
    if short is not None:
        raise ValueError(f"{path.name} must have {len(header)} fields in each row; line {short} has another number.")
    columns = zip(*(row for _, row in body), strict=True)
    return _gather(dict(zip(header, (list(column) for column in columns), strict=True)), path)


def _parquet(path: Path) -> dict[str, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError("reading .parquet needs pyarrow; install calibrant[parquet].") from None
    try:
        table = parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{path.name} must be a whole .parquet file; {str(error).splitlines()[0]}.") from None
    if table.num_rows == 0:
        raise ValueError(f"{path.name} must have at least one row; it has none.")
    return _gather({name: table[name].to_pylist() for name in table.column_names}, path)


def _gather(columns: dict[str, list[Any]], path: Path) -> dict[str, Any]:
    """Collect single columns and the columns of scores into arrays."""
    arrays: dict[str, Any] = {}
    for name in (*COLUMNS, *SCORES):
        if name in columns:
            arrays[name] = _column(columns[name], name, path)
    for kind in SCORES:
        found = [name for name in columns if name.startswith(f"{kind}_")]
        if found:
            arrays[kind] = np.stack([_column(columns[name], name, path) for name in found], 1)
            names = [name.removeprefix(f"{kind}_") for name in found]
            if names != [str(i) for i in range(len(names))] and len(names) > 1:
                arrays["classes"] = names
    if not set(arrays) & {*SCORES, "confidence"}:
        return dict.fromkeys(columns)  # nothing known: let the caller say what is there
    return arrays


def _column(values: list[Any], name: str, path: Path) -> Array:
    if name == "groups":
        return np.array([str(v) for v in values])
    if name == "correct":
        values = [{"true": 1, "false": 0}.get(str(v).lower(), v) for v in values]
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        if name == "labels":
            return np.array([str(v) for v in values])
        odd = next(v for v in values if not _is_number(v))
        raise ValueError(f"{path.name}: column {name} must hold numbers; it holds {odd!r}.") from None
    whole = name in ("labels", "correct") and bool((numbers == np.round(numbers)).all())
    return numbers.astype(np.int64) if whole else numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True
