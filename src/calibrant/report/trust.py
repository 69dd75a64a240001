"""Findings about trust predictors -> one HTML page that needs nothing else."""

from importlib import resources

from jinja2 import Environment, StrictUndefined

from calibrant.records import Findings
from calibrant.report import notation, trust_plates, trust_rows, trust_table
from calibrant.report.page import policy


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    css, js = _read("page.css") + _read("trust.css"), _read("page.js")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    records = findings.records
    headline, stop, rest = findings.verdict.partition(". ")
    return environment.from_string(_read("trust.html")).render(
        findings=findings,
        headline=headline + stop.strip(),
        rest=rest,
        rows=trust_rows.rows(records),
        shifts=trust_rows.named(findings, "shift"),
        outside=trust_rows.named(findings, "outside"),
        tables=trust_rows,
        legend=list(trust_table.legend(findings)),
        level=next((record.level for record in records if record.level is not None), None),
        drawings=trust_plates.drawn(findings),
        histograms=trust_rows.by_method(findings, "trust_histogram"),
        subject=list(dict.fromkeys(part for r in records for part in (r.model, r.dataset) if part)),
        provenance=[*dict.fromkeys(r.versions for r in records), *dict.fromkeys(_seed(r.seed) for r in records)],
        notation=notation,
        css=css,
        js=js,
        policy=policy(css, js),
    )


def _seed(seed: int | None) -> str:
    return "no seed" if seed is None else f"seed {seed}"


def _read(name: str) -> str:
    return resources.files("calibrant.report").joinpath(name).read_text(encoding="utf-8")
