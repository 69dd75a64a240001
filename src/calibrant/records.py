"""Record, Curve and Findings: the frozen data that reports read, and how counts and shares are written."""

import itertools
import json
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray


@cache
def versions() -> str:
    """Say what computed a number: package, torch, numpy and Python.

    Example:
        >>> versions().startswith("calibrant ")
        True
    """
    names = ("calibrant", "torch", "numpy", "scipy")
    return ", ".join([*(f"{name} {_version(name)}" for name in names), f"python {platform.python_version()}"])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"


@dataclass(frozen=True)
class Record:
    """One number, how sure we are of it, and everything needed to say where it came from.

    ``low`` and ``high`` bound the interval of the given ``level``; ``floor`` is the mean of the metric, and
    ``floor_high`` its 95th percentile, when labels are drawn from the model's own probabilities; ``p`` is the
    probability of a value at least as bad under that. None where it was not computed; ``value`` NaN where the metric
    is undefined. ``where`` is "all", "class: NAME" or "group: NAME"; ``settings`` are the metric's options.
    """

    metric: str
    value: float
    n: int
    low: float | None = None
    high: float | None = None
    level: float | None = None
    floor: float | None = None
    floor_high: float | None = None
    p: float | None = None
    where: str = "all"
    settings: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
    dataset: str = ""
    seed: int | None = None
    method: str = ""
    versions: str = field(default_factory=versions)


@dataclass(frozen=True)
class Curve:
    """A named table of equally long columns: what a figure draws, and all it draws."""

    name: str
    columns: Mapping[str, NDArray[Any]]
    n: int
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError(f"columns of the curve {self.name!r} must be equally long.")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, column: str) -> NDArray[Any]:
        return self.columns[column]


@dataclass(frozen=True)
class Findings:
    """Everything a report shows: sentences, records and curves. A report computes nothing beyond them."""

    understood: str
    verdict: str
    notes: tuple[str, ...]
    advice: tuple[str, ...]
    records: tuple[Record, ...]
    curves: tuple[Curve, ...]

    def curve(self, name: str) -> Curve | None:
        """Return the curve of that name, or None."""
        return next((c for c in self.curves if c.name == name), None)

    def record(self, metric: str, where: str = "all") -> Record | None:
        """Return the record of that metric and place, or None."""
        return next((r for r in self.records if r.metric == metric and r.where == where), None)


def scalars(records: Sequence[Record]) -> dict[str, float]:
    """Return the values under unique keys, as trackers of experiments want them.

    A key is the metric; before it stands the method, if there is one, and after it the options in which records of that
    metric differ and the class or group. Characters that trackers refuse become underscores; keys that are equal then
    are numbered.

    Example:
        >>> scalars([Record("ece", 0.1, 9), Record("ece", 0.3, 4, where="class: cat")])
        {'ece': 0.1, 'ece/class/cat': 0.3}
        >>> scalars([Record("corp", 0.1, 9, settings={"score": s}) for s in ("brier", "log")])
        {'corp/score.brier': 0.1, 'corp/score.log': 0.1}
    """
    same: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        same.setdefault((record.method, record.metric, record.where), []).append(record)
    found: dict[str, float] = {}
    for record in records:
        others = same[record.method, record.metric, record.where]
        varied = [
            f"{name}.{value}"
            for name, value in record.settings.items()
            if any(other.settings.get(name) != value for other in others)
        ]
        place = [] if record.where == "all" else [part.strip() for part in record.where.split(":", 1)]
        key = re.sub(r"[^\w .:/-]", "_", "/".join([*filter(None, [record.method]), record.metric, *varied, *place]))
        number = next(i for i in itertools.count(1) if (key if i == 1 else f"{key}:{i}") not in found)
        found[key if number == 1 else f"{key}:{number}"] = record.value
    return found


def to_json(findings: Findings) -> str:
    """Write findings as JSON; a number that is not finite becomes null."""
    return json.dumps(plain(asdict(findings)), indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """Return the same content in types that JSON knows.

    Example:
        >>> plain({"a": (1, float("nan"))})
        {'a': [1, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [plain(item) for item in (value.tolist() if isinstance(value, np.ndarray) else value)]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def count(n: int) -> str:
    """Write a number of rows in groups of three.

    Example:
        >>> count(12345)
        '12 345'
    """
    return f"{n:,}".replace(",", " ")


def percent(share: float, digits: int = 0) -> str:
    """Write a share as a percentage.

    Example:
        >>> percent(0.871), percent(0.0213, 1)
        ('87 %', '2.1 %')
    """
    return f"{100 * share:.{digits}f} %"
