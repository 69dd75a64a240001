"""Classes and groups: the records of each place in one row, the worst place first."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from calibrant.records import Findings, Record
from calibrant.report import notation

FIRST = ("signed_gap", "accuracy", "mean_confidence")  # what ranks the rows comes first: it is seen on a phone
PLURALS = {"class": "Predicted classes", "group": "Groups"}


@dataclass(frozen=True)
class Place:
    """One class or group, and its records by column."""

    name: str
    cells: Mapping[str, Record]

    @property
    def n(self) -> int:
        """The number of rows behind the place."""
        return max(record.n for record in self.cells.values())

    @property
    def harm(self) -> float:
        """The size of the signed gap; an unknown one is less than none, so that it comes last."""
        gaps = [abs(record.value) for record in self.cells.values() if record.metric == "signed_gap"]
        return -1.0 if not gaps or math.isnan(gaps[0]) else gaps[0]


@dataclass(frozen=True)
class Places:
    """All places of one kind as a table: its title, its columns (key -> heading) and its rows."""

    title: str
    columns: Mapping[str, str]
    rows: tuple[Place, ...]


def tables(findings: Findings) -> list[Places]:
    """Return one table for each kind of place, in the order in which the records first name it."""
    kinds: dict[str, dict[str, list[Record]]] = {}
    for record in findings.records:
        if record.where != "all":
            kind, _, name = record.where.partition(": ")
            kinds.setdefault(kind, {}).setdefault(name, []).append(record)
    return [_table(kind, named) for kind, named in kinds.items()]


def _table(kind: str, named: Mapping[str, list[Record]]) -> Places:
    found = sorted((record for records in named.values() for record in records), key=_rank)
    headings = {_column(record): _heading(record) for record in found}
    places = (Place(name, {_column(record): record for record in records}) for name, records in named.items())
    rows = tuple(sorted(places, key=lambda place: -place.harm))
    return Places(PLURALS.get(kind, kind.capitalize()), headings, rows)


def _rank(record: Record) -> int:
    return FIRST.index(record.metric) if record.metric in FIRST else len(FIRST)


def _column(record: Record) -> str:
    return f"{record.metric} {notation.settings(record.settings)}".strip()


def _heading(record: Record) -> str:
    title, options = notation.name(record.metric), notation.settings(record.settings)
    return f"{title}, {options}" if options else title
