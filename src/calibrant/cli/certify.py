"""calibrant certify: held-out rows -> a threshold with a guarantee, evaluated on other rows."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from calibrant.cli.terminal import say
from calibrant.io import files
from calibrant.io.atomic import check_target
from calibrant.metrics.binomial import interval
from calibrant.predictions.predictions import Predictions
from calibrant.records import count, percent, plain
from calibrant.registry import SCORES
from calibrant.selection import reasons
from calibrant.selection.certification import certify
from calibrant.selection.evaluation import Evaluation, evaluate
from calibrant.selection.policy import LEVEL, Part, Policy
from calibrant.selection.thresholds import LOWEST

ORACLE = "tcp"  # a score that needs the label cannot decide about rows without one
SHOWN = 20  # classes in the table; the JSON has them all


def certify_command(  # noqa: PLR0913  the command names everything it takes
    predictions: Annotated[Path, typer.Argument(help="Labelled held-out rows: .npz, .csv or .parquet.")],
    max_error: Annotated[
        float, typer.Option(help="The error of the accepted rows must stay below this, such as 0.02.")
    ],
    delta: Annotated[float, typer.Option(help="How often the promise may fail, over draws of the rows.")] = 0.05,
    score: Annotated[
        str, typer.Option(help="The score to put the threshold on; see calibrant methods scores.")
    ] = "msp",
    start: Annotated[float | None, typer.Option(help="The share of rows to try first; 1/8, of few rows 1/4.")] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="One threshold for each predicted class.")] = False,  # noqa: FBT002  a flag
    save: Annotated[Path | None, typer.Option(help="Write the policy here (.json).")] = None,
    apply: Annotated[Path | None, typer.Option(help="Other rows to apply it to, with or without labels.")] = None,
    ignore_index: Annotated[int | None, typer.Option(help="Leave out rows with this label.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the policy and the records as JSON.")] = False,  # noqa: FBT002  a flag
) -> None:
    """Find the threshold that keeps the error of accepted rows below a limit, guaranteed after the search.

    Exit code 3: no threshold can be certified with these rows; 1: rows of --apply show the promise broken.
    """
    if SCORES.entry(score).name == ORACLE:
        raise ValueError(f"score must be known without the label; {ORACLE} is not.")
    if save is not None:
        check_target(save, ".json", [predictions, *([apply] if apply else [])])
    rows = files.read(predictions, ignore_index=ignore_index)
    if rows.weights is not None:
        raise ValueError("weights must be left out: a guarantee counts every row once, as it was drawn.")
    others = None if apply is None else files.read(apply, ignore_index=ignore_index, labelled=False)
    policy = certify(
        SCORES[score](rows),
        rows.correct,
        max_error=max_error,
        delta=delta,
        predicted=rows.predicted if by_class else None,
        start=start,
        score="confidence" if score == "msp" else score,
    )
    accepted, judged = (None, None) if others is None else _applied(policy, others, score)
    if as_json:  # before writing, which may fail
        say(_json(rows, policy, accepted, judged))
    else:
        say(_text(rows, policy))
        if others is not None and apply is not None:
            say(f"\napplied to {apply.name}: {others.understood}\n{_told(accepted, judged)}")
    if save is not None:
        policy.save(save)
        say(f"written: {save}", err=as_json)
    raise typer.Exit(3 if not policy.feasible else 1 if judged is not None and judged.held is False else 0)


def _applied(policy: Policy, rows: Predictions, score: str) -> tuple[float, Evaluation | None]:
    """Return the share of rows accepted, and the judgement where there are labels."""
    sure, predicted = SCORES[score](rows), rows.predicted if policy.by_class else None
    share = float(policy(sure, predicted).double().mean())
    return share, None if rows.rows.correct is None else evaluate(policy, sure, rows.correct, predicted=predicted)


def _told(accepted: float | None, judged: Evaluation | None) -> str:
    share = f"{100 * (accepted or 0.0):.1f} % of these rows are accepted."
    return f"{share} {judged or 'No labels there: their error is unknown.'}"


def _json(rows: Predictions, policy: Policy, accepted: float | None, judged: Evaluation | None) -> str:
    content: dict[str, Any] = {
        "understood": rows.understood,
        "feasible": policy.feasible,
        "reason": policy.reason,
        "policy": json.loads(policy.to_json()),
        "applied": None,
    }
    if accepted is not None:
        content["applied"] = {
            "accepted": accepted,
            "verdict": None if judged is None else judged.verdict,
            "held": None if judged is None else judged.held,
            "records": [] if judged is None else [asdict(record) for record in judged.records],
        }
    return json.dumps(plain(content), indent=1, allow_nan=False)


def _text(rows: Predictions, policy: Policy) -> str:
    """Write what was read, the policy in a paragraph, and a small table."""
    said = [rows.understood, *(f"note: {note}" for note in rows.notes), "", str(policy)]
    if not policy.feasible:
        return "\n".join(said)
    return "\n".join([*said, "", *_table(policy, rows.classes), "", _assumed(policy)])


def _assumed(policy: Policy) -> str:
    return (
        f"The promise fails for at most {reasons.share(policy.delta)} of such sets of rows. It assumes that rows are "
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
    threshold = "none" if t is None else "accept all" if t == LOWEST else reasons.digits(t)
    low, high = (100 * bound for bound in interval(part.accepted, part.n, LEVEL))
    return (
        threshold,
        count(part.n),
        count(part.accepted),
        f"{100 * part.accepted / part.n:.1f} % [{low:.1f}, {high:.1f}]",
        count(part.errors),
        percent(part.errors / part.accepted, 2) if part.accepted else "",
    )
