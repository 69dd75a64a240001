"""Test rows as one method leaves them -> an audit; two of those on the same rows -> what changed, as a record."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from calibrant.evaluation.audit import Audit, audit, plan
from calibrant.metrics.evidence import compare
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Record

SEED = 0  # of everything that is drawn here: halves of rows, folds, resamples
ALPHA = 0.05  # how often chance may make a family of comparisons say something false
OnStep = Callable[[str], None]


@dataclass(frozen=True)
class Size:
    """How much work: methods to choose from, epochs of a training, bootstrap resamples and label draws.

    A p-value of so many draws is at least 1 / (1 + resamples), which must stay below 0.05 over the looks of a family.
    """

    methods: tuple[str, ...] = ("temperature", "ensemble_temperature", "smart", "smart_proper", "structured_vector")
    epochs: int = 60
    resamples: int = 200


FULL = Size()


@dataclass(frozen=True, eq=False)
class Judged:
    """What a network says about test rows, under the name of the method that made it, and the audit of that."""

    dataset: str
    model: str
    method: str
    predictions: Predictions
    audit: Audit

    @property
    def records(self) -> Iterator[Record]:
        """The numbers of all rows together."""
        return (replace(record, method=self.method) for record in self.audit.records if record.where == "all")

    @property
    def notes(self) -> tuple[str, ...]:
        """What the audit warns of."""
        return tuple(f"{self.dataset}, {self.method}: {note}" for note in self.audit.findings.notes)

    def curves(self, names: Iterable[str]) -> tuple[Curve, ...]:
        """Return curves of the audit that say whose they are."""
        return tuple(self.owned(curve) for curve in self.audit.findings.curves if curve.name in names)

    def owned(self, curve: Curve) -> Curve:
        """Return the curve with a word on whose it is."""
        return owned(curve, self.dataset, self.model, self.method)


def owned(curve: Curve, dataset: str, model: str, method: str) -> Curve:
    """Return the curve with a word on whose it is."""
    whose: Mapping[str, str] = {"dataset": dataset, "model": model, "method": method}
    return replace(curve, settings={**curve.settings, **whose})


def steps(predictions: Predictions) -> int:
    """Return how often `judge` calls ``on_step``."""
    return len(plan(predictions)) + 1


def judge(
    predictions: Predictions, *, dataset: str, model: str, method: str, size: Size, on_step: OnStep = lambda name: None
) -> Judged:
    """Audit test rows; ``on_step`` is told before each metric."""
    title = f"audit: {dataset}, {method}"
    found = audit(
        predictions,
        resamples=size.resamples,
        seed=SEED,
        dataset=dataset,
        model=model,
        on_step=lambda metric: on_step(title),
    )
    return Judged(dataset, model, method, predictions, found)


def change(metric: str, one: Judged, other: Judged, *, family: int, size: Size) -> Record:
    """Return the metric of one less that of the other, on the same rows.

    The level of its interval is such that ``family`` intervals hold all together with 95 % (Bonferroni).
    """
    level = 1 - ALPHA / family
    found = compare(metric, one.predictions, other.predictions, level=level, resamples=2 * size.resamples, seed=SEED)
    return Record(
        f"{metric}_change",
        found.difference,
        len(one.predictions),
        found.low,
        found.high,
        level,
        p=found.p,
        settings={"against": other.method, "family": family},
        dataset=one.dataset,
        model=one.model,
        seed=SEED,
        method=one.method,
    )
