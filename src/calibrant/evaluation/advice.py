"""The audit in words: the verdict, and what to do next."""

from dataclasses import dataclass

import numpy as np

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import float64, repetitions
from calibrant.records import Findings, Record, count, percent

ALPHA = 0.05  # how often a calibrated model may be called miscalibrated; two tests share it
FEW = 30  # rows below which nothing is advised but more of them


@dataclass(frozen=True)
class Certified:
    """A threshold above which the error is at most ``max_error``, by a bound that holds after the search for it.

    ``shown`` is the threshold in as many digits as it needs.
    """

    threshold: float
    max_error: float
    delta: float
    coverage: float
    shown: str


def verdict(findings: Findings) -> str:
    """One sentence: over-confident, under-confident, unevenly calibrated, or nothing found, with an example."""
    gap, error = _known(findings, "signed_gap"), _known(findings, "ece_debiased")
    curve = findings.curve("reliability")
    if gap.n < 2 or curve is None:
        return "One row says nothing about calibration."
    harm = curve["count"] * np.abs(curve["confidence"] - curve["accuracy"])
    worst = int(harm.argmax())
    says, right = percent(float(curve["confidence"][worst])), percent(float(curve["accuracy"][worst]))
    example = f"when it says {says}, it is right {right} of the time"
    if _unlikely(error):
        return f"{_direction(gap)}: {example}; {_numbers(error)}."
    if _unlikely(gap):
        return f"{_direction(gap)}: {example}; mean confidence less accuracy {gap.value:+.3f} (p = {gap.p:.3f})."
    return f"No miscalibration found in {count(gap.n)} rows; {_numbers(error)}."


def _unlikely(record: Record) -> bool:
    return record.p is not None and record.p <= ALPHA / 2


def _leans(gap: Record) -> bool:
    """Whether the interval of the mean gap excludes zero."""
    return gap.low is not None and gap.high is not None and (gap.low > 0 or gap.high < 0)


def _direction(gap: Record) -> str:
    if not _leans(gap):
        return "Right on average, wrong in places"
    return "Over-confident" if gap.value > 0 else "Under-confident"


def _numbers(error: Record) -> str:
    return (
        f"calibration error {error.value:.3f} [{error.low:.3f}, {error.high:.3f}], "
        f"of which noise alone would show {error.floor:.3f} (p = {error.p:.3f})"
    )


def _known(findings: Findings, metric: str) -> Record:
    record = findings.record(metric)
    if record is None:
        raise ValueError(f"findings must hold {metric!r}.")
    return record


def next_steps(findings: Findings, predictions: Predictions, certified: Certified | None = None) -> tuple[str, ...]:
    """Sentences, most useful first; each names the numbers it rests on. ``certified`` is a threshold to propose."""
    if len(predictions) < FEW:
        return (f"Get more rows: {len(predictions)} are too few to advise anything.",)
    steps = (
        _prior(predictions),
        _repair(findings, scores=predictions.k is not None),
        _ranking(findings),
        _review(findings) if certified is None else _accept(certified),
        _more_rows(findings),
    )
    return tuple(step for step in steps if step)


def _repair(findings: Findings, *, scores: bool) -> str:
    gap, error, slope = (_known(findings, m) for m in ("signed_gap", "ece_debiased", "calibration_slope"))
    judge = "on held-out rows, and judge it by NLL and Brier on rows it has not seen."
    if not _unlikely(error) and not _unlikely(gap):
        return "Leave the confidence as it is: nothing beyond noise was found that a calibrator could repair."
    if not scores:
        return f"Repair it: fit a map from confidence to accuracy (Platt scaling, or isotonic regression) {judge}"
    one_way = (gap.value > 0) == (slope.value < 1)
    if not _leans(gap) or not one_way or np.isnan(slope.value):
        return (
            f"Repair it: one temperature may not do, with a mean gap of {gap.value:+.3f} (0 is right) and a slope of "
            f"{slope.value:.2f} (1 is right): fit a calibrator with more freedom {judge}"
        ).replace("nan", "undefined")
    way = "above 1 (softer)" if gap.value > 0 else "below 1 (sharper)"
    return (
        f"Repair it: fit temperature scaling {judge} Expect a temperature {way}, for the slope is {slope.value:.2f}; "
        "accuracy does not change."
    )


