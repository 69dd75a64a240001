"""The trust report: failure prediction by each trust predictor, compared with max-softmax."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real

import numpy as np
import torch
from scipy.stats import t as student

from calibrant.evaluation.findings import Report
from calibrant.metrics import curves
from calibrant.metrics.binomial import clopper_pearson
from calibrant.metrics.delong import paired_auroc
from calibrant.metrics.evidence import Comparison, check_resampling, compare, interval, measure
from calibrant.predictions.fingerprints import warning
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import float64
from calibrant.records import Curve, Findings, Record, count
from calibrant.registry import METRICS
from calibrant.report.trust_table import Row, change, percent, rows

RANKING = ("fpr_at_95_tpr", "aupr_error", "aupr_success", "failure_auroc", "aurc", "augrc")
SIDES = ("tpr", "tnr")  # a share of the right rows, and one of the wrong
SEPARABILITY = ("separability_kl", "separability_bhattacharyya")
TRUSTED_ABOVE = 0.5
SWEEP = ("alpha", "loss", "tpr", "tnr")
SEEN = 5e-5  # a smaller difference is written as 0.00 percent
LISTED = 3  # predictors named in one sentence; the table has them all
FEWEST = 20  # right rows, and wrong rows, below which no difference of AUROC is called one
CERTIFY = "For a threshold with a guarantee, take rows that neither fitted nor chose: {first}calibrant certify {file}"
JUDGED = "calibrant trust FIT.npz --apply ROWS.npz --method {name} --out JUDGED.npz, then "

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
    class probability), else 1/2. Intervals have the given ``level``: exact for shares, bootstrap for the rest.

    The difference of each AUROC to the baseline's has a paired interval: DeLong's standard error with Student's
    quantile, or a bootstrap if rows have weights. Those of one set of rows hold together with that level; nothing is
    corrected over sets, so among many shifts some predictor may seem better by chance. With fewer than 20 right or 20
    wrong rows there is no such interval, and none is called better.

    ``shifted`` maps the name of a shift to predictors judged on its rows; ``sweep`` has columns alpha, loss, tpr and
    tnr; ``outliers`` are records of `ood.outlier_records` to show beside. ``resamples`` is 200; fewer,
    but at least 100, above 100 000 rows. ``on_step`` is called with each predictor before it is measured.

    Reference: Corbière et al., NeurIPS 2019; Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> right = torch.arange(200) % 4 > 0
        >>> plain = Predictions(confidence=torch.linspace(0.6, 0.9, 200), correct=right)
        >>> knows = Predictions(confidence=right.double(), correct=right)
        >>> trust_report({"mcp": plain, "knows": knows}, resamples=20).verdict[:79]
        'knows tells right from wrong better than max-softmax: AUROC 100.0 against 51.0,'
    """
    below, told = distrust_below or {}, on_step or (lambda name: None)
    check_resampling(level, 100 if resamples is None else resamples, seed)
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
    words = _verdict(made, baseline), _notes(places), _advice(made, baseline)
    return TrustReport(Findings(judged[baseline].understood, *words, (*made, *outliers), tuple(shapes)))


