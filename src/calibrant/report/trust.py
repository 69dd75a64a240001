"""Findings about trust predictors -> one HTML page that needs nothing else."""

from calibrant.records import Findings
from calibrant.report import trust_plates, trust_rows, trust_table
from calibrant.report.page import policy, read, template


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    css, js = read("page.css") + read("wide.css"), read("page.js")
    records = findings.records
    headline, stop, rest = findings.verdict.partition(". ")
    return template("trust.html").render(
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
        css=css,
        js=js,
        policy=policy(css, js),
    )


def _seed(seed: int | None) -> str:
    return "no seed" if seed is None else f"seed {seed}"
