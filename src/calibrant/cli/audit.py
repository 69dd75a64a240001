"""calibrant audit: predictions -> a verdict, a table, a page."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.progress import progress
from calibrant.cli.terminal import say
from calibrant.evaluation import gate
from calibrant.evaluation.audit import Audit, audit, plan
from calibrant.evaluation.findings import ENDINGS
from calibrant.io import files
from calibrant.io.atomic import check_target
from calibrant.predictions.predictions import Predictions
from calibrant.records import to_json


def audit_command(
    predictions: Annotated[Path, typer.Argument(help="A .npz, .csv or .parquet file of predictions.")],
    report: Annotated[Path | None, typer.Option(help="Write the page here (.html) or the findings (.json).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,  # noqa: FBT002  a flag
    gates: Annotated[
        list[str] | None, typer.Option("--gate", help='A limit to keep, such as "ece_excess<0.02".')
    ] = None,
    ignore_index: Annotated[int | None, typer.Option(help="Leave out rows with this label.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Audit a classifier's confidence: is it calibrated, how certain is that, and what to do next."""
    rules = [gate.parse(rule) for rule in gates or []]
    if report is not None:
        check_target(report, ENDINGS, [predictions])
    found = _audit(files.read(predictions, ignore_index=ignore_index), predictions.name, level, seed)
    outcomes = [gate.decide(rule, found.records) for rule in rules]
    say(to_json(found.findings) if as_json else str(found))  # before writing, which may fail
    if report is not None:
        found.save(report)
        say(f"written: {report}", err=as_json)
    for outcome in outcomes:
        say(f"gate: {outcome.reason}", err=as_json)
    codes = {outcome.code for outcome in outcomes}
    raise typer.Exit(1 if 1 in codes else 3 if 3 in codes else 0)


def _audit(predictions: Predictions, name: str, level: float, seed: int) -> Audit:
    with progress("auditing", len(plan(predictions)) + 1) as step:
        return audit(predictions, level=level, seed=seed, dataset=name, on_step=step)
