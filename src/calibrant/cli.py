"""Make a classifier's confidence mean what it says.

Exit codes: 0 fine, 1 a gate failed, 2 bad input or usage, 3 not enough data to decide.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from calibrant import files, gate
from calibrant.auditing import Audit, audit, check_path, plan
from calibrant.predictions import Predictions
from calibrant.records import to_json
from calibrant.registry import ALL

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


def main() -> None:
    """Run the command; a refusal becomes one sentence on stderr and exit code 2."""
    try:
        app()
    except BrokenPipeError:
        sys.exit(0)
    except (ValueError, TypeError, OSError, KeyError) as error:
        message = error.args[0] if isinstance(error, KeyError) else error
        sys.stderr.write(f"calibrant: {message}\n")
        sys.exit(2)


@app.command("audit")
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
    """Say whether the confidence can be believed, how sure we are of that, and what to do next."""
    rules = [gate.parse(rule) for rule in gates or []]
    if report is not None:
        check_path(report)
    found = _audit(files.read(predictions, ignore_index=ignore_index), predictions.name, level, seed)
    outcomes = [gate.decide(rule, found.records) for rule in rules]
    if report is not None:
        found.save(report)
    typer.echo(to_json(found.findings) if as_json else str(found))
    if report is not None:
        typer.echo(f"written: {report}", err=as_json)
    for outcome in outcomes:
        typer.echo(f"gate: {outcome.reason}", err=as_json)
    codes = {outcome.code for outcome in outcomes}
    raise typer.Exit(1 if 1 in codes else 3 if 3 in codes else 0)


def _audit(predictions: Predictions, name: str, level: float, seed: int) -> Audit:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("auditing", total=len(plan(predictions)) + 1)

        def step(metric: str) -> None:
            progress.update(task, advance=1, description=metric)

        return audit(predictions, level=level, seed=seed, dataset=name, on_step=step)


@app.command()
def methods(
    kind: Annotated[
        str | None, typer.Argument(help="scores, metrics, losses, penalties, calibrators or trust.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of records.")] = False,  # noqa: FBT002  a flag
) -> None:
    """List every method with its summary and reference."""
    plurals = {"losses": "loss", "penalties": "penalty"}
    wanted = None if kind is None else plurals.get(kind, kind.removesuffix("s"))
    kinds = [registry.kind for registry in ALL]
    if wanted is not None and wanted not in kinds:
        raise ValueError(f"kind must be one of {', '.join(kinds)}; got {kind!r}.")
    entries = [e for registry in ALL if wanted in (None, registry.kind) for e in registry.entries()]
    if as_json:
        rows = [{"kind": e.kind, "name": e.name, "summary": e.summary, "reference": e.reference} for e in entries]
        typer.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    width = max((len(e.name) for e in entries), default=0)
    for entry in entries:
        typer.echo(f"{entry.kind:<10}  {entry.name:<{width}}  {entry.summary}")
