"""Findings of the demonstration -> text for a terminal: what was found, one table, and what to take from it."""

import textwrap
from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.table import Table

from calibrant.records import Findings
from calibrant.report import notation
from calibrant.report.demo_rows import NOISE, TITLES, Row, rows

WIDTH = 100
HEADINGS = ("", "accuracy", "log loss", "Brier", "ECE", "[90 %]", "noise floor (95 %)")


def text(findings: Findings) -> str:
    """Write the headline, the rows of each data set, and the paragraph."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for dataset in TITLES:
        table.add_row(TITLES[dataset].partition(":")[0])
        for row in rows(findings, dataset):
            table.add_row(f"{'*' if row.chosen else ' '} {row.name}", *_cells(row))
    console = Console(file=StringIO(), width=2 * WIDTH, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        console.print(table)
    lines = [line.rstrip() for line in written.get().splitlines()]
    legend = "* chosen; lower is better but for accuracy; all rows are test rows, which nothing was fitted on"
    filled = (textwrap.fill(part, WIDTH) for part in (findings.verdict, findings.understood, *findings.notes))
    end = (textwrap.fill(part, WIDTH) for part in (paragraph(findings), NOISE))
    return "\n\n".join([*filled, "\n".join([*lines, legend]), *end]) + "\n"


def paragraph(findings: Findings) -> str:
    """Return the sentences as one paragraph."""
    return " ".join(findings.advice)


def _cells(row: Row) -> Iterable[str]:
    error = row.cells["top_label_ece"]
    for metric in ("accuracy", "nll", "brier"):
        yield notation.number(row.cells[metric].value)
    yield notation.number(error.value)
    yield notation.interval(error)
    yield f"{notation.number(error.floor or 0.0)} ({notation.number(error.floor_high or 0.0)})"
