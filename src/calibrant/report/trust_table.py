"""Findings about trust predictors -> text for a terminal: the verdict, the papers' table in percent, what to do."""

import textwrap
from collections.abc import Iterable, Mapping
from io import StringIO

from rich.console import Console
from rich.table import Table

from calibrant.records import Findings, Record
from calibrant.report.trust_rows import COLUMNS, OUTLIERS, Row, bounds, change, named, percent, rows, shortened

WIDTH = 100
WIDE = 200  # a table that is cut is worse than one that wraps
LEGEND = "in percent; higher is better but for FPR-95 and AURC"
CHANGE = "AUC change: against {against}, on the same rows"
TOGETHER = "its intervals of one set of rows hold together with {together:.3g} %; sets are not corrected for"
OUTSIDE = "rows out of distribution, in percent; higher is better but for FPR-95; [{level} % interval]"


def text(findings: Findings) -> str:
    """Write the verdict, the table with one block for each shift, and what to do next."""
    headings = [heading.replace("AUPR-", "AUPR-\n") for heading in COLUMNS.values()]
    table = _table(("", *headings, "AUC change"))
    blocks = {
        "": rows(findings.records),
        **{f"shift: {name}": found for name, found in named(findings, "shift").items()},
    }
    for title, block in blocks.items():
        if title:
            table.add_row(_named(title))
        for row in block:
            table.add_row(f"  {_named(row.name)}", *_cells(row, COLUMNS), change(row.change))
    parts = [findings.verdict, findings.understood, *(f"Warning: {note}" for note in findings.notes)]
    filled = [textwrap.fill(_printable(part), WIDTH) for part in parts]
    shown = [*filled, "\n".join([_drawn(table), *legend(findings)])]
    outside = [record for record in findings.records if record.where.startswith("outside: ")]
    if outside:
        shown.append(outliers(outside))
    listed = [
        textwrap.fill(_printable(step), WIDTH, initial_indent="  ", subsequent_indent="  ") for step in findings.advice
    ]
    if listed:
        shown.append("\n".join(["What to do next", *listed]))
    return "\n\n".join(shown) + "\n"


def legend(findings: Findings) -> Iterable[str]:
    """Yield what must be known to read the table."""
    yield LEGEND
    told = [record for record in findings.records if record.metric == "failure_auroc_change"]
    if told:
        yield CHANGE.format(against=_printable(str(told[0].settings["against"])))
    if any(record.low is not None for record in told):
        yield TOGETHER.format(together=100 * float(told[0].settings["together"]))


def outliers(records: Iterable[Record]) -> str:
    """Write the table of scores that tell rows in distribution from those out of it, a block for each set."""
    records = tuple(records)
    if not records:
        raise ValueError("records must hold at least one record of calibrant.evaluation.ood.outlier_records; got none.")
    table = _table(("", "AUROC", "", *list(OUTLIERS.values())[1:]))
    for name, block in named(Findings("", "", (), (), records, ()), "outside").items():
        table.add_row(_named(name))
        for row in block:
            first, *others = _cells(row, OUTLIERS)
            table.add_row(f"  {_named(row.name)}", first, bounds(row.cells.get("ood_auroc")), *others)
    level = next((record.level for record in records if record.level is not None), 0.0)
    return f"{_drawn(table)}\n{OUTSIDE.format(level=f'{100 * level:.3g}')}"


def _cells(row: Row, columns: Mapping[str, str]) -> Iterable[str]:
    for metric in columns:
        record = row.cells.get(metric)
        yield "" if record is None else percent(record.value)


def _table(headings: Iterable[str]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _drawn(table: Table) -> str:
    console = Console(file=StringIO(), width=WIDE, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        console.print(table)
    return "\n".join(line.rstrip() for line in written.get().splitlines())


def _named(name: str) -> str:
    """Shorten a name, so that the numbers beside it stay on the line."""
    return _printable(shortened(name))


def _printable(words: str) -> str:
    """Replace what a terminal would obey instead of show."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in words)
