"""calibrant trust: held-out rows -> trust predictors, judged on other rows beside max-softmax."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from calibrant import files
from calibrant.auditing import check_path
from calibrant.cli.progress import progress
from calibrant.outliers import DEFAULT, outlier_records
from calibrant.predictions import Predictions
from calibrant.records import Record, to_json
from calibrant.registry import SCORES, TRUST
from calibrant.trust.predictor import TrustPredictor
from calibrant.trusting import trust_report

BASELINE = "mcp"
ON_REQUEST = ("trust_score",)  # keeps every row it was fitted on, and needs features


def trust_command(  # noqa: PLR0913  the command names everything it takes
    predictions: Annotated[Path, typer.Argument(help="Labelled held-out rows to fit on: .npz, .csv or .parquet.")],
    apply: Annotated[Path, typer.Option(help="Other labelled rows, to judge on.")],
    methods: Annotated[
        list[str] | None, typer.Option("--method", help="A trust predictor by name, may be repeated; else all of them.")
    ] = None,
    outside: Annotated[
        list[Path] | None, typer.Option("--ood", help="Rows out of distribution, without labels; may be repeated.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the page here (.html) or the findings (.json).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,  # noqa: FBT002  a flag
    ignore_index: Annotated[int | None, typer.Option(help="Leave out rows with this label.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Learn when not to trust a classifier, and say whether that beats its own confidence.

    Exit code 3: every row of --apply is right, or every row is wrong, so that nothing can be ranked.
    """
    names = _names(methods)
    if report is not None:
        check_path(report)
    fitting = files.read(predictions, ignore_index=ignore_index)
    rows = files.read(apply, ignore_index=ignore_index)
    others = {path.stem: files.read(path, labelled=False) for path in outside or []}
    _check(fitting, predictions.name, rows, apply.name)
    for path, other in zip(outside or [], others.values(), strict=True):
        _check(fitting, predictions.name, other, path.name)
    if fitting.weights is not None:
        typer.echo("note: weights are not used in fitting; a predictor counts every row once.", err=True)
    with progress("fitting", 2 * len(names) + 1) as step:
        fitted = {name: _fit(name, fitting, step) for name in names}
        found = trust_report(
            {BASELINE: rows} | {name: predictor.judge(rows) for name, predictor in fitted.items()},
            baseline=BASELINE,
            distrust_below={name: predictor.distrust_below for name, predictor in fitted.items()},
            level=level,
            seed=seed,
            dataset=apply.name,
            outliers=_outliers(rows, others, fitted, level, seed) if others else (),
            on_step=step,
        )
    if report is not None:
        found.save(report)
    typer.echo(to_json(found.findings) if as_json else str(found))
    for name, predictor in fitted.items():
        for note in predictor.fitted.notes:
            typer.echo(f"note: {name}: {note}", err=as_json)
    if report is not None:
        typer.echo(f"written: {report}", err=as_json)
    undecided = next(record.value for record in found.records if record.metric == "failure_auroc")
    raise typer.Exit(3 if undecided != undecided else 0)  # NaN: nothing to rank


def _names(methods: list[str] | None) -> list[str]:
    """Return the predictors to fit: those named, or every one that reads cached rows; the baseline fits nothing."""
    known = [entry.name for entry in TRUST.entries() if entry.facts.get("reads") == "rows"]
    for name in methods or []:
        if TRUST.entry(name).name not in known:
            raise ValueError(f"method must read rows of a file; {name} looks at the classifier's inputs.")
    chosen = [name for name in known if name not in ON_REQUEST] if methods is None else list(dict.fromkeys(methods))
    return [name for name in chosen if name != BASELINE]


def _check(fitting: Predictions, name: str, rows: Predictions, other: str) -> None:
    """Refuse, before anything is fitted, rows that the predictors could not take."""
    for p, said in ((fitting, name), (rows, other)):
        if p.k is None:
            raise ValueError(f"{said} must hold logits or probs; it holds confidence and correct.")
    if rows.k != fitting.k:
        raise ValueError(f"{other} must have the {fitting.k} classes of {name}; got {rows.k}.")
    if None not in (rows.classes, fitting.classes) and rows.classes != fitting.classes:
        raise ValueError(f"{other} must have the classes of {name}, in the same order.")
    if fitting.has_features and not rows.has_features:
        raise ValueError(f"{other} must hold features, as {name} does; or leave them out of both.")


def _fit(name: str, rows: Predictions, on_step: Callable[[str], None]) -> TrustPredictor:
    on_step(name)
    found: TrustPredictor = TRUST[name].fit(rows.logits, rows.labels, rows.features if rows.has_features else None)
    return found


def _outliers(
    rows: Predictions, others: dict[str, Predictions], fitted: dict[str, TrustPredictor], level: float, seed: int
) -> tuple[Record, ...]:
    scores: dict[str, Callable[[Predictions], Any]] = {name: SCORES[name] for name in DEFAULT}
    scores |= {name: _confidence(predictor) for name, predictor in fitted.items()}
    unweighted = rows if rows.weights is None else Predictions(logits=rows.logits, labels=rows.labels)
    return outlier_records(unweighted, others, scores=scores, level=level, seed=seed)


def _confidence(predictor: TrustPredictor) -> Callable[[Predictions], Any]:
    def confidence(p: Predictions) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = predictor(p.logits, p.features if predictor.needs_features else None)
        return found

    return confidence
