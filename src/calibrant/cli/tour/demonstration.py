"""Both experiments -> findings; nothing within the noise is called a difference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from calibrant.cli.tour.experiments import (
    ALPHA,
    BEFORE,
    FULL,
    LOSSES,
    REPAIRS,
    OnStep,
    Size,
    five_losses,
    joined,
    real_logits,
)
from calibrant.predictions.threads import alone
from calibrant.records import Findings, Record, count, percent
from calibrant.report.notation import estimate, number


def demonstrate(out: Path, *, size: Size = FULL, on_step: OnStep = lambda name: None) -> Findings:
    """Audit, repair, certify and train on real rows. Runs are left in ``out``/runs, where a second call finds them."""
    parts = alone(lambda: (real_logits(size, on_step), five_losses(out, size, on_step)))  # results of one thread
    found = joined(" ".join(part.understood for part in parts), parts)
    return replace(found, verdict=headline(found.records), advice=findings(found.records))


def headline(records: Sequence[Record]) -> str:
    """Say in a sentence what became of the calibration error of the real network, and of the promise."""
    find = partial(_find, records)
    chosen, certified = find("chosen"), find("certified")
    held = {True: "held", False: "was broken"}.get(certified.settings["held"], "is in doubt")
    promise = f"the promise of at most {percent(certified.settings['max_error'])} errors among accepted answers {held}"
    if math.isnan(certified.value):
        promise = "no limit of its errors could be certified"
    if chosen.method == BEFORE:
        return f"No calibrator was better than the real network's own confidence; {promise}."
    before, after = (number(find("top_label_ece", method).value) for method in (BEFORE, chosen.method))
    noise = ", within noise" if direction(find("top_label_ece_change", chosen.method, BEFORE)) == "within noise" else ""
    return f"With {chosen.method} the ECE of a real network goes from {before} to {after}{noise}; {promise}."


def findings(records: Sequence[Record]) -> tuple[str, ...]:
    """Say what to take from the records."""
    find = partial(_find, records)
    sure, right, error = (find(metric, BEFORE) for metric in ("mean_confidence", "accuracy", "top_label_ece"))
    off = [loss for loss in LOSSES if beyond_noise(find("top_label_ece", loss), len(LOSSES))]
    first, *others = LOSSES
    repaired = [_sorted({loss: find("nll_change", f"{loss} + {r}", loss) for loss in LOSSES}) for r in REPAIRS]
    against = [
        _sorted({loss: find("nll_change", f"{loss}{r}", f"{first}{r}") for loss in others})
        for r in ("", f" + {REPAIRS[0]}")
    ]
    return (
        f"The ResNet-32 is {percent(sure.value, 1)} confident on average and right {percent(right.value, 1)} of the "
        f"time; its ECE of {estimate(error)} is {'beyond' if beyond_noise(error, 2) else 'within'} noise. "
        f"{_repair(find('chosen'), records)}",
        _promise(find("certified"), find("coverage")),
        f"Of {len(LOSSES)} LeNets trained on digits, the ECE is beyond noise for {', '.join(off) or 'none'}.",
        *(f"With {repair} their log loss is {way}." for repair, way in zip(REPAIRS, repaired, strict=True)),
        f"Against {first} the log loss is {against[0]}. With {REPAIRS[0]} on both it is {against[1]}.",
    )


def beyond_noise(error: Record, family: int) -> bool:
    """Whether a calibration error is significant after Bonferroni correction for ``family`` tests."""
    return error.p is not None and error.p * family <= ALPHA


def direction(change: Record) -> str:
    """Return "lower" or "higher" where the interval of a change leaves zero out, else "within noise"."""
    if change.low is None or change.high is None:
        return "within noise"
    return "lower" if change.high < 0 else "higher" if change.low > 0 else "within noise"


def _repair(chosen: Record, records: Sequence[Record]) -> str:
    compared = f"of {chosen.settings['tried']} calibrators compared on {count(chosen.n)} other rows"
    if chosen.method == BEFORE:
        return f"None {compared} was better than leaving it as it is."
    loss, error = (_find(records, f"{m}_change", chosen.method, BEFORE) for m in ("nll", "top_label_ece"))
    changes = f"log loss {direction(loss)} ({loss.value:+.3f}), ECE {direction(error)} ({error.value:+.3f})"
    return f"With {chosen.method}, chosen out {compared}: {changes}."


def _promise(certified: Record, coverage: Record) -> str:
    limit, level = percent(certified.settings["max_error"]), percent(1 - certified.settings["delta"])
    promised = f"at most {limit} errors among accepted answers with {level} confidence"
    if math.isnan(certified.value):
        return f"On {count(certified.n)} further rows no threshold could be certified for {promised}."
    accepted = f"it accepts {percent(coverage.value, 1)} of the test rows. {certified.settings['verdict']}"
    return f"A threshold certified on {count(certified.n)} further rows promises {promised}; {accepted}"


def _sorted(changes: Mapping[str, Record]) -> str:
    """Name the losses by the direction of their change: ``lower for a, b; within noise for c``."""
    groups: dict[str, list[str]] = {way: [] for way in ("lower", "higher", "within noise")}
    for loss, change in changes.items():
        groups[direction(change)].append(loss)
    return "; ".join(f"{way} for {', '.join(losses)}" for way, losses in groups.items() if losses)


def _find(records: Sequence[Record], metric: str, method: str = "", against: str = "") -> Record:
    """Return the record of a metric, of a method where one is named, and of a change by what it is compared with."""
    found = (r for r in records if r.metric == metric and r.settings.get("against", "") == against)
    return next(record for record in found if method in ("", record.method))
