"""Five losses: a small network trained with each on few digits, then repaired, all judged on the same test rows."""

from dataclasses import dataclass, replace
from pathlib import Path

from calibrant.calibrators.cross_fit import fit
from calibrant.cli.tour.judging import SEED, Judged, OnStep, Size, change, judge, owned, steps
from calibrant.metrics import curves
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve, Record
from calibrant.training.recipe import Recipe
from calibrant.training.run import FACTS, Run
from calibrant.training.train import together

DATASET, MODEL = "digits", "lenet"
LOSSES = ("cross_entropy", "focal", "ada_focal", "seca", "au")
REPAIRS = ("temperature", "smart")
BINS = 8  # of a reliability diagram of 600 rows
TEST_ROWS = 600
# So few rows to train on that a network learns them all by heart, and enough others to fit and to judge with.
CHANGES = {"name": "demo", "model": MODEL, "lr": 0.03, "batch": 32, "validation": 300, "calibration": 700}


@dataclass(frozen=True, eq=False)
class Trained:
    """The runs, one for each loss, and their test rows as trained and repaired."""

    runs: tuple[Run, ...]
    judged: tuple[Judged, ...]
    changes: tuple[Record, ...]

    @property
    def records(self) -> tuple[Record, ...]:
        """Every number."""
        return (*(record for each in self.judged for record in each.records), *self.changes)

    @property
    def curves(self) -> tuple[Curve, ...]:
        """Reliability of each network with each repair, and each training by epoch."""
        shapes = (each.owned(curves.reliability(each.predictions, bins=BINS)) for each in self.judged)
        return (*shapes, *(owned(_history(run), DATASET, MODEL, run.recipe.loss) for run in self.runs))


def named(loss: str, repair: str = "") -> str:
    """Return what a row of the table is called.

    Example:
        >>> named("seca"), named("seca", "temperature")
        ('seca', 'seca + temperature')
    """
    return f"{loss} + {repair}" if repair else loss


def recipes(folder: Path, size: Size) -> dict[Path, Recipe]:
    """Return the recipe of each loss by the folder of its run."""
    base = Recipe.read("digits-mlp", {**CHANGES, "epochs": size.epochs, "seed": SEED})
    return {folder / loss: base.changed({"loss": loss}) for loss in LOSSES}


def total(folder: Path, size: Size) -> int:
    """Return about how often ``on_step`` will be called; a run that is finished is not trained again."""
    waiting = [place for place in recipes(folder, size) if not (place / FACTS).is_file()]
    like = Predictions(logits=[[0.0] * 10] * TEST_ROWS, labels=[0] * TEST_ROWS)  # what is measured depends on the shape
    return size.epochs * len(waiting) + len(LOSSES) * (1 + len(REPAIRS)) * steps(like)


def trained(folder: Path, size: Size, on_step: OnStep) -> Trained:
    """Train on the CPU, repair on rows that no training used, and audit the test rows of each."""
    plan = recipes(folder, size)
    watchers = {
        place: lambda epoch, loss=recipe.loss: on_step(f"train: {DATASET}, {loss}") for place, recipe in plan.items()
    }
    runs = tuple(together(plan, device="cpu", on_epoch=watchers))
    judged: dict[str, Judged] = {}
    for run in runs:
        rows, loss = run.predictions("calibration"), run.recipe.loss
        results = {named(loss): run.test}
        results |= {named(loss, repair): fit(repair, rows, SEED).calibrate(run.test) for repair in REPAIRS}
        for name, result in results.items():
            judged[name] = judge(result, dataset=DATASET, model=MODEL, method=name, size=size, on_step=on_step)
    return Trained(runs, tuple(judged.values()), tuple(_changes(judged, size)))


def _changes(judged: dict[str, Judged], size: Size) -> list[Record]:
    """Compare log losses: each repair with the network as trained; each loss with cross-entropy, before and after."""
    first, *others = LOSSES
    repaired = [(named(loss, repair), named(loss)) for repair in REPAIRS for loss in LOSSES]
    against = [(named(loss, repair), named(first, repair)) for repair in ("", REPAIRS[0]) for loss in others]
    return [
        change("nll", judged[one], judged[other], family=len(pairs), size=size)
        for pairs in (repaired, against)
        for one, other in pairs
    ]


def _history(run: Run) -> Curve:
    """Return the history without the seconds, which are never the same twice."""
    found = run.history
    return replace(found, columns={name: found[name] for name in found.columns if name != "seconds"})
