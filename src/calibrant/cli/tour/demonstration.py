"""Both parts of the demonstration -> findings: records, curves, and what to take from them in words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from calibrant.cli.tour import experiments as shipped
from calibrant.cli.tour import trained
from calibrant.cli.tour.judging import FULL, SEED, OnStep, Size
from calibrant.cli.tour.lesson import headline, lesson
from calibrant.records import Findings, count

RUNS = "runs"


def check_folder(out: Path) -> None:
    """Refuse a place where nothing can be left; better before the work than after."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder to write into; {str(out)!r} is a file.")


def total(out: Path, size: Size = FULL) -> int:
    """Return about how often ``on_step`` of `demonstrate` will be called."""
    return shipped.total(shipped.read(), size) + trained.total(out / RUNS, size)


def demonstrate(out: Path, *, size: Size = FULL, on_step: OnStep = lambda name: None) -> Findings:
    """Audit, repair, certify and train, on real rows, and say what to take from it.

    Runs are left in ``out``/runs, where a second call finds them. Rows that a calibrator was fitted on certify nothing,
    and neither they nor the rows that certify are judged.
    """
    check_folder(out)
    with _one_thread():
        real = shipped.shipped(shipped.read(), size, on_step)
        made = trained.trained(out / RUNS, size, on_step)
    records = (*real.records, *made.records)
    sizes = made.runs[0].facts["rows"]
    return Findings(
        understood=_understood(real.rows, sizes),
        verdict=headline(records),
        notes=tuple(note for each in (*real.judged, *made.judged) for note in each.notes),
        advice=lesson(records, sizes["train"], sizes["calibration"]),
        records=records,
        curves=(*real.curves, *made.curves),
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch work in one thread, and put its number back: for tensors as small as these others only wait.

    On two cores that are busy this is several times as fast, and the numbers do not depend on the number of cores.
    """
    found = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(found)


def _understood(rows: shipped.Rows, sizes: dict[str, int]) -> str:
    halves = f"{count(len(rows.fitting))} validation rows to fit on and {count(len(rows.certifying))} to certify on"
    return (
        f"CIFAR-100, a ResNet-32 trained with cross-entropy, logits from the package: {halves}, halved at random with "
        f"seed {SEED}, and {count(len(rows.test))} test rows to judge on. Digits, a LeNet trained here: "
        f"{count(sizes['train'])} rows to learn from, {count(sizes['validation'])} to watch the training with, "
        f"{count(sizes['calibration'])} to fit on, {count(sizes['test'])} test rows to judge on."
    )
