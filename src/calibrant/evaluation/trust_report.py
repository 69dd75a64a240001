"""The trust report: which predictor tells right answers from wrong ones, and whether any beats max-softmax."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from numbers import Real

import numpy as np
import torch
from scipy.stats import t as student

from calibrant.evaluation import trust_words
from calibrant.evaluation.findings import Report
from calibrant.metrics import curves
from calibrant.metrics.delong import paired_auroc
from calibrant.metrics.evidence import Comparison, compare, interval, measure
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import float64
from calibrant.records import Curve, Findings, Record, count
from calibrant.registry import METRICS

RANKING = ("fpr_at_95_tpr", "aupr_error", "aupr_success", "failure_auroc", "aurc", "augrc")
SIDES = ("tpr", "tnr")  # a share of the right rows, and one of the wrong
SEPARABILITY = ("separability_kl", "separability_bhattacharyya")
TRUSTED_ABOVE = 0.5
SWEEP = ("alpha", "loss", "tpr", "tnr")

Judged = Mapping[str, Predictions]
Told = Callable[[str], None]


class TrustReport(Report):
    """What was found; of a record, ``method`` is the predictor and ``where`` "all" or "shift: NAME"."""

    def page(self) -> str:
        """Return a self-contained page."""
        from calibrant.report.trust import render  # matplotlib and jinja2 are needed only here

        return render(self.findings)

    def text(self) -> str:
        """Return what a terminal shows."""
        from calibrant.report.trust_table import text

        return text(self.findings)


def trust_report(  # noqa: PLR0913  the report names everything it takes
    judged: Judged,
    *,
    baseline: str = "mcp",
    distrust_below: Mapping[str, float] | None = None,
    level: float = 0.9,
    resamples: int | None = None,
    seed: int = 0,
    model: str = "",
    dataset: str = "",
    shifted: Mapping[str, Judged] | None = None,
    sweep: Curve | None = None,
    outliers: Iterable[Record] = (),
    on_step: Told | None = None,
) -> TrustReport:
    """Compare trust predictors on the same rows, each with every number of the papers' tables, and with a baseline.

    ``judged`` maps a predictor's name to ``Predictions(confidence=..., correct=...)`` of the same rows; that of the
    ``baseline`` may be ``Predictions(logits=..., labels=...)``, whose confidence is the maximum class probability.

    An answer is trusted above 1/2 (TPR: the share of the right ones) and distrusted below ``distrust_below[name]``
    (TNR: the share of the wrong ones); unless said, below what the predictor that judged them says (1/K for a true
    class probability), else 1/2. Intervals have the given ``level``: exact for shares, redrawn rows for the rest.

    The difference of each AUROC to the baseline's has a paired interval: DeLong's standard error with Student's
    quantile, or rows redrawn if they have weights. Those of one set of rows hold together with that level; nothing is
    corrected over sets, so among many shifts some predictor may seem better by chance. With fewer than 20 right or 20
    wrong rows there is no such interval, and none is called better.

    ``shifted`` maps the name of a shift to predictors judged on its rows; ``sweep`` has columns alpha, loss, tpr and
    tnr; ``outliers`` are records of `ood.outlier_records` to show beside. ``resamples`` is 200; fewer,
    but at least 100, above 100 000 rows. ``on_step`` is told each predictor before it is measured.

    Reference: Corbière et al., NeurIPS 2019; Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> right = torch.arange(200) % 4 > 0
        >>> plain = Predictions(confidence=torch.linspace(0.6, 0.9, 200), correct=right)
        >>> knows = Predictions(confidence=right.double(), correct=right)
        >>> trust_report({"mcp": plain, "knows": knows}, resamples=20).verdict[:79]
        'knows tells right from wrong better than max-softmax: AUROC 100.0 against 51.0,'
    """
    below, told = distrust_below or {}, on_step or (lambda name: None)
    _check(judged, baseline, "judged")
    _check_names(shifted or {}, "shifted", "a shift to predictors judged on its rows")
    for name, found in (shifted or {}).items():
        _check(found, baseline, f"shifted[{name!r}]")
    _check_thresholds(below, judged)
    if sweep is not None and not (isinstance(sweep, Curve) and set(SWEEP) <= set(sweep.columns)):
        got = ", ".join(sweep.columns) if isinstance(sweep, Curve) else type(sweep).__name__
        raise ValueError(f"sweep must be a Curve with columns {', '.join(SWEEP)}; got {got}.")
    places = {"all": judged} | {f"shift: {name}": found for name, found in (shifted or {}).items()}
    made = [
        replace(record, model=model, dataset=dataset, seed=seed, where=where)
        for where, found in places.items()
        for record in _records(found, baseline, below, level, _draws(found, resamples), seed, told)
    ]
    shapes = [curves.oracle_risk_coverage(judged[baseline])]
    for name, p in judged.items():
        drawn = curves.risk_coverage(p), curves.trust_histogram(p, threshold=TRUSTED_ABOVE)
        shapes += [replace(curve, settings={**curve.settings, "method": name}) for curve in drawn]
    shapes += [] if sweep is None else [replace(sweep, name="alpha_sweep")]
    words = trust_words.verdict(made, baseline), _notes(places), trust_words.advice(made, baseline)
    return TrustReport(Findings(judged[baseline].understood, *words, (*made, *outliers), tuple(shapes)))


def _draws(judged: Judged, resamples: int | None) -> int:
    n = len(next(iter(judged.values())))
    return max(100, min(200, 20_000_000 // n)) if resamples is None else resamples


def _check(judged: Judged, baseline: str, name: str) -> None:
    """Refuse what is not the same rows judged by each predictor, the baseline among them."""
    _check_names(judged, name, "a predictor to Predictions(confidence=..., correct=...)")
    for key, p in judged.items():
        if not isinstance(p, Predictions):
            raise TypeError(f"{name}[{key!r}] must be Predictions(confidence=..., ...); got {type(p).__name__}.")
        if p.rows.correct is None:
            raise ValueError(f"{name}[{key!r}] must say which answers were right; these predictions have no labels.")
    if baseline not in judged:
        known = ", ".join(map(str, judged)) or "nothing"
        raise ValueError(f"{name} must hold the baseline {baseline!r} to compare with; got {known}.")
    first = judged[baseline]
    for key, p in judged.items():
        if len(p) != len(first):
            raise ValueError(f"{name}[{key!r}] must hold the {len(first)} rows of {baseline!r}; got {len(p)}.")
        if not torch.equal(p.correct, first.correct):
            differ = int((p.correct != first.correct).sum())
            raise ValueError(
                f"{name}[{key!r}] must hold the rows of {baseline!r} in the same order; {count(differ)} of "
                f"{count(len(p))} are right in one and wrong in the other."
            )


def _check_names(given: object, name: str, what: str) -> None:
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a dict from the name of {what}; got {type(given).__name__}.")
    for key in given:
        if not isinstance(key, str) or not key.strip():
            raise ValueError(f"{name} must have a word for each name; got {key!r}.")


def _check_thresholds(below: Mapping[str, object], judged: Judged) -> None:
    _check_names(below, "distrust_below", "a predictor to a confidence")
    for name, value in below.items():
        if name not in judged:
            raise ValueError(f"distrust_below must name predictors in judged; {name!r} is none.")
        if not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise ValueError(f"distrust_below[{name!r}] must be a number in [0, 1]; got {value!r}.")


def _records(
    judged: Judged, baseline: str, below: Mapping[str, float], level: float, draws: int, seed: int, told: Told
) -> Iterator[Record]:
    together = 1 - (1 - level) / max(1, len(judged) - 1)
    for name, p in judged.items():
        told(name)
        for metric in ("accuracy", *RANKING):
            found = interval(metric, p, level=level, resamples=draws, seed=seed)
            yield _bounded(metric, found.value, found.low, found.high, level, len(p), method=name)
        limit = next(b for b in (below.get(name), p.distrust_below, TRUSTED_ABOVE) if b is not None)
        yield from (_share(metric, p, limit, level, name) for metric in SIDES)
        yield from (Record(metric, measure(metric, p), len(p), method=name) for metric in SEPARABILITY)
        wrong_sign = METRICS["aupr_error"](-p.confidence, p.correct, weights=p.weights)
        yield Record("aupr_error", wrong_sign, len(p), settings={"sign": "wrong"}, method=name)
        if name != baseline:
            d = _difference(p, judged[baseline], together, draws, seed)
            made = _bounded("failure_auroc_change", d.difference, d.low, d.high, together, len(p), method=name)
            chance = None if math.isnan(d.p) else d.p
            yield replace(made, p=chance, settings={"against": baseline, "together": level})


def _difference(p: Predictions, base: Predictions, level: float, draws: int, seed: int) -> Comparison:
    """Compare two AUROCs. Of few rows the spread is known too badly for an interval: noise would often seem better."""
    few = min(_sides(p))
    if few < trust_words.FEWEST:
        one, two = (measure("failure_auroc", each) for each in (p, base))
        return Comparison(one - two, math.nan, math.nan, level, math.nan)
    if p.weights is not None or base.weights is not None:
        return compare("failure_auroc", p, base, level=level, resamples=draws, seed=seed)
    one, two, error = paired_auroc(float64(p.confidence), float64(base.confidence), p.correct.numpy())
    half = float(student.ppf((1 + level) / 2, few - 1)) * error  # the smaller side decides how well the error is known
    chance = 2 * float(student.sf(abs(one - two) / error, few - 1)) if error else float(one == two)
    return Comparison(one - two, one - two - half, one - two + half, level, chance)


def _sides(p: Predictions) -> tuple[int, int]:
    return int(p.correct.sum()), int((~p.correct).sum())


def _bounded(metric: str, value: float, low: float, high: float, level: float, n: int, *, method: str) -> Record:
    """Return a record with its interval, or without one where it is undefined."""
    if math.isnan(low) or math.isnan(high):
        return Record(metric, value, n, method=method)
    return Record(metric, value, n, low=low, high=high, level=level, method=method)


def _share(metric: str, p: Predictions, below: float, level: float, method: str) -> Record:
    """Return the share of right rows trusted, or of wrong rows distrusted, with its exact interval."""
    threshold = TRUSTED_ABOVE if metric == "tpr" else below
    value = measure(metric, p, options={"threshold": threshold})
    side = dict(zip(SIDES, _sides(p), strict=True))[metric]
    low = high = math.nan
    if side and p.weights is None:
        bounds = curves.clopper_pearson(np.array([value * side]), np.array([side]), level)
        low, high = (float(bound[0]) for bound in bounds)
    made = _bounded(metric, value, low, high, level, side, method=method)
    return replace(made, settings={"threshold": threshold})


def _notes(places: Mapping[str, Judged]) -> tuple[str, ...]:
    """Say which rows are too few, which a predictor was fitted on, and which confidences are constant."""
    found = []
    for where, judged in places.items():
        suffix = "" if where == "all" else f" ({where})"
        for place, (name, p) in enumerate(judged.items()):
            if place == 1 and (few := trust_words.too_few(*_sides(p))):  # one alone is compared with nothing
                found.append(f"{few}{suffix}")
            if p.fingerprint in p.fitted_on:
                rows = f"these {count(len(p))} rows are the rows {name} was fitted on"
                found.append(f"{rows}; its numbers are optimistic.{suffix}")
            if len(p) > 1 and bool((p.confidence == p.confidence[0]).all()):
                value = float(p.confidence[0])
                found.append(f"{name} gives every row the same confidence ({value:.3g}): it ranks nothing.{suffix}")
    return tuple(found)
