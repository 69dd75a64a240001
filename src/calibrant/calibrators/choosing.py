"""The one-standard-error rule among cross-fitted methods, and what it decided in words. The first trial is identity."""

from calibrant.calibrators.cross_fit import Trial, paired
from calibrant.predictions.types import Array
from calibrant.report.notation import number


def best(trials: list[Trial]) -> Trial:
    """Return the method of least log loss."""
    return min((t for t in trials if not t.failure), key=lambda t: float(t.nll.mean()))


def simplest(trials: list[Trial], groups: Array | None) -> Trial:
    """Return the method of fewest parameters whose log loss is within one standard error of the best."""
    least = best(trials)
    gaps = [(t, *paired(t.nll, least.nll, groups)) for t in trials if not t.failure]
    first = trials[0]
    # where one row carries the whole loss anything is within one standard error: never choose a loss above identity's
    near = [t for t, gap, error in gaps if gap <= error and (t is first or t.nll.mean() < first.nll.mean())]
    return min(near or [least], key=lambda t: (t.parameters, float(t.nll.mean())))


def why(trials: list[Trial], groups: Array | None) -> list[str]:
    """Say why the simplest was chosen."""
    first, least, chosen = trials[0], best(trials), simplest(trials, groups)
    if len(trials) == 1:
        return []
    if all(t.failure for t in trials[1:]):
        return [
            "no other method could be fitted: " + "; ".join(f"{t.name}: {t.failure.rstrip('.')}" for t in trials[1:])
        ]
    if chosen is first and chosen is least:
        return ["no method has a lower cross-fitted log loss"]
    gain = f"{_difference(chosen, first, groups)} against identity"
    if chosen is least:
        return [f"least cross-fitted log loss, {gain}"]
    near = f"{least.name} ({_difference(least, chosen, groups)} in cross-fitted log loss)"
    if chosen is first:
        return [f"nothing is better by more than one standard error, not even {near}"]
    return [f"the simplest within one standard error of the best, {near}", gain]


def verdict(trials: list[Trial], groups: Array | None) -> str:
    """Say whether the last method helps, against the first."""
    first, last = trials[0], trials[-1]
    if last.failure:
        return f"it could not be judged, because a fit on part of the rows failed: {last.failure.rstrip('.')}"
    change, error = paired(last.nll, first.nll, groups)
    word = "no detectable change" if abs(change) <= 2 * error else "helps" if change < 0 else "hurts"
    return f"{word}: the cross-fitted log loss changes by {_difference(last, first, groups)}"


def _difference(one: Trial, other: Trial, groups: Array | None) -> str:
    change, error = paired(one.nll, other.nll, groups)
    return f"{number(change, signed=True)} ± {number(error)}"
