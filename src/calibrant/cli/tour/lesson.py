"""Records -> what to take from them, in words. Nothing within the noise is called a difference."""

import math
from collections.abc import Iterable, Sequence

from calibrant.cli.tour.judging import ALPHA
from calibrant.cli.tour.experiments import BEFORE
from calibrant.cli.tour.trained import LOSSES, REPAIRS, named
from calibrant.records import Record, count, percent
from calibrant.report.demo_rows import changed
from calibrant.report.notation import estimate, number

NAMES = {"smart": "SMART", "temperature": "temperature"}
LOOKS = 2  # at the calibration error of the real network: before and after


class Numbers:
    """Records by data set, method and metric, and where they compare, by what they compare with."""

    def __init__(self, records: Iterable[Record]) -> None:
        self._found = {(r.dataset, r.method, r.metric, r.settings.get("against", "")): r for r in records}

    def __call__(self, dataset: str, method: str, metric: str, against: str = "") -> Record:
        """Return one record."""
        return self._found[dataset, method, metric, against]

    def only(self, metric: str) -> Record:
        """Return the record of a metric that there is once."""
        return next(record for key, record in self._found.items() if key[2] == metric)


def headline(records: Iterable[Record]) -> str:
    """Say in a sentence what became of the calibration error of the real network, and of the promise."""
    numbers = Numbers(records)
    chosen, certified = numbers.only("chosen"), numbers.only("certified")
    promise = _promise_kept(certified)
    if chosen.method == BEFORE:
        return f"No method was better than the real network's own confidence; {promise}."
    before, after = (numbers(chosen.dataset, m, "top_label_ece") for m in (BEFORE, chosen.method))
    found = numbers(chosen.dataset, chosen.method, "top_label_ece_change", BEFORE)
    moved = f"from {number(before.value)} to {number(after.value)}"
    name = NAMES.get(chosen.method, chosen.method)
    if _direction(found) == "":
        return f"The calibration error of a real network moves {moved} with {name}, within noise; {promise}."
    verb = "brings" if _direction(found) == "lower" else "worsens"
    return f"{name[0].upper()}{name[1:]} {verb} the calibration error of a real network {moved}; {promise}."


def lesson(records: Iterable[Record], trained_on: int, fitted_on: int) -> tuple[str, ...]:
    """Return the sentences; the digits were trained on and repaired on so many rows."""
    numbers = Numbers(records)
    return (
        _before(numbers),
        *_after(numbers),
        _promise(numbers),
        _as_trained(numbers, trained_on),
        _repaired(numbers, fitted_on),
        _left(numbers),
        _against(numbers),
        "Each loss was trained once, so this is about five networks: the intervals hold the chance of the test rows, "
        "not that of training.",
    )


def beyond(error: Record, family: int) -> bool:
    """Whether a calibration error is more than noise, when it is one of so many that are looked at."""
    return error.p is not None and error.p * family <= ALPHA


def _before(numbers: Numbers) -> str:
    of = numbers.only("chosen").dataset
    sure, right, gap, error = (
        numbers(of, BEFORE, metric) for metric in ("mean_confidence", "accuracy", "signed_gap", "top_label_ece")
    )
    says = (
        f"A ResNet-32 on CIFAR-100 is {percent(sure.value, 1)} sure on average and right {percent(right.value, 1)} of "
        f"the time; its ECE is {estimate(error)} on {count(error.n)} test rows, "
    )
    if beyond(error, LOOKS):
        return f"{says}where noise alone would show {number(error.floor or 0.0)}: it is {_leaning(gap)}."
    return f"{says}no more than noise alone would show."


def _after(numbers: Numbers) -> Iterable[str]:
    chosen = numbers.only("chosen")
    of, where = chosen.dataset, f"on {count(chosen.n)} other rows"
    if chosen.method == BEFORE:
        yield f"Of {chosen.settings['tried']} methods compared {where} none was better than leaving it as it is."
    else:
        loss, error = (numbers(of, chosen.method, f"{m}_change", BEFORE) for m in ("nll", "top_label_ece"))
        left, accuracy = (numbers(of, chosen.method, m) for m in ("top_label_ece", "accuracy"))
        name = NAMES.get(chosen.method, chosen.method)
        yield (
            f"{name[0].upper()}{name[1:]}, chosen out of {chosen.settings['tried']} and fitted {where}, changes the "
            f"log loss by {_moved(loss)}, and the ECE by {_moved(error)}: {number(left.value)} is left, "
            f"{'beyond' if beyond(left, LOOKS) else 'within'} noise, at an accuracy of {percent(accuracy.value, 1)}."
        )
    between = numbers(of, "smart", "nll_change", "temperature")
    yield f"From temperature to SMART the log loss changes by {_moved(between)}."


