"""The figures of the page: which curves each needs, how large it is, and what it says to who cannot see it."""

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from calibrant.records import Findings
from calibrant.report import figures, svg

Draw = Callable[[Findings, Axes | None], Axes]


@dataclass(frozen=True)
class Plate:
    """One figure of the page: panels above each other with the given heights, over one confidence axis."""

    name: str
    panels: dict[str, tuple[Draw, float]]  # curve -> how it is drawn, and its height in inches
    width: float
    label: str


PLATES = (
    Plate(
        "reliability",
        {"reliability": (figures.reliability, 3.6), "confidence_histogram": (figures.confidence_histogram, 1.5)},
        4.2,
        "Reliability diagram: accuracy against confidence, with intervals, and the number of rows below.",
    ),
    Plate(
        "margin_reliability",
        {"margin_reliability": (figures.margin_reliability, 3.0)},
        4.2,
        "Reliability by logit margin: accuracy against confidence for rows of small, middling and large margin.",
    ),
    Plate(
        "margin_temperature",
        {"margin_temperature": (figures.margin_temperature, 2.7)},
        4.2,
        "Temperature against logit margin.",
    ),
    Plate(
        "risk_coverage",
        {"risk_coverage": (figures.risk_coverage, 2.8)},
        4.2,
        "Risk-coverage curve: error among accepted answers against the share accepted.",
    ),
    Plate(
        "generalised_risk_coverage",
        {"generalised_risk_coverage": (figures.generalised_risk_coverage, 2.7)},
        3.3,
        "Generalised risk-coverage curve: share of rows accepted and wrong against the share accepted.",
    ),
    Plate(
        "roc",
        {"roc": (figures.roc, 2.7)},
        3.3,
        "ROC curve: right answers kept against wrong answers kept.",
    ),
)


def drawn(findings: Findings) -> dict[str, str]:
    """Draw every plate that has a curve to show, each as an SVG element by the plate's name."""
    return {plate.name: _plate(findings, plate) for plate in PLATES if _present(findings, plate)}


def _present(findings: Findings, plate: Plate) -> list[tuple[Draw, float]]:
    return [panel for curve, panel in plate.panels.items() if findings.curve(curve)]


def _plate(findings: Findings, plate: Plate) -> str:
    panels = _present(findings, plate)
    heights = [height for _, height in panels]
    with svg.house_style():
        figure = Figure(figsize=(plate.width, sum(heights)), layout="constrained")
        axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=heights)
        for (draw, _), ax in zip(panels, axes[:, 0], strict=True):
            draw(findings, ax).label_outer()
        return svg.inline(figure, name=plate.name, label=plate.label)
