"""Refusals and bugs: bad input is answered with one sentence, a mistake of the package with a traceback."""

import dis
import traceback

RAISE = dis.opmap["RAISE_VARARGS"]
REQUEST = (
    "calibrant: this is a bug in calibrant, not a mistake of yours. Please report it, with the lines above and the "
    "command that you ran."
)


def refused(error: BaseException) -> bool:
    """Say whether an error was raised on purpose: by a ``raise`` of this package, or by the system about a file.

    Any other error, of whatever type, is a mistake that nobody foresaw.
    """
    if isinstance(error, MemoryError | OSError):
        return True
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None:
        return False
    code = at.tb_frame.f_code.co_code
    ours = str(at.tb_frame.f_globals.get("__name__", "")).split(".")[0] == "calibrant"
    return ours and code[at.tb_lasti] == RAISE


def sentence(error: BaseException) -> str:
    """Return what a refusal says; that of a KeyError comes in quotation marks otherwise."""
    if isinstance(error, MemoryError):
        return f"not enough memory for this: {error or 'the arrays are too large'}."
    return str(error.args[0] if isinstance(error, KeyError) and error.args else error)


def report(error: BaseException) -> str:
    """Return the traceback of a bug and the request to report it."""
    return "".join([*traceback.format_exception(error), REQUEST])
