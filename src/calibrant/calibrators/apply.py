"""Fit a calibrator on one file, apply it to another and report what changed: the work of ``calibrant calibrate``."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from calibrant.calibrators._solvers.samplewise import Samplewise
from calibrant.calibrators.autocalibrate import FOLDS, Choice, autocalibrate, calibrate, plan
from calibrant.calibrators.cross_fit import Trial, records
from calibrant.metrics.bins import assign
from calibrant.metrics.curves import margin_reliability
from calibrant.predictions.fingerprints import warning
from calibrant.predictions.labels import check_order
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import float64
from calibrant.records import Curve, Findings, Record, plain
from calibrant.registry import CALIBRATORS
from calibrant.report import comparison

BY_MARGIN = 200  # rows from which reliability is drawn for groups of them by margin


@dataclass(frozen=True)
class Applied:
    """Rows of the file ``name``, calibrated; ``records`` compare before and after where there are labels."""

    name: str
    understood: str
    predictions: Predictions
    records: tuple[Record, ...]
    notes: tuple[str, ...]


def steps(predictions: Predictions, method: str) -> int:
    """Return the largest number of fits, for a progress bar."""
    n, k = predictions.logits.shape
    names, _ = plan(n, k, None if method == "auto" else [method])
    return FOLDS * (len(names) - 1) + 1


def check_pair(fitted: Predictions, rows: Predictions, method: str) -> str:
    """Refuse, before anything is fitted, rows that the calibrator could not take; return a warning or nothing."""
    k = fitted.logits.shape[1]
    if rows.logits.shape[1] != k:
        raise ValueError(f"the rows to calibrate must have {k} classes, as those fitted on have; got {rows.k}.")
    _with_features(rows, method)
    return check_order(fitted.classes, rows.classes, k, "the file to calibrate")


def choose(
    predictions: Predictions, method: str, *, by_group: bool, seed: int, on_step: Callable[[str], None]
) -> Choice:
    """Fit the named method, or choose one by ``"auto"``; both come with a cross-fitted comparison."""
    groups = predictions.groups if by_group else None
    if by_group and groups is None:
        raise ValueError("groups are needed for --by-group; the file has none.")
    call = autocalibrate if method == "auto" else partial(calibrate, method=method)
    return call(_with_features(predictions, method), groups=groups, seed=seed, on_step=on_step)


def _with_features(rows: Predictions, method: str) -> Predictions:
    """Return the rows with the features that a method needs, if it is named and needs any."""
    if method == "auto":
        return rows.without_features()
    if CALIBRATORS.entry(method).facts.get("needs_features"):
        _ = rows.features  # says so if there are none
    return rows


def applied(choice: Choice, fitted: Predictions, rows: Predictions, name: str, *, by_group: bool, seed: int) -> Applied:
    """Calibrate rows and compare before with after; warn if they are the rows the calibrator was fitted on."""
    groups = rows.groups if by_group else None
    after = choice.calibrator.calibrate(rows)
    notes: tuple[str, ...] = ()
    found: tuple[Record, ...] = ()
    if seen := warning(after.known(), len(rows), "the calibrator"):
        notes = (seen,)
    if rows.rows.labels is not None:
        fit = choice.calibrator
        trial = replace(Trial.of(choice.name, after, {}), parameters=fit.n_parameters, seconds=fit.fitted.seconds)
        found = tuple(replace(r, dataset=name) for r in records([Trial.of("identity", rows, {}), trial], groups, seed))
    return Applied(name, rows.understood, after, found, notes)


def margin_temperature(calibrator: Samplewise, predictions: Predictions, *, points: int = 60) -> Curve:
    """Temperature against logit margin: the median, and the tenth and ninetieth percentile, of rows of like margin.

    Rows are cut into ``points`` groups of equal size by margin. Where a calibrator reads the margin alone, as SMART
    does, the three lines are one.

    Reference: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025, figure 16.

    Example:
        >>> from calibrant.calibrators.smart import Smart
        >>> logits, labels = 4 * torch.eye(3)[torch.arange(60) % 3], (torch.arange(60) * 7 // 5) % 3
        >>> curve = margin_temperature(Smart.fit(logits, labels, steps=5), Predictions(logits=logits, labels=labels))
        >>> curve["margin"]
        array([4.])
    """
    if not isinstance(calibrator, Samplewise):
        raise TypeError(f"calibrator must give each row a temperature, as Smart does; got {type(calibrator).__name__}.")
    margin = float64(predictions.facts.logit_margin)
    with torch.no_grad():
        t = float64(calibrator.temperature(predictions.logits.double()))
    place, _ = assign(margin, bins=points, scheme="mass")
    groups = [place == group for group in np.unique(place)]
    columns = {
        "margin": np.array([np.median(margin[g]) for g in groups]),
        "temperature": np.array([np.median(t[g]) for g in groups]),
        "low": np.array([np.quantile(t[g], 0.1) for g in groups]),
        "high": np.array([np.quantile(t[g], 0.9) for g in groups]),
        "count": np.array([g.sum() for g in groups]),
    }
    return Curve("margin_temperature", columns, len(predictions), {"method": calibrator.name})


def text(choice: Choice, then: Applied | None) -> str:
    """Write both comparisons for a terminal."""
    if then is None:
        return str(choice)
    told = [f"applied to {then.name}: {then.understood}", *(f"warning: {note}" for note in then.notes)]
    table = (
        comparison.text(then.records, choice.name) if then.records else "no labels there: how well it did is unknown"
    )
    return "\n\n".join([str(choice), "\n".join(told), table])


def to_json(choice: Choice, then: Applied | None) -> str:
    """Write both comparisons as JSON."""
    fitted = choice.calibrator.fitted
    content: dict[str, Any] = {
        "method": choice.name,
        "reason": choice.reason,
        "understood": choice.understood,
        "notes": fitted.notes,
        "records": [asdict(record) for record in choice.records],
        "applied": None,
    }
    if then is not None:
        content["applied"] = {
            "name": then.name,
            "understood": then.understood,
            "notes": then.notes,
            "records": [asdict(record) for record in then.records],
        }
    return json.dumps(plain(content), indent=1, allow_nan=False)


def page(choice: Choice, then: Applied | None, name: str, rows: Predictions) -> str:
    """Return the HTML page: both comparisons, and curves by logit margin of ``rows``, those of --apply if there are."""
    found = [replace(record, dataset=name) for record in choice.records]
    captions = {name: f"Cross-fitted on the rows to fit on. {choice.understood}"}
    if then is not None:
        applied = then.name if then.name != name else f"{then.name}, applied"
        found += [replace(record, dataset=applied) for record in then.records]
        captions[applied] = f"Before and after, on the rows of --apply. {then.understood}"
    curves = []
    if isinstance(choice.calibrator, Samplewise):
        curves.append(margin_temperature(choice.calibrator, rows))
    if then is not None and then.records and len(rows) >= BY_MARGIN:
        curves.append(margin_reliability(then.predictions))
    notes = () if then is None else then.notes
    findings = Findings(repr(choice.calibrator), choice.reason, notes, (), tuple(found), tuple(curves))
    return comparison.render(findings, choice.name, captions)
