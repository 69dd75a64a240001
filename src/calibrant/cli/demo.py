"""calibrant demo: real logits and five small training runs, compared on one page."""

from pathlib import Path
from typing import Annotated

import typer

from calibrant.cli.progress import progress
from calibrant.cli.terminal import say
from calibrant.cli.tour.demonstration import demonstrate
from calibrant.cli.tour.experiments import FULL, total
from calibrant.io.atomic import check_folder, write_whole
from calibrant.records import to_json

PAGE = "report.html"


def demo_command(
    out: Annotated[Path, typer.Option(help="The folder for the page and, in OUT/runs, the training runs.")] = Path(
        "demo"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,  # noqa: FBT002  a flag
) -> None:
    """Audit, repair, certify and train on real rows in about a minute, and compare everything on one page.

    Training runs that OUT holds already are read, not trained again.
    """
    from calibrant.report import demo  # matplotlib and jinja2 are needed only here

    if out.exists() and not out.is_dir():
        raise ValueError(f"out must be a folder to write into; {str(out)!r} is a file.")
    out.mkdir(parents=True, exist_ok=True)
    check_folder(out)
    with progress("demo", total(out, FULL) + 1) as step:
        found = demonstrate(out, size=FULL, on_step=step)
        step("page")
        page = demo.render(found)
    say(to_json(found) if as_json else demo.text(found))  # before writing, which may fail
    write_whole(page.encode(), out / PAGE)
    say(f"written: {out / PAGE}", err=as_json)
