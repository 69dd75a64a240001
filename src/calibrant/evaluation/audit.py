"""The audit: metrics with confidence intervals and noise floors, a verdict, and advice.

Which metrics, in which order and under which heading, is one list, `calibrant.report.sections.SECTIONS`: to add a
metric to the audit, add a line there.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.special import bdtr, bdtrc

from calibrant.evaluation import advice
from calibrant.evaluation.findings import Report
from calibrant.metrics import curves
from calibrant.metrics.evidence import check_resampling, floor, interval, measure
from calibrant.predictions.fingerprints import warning
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, float64, repetitions
from calibrant.records import Curve, Findings, Record
from calibrant.registry import METRICS
from calibrant.report.sections import SECTIONS, Line
from calibrant.selection.certification import certify
from calibrant.selection.reasons import digits

ENOUGH = 200  # rows from which groups of them by margin are drawn
SLICES = 10  # predicted classes, and groups, that get an interval
DELTA = 0.05  # how often what an audit certifies may fail
LIMITS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)  # of the error that an audit proposes to certify
MOST_CERTIFIED = 1_000_000  # rows up to which it does


def plan(p: Predictions) -> list[Line]:
    """Return what an audit of these predictions measures: the lines of `report.sections.SECTIONS` that apply."""
    return [line for section in SECTIONS for line in section.lines if line.when(len(p), p.k or 0)]


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
    """Audit a classifier's confidence: is it calibrated, how certain is that, and what to do next.

    ``level`` is that of every interval; ``resamples`` the number of bootstrap resamples and of label draws for the
    noise floor (200; fewer, but at least 100, above 100 000 rows); ``model`` and ``dataset`` are written into the
    records; ``on_step`` is called with each metric before it is computed. Predictions that a calibrator made
    (``calibrator.calibrate(predictions)``) know the rows it was fitted on; ``fitted_on=calibrator.fitted.rows`` says
    it of others: if these rows, or some of them, are among those, the audit says that its numbers are optimistic.

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
    check_resampling(level, draws, seed)
    found = tuple(
        replace(record, model=model, dataset=dataset)
        for record in _records(predictions, level, draws, seed, on_step or (lambda name: None))
    )
    notes = predictions.notes
    who = "the trust predictor" if predictions.k is None else "the calibrator"
    seen = warning(predictions.known(fitted_on), len(predictions), who)
    certified = None if seen else _certified(predictions)
    risk = curves.risk_coverage(predictions, through=None if certified is None else certified.coverage)
    by_margin = predictions.k is not None and len(predictions) >= ENOUGH
    shapes = (
        curves.reliability(predictions, level=level),
        curves.reliability_isotonic(predictions),
        *([curves.margin_reliability(predictions, level=level)] if by_margin else []),
        curves.confidence_histogram(predictions),
        risk,
        *([] if certified is None else [_point(certified, risk)]),
        curves.oracle_risk_coverage(predictions),
        curves.generalised_risk_coverage(predictions),
        curves.roc(predictions),
    )
    if seen:
        notes = (seen, *notes)
    base = Findings(predictions.understood, "", notes, (), found, shapes)
    told = replace(base, verdict=advice.verdict(base))
    return Audit(replace(told, advice=advice.next_steps(told, predictions, certified)))


def _certified(p: Predictions) -> advice.Certified | None:
    """Certify an error limit of at most half the present error; None if that fails, or with weights."""
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
    for line in plan(p):
        on_step(line.metric)
        yield _record(line, p, level, draws, seed)
    on_step("classes and groups")
    yield from slices(p, level=level)


def _record(line: Line, p: Predictions, level: float, draws: int, seed: int) -> Record:
    options = {name: value(len(p)) if callable(value) else value for name, value in line.options.items()}
    draws = max(20, int(draws * line.share)) if draws >= 20 else draws
    settings = METRICS.entry(line.metric).defaults | options
    record = Record(line.metric, measure(line.metric, p, options=options), len(p), settings=settings, seed=seed)
    if line.interval:
        found = interval(line.metric, p, options=options, level=level, resamples=draws, seed=seed)
        record = replace(record, low=found.low, high=found.high, level=level)
    if line.floor:
        noise = floor(line.metric, p, options=options, draws=draws, seed=seed)
        record = replace(record, floor=noise.mean, floor_high=noise.high, p=noise.p)
    return record


def slices(predictions: Predictions, *, level: float) -> Iterator[Record]:
    r"""Yield accuracy, mean confidence and signed gap of the worst predicted classes and the worst groups.

    Slices are ranked by :math:`|\sum(c - a)| / \sqrt{\sum c(1 - c)}`, how far beyond noise their gap is. ``p`` is the
    two-sided binomial p-value of the number of right rows given the mean confidence (cautious where confidences
    differ), times the number of slices looked at, because the worst of many looks bad by chance.
    """
    if predictions.k is not None:
        names = predictions.classes or tuple(range(predictions.k))
        yield from _worst("class", predictions, predictions.predicted.numpy(), [str(n) for n in names], level)
    if predictions.groups is not None:
        found, place = np.unique(predictions.groups.astype(str), return_inverse=True)
        yield from _worst("group", predictions, place, found.tolist(), level)


def _worst(kind: str, p: Predictions, place: Array, names: list[str], level: float) -> Iterator[Record]:
    c, a = float64(p.confidence), float64(p.correct)
    w = repetitions(p.weights, len(c))
    gap = np.bincount(place, w * (c - a), len(names))
    spread = np.sqrt(np.bincount(place, w**2 * c * (1 - c), len(names)))
    present = np.flatnonzero(np.bincount(place, w, len(names)) > 0)
    z = np.abs(gap) / np.maximum(spread, 1e-12)
    for slice_ in sorted(present, key=lambda s: -z[s])[:SLICES]:
        part = p.take(torch.from_numpy(place == slice_))
        where, n = f"{kind}: {names[slice_]}", len(part)
        yield Record("accuracy", measure("accuracy", part), n, where=where)
        yield Record("mean_confidence", measure("mean_confidence", part), n, where=where)
        found = interval("signed_gap", part, level=level, resamples=200)
        corrected = min(1.0, _binomial_p(part) * len(present))
        yield Record("signed_gap", found.value, n, found.low, found.high, level, p=corrected, where=where)


def _binomial_p(p: Predictions) -> float:
    """Return the two-sided binomial p-value of the number of right rows under the mean confidence."""
    w = repetitions(p.weights, len(p))
    n = max(1, round(w.sum() ** 2 / (w**2).sum()))  # rows of unequal weight count as fewer
    right, sure = round(n * measure("accuracy", p)), measure("mean_confidence", p)
    return min(1.0, 2 * float(min(bdtr(right, n, sure), bdtrc(right - 1, n, sure) if right else 1.0)))
