"""calibrant methods: list every registered method, or describe some."""

import json
from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.terminal import say
from calibrant.io.atomic import check_target, write_whole
from calibrant.losses import shapes as loss_shapes
from calibrant.records import plain
from calibrant.registry import ALL, Entry, nearest


def methods_command(
    kind: Annotated[
        str | None, typer.Argument(help="scores, metrics, losses, penalties, calibrators or trust; or show.")
    ] = None,
    names: Annotated[list[str] | None, typer.Argument(help="After show: methods to describe.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list.")] = False,  # noqa: FBT002  a flag
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
        say(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    width = max((len(e.name) for e in entries), default=0)
    for entry in entries:
        say(f"{entry.kind:<10}  {entry.name:<{width}}  {entry.summary}")


def _show(names: list[str], *, as_json: bool, out: Path | None, options: list[str], k: int | None) -> None:
    """Describe methods; draw the losses among them, or print a few numbers of each."""
    from calibrant.report import methods as sheet

    if not names:
        raise ValueError("show must be followed by the name of a method, as in: calibrant methods show focal.")
    entries = [entry for name in dict.fromkeys(names) for entry in _named(name)]
    losses = [entry.name for entry in entries if entry.kind == "loss"]
    if not losses and (out or options or k is not None):
        raise ValueError(f"--out, --option and --k must come with the name of a loss; got {', '.join(names)}.")
    if out is not None:
        check_target(out, sheet.FORMATS)
    given = loss_shapes.read_options(losses, options)
    shapes = [loss_shapes.shape(name, own, 10 if k is None else k) for name, own in zip(losses, given, strict=True)]
    rest = iter(shapes)
    shown = [sheet.particulars(entry, next(rest) if entry.kind == "loss" else None) for entry in entries]
    if as_json:
        say(json.dumps(plain(shown), indent=1, ensure_ascii=False))
    else:
        say("\n\n".join(sheet.described(found, table=out is None) for found in shown))
    if out is not None:
        write_whole(sheet.encoded(sheet.loss_shape(shapes)[0], out.suffix), out)
        say(f"written: {out}", err=as_json)


def _named(name: str) -> list[Entry]:
    """Return every method of that name; a metric and a loss may share one."""
    if found := [registry.entry(name) for registry in ALL if name in registry]:
        return found
    near = nearest(name, sorted({known for registry in ALL for known in registry}))
    hint = f" Did you mean {near}?" if near else ""
    raise ValueError(f"no method is named {name!r}.{hint}")
