"""The trust report's tables in percent: rows by predictor, and the text for a terminal."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrant.records import Curve, Findings, Record
from calibrant.report.notation import printable
from calibrant.report.table import aligned, drawn

WIDTH = 100
LEGEND = "in percent; higher is better but for FPR-95 and AURC"
CHANGE = "AUC change: against {against}, on the same rows"
TOGETHER = "its intervals of one set of rows hold together with {together:.3g} %; sets are not corrected for"
OUTSIDE = "rows out of distribution, in percent; higher is better but for FPR-95; [{level} % interval]"
# metric -> heading; the first seven are the columns of the papers' tables, in their order
COLUMNS = {
    "accuracy": "Acc",
    "fpr_at_95_tpr": "FPR-95",
    "aupr_error": "AUPR-Error",
    "aupr_success": "AUPR-Success",
    "failure_auroc": "AUC",
    "tpr": "TPR",
    "tnr": "TNR",
    "aurc": "AURC",
}
OUTLIERS = {
    "ood_auroc": "AUROC",
    "fpr_at_95_tpr": "FPR-95",
    "aupr_in": "AUPR-In",
    "aupr_out": "AUPR-Out",
}
LONGEST = 40  # letters of a name in a legend, or in a table of the terminal
SEPARABILITY = {"separability_kl": "Kullback-Leibler", "separability_bhattacharyya": "Bhattacharyya"}


@dataclass(frozen=True)
class Row:
    """One predictor: records by metric, AUROC difference to the baseline, AUPR-Error with the wrong sign."""

    name: str
    cells: Mapping[str, Record]
    change: Record | None
    wrong_sign: Record | None


def rows(records: Iterable[Record], where: str = "all") -> list[Row]:
    """Return a row for each predictor at a place, in the order of the records.

    Example:
        >>> [row.name for row in rows([Record("accuracy", 0.9, 10, method="mcp")])]
        ['mcp']
    """
    cells: dict[str, dict[str, Record]] = {}
    for record in records:
        if record.where == where and record.method:
            key = "wrong sign" if "sign" in record.settings else record.metric
            cells.setdefault(record.method, {})[key] = record
    return [
        Row(name, found, found.get("failure_auroc_change"), found.get("wrong sign")) for name, found in cells.items()
    ]


def named(findings: Findings, kind: str) -> dict[str, list[Row]]:
    """Return the rows of every place of a kind ("shift", "outside") by its name."""
    places = dict.fromkeys(record.where for record in findings.records if record.where.startswith(f"{kind}: "))
    return {where.removeprefix(f"{kind}: "): rows(findings.records, where) for where in places}


def by_method(findings: Findings, name: str) -> dict[str, Curve]:
    """Return the curves of that name by predictor."""
    return {str(curve.settings["method"]): curve for curve in findings.curves if curve.name == name}


def shortened(name: str, most: int = LONGEST) -> str:
    """Shorten a long name in the middle: names often differ at the ends.

    Example:
        >>> shortened("resnet50_seed_1_alpha_3", 14)
        'resnet50_…ha_3'
    """
    return name if len(name) <= most else f"{name[: most - most // 3 - 1]}\N{HORIZONTAL ELLIPSIS}{name[-(most // 3) :]}"


def percent(value: float | None, *, signed: bool = False, digits: int = 2) -> str:
    """Format a share in percent, without the sign.

    Example:
        >>> percent(0.92184), percent(-0.0012, signed=True), percent(float("nan"))
        ('92.18', '-0.12', 'undefined')
    """
    if value is None or math.isnan(value):
        return "undefined"
    said = f"{100 * value:{'+' if signed else ''}.{digits}f}"
    return said.replace("-", "") if signed and float(said) == 0 else said


def bounds(record: Record | None, *, signed: bool = False, digits: int = 2) -> str:
    """Format the interval in percent; empty where there is none.

    Example:
        >>> bounds(Record("tpr", 0.5, 10, low=0.4, high=0.612), digits=1)
        '[40.0, 61.2]'
    """
    if record is None or record.low is None or record.high is None:
        return ""
    ends = (percent(end, signed=signed, digits=digits) for end in (record.low, record.high))
    return f"[{', '.join(ends)}]"


def change(record: Record | None, *, digits: int = 2) -> str:
    """Format a difference with its interval; empty where there is none."""
    if record is None:
        return ""
    return f"{percent(record.value, signed=True, digits=digits)} {bounds(record, signed=True, digits=digits)}".strip()


def text(findings: Findings) -> str:
    """Format the verdict, the table with one block for each shift, and what to do next."""
    headings = [heading.replace("AUPR-", "AUPR-\n") for heading in COLUMNS.values()]
    table = aligned(("", *headings, "AUC change"))
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
    filled = [textwrap.fill(printable(part), WIDTH) for part in parts]
    shown = [*filled, "\n".join([drawn(table), *legend(findings)])]
    outside = [record for record in findings.records if record.where.startswith("outside: ")]
    if outside:
        shown.append(outliers(outside))
    listed = [
        textwrap.fill(printable(step), WIDTH, initial_indent="  ", subsequent_indent="  ") for step in findings.advice
    ]
    if listed:
        shown.append("\n".join(["What to do next", *listed]))
    return "\n\n".join(shown) + "\n"


def legend(findings: Findings) -> Iterable[str]:
    """Yield the lines of the legend."""
    yield LEGEND
    told = [record for record in findings.records if record.metric == "failure_auroc_change"]
    if told:
        yield CHANGE.format(against=printable(str(told[0].settings["against"])))
    if any(record.low is not None for record in told):
        yield TOGETHER.format(together=100 * float(told[0].settings["together"]))


def outliers(records: Iterable[Record]) -> str:
    """Format the table of out-of-distribution detection, one block for each set of rows."""
    records = tuple(records)
    if not records:
        raise ValueError("records must hold at least one record of calibrant.evaluation.ood.outlier_records; got none.")
    table = aligned(("", "AUROC", "", *list(OUTLIERS.values())[1:]))
    for name, block in named(Findings("", "", (), (), records, ()), "outside").items():
        table.add_row(_named(name))
        for row in block:
            first, *others = _cells(row, OUTLIERS)
            table.add_row(f"  {_named(row.name)}", first, bounds(row.cells.get("ood_auroc")), *others)
    level = next((record.level for record in records if record.level is not None), 0.0)
    return f"{drawn(table)}\n{OUTSIDE.format(level=f'{100 * level:.3g}')}"


def _cells(row: Row, columns: Mapping[str, str]) -> Iterable[str]:
    for metric in columns:
        record = row.cells.get(metric)
        yield "" if record is None else percent(record.value)


def _named(name: str) -> str:
    """Shorten a name, so that its row fits the line."""
    return printable(shortened(name))
