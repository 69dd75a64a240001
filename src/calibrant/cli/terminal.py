"""What the commands say: any encoding, no control characters from names, and a reader that leaves early."""

import os
import sys

import typer

from calibrant.report.notation import printable


def say(text: str, *, err: bool = False) -> None:
    """Print lines on stdout, or on stderr; if nobody reads them any more, the work goes on in silence."""
    stream = sys.stderr if err else sys.stdout
    if stream is None:  # closed before the command began
        return
    try:
        typer.echo("\n".join(printable(line) for line in text.split("\n")), file=stream)
        stream.flush()
    except BrokenPipeError:  # as in `calibrant audit preds.npz | head -1`
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def prepare() -> None:
    """Let a terminal that cannot show a character show a question mark instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
