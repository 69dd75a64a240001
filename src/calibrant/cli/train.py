"""calibrant train: a recipe -> runs, one for each loss and seed."""

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.terminal import say
from calibrant.metrics.evidence import measure
from calibrant.records import Record, plain
from calibrant.training import recipe as recipes
from calibrant.training.loop import Epoch, OnEpoch
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run
from calibrant.training.train import together

METRICS = ("accuracy", "nll", "brier", "top_label_ece")


def train_command(  # noqa: PLR0913  the command names everything it takes
    recipe: Annotated[str | None, typer.Option(help="A recipe by name, or a .toml file; --list names them.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Overrides the recipe's.")] = None,
    model: Annotated[str | None, typer.Option(help="Overrides the recipe's.")] = None,
    loss: Annotated[list[str] | None, typer.Option(help="A loss or penalty; several make several runs.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed; several make several runs.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Overrides the recipe's.")] = None,
    batch: Annotated[int | None, typer.Option(help="Overrides the recipe's.")] = None,
    lr: Annotated[float | None, typer.Option(help="Overrides the recipe's.")] = None,
    entries: Annotated[list[str] | None, typer.Option("--set", help="Any entry of a recipe: clip=2.0.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder with the data; or set $CALIBRANT_DATA.")] = None,
    out: Annotated[Path, typer.Option(help="Runs are left in OUT/RECIPE/LOSS-SEED.")] = Path("runs"),
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU if there is one.")] = None,
    features: Annotated[bool, typer.Option("--features", help="Keep the last layer's inputs, too.")] = False,  # noqa: FBT002  a flag
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile", help="Compile; long GPU runs do.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the records of the test sets.")] = False,  # noqa: FBT002  a flag
    listed: Annotated[bool, typer.Option("--list", help="List the recipes and exit.")] = False,  # noqa: FBT002  a flag
) -> None:
    """Train classifiers by a recipe; an interrupted run resumes from its checkpoint.

    On one GPU several runs share it; under torchrun the ranks share each batch.
    """
    if listed:
        width = max(map(len, recipes.names()))
        for name in recipes.names():
            say(f"{name:<{width}}  {Recipe.read(name).about}")
        return
    flags = {"dataset": dataset, "model": model, "epochs": epochs, "batch": batch, "lr": lr}
    changes = {name: value for name, value in flags.items() if value is not None} | _entries(entries or [])
    base = Recipe.read(recipe, changes) if recipe else Recipe.of(changes)
    runs = {
        out / (base.name or f"{base.dataset}-{base.model}") / f"{each}-{number}": base.changed(
            {"loss": each, "seed": number}
        )
        for each in loss or [base.loss]
        for number in seed or [base.seed]
    }
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # else only eight runs are on a GPU at once
    for each in {chosen.loss: chosen for chosen in runs.values()}.values():
        if each.paper and not each.loss_options and each.preset() is None:
            say(f"note: {each.loss} is no row of {each.paper}; it has the package's own defaults.", err=True)
    first = os.environ.get("RANK", "0") == "0"
    with _watched(runs if first else {}) as watchers:
        done = together(runs, data=data, device=device, compiled=compiled, features=features, on_epoch=watchers)
    if not first:
        return  # one rank speaks for all
    records = [record for run in done for record in _records(run)]
    say(json.dumps(plain([asdict(r) for r in records]), indent=1) if as_json else _table(done, records))


def _entries(given: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE, the value as in TOML; a word needs no quotes."""
    found: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"--set must be NAME=VALUE, as in clip=2.0; got {text!r}.")
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = value
    return found


@contextmanager
def _watched(runs: Mapping[Path, Recipe]) -> Iterator[dict[Path, OnEpoch]]:
    """Show a progress bar for each run on a terminal; elsewhere, print a line every tenth of the epochs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.fields[said]}")
    shown = [TextColumn(c) if isinstance(c, str) else c for c in columns]
    with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as bars:

        def watcher(folder: Path, recipe: Recipe) -> OnEpoch:
            task = bars.add_task(folder.name, total=recipe.epochs, said="")

            def told(epoch: Epoch) -> None:
                said = _said(epoch)
                bars.update(task, completed=epoch["epoch"], said=said)
                if not console.is_terminal and epoch["epoch"] % max(1, recipe.epochs // 10) == 0:
                    sys.stderr.write(f"{folder.name}, epoch {epoch['epoch']} of {recipe.epochs}: {said}\n")

            return told

        yield {folder: watcher(folder, recipe) for folder, recipe in runs.items()}


def _said(epoch: Epoch) -> str:
    said = f"loss {epoch['loss']:.4f}"
    if "accuracy" in epoch:
        said += f", validation accuracy {epoch['accuracy']:.4f}, ECE {epoch['ece']:.4f}"
    return said


def _records(run: Run) -> Iterator[Record]:
    for metric in METRICS:
        value = measure(metric, run.test)
        where = {"model": run.recipe.model, "dataset": run.recipe.dataset, "seed": run.recipe.seed}
        yield Record(metric, value, len(run.test), method=run.recipe.loss, versions=run.facts["versions"], **where)  # type: ignore[arg-type]


def _table(runs: list[Run], records: list[Record]) -> str:
    lines = [f"{'test set':<28} {'accuracy':>9} {'log loss':>9} {'Brier':>9} {'ECE':>9}  epoch  folder"]
    for place, run in enumerate(runs):
        values = [record.value for record in records[len(METRICS) * place : len(METRICS) * (place + 1)]]
        name = f"{run.recipe.loss}, seed {run.recipe.seed}"
        numbers = " ".join(f"{value:>9.4f}" for value in values)
        lines.append(f"{name:<28} {numbers} {run.facts['kept_epoch']:>6}  {run.folder}")
    return "\n".join(lines)
