"""Records of several trust predictors -> the rows that page, figures and terminal show, in percent."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from calibrant.records import Curve, Findings, Record

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
    """One predictor: its records by metric, its AUROC less that of the baseline, and AUPR-Error with the wrong sign."""

    name: str
    cells: Mapping[str, Record]
    change: Record | None
    wrong_sign: Record | None


def rows(records: Iterable[Record], where: str = "all") -> list[Row]:
    """Return a row for each predictor at a place, in the order in which the records first name them.

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
    """Leave beginning and end of a long name: names that differ often do so there.

    Example:
        >>> shortened("resnet50_seed_1_alpha_3", 14)
        'resnet50_…ha_3'
    """
    return name if len(name) <= most else f"{name[: most - most // 3 - 1]}\N{HORIZONTAL ELLIPSIS}{name[-(most // 3) :]}"


def percent(value: float | None, *, signed: bool = False, digits: int = 2) -> str:
    """Write a share times a hundred; the heading says percent.

    Example:
        >>> percent(0.92184), percent(-0.0012, signed=True), percent(float("nan"))
        ('92.18', '-0.12', 'undefined')
    """
    if value is None or math.isnan(value):
        return "undefined"
    said = f"{100 * value:{'+' if signed else ''}.{digits}f}"
    return said.replace("-", "") if signed and float(said) == 0 else said


def bounds(record: Record | None, *, signed: bool = False, digits: int = 2) -> str:
    """Write the interval in percent, or nothing where there is none.

    Example:
        >>> bounds(Record("tpr", 0.5, 10, low=0.4, high=0.612), digits=1)
        '[40.0, 61.2]'
    """
    if record is None or record.low is None or record.high is None:
        return ""
    ends = (percent(end, signed=signed, digits=digits) for end in (record.low, record.high))
    return f"[{', '.join(ends)}]"


def change(record: Record | None, *, digits: int = 2) -> str:
    """Write a difference with its interval, or nothing where there is none to write."""
    if record is None:
        return ""
    return f"{percent(record.value, signed=True, digits=digits)} {bounds(record, signed=True, digits=digits)}".strip()