def _prior(p: Predictions) -> str:
    """Name the class whose mean probability is far from its rate: class weights, resampling or a changed base rate."""
    if p.k is None or p.k > 1000 or len(p) * p.k > 50_000_000:
        return ""
    w = repetitions(p.weights, len(p))
    promised = w @ float64(p.probs) / w.sum()
    observed = np.bincount(p.labels.numpy(), w, p.k) / w.sum()
    times = np.abs(np.log(np.maximum(promised, 1e-9) / np.maximum(observed, 1 / len(p))))
    spread = np.sqrt(np.maximum(promised * (1 - promised), 1e-9) / len(p))
    beyond = (np.abs(promised - observed) >= 0.05) & (np.abs(promised - observed) > 4 * spread)
    worst = int(np.where(beyond, times, 0.0).argmax())
    if times[worst] < np.log(2) or not beyond[worst]:
        return ""
    name = p.classes[worst] if p.classes else worst
    said, seen = percent(promised[worst], 1), percent(observed[worst], 1)
    return (
        f"Check the base rate: class {name} is given {said} on average and observed {seen}; "
        "this looks like class weights, resampling or a changed base rate."
    )


def _ranking(findings: Findings) -> str:
    auroc = _known(findings, "failure_auroc")
    if np.isnan(auroc.value):
        which = "right" if _known(findings, "accuracy").value > 0.5 else "wrong"
        return f"All rows are {which}, so nothing can be said about telling right from wrong."
    if auroc.high is not None and auroc.high < 0.6:
        return (
            f"Confidence barely ranks right above wrong (AUROC {auroc.value:.2f}; 0.5 is chance): calibration will not "
            "help a review queue; a better score or a better model would."
        )
    return ""


def certified(found: Certified) -> str:
    """Say in one sentence what is certified.

    Example:
        >>> certified(Certified(0.873, 0.02, 0.05, 0.81, "0.873"))
        'above confidence 0.873 the error is at most 2 % with 95 % confidence (covers 81 % of the rows)'
    """
    where = "for every row" if found.coverage >= 1 else f"above confidence {found.shown}"
    return f"{where} the error is {_promise(found)} (covers {percent(found.coverage)} of the rows)"


def _promise(found: Certified) -> str:
    return f"at most {100 * found.max_error:.3g} % with {100 * (1 - found.delta):.3g} % confidence"


def _accept(found: Certified) -> str:
    kept = "every row" if found.coverage >= 1 else f"rows above confidence {found.shown}"
    return (
        f"If wrong answers cost more than a review, accept {kept} and let a person see the others: that accepts "
        f"{percent(found.coverage)} of all rows, and their error is {_promise(found)}. "
        "For another limit, fixed before looking: calibrant certify --max-error."
    )


def _review(findings: Findings) -> str:
    accuracy, curve = _known(findings, "accuracy"), findings.curve("risk_coverage")
    if curve is None or accuracy.value >= 1 or len(curve) < 2:
        return ""
    place = int(np.argmin(np.abs(curve["coverage"] - 0.8)))
    coverage, risk, threshold = (float(curve[name][place]) for name in ("coverage", "risk", "threshold"))
    if risk >= 1 - accuracy.value or coverage >= 1:
        return ""
    before, after = percent(1 - accuracy.value, 1), percent(risk, 1)
    return (
        f"If wrong answers cost more than a review, send rows below confidence {threshold:.3f} to a person: that is "
        f"{percent(1 - coverage)} of them, and the error of the rest falls from {before} to {after}. "
        "Read off these rows it is optimistic; confirm it on others."
    )


def _more_rows(findings: Findings) -> str:
    error = findings.record("top_label_ece")
    if error is None or error.floor_high is None or error.n >= 1000:
        return ""
    return (
        f"Get more rows if you can: with {count(error.n)} a perfectly calibrated model shows a binned error of up to "
        f"{error.floor_high:.3f}, so smaller errors cannot be seen."
    )
