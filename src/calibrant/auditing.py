"""The audit: which numbers, in which order, and what they mean in words."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from calibrant import advice, curves, slices
from calibrant.evidence import floor, interval, measure
from calibrant.predictions import Predictions
from calibrant.records import Findings, Record, to_json


@dataclass(frozen=True)
class Item:
    """One line of an audit: a metric, its options, and how much evidence it carries.

    ``sure``: with an interval; ``floor``: with noise floor and p-value; ``share``: of the draws, for the costly ones.
    """

    metric: str
    options: dict[str, Any] = field(default_factory=dict)
    sure: bool = True
    floor: bool = False
    share: float = 1.0
    when: Callable[[Predictions], bool] = lambda p: True


def _has_classes(p: Predictions) -> bool:
    return p.k is not None


def _table_fits(p: Predictions) -> bool:
    return p.k is not None and len(p) * p.k <= 50_000_000


PLAN = (
    Item("accuracy"),
    Item("top5_accuracy", when=lambda p: p.k is not None and p.k > 10 and _table_fits(p)),
    Item("nll", when=_has_classes),
    Item("brier", when=_has_classes),
    Item("corp_miscalibration", {"score": "brier"}),
    Item("corp_discrimination", {"score": "brier"}),
    Item("corp_uncertainty", {"score": "brier"}, sure=False),
    Item("corp_miscalibration", {"score": "log"}),
    Item("corp_discrimination", {"score": "log"}),
    Item("corp_uncertainty", {"score": "log"}, sure=False),
    Item("mean_confidence"),
    Item("signed_gap", floor=True),
    Item("calibration_slope"),
    Item("calibration_intercept"),
    Item("ece_debiased", {"norm": "l2"}, floor=True),
    Item("sm_ece", floor=True),
    Item("top_label_ece", floor=True),
    Item("binary_ece", floor=True, when=lambda p: p.k == 2),
    Item("classwise_ece", floor=True, share=0.25, when=lambda p: p.k is not None and p.k > 2 and _table_fits(p)),
    Item("ks_pvalue", sure=False),
    Item("kuiper_pvalue", sure=False),
    Item("spiegelhalter_pvalue", sure=False),
    Item("failure_auroc"),
    Item("aurc"),
    Item("e_aurc", {"oracle": "exact"}),
    Item("augrc"),
    Item("risk_at_coverage"),
    Item("coverage_at_risk"),
)


@dataclass(frozen=True)
class Audit:
    """What an audit found. ``print`` it, read its ``records``, or ``save`` it as a page (.html) or as .json."""

    findings: Findings

    @property
    def records(self) -> tuple[Record, ...]:
        """Every number, with its interval, noise floor and p-value where it has them."""
        return self.findings.records

    @property
    def verdict(self) -> str:
        """One sentence in words."""
        return self.findings.verdict

    def save(self, path: str | Path) -> None:
        """Write a self-contained page to ``*.html``, or everything as JSON to ``*.json``."""
        path = check_path(Path(path))
        path.write_text(to_json(self.findings) if path.suffix == ".json" else self._page(), encoding="utf-8")

    def _page(self) -> str:
        from calibrant.report.page import render  # matplotlib and jinja2 are needed only here

        return render(self.findings)

    def __str__(self) -> str:
        from calibrant.report.table import text

        return text(self.findings)


def check_path(path: Path) -> Path:
    """Refuse a place where an audit cannot be saved; better before the work than after."""
    if path.suffix not in (".html", ".json"):
        raise ValueError(f"path must end in .html or .json; got {path.name!r}.")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"path must lie in a folder that exists; {str(path.parent)!r} does not.")
    return path


def audit(
    predictions: Predictions,
    *,
    level: float = 0.9,
    resamples: int | None = None,
    seed: int = 0,
    fitted_on: str | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Audit:
    """Say whether a classifier's confidence can be believed, how sure we are of that, and what to do next.

    ``level`` is that of every interval; ``resamples`` the number of bootstrap resamples and of label draws for the
    noise floor (200; fewer, but at least 100, above 100 000 rows). ``fitted_on`` is the `Predictions.fingerprint` of
    the rows a calibrator was fitted on: if these are the same rows, the audit says that its numbers are optimistic.
    ``on_step`` is told the name of each metric before it is computed.

    Example:
        >>> p = Predictions(confidence=torch.full((200,), 0.9), correct=torch.arange(200) % 4 > 0)
        >>> audit(p).verdict.partition(";")[0]
        'Over-confident: when it says 90 %, it is right 75 % of the time'
    """
    draws = resamples or max(100, min(200, 20_000_000 // len(predictions)))
    found = tuple(_records(predictions, level, draws, seed, on_step or (lambda name: None)))
    shapes = (
        curves.reliability(predictions, level=level),
        curves.reliability_isotonic(predictions),
        curves.confidence_histogram(predictions),
        curves.risk_coverage(predictions),
        curves.oracle_risk_coverage(predictions),
        curves.generalised_risk_coverage(predictions),
        curves.roc(predictions),
    )
    notes = predictions.notes
    if fitted_on == predictions.fingerprint:
        notes = (
            f"these {len(predictions)} rows are the rows the calibrator was fitted on; its numbers are optimistic.",
            *notes,
        )
    base = Findings(predictions.understood, "", notes, (), found, shapes)
    told = replace(base, verdict=advice.verdict(base))
    return Audit(replace(told, advice=advice.next_steps(told, predictions)))


def _records(p: Predictions, level: float, draws: int, seed: int, on_step: Callable[[str], None]) -> Iterator[Record]:
    for item in PLAN:
        if not item.when(p):
            continue
        on_step(item.metric)
        record = _record(item, p, level, draws, seed)
        yield record
        if item.metric == "top_label_ece":
            yield _excess(record)
    on_step("slices")
    yield from slices.records(p, level=level)


def _record(item: Item, p: Predictions, level: float, draws: int, seed: int) -> Record:
    settings, draws = item.options, max(20, int(draws * item.share))
    record = Record(item.metric, measure(item.metric, p, options=settings), len(p), settings=settings, seed=seed)
    if item.sure:
        found = interval(item.metric, p, options=settings, level=level, resamples=draws, seed=seed)
        record = replace(record, low=found.low, high=found.high, level=level)
    if item.floor:
        noise = floor(item.metric, p, options=settings, draws=draws, seed=seed)
        record = replace(record, floor=noise.mean, floor_high=noise.high, p=noise.p)
    return record


def _excess(ece: Record) -> Record:
    """What the binned error shows beyond noise: the value and its interval, less the floor."""
    base = ece.floor or 0.0
    low, high = (None if bound is None else bound - base for bound in (ece.low, ece.high))
    return replace(ece, metric="ece_excess", value=ece.value - base, low=low, high=high, floor=0.0, floor_high=None)
