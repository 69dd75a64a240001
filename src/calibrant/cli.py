"""Make a classifier's confidence mean what it says.

Exit codes: 0 fine, 1 a gate failed, 2 bad input or usage, 3 not enough data to decide.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from calibrant import calibrating, files, gate, loss_shapes
from calibrant.auditing import Audit, audit, check_path, plan
from calibrant.predictions import Predictions
from calibrant.records import plain, to_json
from calibrant.registry import ALL, CALIBRATORS, Entry, nearest

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
    with _progress("auditing", len(plan(predictions)) + 1) as step:
        return audit(predictions, level=level, seed=seed, dataset=name, on_step=step)


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on stderr, on a terminal only; what is yielded names each step as it begins."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        yield lambda step: progress.update(task, advance=1, description=step)


@app.command("calibrate")
def calibrate_command(  # noqa: PLR0913  the command names everything it takes
    predictions: Annotated[Path, typer.Argument(help="Labelled held-out rows to fit on: .npz, .csv or .parquet.")],
    method: Annotated[str, typer.Option(help="A calibrator by name, or auto: compare several and choose.")] = "auto",
    apply: Annotated[Path | None, typer.Option(help="Rows to calibrate, with or without labels.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the calibrator here (.safetensors).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the calibrated rows of --apply here (.npz).")] = None,
    by_group: Annotated[bool, typer.Option("--by-group", help="Keep the rows of a group in one fold.")] = False,  # noqa: FBT002  a flag
    ignore_index: Annotated[int | None, typer.Option(help="Leave out rows with this label.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the folds and of the fits.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,  # noqa: FBT002  a flag
) -> None:
    """Fit a calibrator, say by cross-fitting whether it helps, and calibrate other rows with it.

    Rows that a calibrator was fitted on must not be judged with it, so --out takes the rows of --apply.
    """
    if method != "auto":
        CALIBRATORS.entry(method)
    if out is not None and apply is None:
        raise ValueError("--out needs --apply: the rows to calibrate, other than those fitted on.")
    for target, ending in ((save, ".safetensors"), (out, ".npz")):
        if target is not None:
            files.check_target(target, ending, [predictions, *([apply] if apply else [])])
    fitted = files.read(predictions, ignore_index=ignore_index)
    rows = None if apply is None else files.read(apply, ignore_index=ignore_index, labelled=False)
    if rows is not None:
        calibrating.check_pair(fitted, rows, method)
    if fitted.weights is not None:
        typer.echo("note: weights are not used; a calibrator counts every row once.", err=True)
    with _progress("calibrating", calibrating.steps(fitted, method)) as step:
        choice = calibrating.choose(fitted, method, by_group=by_group, seed=seed, on_step=step)
    then = (
        None
        if rows is None or apply is None
        else calibrating.applied(choice, fitted, rows, apply.name, by_group=by_group, seed=seed)
    )
    if save is not None:
        choice.calibrator.save(save)
    if out is not None and then is not None:
        files.write(out, then.predictions)
    typer.echo(calibrating.to_json(choice, then) if as_json else calibrating.text(choice, then))
    for written in (path for path in (save, out) if path is not None):
        typer.echo(f"written: {written}", err=as_json)


@app.command()
def methods(
    kind: Annotated[
        str | None, typer.Argument(help="scores, metrics, losses, penalties, calibrators or trust; or show.")
    ] = None,
    names: Annotated[list[str] | None, typer.Argument(help="After show: methods to describe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of records.")] = False,  # noqa: FBT002  a flag
    out: Annotated[Path | None, typer.Option(help="Draw the losses shown: .svg, .png or .pdf.")] = None,
    options: Annotated[list[str] | None, typer.Option("--option", help="Of a loss shown, such as gamma=5.")] = None,
    k: Annotated[int | None, typer.Option(help="Number of classes of the losses shown; 10 unless given.")] = None,
) -> None:
    """List every method with its summary and reference, or show some: `methods show focal seca --out losses.svg`."""
    if kind == "show":
        _show(names or [], as_json=as_json, out=out, options=options or [], k=k)
        return
    if names or out or options or k is not None:
        raise ValueError("names, --out, --option and --k must come after show, as in: calibrant methods show focal.")
    plurals = {"losses": "loss", "penalties": "penalty"}
    kinds = [registry.kind for registry in ALL]
    wanted = kind if kind is None or kind in kinds else plurals.get(kind, kind.removesuffix("s"))
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


def _show(names: list[str], *, as_json: bool, out: Path | None, options: list[str], k: int | None) -> None:
    """Describe methods; draw the losses among them, or print a few numbers of each."""
    from calibrant.report import methods as sheet
    from calibrant.report import training

    if not names:
        raise ValueError("show must be followed by the name of a method, as in: calibrant methods show focal.")
    entries = [entry for name in dict.fromkeys(names) for entry in _named(name)]
    losses = [entry.name for entry in entries if entry.kind == "loss"]
    if not losses and (out or options or k is not None):
        raise ValueError(f"--out, --option and --k must come with the name of a loss; got {', '.join(names)}.")
    if out is not None:
        training.check_path(out)
    given = loss_shapes.read_options(losses, options)
    shapes = [loss_shapes.shape(name, own, 10 if k is None else k) for name, own in zip(losses, given, strict=True)]
    if out is not None:
        training.write(training.loss_shape(shapes)[0], out)
    rest = iter(shapes)
    shown = [sheet.particulars(entry, next(rest) if entry.kind == "loss" else None) for entry in entries]
    if as_json:
        typer.echo(json.dumps(plain(shown), indent=1, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(sheet.described(found, table=out is None) for found in shown))
    if out is not None:
        typer.echo(f"written: {out}", err=as_json)


def _named(name: str) -> list[Entry]:
    """Return every method of that name; a metric and a loss may share one."""
    if found := [registry.entry(name) for registry in ALL if name in registry]:
        return found
    near = nearest(name, sorted({known for registry in ALL for known in registry}))
    hint = f" Did you mean {near}?" if near else ""
    raise ValueError(f"no method is named {name!r}.{hint}")
