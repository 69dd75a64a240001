"""The trust report's page: findings about trust predictors -> one self-contained HTML file."""

import warnings
from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from calibrant.records import Curve, Findings
from calibrant.report import figures, page
from calibrant.report import trust_table as tables
from calibrant.report.figures import LINES, QUIET, SURE, WRONG
from calibrant.report.notation import printable
from calibrant.report.trust_table import LONGEST, by_method, shortened

WIDE, WIDEST = 18, 28  # letters from which a name takes half of the legend, and all of it
TITLE = 24  # letters of a name above a small figure; the page's tables have it whole


def render(findings: Findings) -> str:
    """Render the page. The same findings give the same bytes."""
    records = findings.records
    headline, stop, rest = findings.verdict.partition(". ")
    return page.fill(
        "trust.html",
        findings,
        title="Trust report",
        subject=page.distinct(part for r in records for part in (r.model, r.dataset)),
        wide=True,
        headline=headline + stop.strip(),
        rest=rest,
        rows=tables.rows(records),
        shifts=tables.named(findings, "shift"),
        outside=tables.named(findings, "outside"),
        tables=tables,
        legend=list(tables.legend(findings)),
        level=next((record.level for record in records if record.level is not None), None),
        drawings=drawn(findings),
        histograms=by_method(findings, "trust_histogram"),
    )


def drawn(findings: Findings) -> dict[str, str]:
    """Draw every figure that has a curve; return SVG elements by name."""
    risk, histograms = by_method(findings, "risk_coverage"), by_method(findings, "trust_histogram")
    sweep = findings.curve("alpha_sweep")
    with figures.house_style(), warnings.catch_warnings():
        # text is rendered in the page's font, so glyphs missing from matplotlib's do not matter
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        found: dict[str, tuple[Figure, str]] = {}
        if risk:
            alt = "Risk-coverage curves: error among accepted answers against coverage, one line for each predictor."
            found["risk"] = (_risk(risk, findings.curve("oracle_risk_coverage")), alt)
        for place, (name, curve) in enumerate(histograms.items()):
            alt = f"Confidences of {_plain(name, LONGEST)}: right answers upward, wrong answers downward."
            found[f"histogram-{place}"] = (_histogram(name, curve, _highest(histograms)), alt)
        if sweep:
            found["sweep"] = (_sweep(sweep), "Loss, and TPR with TNR, against alpha.")
        return {name: figures.inline(figure, name=name, alt=alt) for name, (figure, alt) in found.items()}


def _risk(curves: Mapping[str, Curve], oracle: Curve | None) -> Figure:
    """Draw the risk-coverage curves; lines differ in dash as well as in colour, and the first is the widest."""
    longest = max(map(len, curves))
    columns = 3 if longest < WIDE else 2 if longest < WIDEST else 1
    legend = -(-(len(curves) + 1) // columns)  # rows of the legend, which stands above
    figure = Figure(figsize=(5.6, 3.3 + 0.17 * legend), layout="constrained")
    ax = figure.subplots()
    if oracle:
        ax.plot(oracle["coverage"], oracle["risk"], color=QUIET, linewidth=1, label="best possible ordering")
    for place, (name, curve) in enumerate(curves.items()):
        colour, dash = _style(place)
        marker = "o" if len(curve) == 1 else ""  # a line of one point is invisible
        width = 2.4 if place == 0 else 1.4
        ax.plot(
            curve["coverage"],
            curve["risk"],
            color=colour,
            linestyle=dash,
            linewidth=width,
            marker=marker,
            markersize=4.5,
            label=_plain(name, LONGEST),
        )
    ax.set(xlabel="share accepted (coverage)", ylabel="error among accepted", xlim=(-0.02, 1.02))
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside upper left", ncols=columns, frameon=False, borderaxespad=0.2, handlelength=2.4)
    return figure


def _style(place: int) -> tuple[str, Any]:
    """Return colour and dash of the n-th line; the first sixteen are distinct."""
    return LINES[place % len(LINES)][0], LINES[(place + place // len(LINES)) % len(LINES)][1]


def _highest(histograms: Mapping[str, Curve]) -> float:
    """Return the largest share of any histogram, for a common scale."""
    shares = [curve[column] for curve in histograms.values() for column in ("right_share", "wrong_share")]
    return max((float(share.max()) for share in shares if len(share) and share.max() > 0), default=1.0)


def _histogram(name: str, curve: Curve, most: float) -> Figure:
    """Draw the share of the right answers upward and that of the wrong answers downward, by confidence."""
    figure = Figure(figsize=(2.5, 2.1), layout="constrained")
    ax = figure.subplots()
    low, width = curve["low"], curve["high"] - curve["low"]
    ax.bar(low, curve["right_share"], width, align="edge", color=SURE, linewidth=0)
    ax.bar(low, -curve["wrong_share"], width, align="edge", color=WRONG, linewidth=0)
    ax.axhline(0, color=QUIET, linewidth=0.6)
    ax.axvline(float(curve.settings["threshold"]), color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    _corners(ax)
    ax.set(xlim=(0, 1), ylim=(-1.25 * most, 1.25 * most), xlabel="confidence")  # room for the words in the corners
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    ax.yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    ax.yaxis.set_major_formatter(lambda share, _: f"{100 * abs(share):.3g} %")
    ax.set_title(_plain(name, TITLE), fontsize="medium", loc="left")
    return figure


def _corners(ax: Axes) -> None:
    for x, y, word in ((0.03, 0.97, "FN"), (0.97, 0.97, "TP"), (0.03, 0.03, "TN"), (0.97, 0.03, "FP")):
        side, edge = ("left" if x < 0.5 else "right"), ("top" if y > 0.5 else "bottom")
        ax.text(x, y, word, transform=ax.transAxes, ha=side, va=edge, fontsize=7, color=QUIET)


def _sweep(curve: Curve) -> Figure:
    """Draw the loss, and below it TPR and TNR, against alpha."""
    figure = Figure(figsize=(4.6, 4.0), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(curve["alpha"], curve["loss"], color=SURE, marker="o", markersize=4, linewidth=1.4)
    above.set_ylabel("loss")
    for column, colour, marker in (("tpr", SURE, "o"), ("tnr", WRONG, "v")):
        below.plot(
            curve["alpha"],
            curve[column],
            color=colour,
            marker=marker,
            markersize=4,
            linewidth=1.4,
            label=column.upper(),
        )
    below.set(xlabel="alpha", ylabel="share", ylim=(-0.03, 1.03))
    below.yaxis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))
    below.xaxis.set_major_locator(MaxNLocator(8))
    below.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
    return figure


def _plain(name: str, most: int) -> str:
    """Escape a name for matplotlib (math mode, leading underscores) and for XML (control characters)."""
    return shortened(printable(name).lstrip("_"), most).replace("$", r"\$") or "unnamed"
