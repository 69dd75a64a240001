"""figure -> SVG for a page: no style attribute, no outside reference, ink in the colour of the text around it."""

import re
from contextlib import AbstractContextManager
from io import StringIO
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import matplotlib.style
from matplotlib.figure import Figure

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


def house_style() -> AbstractContextManager[None]:
    """Return the context in which a page's figures are drawn and saved; outside it nothing has changed."""
    return matplotlib.style.context(HOUSE, after_reset=True)


def inline(figure: Figure, *, name: str, label: str) -> str:
    """Write the figure as an SVG element; ``name`` keeps its ids apart from others', ``label`` is read aloud."""
    written = StringIO()
    figure.savefig(written, format="svg", transparent=True)
    root = ElementTree.fromstring(written.getvalue())
    for element in root.iter():
        _clean(element, name)
    _drop_styles(root)
    _drop_unused_ids(root)
    _describe(root, label)
    return ElementTree.tostring(root, encoding="unicode")


def _clean(element: Element, name: str) -> None:
    """Leave plain tags and presentation attributes only: what a strict content policy lets through."""
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
    """Put the figure's name before an id and before each reference to one."""
    if attribute == "id":
        return f"{name}-{text}"
    return text.replace("#", f"#{name}-") if attribute in ("href", "clip-path") else text


def _drop_styles(root: Element) -> None:
    """Drop the style sheet, and the metadata with the date that would make every page new."""
    for parent in root.iter():
        for child in [child for child in parent if child.tag in ("style", "metadata")]:
            parent.remove(child)


def _drop_unused_ids(root: Element) -> None:
    used = set(re.findall(r"#([\w.-]+)", ElementTree.tostring(root, encoding="unicode")))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _describe(root: Element, label: str) -> None:
    for size in ("width", "height", "version"):
        root.attrib.pop(size, None)
    # Black fill is left out by matplotlib as SVG's default, and line joins were said in the dropped style sheet.
    root.attrib |= {"role": "img", "aria-label": label, "fill": "currentColor", "stroke-linejoin": "round"}
