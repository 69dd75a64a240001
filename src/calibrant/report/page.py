"""findings -> one HTML page that needs nothing else: no network, no server, no script to be readable."""

import base64
import hashlib
from collections.abc import Iterable
from importlib import resources

import numpy as np
from jinja2 import Environment, StrictUndefined, Template

from calibrant.records import Curve, Findings, Record, plain
from calibrant.registry import METRICS, Entry
from calibrant.report import notation, places, plates, sections

SAMPLED = 9


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    css, js = read("page.css"), read("page.js")
    risk = findings.curve("risk_coverage")
    return template("page.html").render(
        findings=findings,
        subject=_distinct(_subject(record) for record in findings.records),
        provenance=[*_distinct(r.versions for r in findings.records), *_distinct(map(_seed, findings.records))],
        sections={section.slug: (section, records) for section, records in sections.grouped(findings)},
        places=places.tables(findings),
        drawings=plates.drawn(findings),
        bins=findings.curve("reliability"),
        risk=risk,
        risk_data=plain(risk.columns) if risk else {},
        risk_sample=_spread(risk) if risk else [],
        certified=_certified(findings, risk),
        glossary=_glossary(findings),
        css=css,
        js=js,
        policy=policy(css, js),
    )


def policy(css: str, js: str) -> str:
    """Return the content security policy that lets this style sheet and this script run, and nothing else."""
    return (
        f"default-src 'none'; style-src {_fingerprint(css)}; script-src {_fingerprint(js)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def template(name: str) -> Template:
    """Return a page's template: what it shows is escaped, and a value that is missing is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.globals["notation"] = notation
    environment.filters["unbroken"] = notation.unbroken
    return environment.from_string(read(name))


def read(name: str) -> str:
    """Return a file of this folder."""
    return resources.files("calibrant.report").joinpath(name).read_text(encoding="utf-8")


def _subject(record: Record) -> str:
    return ", ".join(part for part in (record.model, record.dataset, record.method) if part)


def _seed(record: Record) -> str:
    return "" if record.seed is None else f"seed {record.seed}"


def _distinct(texts: Iterable[str]) -> list[str]:
    return [text for text in dict.fromkeys(texts) if text]


def _spread(curve: Curve) -> list[int]:
    """Return a few row numbers of the curve from first to last, for the table that stands in for the slider."""
    return sorted({round(row) for row in np.linspace(0, len(curve) - 1, SAMPLED).tolist()})


def _certified(findings: Findings, risk: Curve | None) -> Curve | None:
    """Return the certified point where the slider can show it."""
    found = findings.curve("certified")
    return found if found and risk and 0 <= found["point"][0] < len(risk) else None


def _glossary(findings: Findings) -> list[Entry]:
    return [METRICS.entry(name) for name in dict.fromkeys(r.metric for r in findings.records) if name in METRICS]
