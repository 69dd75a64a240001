"""Read predictions from .npz, .csv and .parquet files, and write them to .npz. No pickle is read or written."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from calibrant.io.atomic import write_arrays
from calibrant.io.npz import read_arrays
from calibrant.io.tables import read_csv, read_parquet
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
    readers: dict[str, Callable[[Path], tuple[dict[str, Any], list[str]]]] = {
        ".npz": lambda path: read_arrays(path, NAMES),
        ".csv": lambda path: _gathered(path, *read_csv(path, _known)),
        ".parquet": lambda path: _gathered(path, *read_parquet(path, _known)),
    }
    suffix = path.suffix.lower()
    if suffix not in readers:
        raise ValueError(f"{path.name} must end in .npz, .csv or .parquet; got {path.suffix or 'no ending'!r}.")
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist or is not a file.")
    arrays, held = readers[suffix](path)
    if not set(arrays) & {*SCORES, "confidence"}:
        raise ValueError(f"{path.name} must hold one of {', '.join(SCORES)}, confidence; it holds {_some(held)}.")
    truth = "correct" if "confidence" in arrays else "labels"
    if truth not in arrays and (labelled or truth == "correct"):
        raise ValueError(f"{path.name} must hold {truth}; it holds {_some(held)}.")
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


def _some(names: list[str]) -> str:
    shown = ", ".join(name if name.isprintable() else repr(name) for name in names[:8])
    return f"{shown[:200]}{', ...' if len(names) > 8 or len(shown) > 200 else ''}" or "nothing"


def _known(column: str) -> bool:
    return column in (*COLUMNS, *SCORES) or column.startswith(tuple(f"{kind}_" for kind in SCORES))


def _gathered(path: Path, columns: Mapping[str, list[Any]], held: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Collect single columns and the columns of scores into arrays."""
    single = [name for name in (*COLUMNS, *SCORES) if name in columns]
    arrays: dict[str, Any] = {name: _column(columns[name], name, path) for name in single}
    for kind in SCORES:
        found = [name for name in columns if name.startswith(f"{kind}_")]
        if found and kind in arrays:
            raise ValueError(
                f"{path.name} must hold {kind} in one column or in several; it holds {kind} and {found[0]}."
            )
        if found:
            arrays[kind] = np.stack([_column(columns[name], name, path) for name in found], 1)
            names = [name.removeprefix(f"{kind}_") for name in found]
            if names != [str(i) for i in range(len(names))] and len(names) > 1:
                arrays["classes"] = names
    return arrays, held


def _column(values: list[Any], name: str, path: Path) -> Array:
    if name == "groups":
        return np.array([str(v) for v in values])
    if name == "correct":
        values = [{"true": 1, "false": 0}.get(str(v).lower(), v) for v in values]
    try:
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        if name == "labels":
            return np.array([str(v) for v in values])
        odd = next((v for v in values if not _is_number(v)), "rows of different lengths")
        raise ValueError(f"{path.name}: column {name} must hold numbers; it holds {odd!r:.60}.") from None
    if numbers.ndim > 1 and name not in SCORES:
        raise ValueError(f"{path.name}: column {name} must hold one number a row; it holds {numbers.shape[1]}.")
    whole = name in ("labels", "correct") and bool((numbers == np.round(numbers)).all())
    exact = whole and bool((np.abs(numbers) < 2**53).all())
    return numbers.astype(np.int64) if exact else numbers


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True
