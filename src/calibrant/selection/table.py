"""A policy for a terminal: what was understood, one paragraph, and a small table."""

from collections.abc import Iterable

from calibrant.metrics.binomial import interval
from calibrant.predictions.predictions import Predictions
from calibrant.records import count, percent
from calibrant.selection.policy import LEVEL, Part, Policy
from calibrant.selection.reasons import digits, share
from calibrant.selection.thresholds import LOWEST

SHOWN = 20  # classes in the table; a JSON has them all


def text(rows: Predictions, policy: Policy) -> str:
    """Write the policy found on these rows."""
    said = [rows.understood, *(f"note: {note}" for note in rows.notes), "", str(policy)]
    if not policy.feasible:
        return "\n".join(said)
    return "\n".join([*said, "", *_table(policy, rows.classes), "", _assumed(policy)])


def _assumed(policy: Policy) -> str:
    return (
        f"The promise fails for at most {share(policy.delta)} of such sets of rows. It assumes that rows are "
        "independent, that new ones come from where these came, and that no model or calibrator was fitted on these."
    )


def _table(policy: Policy, classes: tuple[object, ...] | None) -> Iterable[str]:
    heads = ("class" if policy.by_class else "", "threshold", "rows", "accepted", "coverage", "wrong", "error seen")
    parts = sorted(policy.parts.items(), key=lambda item: -item[1].n) if policy.by_class else list(policy.parts.items())
    names = {str(i): str(name) for i, name in enumerate(classes or ())}
    lines = [heads, *((names.get(name, name), *_cells(part)) for name, part in parts[:SHOWN])]
    if policy.by_class:
        total = Part(None, policy.n, policy.accepted, policy.errors, None, "")
        lines.append(("all", "", *_cells(total)[1:]))
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    for line in lines:
        yield "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    if len(parts) > SHOWN:
        yield f"(the {SHOWN} most frequent of {len(parts)} predicted classes)"


def _cells(part: Part) -> tuple[str, ...]:
    t = part.threshold
    threshold = "none" if t is None else "accept all" if t == LOWEST else digits(t)
    low, high = (100 * bound for bound in interval(part.accepted, part.n, LEVEL))
    return (
        threshold,
        count(part.n),
        count(part.accepted),
        f"{100 * part.accepted / part.n:.1f} % [{low:.1f}, {high:.1f}]",
        count(part.errors),
        percent(part.errors / part.accepted, 2) if part.accepted else "",
    )
