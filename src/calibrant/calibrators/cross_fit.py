"""Cross-fitting: compare calibrators on rows their fits have not seen, and choose by the one-standard-error rule.

In a list of trials the first is identity.
"""

import inspect
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from calibrant.calibrators.calibrator import Calibrator
from calibrant.metrics.evidence import floor, interval
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Array, Vector, float64, widened
from calibrant.records import Record
from calibrant.registry import CALIBRATORS, METRICS
from calibrant.report.notation import number as digits

ONE_ERROR = 0.6827  # the level of an interval of one standard error either side


@dataclass(frozen=True)
class Trial:
    """Cross-fitted result of one method: log loss and Brier score a row, confidence and correctness, and its cost.

    ``failure`` is the reason where a fit raised. ``parameters`` is the most of any of its fits, ``seconds`` their mean.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    nll: Vector = field(default_factory=lambda: np.empty(0))
    brier: Vector = field(default_factory=lambda: np.empty(0))
    top: Predictions | None = None
    parameters: int = 0
    seconds: float = 0.0
    failure: str = ""

    @classmethod
    def of(cls, name: str, predictions: Predictions, settings: Mapping[str, Any]) -> "Trial":
        """Keep what a comparison needs of calibrated predictions: O(n) numbers."""
        top = Predictions(confidence=predictions.confidence, correct=predictions.correct)
        return cls(name, settings, float64(predictions.nll), float64(predictions.brier), top)

    @property
    def right(self) -> Vector:
        """One where a row is classified correctly, else zero."""
        return np.empty(0) if self.top is None else float64(self.top.correct)


def folds(labels: Array, number: int, seed: int, groups: Array | None = None) -> Array:
    """Return the fold of each row: classes spread evenly over the folds, or whole groups, the largest first.

    Example:
        >>> folds(np.array([0, 0, 0, 1, 1, 1]), 3, seed=0).tolist()
        [1, 2, 0, 0, 2, 1]
    """
    rng = np.random.default_rng(seed)
    if groups is None:
        return stratified_folds(labels, number, rng.permutation(len(labels)))
    _, member, size = np.unique(groups, return_inverse=True, return_counts=True)
    of_group, filled = np.empty(len(size), dtype=np.int64), np.zeros(number)
    mixed = rng.permutation(len(size))
    for group in mixed[np.argsort(-size[mixed], kind="stable")]:
        of_group[group] = filled.argmin()
        filled[of_group[group]] += size[group]
    return of_group[member]


def stratified_folds(strata: Array, number: int, permutation: Array, *, restart: bool = False) -> Array:
    """Return the fold of each row: rows are dealt out by turns, stratum after stratum, each in the permutation's order.

    The turns go on from one stratum to the next, so folds differ by at most one row; with ``restart`` each stratum
    begins at fold 0.

    Example:
        >>> stratified_folds(np.array([0, 1, 0, 1, 0]), 2, np.arange(5)).tolist()
        [0, 1, 1, 0, 0]
        >>> stratified_folds(np.array([0, 1, 0, 1, 0]), 2, np.arange(5), restart=True).tolist()
        [0, 0, 1, 1, 0]
    """
    order = permutation[np.argsort(strata[permutation], kind="stable")]
    turn = np.arange(len(strata))
    if restart:
        turn -= np.searchsorted(strata[order], strata[order])  # its place within the stratum
    fold = np.empty(len(strata), dtype=np.int64)
    fold[order] = turn % number
    return fold


def fit(name: str, predictions: Predictions, seed: int = 0) -> Calibrator:
    """Fit a method by its name, with the seed if it draws anything and the features if it reads them."""
    method = CALIBRATORS[name]
    known = inspect.signature(method.fit).parameters
    extra: dict[str, Any] = {"seed": seed} if "seed" in known else {}
    if CALIBRATORS.entry(name).facts.get("needs_features"):
        _ = predictions.features  # says so if there are none
    missing = [p.name for p in known.values() if p.default is p.empty and p.name not in {"logits", "labels", *extra}]
    if missing:
        raise ValueError(f"{name} also needs {' and '.join(missing)}; call its fit in Python.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a fit warns of stands in its notes
        made: Calibrator = method.fit(predictions, None, **extra)
    return made


def cross_fit_all(
    names: list[str], predictions: Predictions, number: int, seed: int, told: Callable[[str], None]
) -> list[Trial]:
    """Cross-fit each method on the same folds, after identity, which needs no fit; no more folds than groups."""
    groups = predictions.groups
    most = len(predictions) if groups is None else len(np.unique(groups))
    if number < 2 or most < 2:
        raise ValueError(f"folds must be at least 2, of rows from 2 groups or more; got {number} and {most} groups.")
    number = min(number, most)
    fold = folds(predictions.labels.numpy(), number, seed, groups)
    first = Trial.of("identity", predictions, {"folds": number})
    return [first, *(cross_fit(name, predictions, fold, seed, told) for name in names if name != "identity")]


def cross_fit(name: str, predictions: Predictions, fold: Array, seed: int, told: Callable[[str], None]) -> Trial:
    """Calibrate the rows of each fold by a fit on the other folds; a fit that raises gives a failed trial."""
    CALIBRATORS.entry(name)  # a wrong name is an error of the caller, not of the method
    out = torch.empty_like(widened(predictions.logits))
    settings = {"folds": int(fold.max()) + 1}
    parameters, seconds = 0, []
    for number in range(settings["folds"]):
        told(name)
        inside = torch.from_numpy(fold == number)
        began = time.perf_counter()
        try:
            calibrator = fit(name, predictions.take(~inside), seed)
            seconds.append(time.perf_counter() - began)
            out[inside.to(out.device)] = calibrator.calibrate(predictions.take(inside)).logits
        except Exception as error:  # whatever a method may raise, the others are still worth comparing
            return Trial(name, settings, failure=str(error) or type(error).__name__)
        parameters = max(parameters, calibrator.n_parameters)
    trial = Trial.of(name, predictions.calibrated(out, ()), settings)
    return replace(trial, parameters=parameters, seconds=float(np.mean(seconds)))


def paired(first: Vector, second: Vector, groups: Array | None = None) -> tuple[float, float]:
    r"""Return the mean difference of two values a row and its standard error, clustered where there are groups.

    .. math:: \bar d = \frac1n \sum_i d_i, \qquad
        \mathrm{se}^2 = \frac{G}{G - 1} \frac1{n^2} \sum_g \Bigl(\sum_{i \in g} (d_i - \bar d)\Bigr)^2

    Example:
        >>> paired(np.array([3.0, 4.0, 5.0]), np.zeros(3))  # 4 and 1 / sqrt 3
        (4.0, 0.5773502691896257)
    """
    difference = first - second
    mean = float(difference.mean())
    sums = difference - mean
    if groups is not None:
        sums = np.bincount(np.unique(groups, return_inverse=True)[1], sums).astype(np.float64)
    spread = (sums**2).sum() * len(sums) / max(len(sums) - 1, 1)
    return mean, float(spread**0.5 / len(difference))


def records(trials: list[Trial], groups: Array | None = None, seed: int = 0) -> Iterator[Record]:
    """Yield the numbers of each trial; changes are against the first one, as an interval of one standard error."""
    first, n = trials[0], len(trials[0].nll)
    draws = max(20, min(100, 1_000_000 // n))
    for trial in trials:
        record = partial(Record, n=n, settings=dict(trial.settings), method=trial.name, seed=seed)
        if trial.top is None:
            yield record("failed", float("nan"), settings={**trial.settings, "reason": trial.failure})
            continue
        yield record("nll", float(trial.nll.mean()))
        yield _changed(record("nll_change", 0.0), trial.nll, first.nll, groups)
        yield record("brier", float(trial.brier.mean()))
        yield _calibration_error(record("ece_debiased", 0.0), trial.top, draws, seed)
        yield record("accuracy", float(trial.right.mean()))
        yield _changed(record("accuracy_change", 0.0), trial.right, first.right, groups)
        yield record("fit_seconds", trial.seconds)
        yield record("parameters", float(trial.parameters))


def _changed(record: Record, values: Vector, first: Vector, groups: Array | None) -> Record:
    change, error = paired(values, first, groups)
    return replace(record, value=change, low=change - error, high=change + error, level=ONE_ERROR)


def _calibration_error(record: Record, top: Predictions, draws: int, seed: int) -> Record:
    """Fill in the error that an audit shows first, with its interval and noise floor; rows count as independent."""
    options = {"norm": "l2", "bins": max(1, min(15, len(top) // 10))}
    found = interval(record.metric, top, options=options, resamples=draws, seed=seed)
    noise = floor(record.metric, top, options=options, draws=draws, seed=seed)
    settings = METRICS.entry(record.metric).defaults | options | dict(record.settings)
    record = replace(record, value=found.value, low=found.low, high=found.high, level=found.level, settings=settings)
    return replace(record, floor=noise.mean, floor_high=noise.high, p=noise.p)


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
    return f"{digits(change, signed=True)} ± {digits(error)}"
