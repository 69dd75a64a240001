"""Selection policies: a threshold to accept or abstain by, its guarantee and the evidence for it, saved as JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.io import entries
from calibrant.io.atomic import write_whole
from calibrant.metrics.binomial import interval
from calibrant.predictions.predictions import Predictions
from calibrant.records import count, percent, plain, versions
from calibrant.selection.reasons import share, sureness
from calibrant.selection.thresholds import read_classes, read_scores

FORMAT = "calibrant.policy"
VERSION = 1
LEVEL = 0.95  # of the interval of the coverage
MOST = 10**15  # rows
LARGEST = float(np.finfo(np.float64).max)
LONGEST = 8192  # characters of a fingerprint


@dataclass(frozen=True)
class Part:
    """One threshold with its evidence: of ``n`` rows ``accepted`` lie above it, ``errors`` of them wrong.

    ``bound`` is what the true error of the accepted is at most; None, as the threshold, where nothing could be promised
    and every row is left to review. ``reason`` says it in words.
    """

    threshold: float | None
    n: int
    accepted: int
    errors: int
    bound: float | None
    reason: str


@dataclass(frozen=True)
class Policy:
    r"""Accept a row if its score is above the threshold; abstain otherwise. Made by `certify`, `certify_sgr`, `review`.

    The promise: over the draw of the calibration rows, the true error of the accepted rows is above ``max_error`` with
    probability at most ``delta``, if new rows come from where the calibration rows came. With one threshold a class
    (``parts`` has an entry for each) it holds for all classes at once; a class without one is never accepted.

    ``policy(confidence)`` gives a bool mask, a tensor for a tensor and an array for anything else; by class,
    ``policy(confidence, predicted)``. NaN is never accepted. Scores of any precision are compared as float64, to which
    they convert without change; a threshold is one of the calibration scores, so compare scores of the same precision.

    ``fingerprint`` and ``sample`` are hashes by which `evaluate` knows the calibration rows again.

    `to_json` is all that a server needs. This applies it without the package:

    .. code-block:: python

        import json

        def accepts(policy: str, confidence: float, predicted: int | None = None) -> bool:
            told = json.loads(policy)
            if told["format"] != "calibrant.policy" or told["version"] != 1:
                raise ValueError("this is not a policy of version 1")
            if told["by_class"] and predicted is None:
                raise ValueError("this policy has one threshold a class")
            part = told["parts"].get(str(predicted) if told["by_class"] else "all")
            return part is not None and part["threshold"] is not None and float(confidence) > part["threshold"]

    Example:
        >>> part = Part(0.75, n=200, accepted=150, errors=1, bound=0.04, reason="")
        >>> policy = Policy(max_error=0.04, delta=0.05, parts={"all": part}, method="fixed_sequence")
        >>> policy(torch.tensor([0.5, 0.75, 0.9]))
        tensor([False, False,  True])
    """

    max_error: float
    delta: float
    parts: Mapping[str, Part]
    method: str
    by_class: bool = False
    score: str = "confidence"
    fingerprint: str = ""
    sample: str = ""
    versions: str = field(default_factory=versions)

    @property
    def threshold(self) -> float | None:
        """Accept above it; None if nothing could be promised. With one a class, read ``parts``."""
        if self.by_class:
            raise ValueError("this policy has one threshold a class; read parts, by class.")
        return self.parts["all"].threshold

    @property
    def feasible(self) -> bool:
        """Whether any row can be accepted under the promise."""
        return any(part.threshold is not None for part in self.parts.values())

    @property
    def n(self) -> int:
        """The number of calibration rows."""
        return sum(part.n for part in self.parts.values())

    @property
    def accepted(self) -> int:
        """How many of the calibration rows are accepted."""
        return sum(part.accepted for part in self.parts.values())

    @property
    def errors(self) -> int:
        """How many of the accepted calibration rows are wrong."""
        return sum(part.errors for part in self.parts.values())

    @property
    def coverage(self) -> float:
        """The share of the calibration rows that is accepted."""
        return self.accepted / self.n

    @property
    def coverage_interval(self) -> tuple[float, float]:
        """The exact 95 % interval of the share accepted among new rows, for this threshold taken as given."""
        return interval(self.accepted, self.n, LEVEL)

    @property
    def reason(self) -> str:
        """What is promised and on which evidence, or why nothing can be; by class, a count of both."""
        if not self.by_class:
            return self.parts["all"].reason
        none = [name for name, part in self.parts.items() if part.threshold is None]
        said = (
            f"{len(self.parts) - len(none)} of {count(len(self.parts))} predicted classes have a threshold that keeps "
            f"the error of their accepted rows at most {share(self.max_error)}, for all classes at once with "
            f"{sureness(self.delta)} confidence; rows of other classes go to review."
        )
        most = max(none, key=lambda name: self.parts[name].n, default=None)
        return said if most is None else f"{said} Class {most}: {self.parts[most].reason}"

    def __call__(self, confidence: Any, predicted: Any = None) -> Any:
        """Return which rows to accept: a bool mask of the kind that came."""
        if isinstance(confidence, Predictions):
            if self.score != "confidence":
                raise ValueError(f"confidence must be the score {self.score!r} of each row; Predictions hold several.")
            return self(confidence.confidence, confidence.predicted if self.by_class else None)
        if self.by_class != (predicted is not None):
            needs = "predicted must be given" if self.by_class else "predicted must be left out"
            raise ValueError(
                f"{needs}: this policy has {'one threshold a class' if self.by_class else 'one threshold'}."
            )
        score = read_scores(confidence)
        mask = score > (self._by_row(read_classes(predicted, len(score))) if self.by_class else self._limit("all"))
        return torch.from_numpy(mask).to(confidence.device) if isinstance(confidence, Tensor) else mask

    def _limit(self, name: str) -> float:
        part = self.parts.get(name)
        return math.inf if part is None or part.threshold is None else part.threshold

    def _by_row(self, predicted: Any) -> Any:
        classes, place = np.unique(predicted, return_inverse=True)
        return np.array([self._limit(str(c)) for c in classes])[place]

    def to_json(self) -> str:
        """Write everything as JSON; numbers are read back exactly."""
        told = {
            "format": FORMAT,
            "version": VERSION,
            "rule": "accept if confidence > threshold",
            **{name: value for name, value in asdict(self).items() if name != "parts"},
            "n": self.n,
            "accepted": self.accepted,
            "errors": self.errors,
            "coverage": self.coverage,
            "coverage_interval": list(self.coverage_interval),
            "parts": {name: asdict(part) for name, part in self.parts.items()},
        }
        return json.dumps(plain(told), indent=1, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> "Policy":
        """Read what `to_json` wrote."""
        try:
            told = entries.parsed(text)
        except (ValueError, TypeError) as error:
            raise ValueError(f"a policy must be JSON; {error}.") from None
        if not isinstance(told, dict) or told.get("format") != FORMAT:
            raise ValueError(f"a policy must be a JSON object of format {FORMAT!r}; this is something else.")
        if type(told.get("version")) is not int or told["version"] != VERSION:
            raise ValueError(f"a policy must be of version {VERSION}; got {told.get('version')!r:.50}.")
        try:
            parts = {name: _part(part) for name, part in entries.entry(told, "parts", dict).items()}
            made = cls(
                max_error=entries.number(told, "max_error", 0.0, 1.0),
                delta=entries.number(told, "delta", 0.0, 1.0),
                parts=parts,
                method=entries.entry(told, "method", str),
                by_class=entries.entry(told, "by_class", bool),
                score=entries.entry(told, "score", str),
                fingerprint=entries.hexadecimal(told, "fingerprint", LONGEST),
                sample=entries.hexadecimal(told, "sample", LONGEST),
                versions=entries.entry(told, "versions", str),
            )
            classes = bool(parts) and all(name.lstrip("-").isdecimal() for name in parts)
            if not (classes if made.by_class else list(parts) == ["all"]) or len(made.sample) % 8:
                raise ValueError(f"parts must be named by class, or be one for all rows; got {list(parts)!r:.50}")
            for name in ("n", "accepted", "errors"):
                if told.get(name) != getattr(made, name):
                    raise ValueError(f"{name} must be the sum over its parts; got {told.get(name)!r:.50}")
        except (ValueError, TypeError) as error:
            raise ValueError(f"a policy must hold what `to_json` wrote; this one is damaged: {error}.") from None
        return made

    def save(self, path: str | Path) -> None:
        """Write the JSON to a file, all of it or nothing."""
        write_whole(self.to_json().encode(), Path(path))

    @classmethod
    def load(cls, path: str | Path) -> "Policy":
        """Read a policy from a file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} does not exist.") from None
        except (UnicodeDecodeError, IsADirectoryError):
            raise ValueError(f"{path} must be a policy, a JSON text; it is something else.") from None
        try:
            return cls.from_json(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def __str__(self) -> str:
        if not self.feasible:
            return self.reason
        low, high = (percent(bound, 1) for bound in self.coverage_interval)
        spread = f"{percent(self.coverage, 1)} [{low}, {high}]"
        return f"{self.reason} It covers {spread} of the rows; {percent(1 - self.coverage, 1)} go to review."


def _part(told: Any) -> Part:
    if not isinstance(told, dict):
        raise TypeError(f"a part must be an object; got {told!r:.50}")
    n = entries.whole(told, "n", 1, MOST)
    accepted = entries.whole(told, "accepted", 0, n)
    threshold, bound = told.get("threshold"), told.get("bound")
    return Part(
        threshold=None if threshold is None else entries.number(told, "threshold", -LARGEST, LARGEST),
        n=n,
        accepted=accepted,
        errors=entries.whole(told, "errors", 0, accepted),
        bound=None if bound is None else entries.number(told, "bound", 0.0, 1.0),
        reason=entries.entry(told, "reason", str),
    )
