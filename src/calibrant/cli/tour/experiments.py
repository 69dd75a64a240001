"""The demonstration's two experiments: real logits repaired and certified, and five losses trained on digits.

Only test rows are judged; no calibrator was fitted on them, and none on the rows that certify.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from calibrant.calibrators.autocalibrate import FOLDS, Choice, autocalibrate
from calibrant.calibrators.cross_fit import fit
from calibrant.evaluation.audit import audit, plan
from calibrant.metrics.evidence import compare
from calibrant.predictions.predictions import Predictions
from calibrant.records import Findings, Record, count
from calibrant.selection.certification import certify
from calibrant.selection.evaluation import evaluate
from calibrant.training.recipe import Recipe
from calibrant.training.run import FACTS
from calibrant.training.train import together

SEED = 0  # of splits, folds, fits and resamples
ALPHA = 0.05  # chance that a family of comparisons says anything false
LOGITS = Path(__file__).with_name("cifar100_resnet32.npz")
BEFORE = "as trained"
MAX_ERROR, DELTA = 0.1, 0.05
LOSSES = ("cross_entropy", "focal", "ada_focal", "seca", "au")
REPAIRS = ("temperature", "smart")
TEST_DIGITS = 600
# So few rows to train on that a network learns them by heart, and enough others to fit and to judge with.
CHANGES = {"name": "demo", "model": "lenet", "lr": 0.03, "batch": 32, "validation": 300, "calibration": 700}

OnStep = Callable[[str], None]
Results = Mapping[str, Predictions]  # method -> the test rows as it leaves them


@dataclass(frozen=True)
class Size:
    """How much work: calibrators to choose from, epochs of a training, bootstrap resamples and label draws.

    A p-value of so many draws is at least 1 / (1 + resamples), which must stay below 0.05 over the looks of a family.
    """

    methods: tuple[str, ...] = ("temperature", "ensemble_temperature", "smart", "smart_proper", "structured_vector")
    epochs: int = 60
    resamples: int = 200


FULL = Size()


class Split(NamedTuple):
    """Rows by purpose; no row serves two."""

    fitting: Predictions
    certifying: Predictions
    test: Predictions


def read() -> Split:
    """Read the logits; the validation rows are halved at random, to fit on and to certify on."""
    with np.load(LOGITS, allow_pickle=False) as arrays:
        kept, test = (
            Predictions(logits=arrays[f"{part}_logits"], labels=arrays[f"{part}_labels"].astype(np.int64))
            for part in ("val", "test")
        )
    order = np.random.default_rng(SEED).permutation(len(kept))
    fitting, certifying = (kept.take(torch.from_numpy(np.sort(half))) for half in np.array_split(order, 2))
    return Split(fitting, certifying, test)


def total(out: Path, size: Size) -> int:
    """Return how often ``on_step`` will be called, nearly; a finished run is not trained again."""
    waiting = [folder for folder in recipes(out, size) if not (folder / FACTS).is_file()]
    digits = Predictions(logits=[[0.0] * 10] * TEST_DIGITS, labels=[0] * TEST_DIGITS)  # an audit's length: by shape
    audits = (1 + len(REPAIRS)) * (len(plan(read().test)) + 1 + len(LOSSES) * (len(plan(digits)) + 1))
    return FOLDS * len(size.methods) + 1 + size.epochs * len(waiting) + audits


def real_logits(size: Size, on_step: OnStep) -> Findings:
    """Choose a calibrator on half of the validation rows, certify a threshold on the other half, judge on test rows."""
    split, whose = read(), {"dataset": "cifar100", "model": "resnet32"}
    choice = autocalibrate(
        split.fitting.logits,
        split.fitting.labels,
        methods=size.methods,
        seed=SEED,
        on_step=lambda name: on_step(f"calibrate: cifar100, {name}"),
    )
    names = [name for name in dict.fromkeys([*REPAIRS, choice.name]) if name != "identity"]
    fits = {name: choice.calibrator if name == choice.name else fit(name, split.fitting, SEED) for name in names}
    results = {BEFORE: split.test} | {name: each.calibrate(split.test) for name, each in fits.items()}
    pairs = [(metric, name, BEFORE) for name in names for metric in ("nll", "top_label_ece")]
    changes = differences(results, [*pairs, ("nll", "smart", "temperature")], size=size, **whose)
    rows = f"{count(len(split.fitting))} validation rows to fit on, {count(len(split.certifying))} to certify on"
    return joined(
        f"CIFAR-100: logits of a ResNet-32, {rows}, {count(len(split.test))} test rows to judge on.",
        (judge(rows, method=method, size=size, on_step=on_step, **whose) for method, rows in results.items()),
        (*changes, *(replace(r, seed=SEED, dataset="cifar100", model="resnet32") for r in _promise(split, choice))),
    )


def _promise(split: Split, choice: Choice) -> Iterator[Record]:
    """Yield what was chosen, what was certified, and what became of it on the test rows."""
    policy = certify(choice.calibrator.calibrate(split.certifying), max_error=MAX_ERROR, delta=DELTA)
    judged = evaluate(policy, choice.calibrator.calibrate(split.test))
    method = BEFORE if choice.name == "identity" else choice.name
    tried = {"reason": choice.reason, "tried": len({record.method for record in choice.records})}
    limits = {"max_error": MAX_ERROR, "delta": DELTA}
    promise = {**limits, "reason": policy.reason, "verdict": judged.verdict, "held": judged.held}
    threshold = float("nan") if policy.threshold is None else policy.threshold
    yield Record("chosen", 1.0, len(split.fitting), settings=tried, method=method)
    yield Record("certified", threshold, len(split.certifying), settings=promise, method=method)
    yield from (replace(record, method=method) for record in judged.records)


def recipes(out: Path, size: Size) -> dict[Path, Recipe]:
    """Return the recipe of each loss by the folder of its run."""
    base = Recipe.read("digits-mlp", {**CHANGES, "epochs": size.epochs, "seed": SEED})
    return {out / "runs" / loss: base.changed({"loss": loss}) for loss in LOSSES}


def five_losses(out: Path, size: Size, on_step: OnStep) -> Findings:
    """Train a LeNet with each loss on the CPU, repair it on rows that no training used, judge on test rows."""
    planned, whose = recipes(out, size), {"dataset": "digits", "model": "lenet"}
    watchers = {folder: lambda epoch, loss=r.loss: on_step(f"train: digits, {loss}") for folder, r in planned.items()}
    done = together(planned, device="cpu", on_epoch=watchers)
    results: dict[str, Predictions] = {}
    for run in done:
        loss, rows = run.recipe.loss, run.predictions("calibration")
        results[loss] = run.test
        results |= {f"{loss} + {repair}": fit(repair, rows, SEED).calibrate(run.test) for repair in REPAIRS}
    first, *others = LOSSES
    repaired = [("nll", f"{loss} + {repair}", loss) for repair in REPAIRS for loss in LOSSES]
    against = [("nll", f"{loss}{r}", f"{first}{r}") for r in ("", f" + {REPAIRS[0]}") for loss in others]
    changes = (change for family in (repaired, against) for change in differences(results, family, size=size, **whose))
    sizes = {part: count(n) for part, n in done[0].facts["rows"].items()}
    judged = (judge(rows, method=method, size=size, on_step=on_step, **whose) for method, rows in results.items())
    return joined(
        f"Digits: a LeNet trained here on {sizes['train']} rows, {sizes['validation']} to watch it, "
        f"{sizes['calibration']} to fit on, {sizes['test']} test rows to judge on.",
        (replace(each, curves=()) for each in judged),
        changes,
    )


def judge(
    rows: Predictions, *, dataset: str, model: str, method: str, size: Size, on_step: OnStep = lambda name: None
) -> Findings:
    """Audit test rows as a method leaves them; each record, curve and note says whose it is."""
    title = f"{dataset}, {method}"
    found = audit(
        rows,
        resamples=size.resamples,
        seed=SEED,
        dataset=dataset,
        model=model,
        on_step=lambda metric: on_step(f"audit: {title}"),
    ).findings
    return replace(
        found,
        notes=tuple(f"{title}: {note}" for note in found.notes),
        records=tuple(replace(record, method=method) for record in found.records if record.where == "all"),
        curves=tuple(replace(curve, settings={**curve.settings, "method": method}) for curve in found.curves),
    )


def joined(understood: str, parts: Iterable[Findings], records: Iterable[Record] = ()) -> Findings:
    """Return several findings as one, with records that belong to none of them."""
    parts = tuple(parts)
    return Findings(
        understood,
        "",
        tuple(note for part in parts for note in part.notes),
        (),
        (*(record for part in parts for record in part.records), *records),
        tuple(curve for part in parts for curve in part.curves),
    )


def differences(
    results: Results, triples: Sequence[tuple[str, str, str]], *, dataset: str, model: str, size: Size
) -> Iterator[Record]:
    """Yield, for each metric, method and reference, the difference of the metric on the same rows.

    The intervals of one call hold jointly with 95 % (Bonferroni).
    """
    level = 1 - ALPHA / len(triples)
    for metric, one, other in triples:
        rows = results[one], results[other]
        found = compare(metric, *rows, level=level, resamples=2 * size.resamples, seed=SEED)
        settings = {"against": other, "family": len(triples)}
        record = Record(f"{metric}_change", found.difference, len(rows[0]), found.low, found.high, level, p=found.p)
        yield replace(record, settings=settings, dataset=dataset, model=model, seed=SEED, method=one)
