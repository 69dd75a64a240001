"""Registered methods: descriptions for a terminal, and figures of loss shapes and AdaFocal's history."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from calibrant.records import Curve
from calibrant.registry import Entry
from calibrant.report.figures import LINES, QUIET, SURE, WRONG, house_style

TABLE = (0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
# LaTeX -> what a terminal shows; other words lose their backslash, and a brace that is meant waits as << and >>
SPACES = r"\\(?:[,;!: ]|[bB]ig+[lr]?\b|textstyle|q?quad|mathbb)|&"
WORDS = {"le": "<=", "ge": ">=", "ne": "!=", "mapsto": "->", "to": "->", "leftarrow": "<-", "mid": "|", "cdot": "*"}
DOTTED = (0, (1, 2))

# column -> its name, that of cross-entropy, and from which p_y (and up to as far from 1) it must be seen whole
PANELS = {
    "loss": ("loss", "cross_entropy", 0.02),
    "normalised_weight": ("weight, mean 1", None, 0.05),
    "gradient": ("d loss / d $p_y$", "cross_entropy_gradient", 0.2),
}
FORMATS: dict[str, dict[str, None]] = {".svg": {"Date": None}, ".png": {}, ".pdf": {"CreationDate": None}}


def particulars(entry: Entry, shape: Curve | None = None) -> dict[str, Any]:
    """Return a method's formula, options, facts and reference, and the shape of a loss."""
    maker = getattr(entry.method, "fit", entry.method)  # a calibrator is told its options when it is fitted
    parameters = inspect.signature(maker).parameters.values()
    told = [p for p in parameters if inspect.isclass(maker) or p.kind is p.KEYWORD_ONLY]
    return {
        "kind": entry.kind,
        "name": entry.name,
        "summary": entry.summary,
        "formula": formula(inspect.getdoc(entry.method) or ""),
        "needs": [p.name for p in told if p.default is p.empty],
        "options": {p.name: p.default for p in told if p.default is not p.empty},
        "facts": dict(entry.facts),
        "reference": entry.reference,
        **({} if shape is None else {"shape": asdict(shape)}),
    }


def described(found: Mapping[str, Any], *, table: bool = True) -> str:
    """Format the particulars of a method for a terminal; ``table`` adds a few points of a loss's shape."""
    lines = [f"{found['name']} ({found['kind']})", textwrap.fill(found["summary"], 100)]
    for title in ("formula", "needs", "options", "facts", "reference"):
        of = found[title]
        words = [f"{key} = {value}" for key, value in of.items()] if isinstance(of, dict) else of
        if text := words if isinstance(words, str) else ", ".join(words):
            lines.append(textwrap.fill(text, 100, initial_indent=f"  {title:<11}", subsequent_indent=" " * 13))
    if "shape" in found:
        shape = Curve(**found["shape"])
        said = [shape.settings["rows"], shape.settings["batch"], *shape.settings["notes"]]
        lines += ["", f"Shape of {label(shape)}:", *(_table(shape) if table else ())]
        lines += [textwrap.fill(" ".join(part for part in said if part), 100)]
    return "\n".join(lines)


def _table(shape: Curve) -> list[str]:
    lines = [f"{'p_y':>6}{'loss':>12}{'weight':>12}{'gradient':>12}   (weight: loss over cross-entropy, mean 1)"]
    for p in TABLE:
        i = int(np.abs(shape["p"] - p).argmin())
        lines.append(f"{shape['p'][i]:>6.2f}" + "".join(f"{shape[column][i]:>12.4g}" for column in PANELS))
    return lines


