"""The demonstration: findings -> text for a terminal, and one self-contained HTML page."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from calibrant.records import Findings, Record
from calibrant.report import figures, notation, page
from calibrant.report.figures import LINES, QUIET, SURE, WRONG
from calibrant.report.table import aligned, drawn

WIDTH = 100
METRICS = {"accuracy": "accuracy", "nll": "log loss", "brier": "Brier", "top_label_ece": "ECE"}
DATASETS = {"cifar100": "CIFAR-100: a ResNet-32", "digits": "Digits: a LeNet trained with five losses"}
NOISE = (
    "Beyond noise means that chance would show as much at most one time in twenty, counting all comparisons of its "
    "kind. Each loss was trained once: the intervals hold the chance of the test rows, not that of training."
)
LEGEND = "* chosen; lower is better but for accuracy; all rows are test rows, which nothing was fitted on"
MARKS = {"temperature": (SURE, "o"), "smart": (LINES[2][0], "s")}  # a shape for each, beside the colour
AS_TRAINED, OTHER = (WRONG, "v"), (LINES[3][0], "D")


@dataclass(frozen=True)
class Row:
    """One method: its records by metric, the change of its log loss against as trained, and whether it was chosen."""

    name: str
    cells: Mapping[str, Record]
    change: str
    chosen: bool


def rows(findings: Findings, dataset: str) -> list[Row]:
    """Return a row for each method, in the order of the records."""
    records = [record for record in findings.records if record.dataset == dataset]
    chosen = {record.method for record in records if record.metric == "chosen"}
    cells: dict[str, dict[str, Record]] = {}
    for record in records:
        cells.setdefault(record.method, {}).setdefault(record.metric, record)
    return [Row(name, found, _change(found.get("nll_change")), name in chosen) for name, found in cells.items()]


def _change(record: Record | None) -> str:
    """Format a change against the same network as trained; empty for a change against another network."""
    if record is None or record.settings["against"] not in ("as trained", record.method.partition(" + ")[0]):
        return ""
    return f"{record.value:+.4f} [{record.low:+.4f}, {record.high:+.4f}]"


def text(findings: Findings) -> str:
    """Format the headline, one table, and the findings."""
    table = aligned(("", *METRICS.values(), "[90 %]", "noise floor (95 %)"))
    for dataset, title in DATASETS.items():
        table.add_row(title.partition(":")[0])
        for row in rows(findings, dataset):
            error = row.cells["top_label_ece"]
            floor = f"{notation.number(error.floor or 0.0)} ({notation.number(error.floor_high or 0.0)})"
            numbers = (notation.number(row.cells[metric].value) for metric in METRICS)
            table.add_row(f"{'*' if row.chosen else ' '} {row.name}", *numbers, notation.interval(error), floor)
    opening = (textwrap.fill(part, WIDTH) for part in (findings.verdict, findings.understood, *findings.notes))
    listed = (textwrap.fill(f"- {part}", WIDTH, subsequent_indent="  ") for part in findings.advice)
    return "\n\n".join([*opening, f"{drawn(table)}\n{LEGEND}", "\n".join(listed), textwrap.fill(NOISE, WIDTH)]) + "\n"


def render(findings: Findings) -> str:
    """Render the page. The same findings give the same bytes."""
    find = {record.metric: record for record in findings.records if record.dataset == "cifar100"}
    chosen = find["chosen"].method
    plot = replace(page.PLOTS[0], width=3.7)
    with figures.house_style():
        errors, risk = _errors(findings), _risk(_of(findings, chosen), find)
        drawings = {
            "errors": figures.inline(errors, name="errors", alt="Calibration error with interval, of every method."),
            "before": page.drawing(_of(findings, "as trained"), replace(plot, name="before")),
            "after": page.drawing(_of(findings, chosen), replace(plot, name="after")),
            "risk": figures.inline(risk, name="risk", alt="Risk-coverage curve, with the certified point."),
        }
    return page.fill(
        "demo.html",
        findings,
        title="Calibrant, a demonstration",
        advice_title="What to take from it",
        advice_first=True,
        wide=True,
        tables={title: rows(findings, dataset) for dataset, title in DATASETS.items()},
        metrics=METRICS,
        drawings=drawings,
        chosen=find["chosen"],
        certified=find["certified"],
        noise=NOISE,
    )


def _of(findings: Findings, method: str) -> Findings:
    return replace(findings, curves=tuple(c for c in findings.curves if c.settings["method"] == method))


def _errors(findings: Findings) -> Figure:
    """Draw the calibration error of each row, with its interval, over the range of noise alone."""
    shown = [row for dataset in DATASETS for row in rows(findings, dataset)]
    ax = (figure := Figure(figsize=(4.6, 0.6 + 0.2 * len(shown)), layout="constrained")).subplots()
    for place, row in enumerate(shown):
        found = row.cells["top_label_ece"]
        colour, marker = MARKS.get(row.name.rpartition(" + ")[2], OTHER) if row.change else AS_TRAINED
        ax.barh(place, found.floor_high or 0.0, height=0.8, color=QUIET, alpha=0.3, linewidth=0)
        ax.hlines(place, found.low or 0.0, found.high or 0.0, color=colour, linewidth=1.4)
        ax.plot([found.value], [place], color=colour, marker=marker, markersize=5, linestyle="")
    ax.set_yticks(range(len(shown)), [row.name for row in shown])
    ax.axhline(len(rows(findings, "cifar100")) - 0.5, color=QUIET, linewidth=0.8)
    ax.set(xlabel="ECE", ylim=(len(shown) - 0.4, -0.6))
    ax.set_xlim(left=0)
    return figure


def _risk(findings: Findings, find: Mapping[str, Record]) -> Figure:
    """Draw the risk-coverage curve, the promised limit, and the certified point with its exact interval."""
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    ax = figures.risk_coverage(findings, figure.subplots())
    ax.axhline(find["certified"].settings["max_error"], color=WRONG, linestyle=(0, (4, 3)), label="promised at most")
    coverage, error = find["coverage"], find["selective_error"]
    if error.value == error.value:  # not NaN: something was accepted
        ax.vlines(coverage.value, error.low or 0.0, error.high or 0.0, color=WRONG, linewidth=1.6)
        ax.plot([coverage.value], [error.value], color=WRONG, marker="D", markersize=6, linestyle="", label="certified")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
    return figure
