"""Findings of the demonstration -> one HTML page that needs nothing else."""

from calibrant.records import Findings
from calibrant.report import demo_plates, demo_rows, demo_table
from calibrant.report.page import policy, read, template


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    css, js = read("page.css") + read("demo.css"), read("page.js")
    return template("demo.html").render(
        findings=findings,
        tables={dataset: (title, demo_rows.rows(findings, dataset)) for dataset, title in demo_rows.TITLES.items()},
        paragraph=demo_table.paragraph(findings),
        changed=demo_rows.changed,
        chosen=demo_rows.record(findings, "chosen"),
        certified=demo_rows.record(findings, "certified"),
        drawings=demo_plates.drawn(findings),
        losses=demo_plates.losses(findings),
        versions=sorted({record.versions for record in findings.records}),
        noise=demo_rows.NOISE,
        bin_count=next(r.settings["bins"] for r in findings.records if r.metric == "top_label_ece"),
        bins=demo_rows.curves(findings, "reliability", "digits"),
        css=css,
        js=js,
        policy=policy(css, js),
    )