def formula(doc: str) -> str:
    r"""Write the formulas of a docstring without LaTeX: words without a backslash, parentheses for braces.

    Example:
        >>> formula(r".. math:: -(1 - p_y)^\gamma \log p_y + \frac{a_{ij}}{n - 1} \in [0, 2]")
        '-(1 - p_y)^gamma log p_y + (a_ij/(n - 1)) in [0, 2]'
    """
    found = re.findall(r"^\.\. math::\s*(.+?)(?:\n\s*\n|\Z)", doc, re.S | re.M)
    text = "; ".join(" ".join(block.split()).rstrip(".,") for block in found).replace("\\\\", ";")
    text = re.sub(SPACES, " ", text.replace(r"\{", "<<").replace(r"\}", ">>"))
    text = re.sub(r"\\t?frac *(\w|\\\w+) *(\w|\\\w+)", r"\1/\2", text)
    text = re.sub(r"\\t?frac *(\w) *\{", r"\\frac{\1}{", text)
    inner, before = r"\{([^{}]*)\}", ""
    while before != text:  # from the innermost braces outwards; those of a fraction wait for each other
        before = text
        text = re.sub(rf"\\t?frac{inner}{inner}", lambda m: f"({_held(m[1])}/{_held(m[2])})", text)
        text = re.sub(rf"\\(?:text|mathrm){inner}", r"\1", text)
        text = re.sub(rf"(?<!frac)(?<!\}}){inner}", lambda m: _held(m[1]), text) if text == before else text
    words = re.sub(r"\\([A-Za-z]+)", lambda m: WORDS.get(m[1], m[1]), text).replace("\\", "")
    return " ".join(words.replace("<<", "{").replace(">>", "}").split()).replace(" )", ")").replace("( ", "(")


def _held(part: str) -> str:
    """Add parentheses unless it is a single word or has them already."""
    return part if re.fullmatch(r"\\?[\w^']+|\([^()]*\)", part.strip()) else f"({part.strip()})"


