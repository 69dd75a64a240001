"""The audit page: findings -> one self-contained HTML file, readable without network, server or scripts."""

import base64
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrant.records import Curve, Findings, plain
from calibrant.registry import METRICS, Entry
from calibrant.report import figures, notation, sections

SAMPLED = 9  # rows of the risk-coverage table

Draw = Callable[[Findings, Axes | None], Axes]


@dataclass(frozen=True)
class Plot:
    """One figure of the page: stacked panels that share the x axis, and the alt text."""

    name: str
    panels: dict[str, tuple[Draw, float]]  # curve -> how it is drawn, and its height in inches
    width: float
    alt: str


PLOTS = (
    Plot(
        "reliability",
        {"reliability": (figures.reliability, 3.6), "confidence_histogram": (figures.confidence_histogram, 1.5)},
        4.2,
        "Reliability diagram: accuracy against confidence, with intervals, and the number of rows below.",
    ),
    Plot(
        "margin_reliability",
        {"margin_reliability": (figures.margin_reliability, 3.0)},
        4.2,
        "Reliability by logit margin: accuracy against confidence for rows of small, middling and large margin.",
    ),
    Plot(
        "risk_coverage",
        {"risk_coverage": (figures.risk_coverage, 2.8)},
        4.2,
        "Risk-coverage curve: error among accepted answers against the share accepted.",
    ),
    Plot(
        "generalised_risk_coverage",
        {"generalised_risk_coverage": (figures.generalised_risk_coverage, 2.7)},
        3.3,
        "Generalised risk-coverage curve: share of rows accepted and wrong against the share accepted.",
    ),
    Plot(
        "roc",
        {"roc": (figures.roc, 2.7)},
        3.3,
        "ROC curve: right answers kept against wrong answers kept.",
    ),
)


def render(findings: Findings) -> str:
    """Write the page. The same findings give the same bytes."""
    risk = findings.curve("risk_coverage")
    return fill(
        "page.html",
        findings,
        title="Confidence audit",
        subject=distinct(", ".join(_named(r.model, r.dataset, r.method)) for r in findings.records),
        sections={section.slug: (section, records) for section, records in sections.grouped(findings)},
        title_of=sections.title,
        places=sections.tables(findings),
        drawings={plot.name: drawing(findings, plot) for plot in PLOTS if _panels(findings, plot)},
        bins=findings.curve("reliability"),
        risk=risk,
        risk_data=plain(risk.columns) if risk else {},
        risk_sample=_spread(risk) if risk else [],
        certified=_certified(findings, risk),
        glossary=_glossary(findings),
    )


def drawing(findings: Findings, plot: Plot) -> str:
    """Draw the panels whose curves are there, as one SVG element."""
    panels = _panels(findings, plot)
    heights = [height for _, height in panels]
    with figures.house_style():
        figure = Figure(figsize=(plot.width, sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)
        for (draw, _), ax in zip(panels, axes[:, 0], strict=True):
            draw(findings, ax).label_outer()
        return figures.inline(figure, name=plot.name, alt=plot.alt)


def _panels(findings: Findings, plot: Plot) -> list[tuple[Draw, float]]:
    return [panel for curve, panel in plot.panels.items() if findings.curve(curve)]


def fill(template: str, findings: Findings, *, title: str, wide: bool = False, **values: Any) -> str:
    """Fill a template that extends ``frame.html``; all text is escaped, and a missing value is an error."""
    css, js = _read("page.css") + (_read("wide.css") if wide else ""), _read("page.js")
    environment = Environment(
        loader=FunctionLoader(_read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["notation"] = notation
    environment.filters["unbroken"] = notation.unbroken
    seeds = (f"seed {record.seed}" for record in findings.records if record.seed is not None)
    common = {
        "findings": findings,
        "title": title,
        "headline": findings.verdict,
        "subject": (),
        "advice_title": "What to do next",
        "advice_first": False,
        "provenance": [*distinct(record.versions for record in findings.records), *distinct(seeds)],
        "css": css,
        "js": js,
        "policy": _policy(css, js),
    }
    return environment.get_template(template).render({**common, **values})


def _policy(css: str, js: str) -> str:
    """Return the content security policy that admits this style sheet and this script, and nothing else."""
    return (
        f"default-src 'none'; style-src {_fingerprint(css)}; script-src {_fingerprint(js)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _fingerprint(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _read(name: str) -> str:
    return resources.files("calibrant.report").joinpath(name).read_text(encoding="utf-8")


def distinct(texts: Iterable[str]) -> list[str]:
    """Return the non-empty texts without repeats, in order."""
    return [text for text in dict.fromkeys(texts) if text]


def _named(*parts: str) -> list[str]:
    return [part for part in parts if part]


def _spread(curve: Curve) -> list[int]:
    """Return evenly spaced row numbers of the curve, for the table that replaces the slider without scripts."""
    return sorted({round(row) for row in np.linspace(0, len(curve) - 1, SAMPLED).tolist()})


def _certified(findings: Findings, risk: Curve | None) -> Curve | None:
    """Return the certified point if it lies on the risk-coverage curve."""
    found = findings.curve("certified")
    return found if found and risk and 0 <= found["point"][0] < len(risk) else None


def _glossary(findings: Findings) -> list[Entry]:
    return [METRICS.entry(name) for name in dict.fromkeys(r.metric for r in findings.records) if name in METRICS]
