"""Text for a terminal: the audit's verdict, table and advice, and the aligned tables that other reports share."""

from collections.abc import Iterable
from io import StringIO

from calibrant.records import Findings, Record
from calibrant.report import notation, sections
from calibrant.report.notation import printable
from calibrant.report.rich_parts import Console, Padding, Table
from calibrant.report.sections import Place, Places, Section

SHOWN = 5
UNCUT = 200  # a table that is cut is worse than one that wraps
WIDE = 96  # below it, columns would break words; each record then becomes a phrase that folds
WIDE_HEADINGS = ("value", "interval", "noise floor", "p", "better")
NARROW_HEADINGS = ("value [interval], noise floor, p, better",)

Filled = list[tuple[Section, list[Record]]]


def text(findings: Findings, width: int = 100) -> str:
    """Format the audit as plain text of at most the given width."""
    console = _console(width)
    with console.capture() as written:
        _opening(console, findings)
        if filled := sections.grouped(findings):
            console.print(_measures(filled, width))
        for table in sections.tables(findings):
            console.print(_places(table))
        _listed(console, "What to do next", findings.advice)
    return "\n".join(line.rstrip() for line in written.get().splitlines()).strip() + "\n"


def _opening(console: Console, findings: Findings) -> None:
    console.print(printable(findings.verdict), "\n")
    console.print(printable(findings.understood))
    for note in findings.notes:
        console.print(f"Warning: {printable(note)}")
    console.print()


def _measures(filled: Filled, width: int) -> Table:
    sizes = {record.n for _, records in filled for record in records}
    same = f"n = {notation.count(sizes.pop())}" if len(sizes) == 1 else ""
    sized = () if same else ("n",)
    row, headings = (_columns, WIDE_HEADINGS) if width >= WIDE else (_sentence, NARROW_HEADINGS)
    table = _table(same, *headings, *sized)
    for section, records in filled:
        table.add_row(section.title)
        for record in records:
            table.add_row(_title(record), *row(record), *(notation.count(record.n) for _ in sized))
        table.add_row()
    return table


def _title(record: Record) -> Padding:
    options = notation.settings(record.settings)
    return _indented(record.metric + (f" ({options})" if options else ""))


def _columns(record: Record) -> tuple[str, ...]:
    return (
        notation.value(record),
        notation.interval(record),
        notation.floor(record),
        notation.p_value(record),
        notation.better(record.metric),
    )


def _sentence(record: Record) -> tuple[str]:
    floor, p = notation.floor(record), notation.p_value(record)
    parts = [notation.estimate(record), floor and f"noise floor {floor}", p and f"p {p}"]
    parts.append(notation.direction(record.metric))
    return (", ".join(part for part in parts if part),)


def _places(table: Places) -> Padding:
    shown = _table(table.title, *(column.replace(" ", "\n", 1) for column in table.columns), "n")
    for place in table.rows[:SHOWN]:
        shown.add_row(_indented(place.name), *_cells(place, table.columns), notation.count(place.n))
    left = len(table.rows) - SHOWN
    if left > 0:
        shown.add_row(_indented(f"and {notation.count(left)} more, less far off"))
    return Padding(shown, (0, 0, 1, 0))


def _cells(place: Place, columns: Iterable[str]) -> Iterable[str]:
    for key in columns:
        record = place.cells.get(key)
        yield "" if record is None else _cell(record)


def _cell(record: Record) -> str:
    p = notation.p_value(record)
    return notation.estimate(record) + (f" p {p}" if p else "")


def _listed(console: Console, title: str, sentences: tuple[str, ...]) -> None:
    if sentences:
        console.print(title)
    for sentence in sentences:
        console.print(_indented(sentence))


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for position, heading in enumerate(headings):
        left = position == 0 or heading in NARROW_HEADINGS
        table.add_column(heading, justify="left" if left else "right", overflow="fold")
    return table


def _indented(words: str) -> Padding:
    return Padding(printable(words), (0, 0, 0, 2))


def aligned(headings: Iterable[str], *, gap: int = 2) -> Table:
    """Return an empty table without borders: the first column to the left, the others to the right."""
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="")
    for position, heading in enumerate(headings):
        table.add_column(heading, justify="right" if position else "left", no_wrap=True)
    return table


def drawn(table: Table) -> str:
    """Return a table as plain text."""
    console = _console(UNCUT)
    with console.capture() as written:
        console.print(table)
    return "\n".join(line.rstrip() for line in written.get().splitlines())


def _console(width: int) -> Console:
    """Return a console that reads no markup: names come from the user's data."""
    return Console(file=StringIO(), width=width, color_system=None, markup=False, highlight=False, emoji=False)
