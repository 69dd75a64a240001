"""calibrant trust: held-out rows -> trust predictors, judged on other rows beside max-softmax."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from calibrant.cli.progress import progress
from calibrant.cli.terminal import say
from calibrant.evaluation.findings import ENDINGS
from calibrant.evaluation.ood import DEFAULT, outlier_records
from calibrant.evaluation.trust_report import trust_report
from calibrant.io import files
from calibrant.io.atomic import check_target, write_arrays
from calibrant.predictions.fingerprints import warning
from calibrant.predictions.labels import check_order
from calibrant.predictions.predictions import Predictions
from calibrant.records import Record, to_json
from calibrant.registry import SCORES, TRUST, nearest
from calibrant.trust.predictor import TrustPredictor

BASELINE = "mcp"
ON_REQUEST = ("trust_score",)  # keeps every row it was fitted on, and needs features


def trust_command(  # noqa: PLR0913  the command names everything it takes
    predictions: Annotated[Path, typer.Argument(help="Labelled held-out rows to fit on: .npz, .csv or .parquet.")],
    apply: Annotated[Path, typer.Option(help="Other labelled rows, to judge on.")],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="A trust predictor by name, may be repeated; else all of them but trust_score, which needs features.",
        ),
    ] = None,
    outside: Annotated[
        list[Path] | None, typer.Option("--ood", help="Rows out of distribution, without labels; may be repeated.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="Write the predictor of the one --method here (.safetensors).")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write confidence and correct of --apply by the one --method here (.npz), for certify."),
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write the page here (.html) or the findings (.json).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,  # noqa: FBT002  a flag
    ignore_index: Annotated[int | None, typer.Option(help="Leave out rows with this label.")] = None,
    level: Annotated[float, typer.Option(help="Level of the intervals.")] = 0.9,
    seed: Annotated[int, typer.Option(help="Seed of the resampling.")] = 0,
) -> None:
    """Fit trust predictors, and say whether any beats the classifier's own confidence.

    Exit code 3: every row of --apply is right, or every row is wrong, so that nothing can be ranked. Wrong rows that
    another order of the columns would make right are refused on reading (exit code 2).
    """
    names = _names(methods)
    _check_targets(methods, {".safetensors": save, ".npz": out}, [predictions, apply, *(outside or [])])
    if report is not None:
        check_target(report, ENDINGS, [predictions, apply, *(outside or [])])
    _check_stems(outside or [])
    fitting = files.read(predictions, ignore_index=ignore_index)
    rows = files.read(apply, ignore_index=ignore_index)
    others = {path.stem: files.read(path, labelled=False) for path in outside or []}
    _check(fitting, predictions.name, rows, apply.name)
    for path, other in zip(outside or [], others.values(), strict=True):
        _check(fitting, predictions.name, other, path.name)
    for name in names:
        if name in ON_REQUEST and not fitting.has_features:
            raise ValueError(
                f"{predictions.name} must hold features: {name} reads nothing else. Or name another --method."
            )
    if out is not None and (seen := warning(rows.known((fitting.fingerprint,)), len(rows), "the trust predictor")):
        raise ValueError(f"{apply.name} must hold other rows than {predictions.name} for --out; {seen}")
    if fitting.weights is not None:
        say("note: weights are not used in fitting; a predictor counts every row once.", err=True)
    with progress("fitting", 2 * len(names) + 1) as step:
        fitted = {name: _fit(name, fitting, step) for name in names}
        judged = {name: predictor.judge(rows) for name, predictor in fitted.items()}
        found = trust_report(
            {BASELINE: rows} | {name: p for name, p in judged.items() if name != BASELINE},
            baseline=BASELINE,
            level=level,
            seed=seed,
            dataset=apply.name,
            outliers=_outliers(rows, others, fitted, level, seed) if others else (),
            on_step=step,
        )
    say(to_json(found.findings) if as_json else str(found))  # before writing, which may fail
    for name, predictor in fitted.items():
        for note in predictor.fitted.notes:
            say(f"note: {name}: {note}", err=as_json)
    if report is not None:
        found.save(report)
    if save is not None:
        fitted[names[0]].save(save)
    if out is not None:
        _write(judged[names[0]], out)
    for written in (path for path in (report, save, out) if path is not None):
        say(f"written: {written}", err=as_json)
    undecided = next(record.value for record in found.records if record.metric == "failure_auroc")
    raise typer.Exit(3 if undecided != undecided else 0)  # NaN: nothing to rank


def _names(methods: list[str] | None) -> list[str]:
    """Return the predictors to fit: those named, or every one that reads cached rows; the baseline fits nothing."""
    known = [entry.name for entry in TRUST.entries() if entry.facts.get("reads") == "rows"]
    for name in methods or []:
        if name not in TRUST:
            hint = f" Did you mean {near}?" if (near := nearest(name, known)) else ""
            raise ValueError(f"method must be one of {', '.join(known)}; got {name!r}.{hint}")
        if name not in known:
            raise ValueError(f"method must read rows of a file; {name} looks at the classifier's inputs.")
    if methods is not None:
        return list(dict.fromkeys(methods))
    return [name for name in known if name not in (*ON_REQUEST, BASELINE)]


def _check_targets(methods: list[str] | None, targets: dict[str, Path | None], inputs: list[Path]) -> None:
    for ending, target in targets.items():
        if target is None:
            continue
        if len(set(methods or [])) != 1:
            option = "--save" if ending == ".safetensors" else "--out"
            raise ValueError(f"{option} needs exactly one --method; got {len(set(methods or [])) or 'none'}.")
        check_target(target, ending, inputs)


def _check_stems(paths: list[Path]) -> None:
    stems = [path.stem for path in paths]
    twice = next((stem for place, stem in enumerate(stems) if stem in stems[:place]), None)
    if twice is not None:
        raise ValueError(f"--ood must name files with different names; {twice!r} is there twice. Rename one.")


def _write(judged: Predictions, path: Path) -> None:
    """Write the file that `calibrant certify` reads: confidence, correct, groups and weights."""
    arrays: dict[str, Any] = {"confidence": judged.confidence.numpy(), "correct": judged.correct.numpy()}
    if judged.groups is not None:
        arrays["groups"] = judged.groups.astype(str)
    if judged.weights is not None:
        arrays["weights"] = judged.weights.numpy()
    write_arrays(arrays, path)


def _check(fitting: Predictions, name: str, rows: Predictions, other: str) -> None:
    """Refuse, before anything is fitted, rows that the predictors could not take."""
    for p, said in ((fitting, name), (rows, other)):
        if p.k is None:
            raise ValueError(f"{said} must hold logits or probs; it holds confidence and correct.")
    if rows.k != fitting.k:
        raise ValueError(f"{other} must have the {fitting.k} classes of {name}; got {rows.k}.")
    if fitting.has_features and not rows.has_features:
        raise ValueError(f"{other} must hold features, as {name} does; or leave them out of both.")
    if warning := check_order(fitting.classes, rows.classes, fitting.logits.shape[1], other):
        say(f"warning: {warning}", err=True)


def _fit(name: str, rows: Predictions, on_step: Callable[[str], None]) -> TrustPredictor:
    on_step(name)
    found: TrustPredictor = TRUST[name].fit(rows)
    return found


def _outliers(
    rows: Predictions, others: dict[str, Predictions], fitted: dict[str, TrustPredictor], level: float, seed: int
) -> tuple[Record, ...]:
    scores: dict[str, Callable[[Predictions], Any]] = {name: SCORES[name] for name in DEFAULT}
    scores |= {name: _confidence(predictor) for name, predictor in fitted.items()}
    apart = {name: _unweighted(other) for name, other in others.items()}
    return outlier_records(_unweighted(rows), apart, scores=scores, level=level, seed=seed)


def _unweighted(p: Predictions) -> Predictions:
    if p.weights is None:
        return p
    return Predictions(logits=p.logits, features=p.features if p.has_features else None)


def _confidence(predictor: TrustPredictor) -> Callable[[Predictions], Any]:
    def confidence(p: Predictions) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = predictor(p.logits, p.features if predictor.needs_features else None)
        return found

    return confidence
