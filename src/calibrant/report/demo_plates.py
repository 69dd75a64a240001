"""The figures of the demonstration's page; every number drawn is one of a curve or of a record."""

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from calibrant.records import Curve, Findings
from calibrant.report import figures, svg
from calibrant.report.demo_rows import METRICS, curves, record, rows
from calibrant.report.figures import QUIET, SURE, WRONG
from calibrant.report.training import LINES

GREEN = LINES[2][0]
REPAIRS = {
    "temperature": (SURE, "o"),
    "smart": (GREEN, "s"),
}  # each has a shape of its own, for those who see no colour
AS_TRAINED, OTHER = (WRONG, "v"), (LINES[3][0], "D")
HISTORY = {"loss": "training loss", "nll": "log loss", "ece": "ECE"}


def drawn(findings: Findings) -> dict[str, str]:
    """Draw every figure, each as an SVG element by its name."""
    with svg.house_style():
        found = {
            "errors": (_errors(findings), "Calibration error of every row, with interval and noise floor."),
            "before": (_reliability(findings, 0), "Reliability diagram of the real network as trained."),
            "after": (_reliability(findings, -1), "Reliability diagram of the real network with the chosen repair."),
            "risk": (_risk(findings), "Risk-coverage curve of the repaired network, with the certified point."),
            "history": (_history(findings), "Training loss, and log loss and ECE on validation rows, by epoch."),
        }
        found |= {
            f"digits-{loss}": (_digits(findings, loss), f"Reliability diagrams of the network trained with {loss}.")
            for loss in losses(findings)
        }
        return {name: svg.inline(figure, name=name, label=label) for name, (figure, label) in found.items()}


def losses(findings: Findings) -> list[str]:
    """Return the losses in order."""
    return list(curves(findings, "history", "digits"))


def style(dataset: str, method: str) -> tuple[str, str]:
    """Return the colour and the marker of a row by its repair."""
    repair = method.rpartition(" + ")[2]
    as_trained = method == "as trained" or (dataset == "digits" and repair == method)
    return AS_TRAINED if as_trained else REPAIRS.get(repair, OTHER)


def _errors(findings: Findings) -> Figure:
    """Draw the calibration error of each row over the range that noise alone would fill."""
    shown = [(dataset, row) for dataset in ("cifar100", "digits") for row in rows(findings, dataset)]
    figure = Figure(figsize=(4.4, 0.6 + 0.19 * len(shown)), layout="constrained")
    ax = figure.subplots()
    for place, (dataset, row) in enumerate(shown):
        found, (colour, marker) = row.cells["top_label_ece"], style(dataset, row.name)
        ax.barh(place, found.floor_high or 0.0, height=0.8, color=QUIET, alpha=0.3, linewidth=0)
        ax.hlines(place, found.low or 0.0, found.high or 0.0, color=colour, linewidth=1.4)
        ax.plot([found.value], [place], color=colour, marker=marker, markersize=5, linestyle="")
    ax.set_yticks(
        range(len(shown)), [row.name if dataset == "digits" else f"{dataset}, {row.name}" for dataset, row in shown]
    )
    ax.tick_params(axis="y", length=0)
    first = sum(dataset == "cifar100" for dataset, _ in shown)
    ax.axhline(first - 0.5, color=QUIET, linewidth=0.8)
    ax.set(xlabel=METRICS["top_label_ece"], ylim=(len(shown) - 0.4, -0.6))
    ax.set_xlim(left=0)
    return figure


def _reliability(findings: Findings, which: int) -> Figure:
    """Draw reliability and histogram of the real network: the first of its rows, or the chosen one."""
    chosen = record(findings, "chosen")
    known = curves(findings, "reliability", "cifar100")
    method = next(iter(known)) if which == 0 or chosen is None else chosen.method
    mine = replace(findings, curves=tuple(c for c in findings.curves if c.settings["method"] == method))
    figure = Figure(figsize=(3.7, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3.2, 1.4))
    figures.reliability(mine, above).label_outer()
    figures.confidence_histogram(mine, below)
    return figure


def _risk(findings: Findings) -> Figure:
    figure = Figure(figsize=(4.6, 3.2), layout="constrained")
    ax = figures.risk_coverage(findings, figure.subplots())
    coverage, error, certified = (record(findings, name) for name in ("coverage", "selective_error", "certified"))
    if certified is not None:
        limit = certified.settings["max_error"]
        ax.axhline(limit, color=WRONG, linewidth=1, linestyle=(0, (4, 3)), label="promised at most")
    if coverage is not None and error is not None and error.value == error.value:
        ax.vlines(coverage.value, error.low or 0.0, error.high or 0.0, color=WRONG, linewidth=1.6)
        ax.plot([coverage.value], [error.value], color=WRONG, marker="D", markersize=6, linestyle="", label="certified")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, borderaxespad=0.2)
    return figure


def _digits(findings: Findings, loss: str) -> Figure:
    """Draw the bins of one network as trained and with temperature; little room, so one legend is in the caption."""
    figure = Figure(figsize=(2.2, 2.2), layout="constrained")
    ax = figure.subplots()
    ax.plot([0, 1], [0, 1], color=QUIET, linewidth=1, linestyle=(0, (4, 3)))
    known = curves(findings, "reliability", "digits")
    for name in (loss, f"{loss} + temperature"):
        _bins(ax, known[name], *style("digits", name))
    low = min(float(min(curve[c].min() for c in ("confidence", "accuracy_low"))) for curve in known.values())
    window = (max(0.0, low - 0.05), 1.03)  # the same for all losses
    ax.set(xlim=window, ylim=window, xlabel="confidence", ylabel="accuracy")
    ax.set_title(loss, fontsize="medium", loc="left")
    return figure


def _bins(ax: Axes, bins: Curve, colour: str, marker: str) -> None:
    at = bins["confidence"]
    ax.vlines(at, bins["accuracy_low"], bins["accuracy_high"], color=colour, linewidth=1)
    ax.plot(at, bins["accuracy"], color=colour, marker=marker, markersize=4, linestyle="")


def _history(findings: Findings) -> Figure:
    """Draw a line a loss in three panels over one axis of epochs."""
    figure = Figure(figsize=(4.6, 6.0), layout="constrained")
    axes = figure.subplots(len(HISTORY), 1, sharex=True)
    lines = ((QUIET, "-"), *LINES)
    for (loss, curve), (colour, dash) in zip(curves(findings, "history", "digits").items(), lines, strict=True):
        for ax, column in zip(axes, HISTORY, strict=True):
            ax.plot(curve["epoch"], curve[column], color=colour, linestyle=dash, linewidth=1.4, label=loss)
    for ax, (column, title) in zip(axes, HISTORY.items(), strict=True):
        ax.set_ylabel(title if column == "loss" else f"{title}, validation")
        ax.set_ylim(bottom=0)
    axes[-1].set_xlabel("epoch")
    axes[-1].xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False, handlelength=2.4)
    return figure
