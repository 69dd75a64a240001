"""calibrant calibrate: held-out rows -> a calibrator, and other rows calibrated."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.calibrators import apply as calibrating
from calibrant.cli.progress import progress
from calibrant.cli.terminal import say
from calibrant.io import files
from calibrant.io.atomic import check_target, write_whole
from calibrant.registry import CALIBRATORS


def calibrate_command(  # noqa: PLR0913  the command names everything it takes
    predictions: Annotated[Path, typer.Argument(help="Labelled held-out rows to fit on: .npz, .csv or .parquet.")],
    method: Annotated[str, typer.Option(help="A calibrator by name, or auto: compare several and choose.")] = "auto",
    apply: Annotated[Path | None, typer.Option(help="Rows to calibrate, with or without labels.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the calibrator here (.safetensors).")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the calibrated rows of --apply here (.npz).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the comparison as a page here (.html).")] = None,
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
    for target, ending in ((save, ".safetensors"), (out, ".npz"), (report, ".html")):
        if target is not None:
            check_target(target, ending, [predictions, *([apply] if apply else [])])
    fitted = files.read(predictions, ignore_index=ignore_index)
    rows = None if apply is None else files.read(apply, ignore_index=ignore_index, labelled=False)
    if rows is not None and (warning := calibrating.check_pair(fitted, rows, method)):
        say(f"warning: {warning}", err=True)
    if fitted.weights is not None:
        say("note: weights are not used; a calibrator counts every row once.", err=True)
    with progress("calibrating", calibrating.steps(fitted, method)) as step:
        choice = calibrating.choose(fitted, method, by_group=by_group, seed=seed, on_step=step)
    then = (
        None
        if rows is None or apply is None
        else calibrating.applied(choice, fitted, rows, apply.name, by_group=by_group, seed=seed)
    )
    say(calibrating.to_json(choice, then) if as_json else calibrating.text(choice, then))  # writing may fail
    if save is not None:
        choice.calibrator.save(save)
    if out is not None and then is not None:
        files.write(out, then.predictions)
    if report is not None:
        write_whole(calibrating.page(choice, then, predictions.name, fitted if rows is None else rows).encode(), report)
    for written in (path for path in (save, out, report) if path is not None):
        say(f"written: {written}", err=as_json)
