"""records of several methods -> one aligned table, a row a method, the chosen one marked."""

from collections.abc import Iterable
from io import StringIO

from rich.console import Console
from rich.table import Table

from calibrant.records import Record
from calibrant.report import notation

HEADINGS = (
    "method",
    "log\nloss",
    "against\nidentity",
    "Brier",
    "ECE,\nl2",
    "noise floor\n(95 %)",
    "accu-\nracy",
    "fit,\ns",
    "para-\nmeters",
)
WIDE = 200  # a table that is cut is worse than one that wraps
LEGEND = "* chosen; ± is one standard error of the paired difference; log loss, Brier, ECE: lower is better"


def text(records: Iterable[Record], chosen: str) -> str:
    """Write the table of methods in the order in which the records name them."""
    methods: dict[str, dict[str, Record]] = {}
    for record in records:
        methods.setdefault(record.method, {})[record.metric] = record
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for name, found in methods.items():
        if "failed" not in found:
            table.add_row(f"* {name}" if name == chosen else f"  {name}", *_cells(found))
    failed = [
        f"  {name} failed: {found['failed'].settings['reason']}" for name, found in methods.items() if "failed" in found
    ]
    console = Console(file=StringIO(), width=WIDE, color_system=None, markup=False, highlight=False, emoji=False)
    with console.capture() as written:
        console.print(table)
    return "\n".join([*(line.rstrip() for line in written.get().splitlines()), *failed, LEGEND])


def _cells(found: dict[str, Record]) -> Iterable[str]:
    error = found["ece_debiased"]
    yield notation.number(found["nll"].value)
    yield _change(found["nll_change"])
    yield notation.number(found["brier"].value)
    yield notation.number(error.value)
    yield f"{notation.number(error.floor or 0.0)} ({notation.number(error.floor_high or 0.0)})"
    yield f"{100 * found['accuracy_change'].value:+.2f} %"
    yield f"{found['fit_seconds'].value:.2g}"
    yield notation.count(round(found["parameters"].value))


def _change(record: Record) -> str:
    if record.low is None or record.high is None or record.low == record.high:
        return ""
    return f"{notation.number(record.value, signed=True)} ± {notation.number((record.high - record.low) / 2)}"
