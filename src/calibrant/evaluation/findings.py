"""Report: findings that can be printed, and saved as a page or as JSON."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from calibrant.io.atomic import write_whole
from calibrant.records import Findings, Record, to_json


@dataclass(frozen=True)
class Report(ABC):
    """What was found. ``print`` it, read its ``records``, or ``save`` it as a page (.html) or as .json."""

    findings: Findings

    @property
    def records(self) -> tuple[Record, ...]:
        """Every number, with its interval, noise floor and p-value where it has them."""
        return self.findings.records

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
        path = check_path(Path(path))
        text = to_json(self.findings) if path.suffix == ".json" else self.page()
        write_whole(text.encode(), path)

    def __str__(self) -> str:
        return self.text()


def check_path(path: Path) -> Path:
    """Refuse a path that a report cannot be saved to, before the work starts."""
    if path.suffix not in (".html", ".json"):
        raise ValueError(f"path must end in .html or .json; got {path.name!r}.")
    if path.is_dir():
        raise ValueError(f"path must be a file to write; {str(path)!r} is a folder.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"path must lie in a folder that exists; {str(path.parent)!r} does not.")
    return path
