"""Comparison of calibrators: the table for a terminal, and the page of ``calibrant calibrate --report``."""

from collections.abc import Iterable, Mapping

from calibrant.records import Findings, Record
from calibrant.report import notation
from calibrant.report.table import aligned, drawn

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
LEGEND = "* chosen; ± is one standard error of the paired difference; log loss, Brier, ECE: lower is better"

Methods = Mapping[str, Mapping[str, Record]]  # method -> metric -> record


def text(records: Iterable[Record], chosen: str) -> str:
    """Format the table, one method a row, in the order of the records."""
    methods = _methods(records)
    table = aligned(HEADINGS, gap=1)
    for name, found in methods.items():
        if "failed" not in found:
            table.add_row(f"* {name}" if name == chosen else f"  {name}", *_cells(found))
    return "\n".join([drawn(table), *(f"  {line}" for line in _failed(methods)), LEGEND])


def render(findings: Findings, chosen: str, captions: Mapping[str, str]) -> str:
    """Render a page with a table for each captioned data set, and the curves by logit margin that there are.

    Temperature against margin: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025, figure 16.
    """
    from calibrant.report import figures, page  # matplotlib and jinja2 are needed only here

    tables = {}
    for dataset in captions:
        methods = _methods(record for record in findings.records if record.dataset == dataset)
        rows = {name: list(_cells(found)) for name, found in methods.items() if "failed" not in found}
        tables[dataset] = rows, _failed(methods)
    alt = f"Temperature that {chosen} gives a row against the logit margin of the row."
    temperature = page.Plot("margin_temperature", {"margin_temperature": (figures.margin_temperature, 2.9)}, 4.4, alt)
    by_margin = next(plot for plot in page.PLOTS if plot.name == "margin_reliability")
    return page.fill(
        "comparison.html",
        findings,
        title="Calibration",
        wide=True,
        chosen=chosen,
        captions=captions,
        tables=tables,
        headings=[heading.replace("-\n", "").replace("\n", " ") for heading in HEADINGS],
        drawings={p.name: page.drawing(findings, p) for p in (temperature, by_margin) if findings.curve(p.name)},
    )


def _methods(records: Iterable[Record]) -> Methods:
    found: dict[str, dict[str, Record]] = {}
    for record in records:
        found.setdefault(record.method, {})[record.metric] = record
    return found


def _failed(methods: Methods) -> list[str]:
    return [f"{name} failed: {m['failed'].settings['reason']}" for name, m in methods.items() if "failed" in m]


def _cells(found: Mapping[str, Record]) -> Iterable[str]:
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
