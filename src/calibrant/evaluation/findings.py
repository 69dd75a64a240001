"""Report: findings that can be printed, and saved as a page or as JSON."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from calibrant.io.atomic import check_target, write_whole
from calibrant.records import Findings, Record, scalars, to_json

ENDINGS = (".html", ".json")


@dataclass(frozen=True)
class Report(ABC):
    """What was found. ``print`` it, read its ``records``, or ``save`` it as a page (.html) or as .json."""

    findings: Findings

    @property
    def records(self) -> tuple[Record, ...]:
        """Every number, with its interval, noise floor and p-value where it has them."""
        return self.findings.records

    def scalars(self) -> dict[str, float]:
        """Return every value under a key of its own, for a tracker of experiments: ``mlflow.log_metrics(...)``."""
        return scalars(self.records)

    @property
    def verdict(self) -> str:
        """The conclusion in words."""
        return self.findings.verdict

    @abstractmethod
    def page(self) -> str:
        """Return a self-contained page."""

    @abstractmethod
    def text(self) -> str:
        """Return what a terminal shows."""

    def save(self, path: str | Path) -> None:
        """Write a self-contained page to ``*.html``, or everything as JSON to ``*.json``, completely or not at all."""
        path = check_target(Path(path), ENDINGS)
        text = to_json(self.findings) if path.suffix == ".json" else self.page()
        write_whole(text.encode(), path)

    def __str__(self) -> str:
        return self.text()
