"""The audit: which numbers, in which order, and what they mean in words."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from calibrant.evaluation import advice
from calibrant.evaluation import subgroups as slices
from calibrant.evaluation.findings import Report
from calibrant.metrics import curves
from calibrant.metrics.curves import margin_reliability
from calibrant.metrics.evidence import floor, interval, measure
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Findings, Record
from calibrant.registry import METRICS
from calibrant.selection.certification import certify
from calibrant.selection.reasons import digits

ENOUGH = 200  # rows from which groups of them by margin are drawn
DELTA = 0.05  # how often what an audit certifies may fail
LIMITS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # of the error that an audit proposes to certify
MOST_CERTIFIED = 1_000_000  # rows up to which it does


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


def plan(p: Predictions) -> list[Item]:
    """Return what an audit of these predictions measures, in the order of reading."""
    classes, fits = p.k is not None, len(p) * (p.k or 0) <= 50_000_000
    bins = max(1, min(15, len(p) // 10))  # ten rows a bin at least: a bin of one row says nothing
    parts = ("miscalibration", "discrimination", "uncertainty")
    return [
        Item("accuracy"),
        *([Item("top5_accuracy")] if classes and (p.k or 0) > 10 and fits else []),
        *([Item("nll"), Item("brier")] if classes else []),
        Item("top_label_brier"),
        *(
            Item(f"corp_{part}", {"score": s}, sure=part != "uncertainty", share=0.5)
            for s in ("brier", "log")
            for part in parts
        ),
        Item("mean_confidence"),
        Item("signed_gap", floor=True),
        Item("calibration_slope", share=0.5),
        Item("calibration_intercept", share=0.5),
        Item("ece_debiased", {"norm": "l2", "bins": bins}, floor=True),
        Item("sm_ece", floor=True),
        Item("ece_excess", floor=True),
        *([Item("binary_ece", floor=True)] if p.k == 2 else []),
        *([Item("classwise_ece", floor=True, share=0.25)] if (p.k or 0) > 2 and fits else []),
        *(Item(f"{test}_pvalue", sure=False) for test in ("ks", "kuiper", "spiegelhalter")),
        Item("top_label_ece", floor=True),
        Item("failure_auroc"),
        Item("aurc"),
        Item("e_aurc", {"oracle": "exact"}),
        Item("augrc"),
        Item("risk_at_coverage"),
        Item("coverage_at_risk"),
    ]


class Audit(Report):
    """What an audit found. ``print`` it, read its ``records``, or ``save`` it as a page (.html) or as .json."""

    def page(self) -> str:
        """Return a self-contained page."""
        from calibrant.report.page import render  # matplotlib and jinja2 are needed only here

        return render(self.findings)

    def text(self) -> str:
        """Return what a terminal shows."""
        from calibrant.report.table import text

        return text(self.findings)


def audit(
    predictions: Predictions,
    *,
    level: float = 0.9,
    resamples: int | None = None,
    seed: int = 0,
    model: str = "",
    dataset: str = "",
    fitted_on: tuple[str, ...] = (),
    on_step: Callable[[str], None] | None = None,
) -> Audit:
    """Say whether a classifier's confidence can be believed, how sure we are of that, and what to do next.

    ``level`` is that of every interval; ``resamples`` the number of bootstrap resamples and of label draws for the
    noise floor (200; fewer, but at least 100, above 100 000 rows); ``model`` and ``dataset`` are written into the
    records; ``on_step`` is told each metric before it is computed. Predictions that a calibrator made
    (``calibrator.calibrate(predictions)``) know the rows it was fitted on; ``fitted_on=calibrator.fitted.rows`` says
    it of others: if these are the same rows, the audit says that its numbers are optimistic.

    Example:
        >>> p = Predictions(confidence=torch.full((200,), 0.9), correct=torch.arange(200) % 4 > 0)
        >>> audit(p).verdict.partition(";")[0]
        'Over-confident: when it says 90 %, it is right 75 % of the time'
    """
    if not isinstance(predictions, Predictions):
        raise TypeError(f"predictions must be Predictions(logits=..., labels=...); got {type(predictions).__name__}.")
    if predictions.rows.correct is None:
        raise ValueError("labels are needed for an audit; these predictions have none.")
    draws = max(100, min(200, 20_000_000 // len(predictions))) if resamples is None else resamples
    found = tuple(
        replace(record, model=model, dataset=dataset)
        for record in _records(predictions, level, draws, seed, on_step or (lambda name: None))
    )
    notes = predictions.notes
    seen = predictions.fingerprint in (*predictions.fitted_on, *fitted_on)
    certified = None if seen else _certified(predictions)
    risk = curves.risk_coverage(predictions, through=None if certified is None else certified.coverage)
    shapes = (
        curves.reliability(predictions, level=level),
        curves.reliability_isotonic(predictions),
        *([margin_reliability(predictions, level=level)] if predictions.k and len(predictions) >= ENOUGH else []),
        curves.confidence_histogram(predictions),
        risk,
        *([] if certified is None else [_point(certified, risk)]),
        curves.oracle_risk_coverage(predictions),
        curves.generalised_risk_coverage(predictions),
        curves.roc(predictions),
    )
    if seen:
        which = "trust predictor" if predictions.k is None else "calibrator"
        notes = (
            f"these {len(predictions)} rows are the rows the {which} was fitted on; its numbers are optimistic.",
            *notes,
        )
    base = Findings(predictions.understood, "", notes, (), found, shapes)
    told = replace(base, verdict=advice.verdict(base))
    return Audit(replace(told, advice=advice.next_steps(told, predictions, certified)))


def _certified(p: Predictions) -> advice.Certified | None:
    """Certify one of a few limits, at most half of the present error; None with weights, or where nothing can be."""
    error = float((~p.correct).double().mean())
    limit = next((limit for limit in LIMITS if limit <= error / 2), None)
    if limit is None or p.weights is not None or not advice.FEW <= len(p) <= MOST_CERTIFIED:
        return None
    policy = certify(p, max_error=limit, delta=DELTA / len(LIMITS))  # these rows chose the limit: all must hold at once
    if policy.threshold is None:
        return None
    return advice.Certified(policy.threshold, limit, DELTA, policy.coverage, digits(policy.threshold))


def _point(found: advice.Certified, risk: Curve) -> Curve:
    """Return the certified point as a curve of one row; ``point`` is its place on the risk-coverage curve.

    A policy accepts above its threshold, the curve from its threshold on: the point is the one that accepts the same.
    """
    point = int(np.abs(risk["coverage"] - found.coverage).argmin())
    numbers = {"threshold": found.threshold, "max_error": found.max_error, "delta": found.delta, "point": point}
    columns = {name: np.array([number]) for name, number in numbers.items()}
    columns |= {name: risk[name][[point]] for name in ("coverage", "risk")}
    return Curve("certified", columns, risk.n, {"says": advice.certified(found)})


def _records(p: Predictions, level: float, draws: int, seed: int, on_step: Callable[[str], None]) -> Iterator[Record]:
    for item in plan(p):
        on_step(item.metric)
        yield _record(item, p, level, draws, seed)
    on_step("classes and groups")
    yield from slices.records(p, level=level)


def _record(item: Item, p: Predictions, level: float, draws: int, seed: int) -> Record:
    options, draws = item.options, max(20, int(draws * item.share)) if draws >= 20 else draws
    settings = METRICS.entry(item.metric).defaults | options
    record = Record(item.metric, measure(item.metric, p, options=options), len(p), settings=settings, seed=seed)
    if item.sure:
        found = interval(item.metric, p, options=options, level=level, resamples=draws, seed=seed)
        record = replace(record, low=found.low, high=found.high, level=level)
    if item.floor:
        noise = floor(item.metric, p, options=options, draws=draws, seed=seed)
        record = replace(record, floor=noise.mean, floor_high=noise.high, p=noise.p)
    return record
