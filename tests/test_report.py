"""The report shows exactly what it is given, whatever that is, and asks nothing of the world outside."""

import base64
import hashlib
import html
import json
import re
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from calibrant.records import Curve, Findings, Record
from calibrant.report import figures, notation, page, sections
from calibrant.report.page import render
from calibrant.report.table import text

HOSTILE = "<script>alert(1)</script>"
N = 400
LEVEL = 0.95


def curve(name, **columns):
    return Curve(name, {key: np.asarray(column, dtype=float) for key, column in columns.items()}, N)


CURVES = (
    curve(
        "reliability",
        low=[0.3, 0.7],
        high=[0.7, 1.0],
        count=[200, 200],
        confidence=[0.55, 0.9],
        accuracy=[0.5, 0.71],
        accuracy_low=[0.44, 0.65],
        accuracy_high=[0.56, 0.77],
        band_low=[0.49, 0.86],
        band_high=[0.61, 0.94],
    ),
    curve("reliability_isotonic", confidence=[0.3, 0.6, 1.0], accuracy=[0.2, 0.55, 0.9]),
    curve("confidence_histogram", low=[0.0, 0.5], high=[0.5, 1.0], right=[30, 210], wrong=[60, 100]),
    curve("risk_coverage", threshold=[0.9, 0.7, 0.3], coverage=[0.25, 0.5, 1.0], risk=[0.1, 0.2, 0.395]),
    curve("oracle_risk_coverage", coverage=[0.6, 1.0], risk=[0.0, 0.395]),
    curve("generalised_risk_coverage", coverage=[0.5, 1.0], risk=[0.1, 0.395]),
    curve("roc", fpr=[0.0, 0.4, 1.0], tpr=[0.0, 0.8, 1.0]),
)

RECORDS = (
    Record("accuracy", 0.6051, N, low=0.5561, high=0.6521, level=LEVEL),
    Record("nll", 0.8712, N),
    Record("corp_miscalibration", 0.0142, N, settings={"score": "brier"}),
    Record("corp_miscalibration", 0.0611, N, settings={"score": "log"}),
    Record("signed_gap", 0.1034, N, low=0.0951, high=0.1118, level=LEVEL, p=0.0002),
    Record("sm_ece", 0.0413, N, low=0.0331, high=0.0522, level=LEVEL, floor=0.0251, floor_high=0.0362, p=0.0041),
    Record("ks_pvalue", 0.0312, N),
    Record("top_label_ece", 0.0777, N, settings={"bins": 15}),
    Record("failure_auroc", 0.7612, N),
    Record("coverage_at_risk", float("nan"), N, settings={"risk": 0.01}),
    Record("a_measure_of_tomorrow", 0.4567, N),
    Record("accuracy", 0.5123, 90, where=f"class: {HOSTILE}"),
    Record("mean_confidence", 0.8321, 90, where=f"class: {HOSTILE}"),
    Record("signed_gap", 0.3198, 90, low=0.2512, high=0.3887, level=LEVEL, where=f"class: {HOSTILE}"),
    Record("accuracy", 0.7011, 110, where="class: cat"),
    Record("signed_gap", -0.0512, 110, where="class: cat"),
    Record("signed_gap", 0.0871, 200, where="group: north & south"),
    Record("top_label_ece", 0.0912, 200, where="group: north & south", settings={"bins": 15}),
)

WHOLE = Findings(
    understood="400 rows x 3 classes, logits",
    verdict="When it says 90 %, it is right 71 % of the time.",
    notes=("7 of 400 rows repeat an earlier row exactly.",),
    advice=("Fit a temperature on held-out rows.", "Certify a threshold."),
    records=RECORDS,
    curves=CURVES,
)
BARE = Findings("no rows", "Nothing can be said.", (), (), (), ())
# What n = 1, one constant confidence, or all right leave of the curves.
POINTS = replace(
    WHOLE, curves=tuple(Curve(c.name, {key: column[-1:] for key, column in c.columns.items()}, 1) for c in CURVES)
)
UNKNOWN = replace(
    WHOLE, curves=tuple(Curve(c.name, {key: column * np.nan for key, column in c.columns.items()}, N) for c in CURVES)
)
EMPTY = replace(
    WHOLE, curves=tuple(Curve(c.name, {key: column[:0] for key, column in c.columns.items()}, N) for c in CURVES)
)
EDGES = {"whole": WHOLE, "bare": BARE, "empty curves": EMPTY, "single points": POINTS, "undefined points": UNKNOWN}
each_edge = pytest.mark.parametrize("findings", EDGES.values(), ids=EDGES)
each_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.metric}-{record.where}")
FIGURES = (
    figures.reliability,
    figures.confidence_histogram,
    figures.risk_coverage,
    figures.generalised_risk_coverage,
    figures.roc,
)
each_figure = pytest.mark.parametrize("draw", FIGURES, ids=lambda draw: draw.__name__)


