"""Figures: curves drawn with matplotlib, and written as SVG for a page.

Every number drawn is a number of a curve. pyplot and its global state are never touched.
"""

import re
from contextlib import AbstractContextManager
from io import StringIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from calibrant.records import Curve, Findings

# Blue and orange stay apart in every common colour blindness, and both reach 3:1 on white and on near-black.
SURE = "#2f7fc1"
WRONG = "#cf6a17"
QUIET = "#808080"
# Each line has a dash of its own too, so that lines are told apart without colour.
LINES = tuple(
    zip((SURE, WRONG, "#1b9e77", "#9a5fb5"), ("-", (0, (5, 1.5)), (0, (6, 1.5, 1, 1.5)), (0, (1.5, 1))), strict=True)
)

INK = "#000000"

HOUSE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "calibrant",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.fontsize": 8,
    "legend.handlelength": 1.4,
    "legend.columnspacing": 1.2,
}


def reliability(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw accuracy against confidence: consistency band, bins with exact intervals, and the isotonic curve."""
    ax = _ready(ax, x="confidence", y="accuracy")
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label="confidence = accuracy")
    if bins := findings.curve("reliability"):
        _bins(ax, bins)
    if isotonic := findings.curve("reliability_isotonic"):
        steps = (isotonic["confidence"], isotonic["accuracy"])
        ax.plot(*steps, color=WRONG, linewidth=1.2, drawstyle="steps-post", label="isotonic fit")
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return _legend(ax)


def _bins(ax: Axes, bins: Curve) -> None:
    at, level = bins["confidence"], bins.settings.get("level")
    band = "if perfectly calibrated"
    # The thin edge keeps the band of a single bin visible, where there is no area to fill.
    ax.fill_between(at, bins["band_low"], bins["band_high"], color=QUIET, alpha=0.3, linewidth=1, label=band)
    ax.vlines(at, bins["accuracy_low"], bins["accuracy_high"], color=SURE, linewidth=1.2)
    name = "bins" if level is None else f"bins, {100 * level:.0f} % interval"
    ax.plot(at, bins["accuracy"], color=SURE, marker="o", markersize=4.5, linestyle="", label=name)


def confidence_histogram(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw the histogram of confidence, split into right and wrong answers."""
    ax = _ready(ax, x="confidence", y="rows")
    if bars := findings.curve("confidence_histogram"):
        low, width = bars["low"], bars["high"] - bars["low"]
        ax.bar(low, bars["right"], width, align="edge", color=SURE, edgecolor=SURE, linewidth=0.5, label="right")
        ax.bar(
            low,
            bars["wrong"],
            width,
            bottom=bars["right"],
            align="edge",
            color=WRONG,
            edgecolor=WRONG,
            linewidth=0.5,
            label="wrong",
        )
    ax.set_xlim(-0.02, 1.02)
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return _legend(ax)


def risk_coverage(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw the risk-coverage curve, beside that of the best possible ordering."""
    ax = _ready(ax, x="share accepted (coverage)", y="error among accepted")
    _line(ax, findings.curve("oracle_risk_coverage"), "coverage", "risk", label="best possible ordering", color=QUIET)
    _line(ax, findings.curve("risk_coverage"), "coverage", "risk", label="by confidence", color=SURE)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(bottom=0)
    return _legend(ax)


def generalised_risk_coverage(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw the generalised risk-coverage curve: accepted and wrong, as a share of all rows, against coverage."""
    ax = _ready(ax, x="share accepted (coverage)", y="accepted and wrong")
    curve = findings.curve("generalised_risk_coverage")
    _line(ax, curve, "coverage", "risk", label="by confidence", color=SURE)
    ax.set_xlim(-0.02, 1.02)
    ax.set_ylim(bottom=0)
    return _legend(ax)


def roc(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw the ROC curve of right against wrong answers."""
    ax = _ready(ax, x="wrong answers kept", y="right answers kept")
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)), label="a coin")
    _line(ax, findings.curve("roc"), "fpr", "tpr", label="by confidence", color=SURE)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return _legend(ax)


def margin_reliability(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw one reliability diagram for each group of rows by logit margin."""
    ax = _ready(ax, x="confidence", y="accuracy")
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    if curve := findings.curve("margin_reliability"):
        groups = sorted(set(curve["group"].tolist()))
        for group, (colour, marker) in zip(groups, _shades(len(groups)), strict=True):
            mine = curve["group"] == group
            low, high = (abs(float(curve[f"margin_{end}"][mine][0])) for end in ("low", "high"))
            at = curve["confidence"][mine]
            ax.vlines(at, curve["accuracy_low"][mine], curve["accuracy_high"][mine], color=colour, linewidth=1)
            name = f"margin {low:.2g} to {high:.2g}"
            ax.plot(at, curve["accuracy"][mine], color=colour, marker=marker, markersize=4.5, linewidth=1, label=name)
    ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    return _legend(ax)


def _shades(count: int) -> list[tuple[str, str]]:
    """Return a colour and a marker for each group."""
    known = [(WRONG, "v"), (QUIET, "s"), (SURE, "o")]
    return known if count == len(known) else [((WRONG, SURE)[i % 2], "vosD^P"[i % 6]) for i in range(count)]


def margin_temperature(findings: Findings, ax: Axes | None = None) -> Axes:
    """Draw the per-row temperature of a calibrator against the logit margin."""
    ax = _ready(ax, x="logit margin", y="temperature")
    ax.axhline(1, color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    if curve := findings.curve("margin_temperature"):
        ax.fill_between(curve["margin"], curve["low"], curve["high"], color=SURE, alpha=0.25, linewidth=0)
        _line(ax, curve, "margin", "temperature", label=str(curve.settings.get("method", "temperature")), color=SURE)
    return _legend(ax)


def _line(ax: Axes, curve: Curve | None, x: str, y: str, *, label: str, color: str) -> None:
    if curve:
        marker = "o" if len(curve) == 1 else ""  # a line of one point is invisible
        ax.plot(curve[x], curve[y], color=color, marker=marker, markersize=4.5, linewidth=1.5, label=label)


def _ready(ax: Axes | None, *, x: str, y: str) -> Axes:
    if ax is None:
        ax = Figure(figsize=(4.6, 4.2), layout="constrained").subplots()
    ax.set(xlabel=x, ylabel=y)
    return ax


def _legend(ax: Axes) -> Axes:
    if ax.get_legend_handles_labels()[0]:
        # Above the axes, so that it never covers data.
        ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
    return ax


def house_style() -> AbstractContextManager[None]:
    """Return the matplotlib style context in which a page's figures are drawn and saved."""
    return matplotlib.style.context(HOUSE, after_reset=True)


def inline(figure: Figure, *, name: str, alt: str) -> str:
    """Write the figure as an SVG element; ``name`` prefixes its ids, ``alt`` is its alt text."""
    written = StringIO()
    figure.savefig(written, format="svg", transparent=True)
    root = ElementTree.fromstring(written.getvalue())
    for element in root.iter():
        _clean(element, name)
    _drop_styles(root)
    _drop_unused_ids(root)
    _describe(root, alt)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: Element, name: str) -> None:
    """Keep plain tags and presentation attributes only, as a strict content security policy requires."""
    element.tag = element.tag.rpartition("}")[2]
    if element.tag not in ("text", "tspan"):
        element.text = None
    element.tail = None
    attributes = {key.rpartition("}")[2]: " ".join(text.split()) for key, text in element.attrib.items()}
    attributes |= _presentation(attributes.pop("style", ""))
    element.attrib.clear()
    element.attrib.update({key: _owned(key, text, name) for key, text in attributes.items()})


def _presentation(style: str) -> dict[str, str]:
    pairs = (pair.split(":", 1) for pair in style.split(";") if ":" in pair)
    attributes = {key.strip(): text.strip().replace(INK, "currentColor") for key, text in pairs}
    attributes.pop("font-family", None)  # the page's own font
    if shorthand := attributes.pop("font", None):  # how matplotlib before 3.9 wrote size and family
        attributes["font-size"] = re.findall(r"[\d.]+px", shorthand)[0]
    return attributes


def _owned(attribute: str, text: str, name: str) -> str:
    """Prefix an id, and each reference to one, with the figure's name."""
    if attribute == "id":
        return f"{name}-{text}"
    return text.replace("#", f"#{name}-") if attribute in ("href", "clip-path") else text


def _drop_styles(root: Element) -> None:
    """Drop the style sheet, and the metadata, whose date would make the bytes differ from run to run."""
    for parent in root.iter():
        for child in [child for child in parent if child.tag in ("style", "metadata")]:
            parent.remove(child)


def _drop_unused_ids(root: Element) -> None:
    used = set(re.findall(r"#([\w.-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _describe(root: Element, alt: str) -> None:
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    # matplotlib leaves black out, as SVG's default fill; line joins stood in the dropped style sheet.
    root.attrib |= {"role": "img", "aria-label": alt, "fill": "currentColor", "stroke-linejoin": "round"}
