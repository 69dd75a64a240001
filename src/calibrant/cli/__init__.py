"""The calibrant command: audit, calibrate, certify, trust, train, methods, demo."""

import sys

import typer

from calibrant.cli.audit import audit_command
from calibrant.cli.calibrate import calibrate_command
from calibrant.cli.certify import certify_command
from calibrant.cli.demo import demo_command
from calibrant.cli.methods import methods_command
from calibrant.cli.refusals import refused, report, sentence
from calibrant.cli.terminal import prepare, say
from calibrant.cli.train import train_command
from calibrant.cli.trust import trust_command

HELP = """Make a classifier's confidence mean what it says.

Exit codes: 0 fine, 1 a gate failed, 2 bad input or usage, 3 not enough data to decide, 70 a bug in calibrant.
"""
app = typer.Typer(add_completion=False, no_args_is_help=True, help=HELP, pretty_exceptions_enable=False)
app.command("audit")(audit_command)
app.command("calibrate")(calibrate_command)
app.command("certify")(certify_command)
app.command("demo")(demo_command)
app.command("methods")(methods_command)
app.command("train")(train_command)
app.command("trust")(trust_command)


def main() -> None:
    """Run the command; bad input becomes one sentence on stderr and exit code 2, a bug a traceback and exit code 70."""
    prepare()
    try:
        app()
    except Exception as error:
        if not refused(error):
            say(report(error), err=True)
            sys.exit(70)
        say(f"calibrant: {sentence(error)}", err=True)
        sys.exit(2)