def visible(page):
    """The page's text without tags, style and scripts, each run of spaces as one."""
    page = re.sub(r"<(style|script)[^>]*>.*?</\1>", " ", page, flags=re.S)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).replace("\u00a0", " ").split())


@each_edge
def test_the_same_findings_give_the_same_bytes_whatever_the_users_matplotlib(findings):
    first = render(findings)
    with matplotlib.rc_context({"xtick.labelsize": 22, "axes.grid": True, "svg.hashsalt": None}):
        assert render(findings) == first


def test_the_page_bears_no_date(monkeypatch):
    first = render(WHOLE)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    assert render(WHOLE) == first


@each_edge
def test_no_style_attribute_no_event_handler_and_no_outside_address(findings):
    page = render(findings)
    assert not re.search(r"\sstyle\s*=", page)
    assert not re.search(r"<[^>]*\son\w+\s*=", page)
    assert not re.search(r"https?:|//\w|\bsrc=|@import|url\((?!#)", page)
    assert page.count("<style") == 1


def test_the_policy_admits_this_script_and_this_style_and_nothing_else():
    page = render(WHOLE)
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])
    (css,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    (js,) = re.findall(r"<script>(.*?)</script>", page, re.S)
    digest = {
        name: base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for name, part in {"style": css, "script": js}.items()
    }
    assert policy.split("; ") == [
        "default-src 'none'",
        f"style-src 'sha256-{digest['style']}'",
        f"script-src 'sha256-{digest['script']}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_a_hostile_name_stays_text_everywhere_on_the_page():
    said = replace(
        WHOLE,
        understood=HOSTILE,
        verdict=HOSTILE,
        notes=(HOSTILE,),
        advice=(HOSTILE,),
        records=(
            *RECORDS,
            Record(HOSTILE, 0.5, N, settings={HOSTILE: HOSTILE}, model=HOSTILE, versions=HOSTILE),
            Record("accuracy", 0.5, N, where=f"{HOSTILE}: {HOSTILE}"),
        ),
    )
    page = render(said)
    assert HOSTILE not in page
    assert visible(page).count(HOSTILE) >= 9


def test_the_embedded_json_cannot_end_its_element():
    hostile = replace(WHOLE, curves=(Curve("risk_coverage", {**CURVES[3].columns, HOSTILE: np.ones(3)}, N),))
    page = render(hostile)
    (data,) = re.findall(r'<script type="application/json" id="risk-coverage">(.*?)</script>', page, re.S)
    assert HOSTILE not in page
    assert not set("<>&") & set(data)
    assert json.loads(data)[HOSTILE] == [1.0, 1.0, 1.0]
    assert json.loads(data)["risk"] == [0.1, 0.2, 0.395]


CERTIFIED = replace(
    curve("certified", threshold=[0.6], max_error=[0.25], delta=[0.05], point=[1], coverage=[0.5], risk=[0.2]),
    settings={"says": f"above confidence 0.6 the error is at most 25 % {HOSTILE}"},
)


def test_the_slider_marks_the_certified_point_and_a_sentence_says_it_without_script():
    page = render(replace(WHOLE, curves=(*CURVES, CERTIFIED)))
    assert "Certified: above confidence 0.6 the error is at most 25 % <script>" in visible(page)
    assert HOSTILE not in page
    assert re.search(r'id="certified" data-point="1"', page)
    before = page.partition('<div class="slider"')[0]
    assert "<strong>Certified:</strong>" in before


@pytest.mark.parametrize(
    "curves",
    [
        CURVES,
        (*CURVES, replace(CERTIFIED, columns={key: column[:0] for key, column in CERTIFIED.columns.items()})),
        (*CURVES, replace(CERTIFIED, columns={key: column * np.nan for key, column in CERTIFIED.columns.items()})),
        (*CURVES, replace(CERTIFIED, columns=CERTIFIED.columns | {"point": np.array([3])})),
        (CERTIFIED,),
    ],
    ids=["none", "empty", "undefined", "beyond the curve", "no curve"],
)
def test_without_a_point_to_show_there_is_no_mark(curves):
    page = render(replace(WHOLE, curves=tuple(curves)))
    assert 'id="certified"' not in page
    assert "Certified:" not in page


def test_a_hostile_name_in_a_figure_stays_text():
    with figures.house_style():
        figure = Figure()
        figure.subplots().set_title(HOSTILE)
        drawing = figures.inline(figure, name="hostile", alt=f'"{HOSTILE}')
    assert HOSTILE not in drawing
    root = ElementTree.fromstring(drawing)
    assert root.get("aria-label") == f'"{HOSTILE}'
    assert HOSTILE in "".join(root.itertext())


@each_edge
def test_what_is_undefined_is_called_undefined(findings):
    page, said = visible(render(findings)), text(findings)
    assert not re.search(r"\bnan\b|\bNone\b", page + said, re.I)
    if findings.records:
        assert "Coverage at a fixed error coverage_at_risk (risk 0.01) undefined" in page
        assert re.search(r"coverage_at_risk \(risk 0.01\) +undefined", said)


@each_record
def test_every_record_is_on_the_page_with_all_that_is_known_of_it(record):
    page = visible(render(WHOLE))
    assert notation.value(record) in page
    assert notation.interval(record) in page
    assert notation.floor(record) in page
    assert notation.p_value(record) in page
    assert notation.settings(record.settings) in page
    assert record.where == "all" or record.where.partition(": ")[2] in page
    assert record.where != "all" or record.metric in page


@each_record
def test_every_record_is_a_line_of_the_terminal_text(record):
    name = record.metric if record.where == "all" else record.where.partition(": ")[2]
    options = notation.settings(record.settings) if record.where == "all" else ""
    (line,) = (line for line in text(WHOLE).splitlines() if line.startswith(f"  {name}") and options in line)
    for part in (notation.value(record), notation.interval(record), notation.floor(record), notation.p_value(record)):
        assert part in line


def test_page_and_terminal_say_every_sentence_in_the_order_of_reading():
    sentences = [WHOLE.verdict, WHOLE.understood, *WHOLE.notes, "Accuracy", *WHOLE.advice]
    for said in (visible(render(WHOLE)).partition(" Confidence audit ")[2], text(WHOLE)):
        found = [said.index(sentence) for sentence in sentences]
        assert found == sorted(found)


def test_the_page_says_of_what_it_speaks_and_what_computed_it_once_each():
    told = tuple(replace(record, model="resnet32", seed=7, versions="calibrant 9.9") for record in RECORDS)
    page = visible(render(replace(WHOLE, records=(*told, replace(told[0], seed=None)))))
    assert page.startswith("Confidence audit: resnet32 Confidence audit · resnet32 When it says")
    assert page.endswith("calibrant 9.9; seed 7")
    assert page.count("calibrant 9.9") == 1


def test_sections_come_in_the_order_of_reading():
    assert re.findall(r'<section id="(\w+)"', render(WHOLE)) == [
        "accuracy", "scores", "direction", "error", "reliability", "places", "ranking", "other", "next",
    ]  # fmt: skip


def test_sections_lose_no_record_and_repeat_none():
    shown = [id(record) for _, records in sections.grouped(WHOLE) for record in records]
    assert sorted(shown) == sorted(id(record) for record in RECORDS if record.where == "all")
    assert sections.grouped(WHOLE)[-1][0].slug == "other"


def test_the_worst_place_comes_first_and_an_unknown_gap_last():
    unknown = Record("signed_gap", float("nan"), 3, where="class: rare")
    classes, groups = sections.tables(replace(WHOLE, records=(unknown, *RECORDS)))
    assert [place.name for place in classes.rows] == [HOSTILE, "cat", "rare"]
    assert list(classes.columns) == ["signed_gap", "accuracy", "mean_confidence"]
    assert list(groups.columns) == ["signed_gap", "top_label_ece bins 15"]


def test_the_terminal_shows_five_places_and_counts_the_rest():
    many = tuple(Record("signed_gap", i / 100, 10, where=f"class: c{i}") for i in range(1, 9))
    said = text(replace(BARE, records=many))
    assert re.findall(r"^  (c\d)", said, re.M) == ["c8", "c7", "c6", "c5", "c4"]
    assert "and 3 more" in said


def test_the_terminal_text_obeys_no_name():
    name = "[red]\x1b[31m:smile:"
    said = text(replace(BARE, verdict=name, records=(Record("signed_gap", 0.5, 10, where=f"class: {name}"),)))
    assert "\x1b" not in said
    assert said.count("[red]\N{REPLACEMENT CHARACTER}[31m:smile:") == 2


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_terminal_text_keeps_to_its_width(width):
    said = text(WHOLE, width)
    assert max(map(len, said.splitlines())) <= width
    number = r"[+-]?\d\.\d+|undefined"
    assert {found for record in RECORDS for found in re.findall(number, notation.estimate(record))} <= set(
        re.findall(number, said)
    )


def test_numbers_are_signed_only_where_zero_is_best():
    assert notation.estimate(Record("signed_gap", 0.1034, 9, low=-0.02, high=0.2)) == "+0.103 [-0.020, +0.200]"
    assert notation.estimate(Record("sm_ece", 0.0413, 9, low=0.0331, high=0.0522)) == "0.041 [0.033, 0.052]"


@each_figure
@each_edge
def test_a_figure_draws_on_the_given_axes_and_changes_no_setting(draw, findings):
    before = dict(matplotlib.rcParams)
    ax = Figure().subplots()
    assert draw(findings, ax) is ax
    assert draw(findings).figure is not ax.figure
    assert dict(matplotlib.rcParams) == before


@each_edge
def test_rendering_changes_no_setting_of_matplotlib(findings):
    before = dict(matplotlib.rcParams)
    render(findings)
    assert dict(matplotlib.rcParams) == before


def lines(ax):
    return {line.get_label(): line.get_xydata().T.tolist() for line in ax.lines}


def test_the_reliability_diagram_holds_the_curves_numbers():
    ax = figures.reliability(WHOLE)
    bins, isotonic = CURVES[0], CURVES[1]
    assert lines(ax)["bins"] == [bins["confidence"].tolist(), bins["accuracy"].tolist()]
    assert lines(ax)["isotonic fit"] == [isotonic["confidence"].tolist(), isotonic["accuracy"].tolist()]
    band, bars = ax.collections
    corners = np.column_stack([np.tile(bins["confidence"], 2), np.r_[bins["band_low"], bins["band_high"]]])
    assert set(map(tuple, corners)) <= set(map(tuple, band.get_paths()[0].vertices))
    ends = np.stack([bins["accuracy_low"], bins["accuracy_high"]], 1)
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == ends.tolist()


def test_the_histogram_holds_the_curves_numbers():
    right, wrong = figures.confidence_histogram(WHOLE).containers
    assert [bar.get_height() for bar in right] == [30, 210]
    assert [(bar.get_y(), bar.get_height()) for bar in wrong] == [(30, 60), (210, 100)]
    assert [(bar.get_x(), bar.get_width()) for bar in wrong] == [(0.0, 0.5), (0.5, 0.5)]


@pytest.mark.parametrize(
    ("draw", "name", "x", "y", "label"),
    [
        (figures.risk_coverage, "risk_coverage", "coverage", "risk", "by confidence"),
        (figures.risk_coverage, "oracle_risk_coverage", "coverage", "risk", "best possible ordering"),
        (figures.generalised_risk_coverage, "generalised_risk_coverage", "coverage", "risk", "by confidence"),
        (figures.roc, "roc", "fpr", "tpr", "by confidence"),
    ],
)
def test_a_line_holds_the_curves_numbers(draw, name, x, y, label):
    drawn = WHOLE.curve(name)
    assert lines(draw(WHOLE))[label] == [drawn[x].tolist(), drawn[y].tolist()]


def test_the_temperature_by_margin_holds_the_curves_numbers():
    drawn = curve("margin_temperature", margin=[0, 1, 4], temperature=[1.5, 1.2, 0.9], low=[1, 1, 0.8], high=[2, 2, 1])
    assert lines(figures.margin_temperature(replace(BARE, curves=(drawn,))))["temperature"] == [
        drawn["margin"].tolist(),
        drawn["temperature"].tolist(),
    ]


def test_a_curve_of_one_point_is_visible():
    (line,) = (line for line in figures.roc(POINTS).lines if line.get_label() == "by confidence")
    assert line.get_marker() == "o"


def test_ids_are_unique_over_all_figures_of_a_page_and_each_reference_is_met():
    page = render(WHOLE)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'(?:href="|url\()#([\w.-]+)', page))
    assert references
    assert references <= set(ids)


def test_a_drawing_takes_the_ink_of_the_page_and_the_width_it_is_given():
    for plot in page.PLOTS:
        if not any(map(WHOLE.curve, plot.panels)):
            continue
        drawing = page.drawing(WHOLE, plot)
        root = ElementTree.fromstring(drawing)
        assert (root.get("role"), root.get("fill")) == ("img", "currentColor")
        assert root.get("viewBox")
        assert root.get("aria-label")
        assert root.get("width") is None
        assert figures.INK not in drawing
        assert "".join(root.itertext()).count("0.2")  # ticks are text, not outlines


def test_importing_the_package_does_not_import_matplotlib():
    code = "import sys, calibrant, calibrant.records; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
