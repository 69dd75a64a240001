"""Real logits: audited, repaired on some of the validation rows, certified on the others, judged on test rows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from calibrant.calibrators.autocalibrate import FOLDS, Choice, autocalibrate
from calibrant.calibrators.cross_fit import fit
from calibrant.cli.tour.judging import SEED, Judged, OnStep, Size, change, judge, steps
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Record
from calibrant.selection.certification import certify
from calibrant.selection.evaluation import Evaluation, evaluate
from calibrant.selection.policy import Policy

FILE = Path(__file__).with_name("cifar100_resnet32.npz")
DATASET, MODEL, BEFORE = "cifar100", "resnet32", "as trained"
ALWAYS = ("temperature", "smart")  # judged on the test rows whatever is chosen
MAX_ERROR, DELTA = 0.1, 0.05
DRAWN = ("reliability", "reliability_isotonic", "confidence_histogram")
RISKS = ("risk_coverage", "oracle_risk_coverage")


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows by what they are for; no row is in two of them."""

    fitting: Predictions
    certifying: Predictions
    test: Predictions


@dataclass(frozen=True, eq=False)
class Shipped:
    """What was found on the logits that come with the package; ``judged`` begins with the network as trained."""

    rows: Rows
    choice: Choice
    judged: tuple[Judged, ...]
    policy: Policy
    evaluation: Evaluation
    changes: tuple[Record, ...]

    @property
    def chosen(self) -> Judged:
        """The test rows as the chosen method leaves them."""
        name = BEFORE if self.choice.name == "identity" else self.choice.name
        return next(each for each in self.judged if each.method == name)

    @property
    def records(self) -> tuple[Record, ...]:
        """Every number, and in words what was chosen and certified."""
        whose = {"dataset": DATASET, "model": MODEL, "method": self.chosen.method, "seed": SEED}
        promise = {
            "max_error": self.policy.max_error,
            "delta": self.policy.delta,
            "reason": self.policy.reason,
            "verdict": self.evaluation.verdict,
            "held": self.evaluation.held,
        }
        threshold = float("nan") if self.policy.threshold is None else self.policy.threshold
        told = {"reason": self.choice.reason, "tried": len({record.method for record in self.choice.records})}
        return (
            *(record for each in self.judged for record in each.records),
            *self.changes,
            Record("chosen", 1.0, len(self.rows.fitting), settings=told, **whose),  # type: ignore[arg-type]
            Record("certified", threshold, len(self.rows.certifying), settings=promise, **whose),  # type: ignore[arg-type]
            *(Record(**{**vars(record), **whose}) for record in self.evaluation.records),
        )

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Reliability of each method, and the risk-coverage curve of the chosen one."""
        return (*(curve for each in self.judged for curve in each.curves(DRAWN)), *self.chosen.curves(RISKS))


def read() -> Rows:
    """Read the logits; the validation rows are halved at random, to fit on and to certify on."""
    with np.load(FILE, allow_pickle=False) as arrays:
        kept, test = (
            Predictions(logits=arrays[f"{part}_logits"], labels=arrays[f"{part}_labels"].astype(np.int64))
            for part in ("val", "test")
        )
    order = np.random.default_rng(SEED).permutation(len(kept))
    fitting, certifying = (kept.take(torch.from_numpy(np.sort(half))) for half in np.array_split(order, 2))
    return Rows(fitting, certifying, test)


def total(rows: Rows, size: Size) -> int:
    """Return about how often ``on_step`` will be called."""
    return FOLDS * len(size.methods) + 1 + (1 + len(ALWAYS)) * steps(rows.test)


def shipped(rows: Rows, size: Size, on_step: OnStep) -> Shipped:
    """Choose a calibrator on one half of the validation rows, certify a threshold on the other, judge on test rows."""
    fitting = rows.fitting
    choice = autocalibrate(
        fitting.logits,
        fitting.labels,
        methods=size.methods,
        seed=SEED,
        on_step=lambda name: on_step(f"calibrate: {DATASET}, {name}"),
    )
    names = [name for name in dict.fromkeys([*ALWAYS, choice.name]) if name != "identity"]
    calibrators = {name: choice.calibrator if name == choice.name else fit(name, fitting, SEED) for name in names}
    results = {BEFORE: rows.test} | {name: each.calibrate(rows.test) for name, each in calibrators.items()}
    judged = {
        name: judge(result, dataset=DATASET, model=MODEL, method=name, size=size, on_step=on_step)
        for name, result in results.items()
    }
    policy = certify(choice.calibrator.calibrate(rows.certifying), max_error=MAX_ERROR, delta=DELTA)
    evaluation = evaluate(policy, choice.calibrator.calibrate(rows.test))
    changes = tuple(_changes(judged, names, size))
    return Shipped(rows, choice, tuple(judged.values()), policy, evaluation, changes)


def _changes(judged: dict[str, Judged], names: list[str], size: Size) -> list[Record]:
    """Compare log loss and ECE of each method with the network as trained, and SMART's log loss with temperature's."""
    family = 2 * len(names) + 1
    found = [
        change(metric, judged[name], judged[BEFORE], family=family, size=size)
        for name in names
        for metric in ("nll", "top_label_ece")
    ]
    return [*found, change("nll", judged["smart"], judged["temperature"], family=family, size=size)]