def loss_shape(curves: Sequence[Curve], axes: Iterable[Axes] | None = None) -> tuple[Axes, ...]:
    """Draw loss, weight and gradient against the label's probability, over the grey lines of cross-entropy.

    ``axes`` are three; without them a figure is made, with a legend above and a caption below.
    """
    if not curves:
        raise ValueError("curves must hold at least one curve of calibrant.losses.shapes.shape; got none.")
    if axes is not None:
        return _panels(curves, tuple(axes))
    caption = _caption(curves)
    with house_style():
        figure = Figure(figsize=(9.0, 2.9 + 0.13 * caption.count("\n")), layout="constrained")
        drawn = _panels(curves, tuple(figure.subplots(1, 3)))
        lines, labels = drawn[0].get_legend_handles_labels()
        ncols = min(len(labels), max(1, 120 // (max(map(len, labels)) + 6)))  # what fits above the panels
        figure.legend(lines, labels, loc="outside upper left", ncols=ncols, handlelength=2.6, frameon=False)
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color=QUIET)
    return drawn


def _panels(curves: Sequence[Curve], axes: tuple[Axes, ...]) -> tuple[Axes, ...]:
    own = [curve for curve in curves if curve.settings["loss"] != "cross_entropy"]
    for ax, (column, (name, reference, whole)) in zip(axes, PANELS.items(), strict=True):
        at = curves[0]["p"]
        quiet = curves[0][reference] if reference else np.ones_like(at)
        ax.plot(at, quiet, color=QUIET, linewidth=1, label="cross_entropy")
        for i, curve in enumerate(own):
            colour, dash = LINES[i % len(LINES)][0], LINES[(i + i // len(LINES)) % len(LINES)][1]
            ax.plot(curve["p"], curve[column], color=colour, linestyle=dash, linewidth=1.5, label=label(curve))
        ax.set(xlabel="probability of the label, $p_y$", ylabel=name, xlim=(0, 1))
        ax.set_ylim(*_window(at, [quiet, *(curve[column] for curve in own)], whole))
    axes[-1].axhline(0, color=QUIET, linewidth=0.8, linestyle=DOTTED)
    return axes


def _window(at: NDArray[Any], lines: Sequence[NDArray[Any]], whole: float) -> tuple[float, float]:
    """Return the y limits: all values, cut where they diverge at the ends."""
    inner = (at >= whole) & (at <= 1 - whole)
    low = max(min(line.min() for line in lines), 1.5 * min(line[inner].min() for line in lines))
    high = min(max(line.max() for line in lines), 1.5 * max(line[inner].max() for line in lines))
    low, high = min(low, 0.0), max(high, 0.0)
    room = 0.04 * (high - low)
    return (low - room if low < 0 else 0.0), high + room


def label(curve: Curve) -> str:
    """Return the loss with the options that were given."""
    return ", ".join([curve.settings["loss"], *_options(curve, curve.settings["given"])])


def _options(curve: Curve, names: Iterable[str]) -> list[str]:
    return [f"{name} {_word(curve.settings['options'][name])}" for name in names]


def _word(value: object) -> str:
    """Format the value of an option; a long list becomes "given"."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if len(str(value)) <= 24 else "given"


def _caption(curves: Sequence[Curve]) -> str:
    """Return the caption: rows, options, batch and notes."""
    said = [" ".join(dict.fromkeys(curve.settings["rows"] for curve in curves))]
    for curve in curves:
        of = curve.settings
        options = ", ".join(_options(curve, of["options"]))
        each = [f"{options}." if options else "", of["batch"], *of["notes"]]
        if text := " ".join(part for part in each if part):
            said.append(f"{of['loss']}: {text}")
    return "\n".join(textwrap.fill(line, 165) for line in said)


def gamma_history(curve: Curve, bins: Sequence[int] | None = None, axes: NDArray[Any] | None = None) -> NDArray[Any]:
    """Draw AdaFocal's history: for each bin the error (confidence less accuracy) above and gamma below.

    ``bins`` are the least sure, the middle and the surest one unless others are named. ``axes`` are two rows of as many
    columns as there are bins; without them a figure is made.
    """
    if len(curve) == 0:
        raise ValueError("curve must hold at least one epoch; got none. Criterion.epoch_end adds one.")
    known = sorted(set(curve["bin"].tolist()))
    shown = sorted({known[0], known[len(known) // 2], known[-1]}) if bins is None else list(bins)
    for which in shown:
        if which not in known:
            raise ValueError(f"bins must lie in {known[0]} to {known[-1]}; got {which}.")
    if axes is not None:
        return _histories(curve, shown, axes)
    with house_style():
        figure = Figure(figsize=(1.0 + 2.6 * len(shown), 3.6), layout="constrained")
        return _histories(curve, shown, figure.subplots(2, len(shown), squeeze=False, sharex=True, sharey="row"))


def _histories(curve: Curve, bins: Sequence[int], axes: NDArray[Any]) -> NDArray[Any]:
    words = {min(curve["bin"]): ", the least sure", max(curve["bin"]): ", the surest"}
    for column, which in enumerate(bins):
        mine = curve["bin"] == which
        for ax, name, colour in zip(axes[:, column], ("error", "gamma"), (WRONG, SURE), strict=True):
            marker = "o" if mine.sum() == 1 else ""  # a line of one point is invisible
            ax.plot(curve["epoch"][mine], curve[name][mine], color=colour, marker=marker, markersize=4.5, linewidth=1.5)
            ax.axhline(0, color=QUIET, linewidth=1, linestyle=DOTTED)  # no error; and below it, inverse focal loss
            ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes[0, column].set_title(f"bin {which}{words.get(which, '')}", fontsize="medium")
        axes[1, column].set_xlabel("epoch")
    axes[0, 0].set_ylabel("confidence - accuracy")
    axes[1, 0].set_ylabel("gamma")
    return axes


def encoded(ax: Axes, suffix: str) -> bytes:
    """Return the figure of these axes as a file of that suffix; the same curves give the same bytes."""
    figure, file = ax.figure, BytesIO()
    if not isinstance(figure, Figure):
        raise TypeError("ax must lie in a whole figure; got one in a part of a figure.")
    with house_style():
        figure.savefig(file, dpi=160, format=suffix.removeprefix("."), metadata=FORMATS[suffix])
    return file.getvalue()