def _draws(judged: Judged, resamples: int | None) -> int:
    n = len(next(iter(judged.values())))
    return max(100, min(200, 20_000_000 // n)) if resamples is None else resamples


def _check(judged: Judged, baseline: str, name: str) -> None:
    """Require the same rows for every predictor, and the baseline among them."""
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
    """Compare two AUROCs; without an interval on few rows, where its standard error is unreliable."""
    few = min(_sides(p))
    if few < FEWEST:
        one, two = (measure("failure_auroc", each) for each in (p, base))
        return Comparison(one - two, math.nan, math.nan, level, math.nan)
    if p.weights is not None or base.weights is not None:
        return compare("failure_auroc", p, base, level=level, resamples=draws, seed=seed)
    one, two, error = paired_auroc(float64(p.confidence), float64(base.confidence), p.correct.numpy())
    half = float(student.ppf((1 + level) / 2, few - 1)) * error  # degrees of freedom of the smaller side
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
        bounds = clopper_pearson(np.array([value * side]), np.array([side]), level)
        low, high = (float(bound[0]) for bound in bounds)
    made = _bounded(metric, value, low, high, level, side, method=method)
    return replace(made, settings={"threshold": threshold})


def _notes(places: Mapping[str, Judged]) -> tuple[str, ...]:
    """Say which rows are too few, which a predictor was fitted on, and which confidences are constant."""
    found = []
    for where, judged in places.items():
        suffix = "" if where == "all" else f" ({where})"
        for place, (name, p) in enumerate(judged.items()):
            if place == 1 and (few := _too_few(*_sides(p))):  # one alone is compared with nothing
                found.append(f"{few}{suffix}")
            if seen := warning(p.known(), len(p), name):
                found.append(f"{seen}{suffix}")
            if len(p) > 1 and bool((p.confidence == p.confidence[0]).all()):
                value = float(p.confidence[0])
                found.append(f"{name} gives every row the same confidence ({value:.3g}): it ranks nothing.{suffix}")
    return tuple(found)


def _too_few(right: int, wrong: int) -> str:
    """Say that these rows are too few to compare predictors; empty if they are not.

    Example:
        >>> _too_few(995, 5)
        '5 of 1 000 answers are wrong: too few to say whether a predictor ranks better; it takes 20 of either kind.'
    """
    side, kind = min((right, "right"), (wrong, "wrong"))
    if not 0 < side < FEWEST:
        return ""
    told = f"{side} of {count(right + wrong)} answers {'is' if side == 1 else 'are'} {kind}: too few to say whether a"
    return f"{told} predictor ranks better; it takes {FEWEST} of either kind."


def _verdict(records: Sequence[Record], baseline: str) -> str:
    """Say whether any predictor tells right from wrong better than the baseline, and what the threshold gives."""
    found = rows(records)
    base = next(row for row in found if row.name == baseline)
    if nothing := _nothing(base):
        return nothing
    return f"{_ranking(found, base)} {_threshold(found, base)}".strip()


def _advice(records: Sequence[Record], baseline: str) -> tuple[str, ...]:
    """Say what to do next: which to rank by, and where a threshold comes from."""
    found = rows(records)
    base = next(row for row in found if row.name == baseline)
    if _nothing(base):
        return ("Judge rows on which some answers are right and some wrong: rows of a test set, not those trained on.",)
    better, name = [row for row in found if _better(row)], _called(baseline)
    if len(found) == 1:
        return (_certify(),)
    if _few(base):
        return (f"Judge more rows before choosing; until then rank by {name}.", _certify())
    if better:
        best = max(better, key=_auroc)
        return (
            f"Rank by {best.name}: what is reviewed first, or left unanswered, is chosen better than by {name}.",
            _certify(best.name),
        )
    return (
        f"Rank by {name}: a review queue gains nothing that these rows can show from the others. What a learned "
        "predictor may still give is a threshold: compare TPR and TNR.",
        _certify(),
    )


def _certify(name: str = "") -> str:
    """Return the command that certifies a threshold; another predictor's confidence is written to a file first."""
    first = JUDGED.format(name=name if name.isidentifier() else "NAME") if name else ""
    return f"{CERTIFY.format(first=first, file='JUDGED.npz' if name else 'ROWS.npz')} --max-error 0.02."


def _nothing(base: Row) -> str:
    """Say why nothing can be ranked; empty if something can."""
    accuracy = base.cells["accuracy"]
    if accuracy.n == 1:
        return "One row says nothing: there is nothing to rank."
    if not math.isnan(_auroc(base)):
        return ""
    return f"Every answer is {'right' if accuracy.value > 0.5 else 'wrong'}: there is nothing to rank."


def _ranking(found: list[Row], base: Row) -> str:
    others = sorted((row for row in found if row is not base), key=_auroc, reverse=True)
    name, level = _called(base.name), f"AUROC {_short(base)}"
    better = [row for row in others if _better(row)]
    if not others:
        return f"{name.capitalize()} tells right from wrong with {level}; no other predictor was judged."
    if _few(base):
        return f"Too few rows to say whether any predictor ranks better than {name} ({level}): {_listed(others)}."
    if not better:
        return f"No predictor tells right from wrong better than {name} ({level}): {_listed(others)}."
    best = better[0]
    rest = [row for row in others if row is not best]
    said = f"{best.name} tells right from wrong better than {name}: AUROC {_short(best)} against {_short(base)}, "
    said += f"difference {change(best.change)}."
    return f"{said} Of the others: {_listed(rest)}." if rest else said


def _listed(others: list[Row]) -> str:
    """Name those that rank alike together, and of the rest the best with their differences."""
    alike = [row.name for row in others if _alike(row)]
    apart = [row for row in others if not _alike(row)]
    said = [f"{row.name} {_short(row)} ({change(row.change)})" for row in apart[:LISTED]]
    if len(apart) > LISTED:
        said.append(f"{len(apart) - LISTED} more in the table")
    if alike:
        said.append(f"{_joined(alike)} rank{'s' if len(alike) == 1 else ''} as it does")
    return ", ".join(said)


def _few(base: Row) -> bool:
    return bool(_too_few(base.cells["tpr"].n, base.cells["tnr"].n))


def _alike(row: Row) -> bool:
    """Whether the difference to the baseline is zero in the digits shown."""
    told = row.change
    ends = (math.nan,) if told is None else (told.value, told.low, told.high)
    return all(end is not None and abs(end) < SEEN for end in ends)


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _threshold(found: list[Row], base: Row) -> str:
    shown = [base]
    others = [row for row in found if row is not base and not math.isnan(_both(row))]
    if others:
        shown.append(max(others, key=_both))
    said = "; ".join(_shares(row) for row in shown)
    return f"Trusting above {base.cells['tpr'].settings['threshold']:g}: {said}."


def _shares(row: Row) -> str:
    right, wrong = (row.cells[metric] for metric in ("tpr", "tnr"))
    below = wrong.settings["threshold"]
    where = "" if below == right.settings["threshold"] else f" (below {below:.3g})"
    return (
        f"{row.name} trusts {percent(right.value, digits=1)} % of the right answers and distrusts "
        f"{percent(wrong.value, digits=1)} % of the wrong{where}"
    )


def _both(row: Row) -> float:
    return row.cells["tpr"].value + row.cells["tnr"].value


def _better(row: Row) -> bool:
    return row.change is not None and row.change.low is not None and row.change.low > 0


def _auroc(row: Row) -> float:
    return row.cells["failure_auroc"].value


def _short(row: Row) -> str:
    return percent(_auroc(row), digits=1)


def _called(baseline: str) -> str:
    return "max-softmax" if baseline == "mcp" else baseline