def _promise(numbers: Numbers) -> str:
    certified = numbers.only("certified")
    limit, sure = percent(certified.settings["max_error"]), percent(1 - certified.settings["delta"])
    rows = f"{count(certified.n)} further rows, which fitted nothing"
    if math.isnan(certified.value):
        return f"On {rows}, no threshold could be certified to accept answers with at most {limit} errors."
    return (
        f"A threshold certified on {rows}, to accept answers with at most {limit} errors ({sure} sure), accepts "
        f"{percent(numbers.only('coverage').value, 1)} of the test rows. {certified.settings['verdict']}"
    )


def _promise_kept(certified: Record) -> str:
    if math.isnan(certified.value):
        return "no promise could be made about its errors"
    word = {True: "held", False: "broken"}.get(certified.settings["held"], "in doubt")
    return f"the promise of at most {percent(certified.settings['max_error'])} errors among accepted answers is {word}"


def _as_trained(numbers: Numbers, rows: int) -> str:
    errors = {loss: numbers("digits", named(loss), "top_label_ece") for loss in LOSSES}
    off = [loss for loss, error in errors.items() if beyond(error, len(LOSSES))]
    lean = {loss: _leaning(numbers("digits", named(loss), "signed_gap")) for loss in off}
    groups = {
        "beyond noise for": [f"{loss} ({lean[loss]})" for loss in off],
        "within noise for": [loss for loss in LOSSES if loss not in off],
    }
    return (
        f"Of {len(LOSSES)} LeNets, each trained on {count(rows)} digits with its own loss, the ECE on "
        f"{count(errors[LOSSES[0]].n)} test rows is {_grouped(groups)}."
    )


def _repaired(numbers: Numbers, rows: int) -> str:
    said: dict[str, list[str]] = {}
    for repair in REPAIRS:
        changes = {loss: numbers("digits", named(loss, repair), "nll_change", named(loss)) for loss in LOSSES}
        words = _compared(changes, "lower beyond noise for", "higher beyond noise for", "changed only within noise for")
        said.setdefault(words, []).append(NAMES[repair])
    parts = [f"with {_and(names, ' or ')} the log loss is {words}" for words, names in said.items()]
    return f"Repaired on {count(rows)} rows that no training used: {'; '.join(parts)}."


def _left(numbers: Numbers) -> str:
    family = len(LOSSES) * len(REPAIRS)
    off = [
        f"{loss} with {NAMES[repair]}"
        for repair in REPAIRS
        for loss in LOSSES
        if beyond(numbers("digits", named(loss, repair), "top_label_ece"), family)
    ]
    return f"After that the ECE is beyond noise for {_and(off)}." if off else "After that no ECE is beyond noise."


def _against(numbers: Numbers) -> str:
    first, *others = LOSSES
    parts = []
    for repair, words in (("", BEFORE), (REPAIRS[0], f"with {REPAIRS[0]} on both")):
        changes = {loss: numbers("digits", named(loss, repair), "nll_change", named(first, repair)) for loss in others}
        found = _compared(changes, "lower beyond noise for", "higher beyond noise for", "not told apart for")
        parts.append(f"{words}, {found}")
    return f"Against that of {first}, the log loss is: {'; '.join(parts)}."


def _compared(changes: dict[str, Record], lower: str, higher: str, neither: str) -> str:
    words = {"lower": lower, "higher": higher, "": neither}
    return _grouped({words[way]: [loss for loss, c in changes.items() if _direction(c) == way] for way in words})


def _grouped(groups: dict[str, list[str]]) -> str:
    """Name those of each group; an empty one is left out."""
    return _and([f"{words} {_and(names)}" for words, names in groups.items() if names], ", and ")


def _moved(change: Record) -> str:
    return f"{changed(change)}, {'beyond' if _direction(change) else 'within'} noise"


def _direction(change: Record) -> str:
    if change.low is None or change.high is None:
        return ""
    return "lower" if change.high < 0 else "higher" if change.low > 0 else ""


def _leaning(gap: Record) -> str:
    if gap.low is not None and gap.low > 0:
        return "over-confident"
    return "under-confident" if gap.high is not None and gap.high < 0 else "right on average, wrong in places"


def _and(words: Sequence[str], last: str = " and ") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])}{last}{words[-1]}" if words else ""
