"""Records of several methods on several data sets -> the rows that page, figures and terminal show."""

from collections.abc import Mapping
from dataclasses import dataclass

from calibrant.records import Curve, Findings, Record

METRICS = {"accuracy": "accuracy", "nll": "log loss", "brier": "Brier", "top_label_ece": "ECE"}
TITLES = {
    "cifar100": "CIFAR-100: a ResNet-32, repaired after training",
    "digits": "Digits: a LeNet trained with five losses, then repaired",
}
NOISE = (
    "Beyond noise means that chance would show as much at most one time in twenty, counting all comparisons of its"
    " kind: an ECE, if the network were calibrated; a change, if there were none."
)


@dataclass(frozen=True)
class Row:
    """One method: its records by metric, what its log loss changed by, and whether it is the chosen one."""

    name: str
    cells: Mapping[str, Record]
    change: Record | None
    chosen: bool


def rows(findings: Findings, dataset: str) -> list[Row]:
    """Return the rows of a data set in the order in which the records first name them."""
    found: dict[str, dict[str, Record]] = {}
    changes: dict[str, Record] = {}
    chosen = {(record.dataset, record.method) for record in findings.records if record.metric == "chosen"}
    for record in findings.records:
        if record.dataset != dataset:
            continue
        if record.metric in METRICS:
            found.setdefault(record.method, {})[record.metric] = record
        elif record.metric == "nll_change":
            changes.setdefault(record.method, record)
    return [Row(name, cells, _own(name, changes.get(name)), (dataset, name) in chosen) for name, cells in found.items()]


def _own(name: str, change: Record | None) -> Record | None:
    """Return the change against the same network as trained; one against another network is for the words."""
    if change is None:
        return None
    against = str(change.settings["against"])
    return change if against == "as trained" or name.startswith(f"{against} + ") else None


def changed(change: Record | None) -> str:
    """Write a change with its interval, in as many digits as tell a small one from none.

    Example:
        >>> changed(Record("nll_change", -0.1, 10, low=-0.2, high=0.00004))
        '-0.1000 [-0.2000, +0.0000]'
    """
    if change is None or change.low is None or change.high is None:
        return ""
    return f"{change.value:+.4f} [{change.low:+.4f}, {change.high:+.4f}]"


def curves(findings: Findings, name: str, dataset: str) -> dict[str, Curve]:
    """Return the curves of that name by method."""
    return {
        str(curve.settings["method"]): curve
        for curve in findings.curves
        if curve.name == name and curve.settings["dataset"] == dataset
    }


def record(findings: Findings, metric: str) -> Record | None:
    """Return the record of a metric that there is at most once."""
    return next((found for found in findings.records if found.metric == metric), None)
