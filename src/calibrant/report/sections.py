"""The lines of an audit, section by section, and its tables of classes and groups.

`SECTIONS` is the one list of what an audit contains. `calibrant.evaluation.audit` measures its lines in this order, and
page and terminal show them under these headings with these titles: a metric joins the audit by one `Line` here.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from calibrant.records import Findings, Record
from calibrant.report import notation

Sizes = Callable[[int, int], bool]


def _always(n: int, k: int) -> bool:
    return True


def _classes(n: int, k: int) -> bool:
    return k > 0


def _bins(n: int) -> int:
    return max(1, min(15, n // 10))  # ten rows a bin at least: a bin of one row says nothing


def _fits(n: int, k: int) -> bool:
    """Whether a metric that ranks or bins all n k probabilities is affordable."""
    return n * k <= 50_000_000


@dataclass(frozen=True)
class Line:
    """One metric of an audit: its title, its options, and the evidence that goes with it.

    An option may be a function of n. ``interval``: with a confidence interval; ``floor``: with noise floor and
    p-value; ``share``: of the bootstrap resamples, for costly metrics; ``when``: whether it applies to n rows of k
    classes (0 where there is only a confidence).
    """

    metric: str
    title: str
    options: Mapping[str, Any] = field(default_factory=dict)
    interval: bool = True
    floor: bool = False
    share: float = 1.0
    when: Sizes = _always


@dataclass(frozen=True)
class Section:
    """A heading, one sentence about it, and its lines."""

    slug: str
    title: str
    says: str
    lines: tuple[Line, ...]


SECTIONS = (
    Section(
        "accuracy",
        "Accuracy",
        "How often the answer is right. Compare it with the accuracy you know, before reading on.",
        (
            Line("accuracy", "Accuracy"),
            Line("top5_accuracy", "Top-5 accuracy", when=lambda n, k: k > 10 and _fits(n, k)),
        ),
    ),
    Section(
        "scores",
        "Proper scores and their split",
        "Log loss and Brier score grade all the probabilities at once. The grade of the confidence alone, as a"
        " forecast of being right, splits exactly into miscalibration - discrimination + uncertainty; only"
        " miscalibration can be repaired after training.",
        (
            Line("nll", "Log loss (NLL)", when=_classes),
            Line("brier", "Brier score", when=_classes),
            Line("top_label_brier", "Brier score of the confidence"),
            Line("corp_miscalibration", "Miscalibration", {"score": "brier"}, share=0.5),
            Line("corp_discrimination", "Discrimination", {"score": "brier"}, share=0.5),
            Line("corp_uncertainty", "Uncertainty", {"score": "brier"}, interval=False),
            Line("corp_miscalibration", "Miscalibration", {"score": "log"}, share=0.5),
            Line("corp_discrimination", "Discrimination", {"score": "log"}, share=0.5),
            Line("corp_uncertainty", "Uncertainty", {"score": "log"}, interval=False),
        ),
    ),
    Section(
        "direction",
        "Over- or under-confident",
        "A positive gap or a slope below 1 means over-confident; the opposite signs mean under-confident.",
        (
            Line("mean_confidence", "Mean confidence"),
            Line("signed_gap", "Confidence minus accuracy", floor=True),
            Line("calibration_slope", "Calibration slope", share=0.5),
            Line("calibration_intercept", "Calibration intercept", share=0.5),
        ),
    ),
    Section(
        "error",
        "Calibration error",
        "How far confidence lies from accuracy. Read each value beside its noise floor: what a perfectly"
        " calibrated model with the same confidences would show on as many rows.",
        (
            Line("ece_debiased", "Calibration error, debiased", {"norm": "l2", "bins": _bins}, floor=True),
            Line("sm_ece", "SmoothECE", floor=True),
            Line("ece_excess", "Calibration error above the noise", floor=True),
            Line("binary_ece", "Calibration error of the positive class", floor=True, when=lambda n, k: k == 2),
            Line(
                "classwise_ece",
                "Class-wise calibration error",
                floor=True,
                share=0.25,
                when=lambda n, k: k > 2 and _fits(n, k),
            ),
        ),
    ),
    Section(
        "tests",
        "Tests of perfect calibration",
        "A p-value near 0 speaks against perfect calibration, a large one proves nothing.",
        (
            Line("ks_pvalue", "Kolmogorov-Smirnov test", interval=False),
            Line("kuiper_pvalue", "Kuiper test", interval=False),
            Line("spiegelhalter_pvalue", "Spiegelhalter test", interval=False),
        ),
    ),
    Section(
        "papers",
        "For comparison with papers",
        "The number most papers print. It is biased upward and depends on the bins and on n; do not decide by it.",
        (Line("top_label_ece", "Top-label ECE", floor=True),),
    ),
    Section(
        "ranking",
        "What abstaining buys",
        "Accept the most confident answers, send the rest to review: how well confidence tells right from wrong.",
        (
            Line("failure_auroc", "AUROC of right against wrong"),
            Line("aurc", "AURC"),
            Line("e_aurc", "Excess AURC", {"oracle": "exact"}),
            Line("augrc", "AUGRC"),
            Line("risk_at_coverage", "Error at a fixed coverage"),
            Line("coverage_at_risk", "Coverage at a fixed error"),
        ),
    ),
)

OTHER = Section("other", "Other measures", "Everything else that was measured.", ())

TITLES = {line.metric: line.title for section in SECTIONS for line in section.lines}


def title(metric: str) -> str:
    """Return the title of a metric, made from its name if it is no line of the audit."""
    return TITLES.get(metric, metric.replace("_", " ").capitalize())


def grouped(findings: Findings) -> list[tuple[Section, list[Record]]]:
    """Group the records of the whole data by section, in order; none is lost."""
    overall = [record for record in findings.records if record.where == "all"]
    filled = [(section, _under(section, overall)) for section in SECTIONS]
    filled.append((OTHER, [record for record in overall if record.metric not in TITLES]))
    return [(section, records) for section, records in filled if records]


def _under(section: Section, records: list[Record]) -> list[Record]:
    order = list(dict.fromkeys(line.metric for line in section.lines))
    chosen = [record for record in records if record.metric in order]
    return sorted(chosen, key=lambda record: order.index(record.metric))


FIRST = ("signed_gap", "accuracy", "mean_confidence")  # the column that sorts the rows comes first, visible on a phone
PLURALS = {"class": "Predicted classes", "group": "Groups"}


@dataclass(frozen=True)
class Place:
    """One class or group, and its records by column."""

    name: str
    cells: Mapping[str, Record]

    @property
    def n(self) -> int:
        """The number of rows."""
        return max(record.n for record in self.cells.values())

    @property
    def harm(self) -> float:
        """The absolute signed gap; -1 where it is NaN, so that it sorts last."""
        gaps = [abs(record.value) for record in self.cells.values() if record.metric == "signed_gap"]
        return -1.0 if not gaps or math.isnan(gaps[0]) else gaps[0]


@dataclass(frozen=True)
class Places:
    """A table of classes or of groups: its title, its columns (key -> heading) and its rows."""

    title: str
    columns: Mapping[str, str]
    rows: tuple[Place, ...]


def tables(findings: Findings) -> list[Places]:
    """Return the tables of classes and of groups, the largest gap first."""
    kinds: dict[str, dict[str, list[Record]]] = {}
    for record in findings.records:
        if record.where != "all":
            kind, _, name = record.where.partition(": ")
            kinds.setdefault(kind, {}).setdefault(name, []).append(record)
    return [_table(kind, named) for kind, named in kinds.items()]


def _table(kind: str, named: Mapping[str, list[Record]]) -> Places:
    found = sorted((record for records in named.values() for record in records), key=_rank)
    headings = {_column(record): _heading(record) for record in found}
    places = (Place(name, {_column(record): record for record in records}) for name, records in named.items())
    rows = tuple(sorted(places, key=lambda place: -place.harm))
    return Places(PLURALS.get(kind, kind.capitalize()), headings, rows)


def _rank(record: Record) -> int:
    return FIRST.index(record.metric) if record.metric in FIRST else len(FIRST)


def _column(record: Record) -> str:
    return f"{record.metric} {notation.settings(record.settings)}".strip()


def _heading(record: Record) -> str:
    options = notation.settings(record.settings)
    return f"{title(record.metric)}, {options}" if options else title(record.metric)
