"""Findings of the demonstration -> one HTML page that needs nothing else."""

import re
from importlib import resources

from jinja2 import Environment, StrictUndefined

from calibrant.records import Findings
from calibrant.report import demo_plates, demo_rows, demo_table, notation
from calibrant.report.page import policy


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    css, js = _read("page.css") + _read("demo.css"), _read("page.js")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["unbroken"] = _unbroken
    return environment.from_string(_read("demo.html")).render(
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
        notation=notation,
        css=css,
        js=js,
        policy=policy(css, js),
    )


def _unbroken(text: str) -> str:
    """Keep a number in groups of three, or with its percent sign, on one line."""
    return re.sub(r"(?<=\d) (?=\d{3}\b|%)", "\u00a0", text)


def _read(name: str) -> str:
    return resources.files("calibrant.report").joinpath(name).read_text(encoding="utf-8")
