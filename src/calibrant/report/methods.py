"""registered methods -> what each says of itself, for a terminal."""

import inspect
import re
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from calibrant.records import Curve
from calibrant.registry import Entry
from calibrant.report.training import PANELS, label

TABLE = (0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99)
# LaTeX -> what a terminal shows; other words lose their backslash, and a brace that is meant waits as << and >>
SPACES = r"\\(?:[,;!: ]|[bB]ig+[lr]?\b|textstyle|q?quad|mathbb)|&"
WORDS = {"le": "<=", "ge": ">=", "ne": "!=", "mapsto": "->", "to": "->", "leftarrow": "<-", "mid": "|", "cdot": "*"}


def particulars(entry: Entry, shape: Curve | None = None) -> dict[str, Any]:
    """Return all that a registered method says of itself, with the shape of a loss where there is one."""
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
    """Write the particulars of a method for a terminal; ``table`` adds a few numbers of the shape of a loss."""
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
    """Put parentheses around what is not a single word and has none."""
    return part if re.fullmatch(r"\\?[\w^']+|\([^()]*\)", part.strip()) else f"({part.strip()})"
