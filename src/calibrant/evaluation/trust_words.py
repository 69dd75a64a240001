"""Records of trust predictors -> sentences: does any rank better than the baseline, and what gives the threshold."""

import math
from collections.abc import Sequence

from calibrant.records import Record, count
from calibrant.report.trust_rows import Row, change, percent, rows

SEEN = 5e-5  # a smaller difference is written as 0.00 percent
LISTED = 3  # predictors named in one sentence; the table has them all
FEWEST = 20  # right rows, and wrong rows, below which no difference of AUROC is called one
CERTIFY = "For a threshold with a guarantee, take rows that neither fitted nor chose: {first}calibrant certify {file}"
JUDGED = "calibrant trust FIT.npz --apply ROWS.npz --method {name} --out JUDGED.npz, then "


def too_few(right: int, wrong: int) -> str:
    """Say that these rows are too few to compare predictors, or nothing if they are not.

    Example:
        >>> too_few(995, 5)
        '5 of 1 000 answers are wrong: too few to say whether a predictor ranks better; it takes 20 of either kind.'
    """
    side, kind = min((right, "right"), (wrong, "wrong"))
    if not 0 < side < FEWEST:
        return ""
    told = f"{side} of {count(right + wrong)} answers {'is' if side == 1 else 'are'} {kind}: too few to say whether a"
    return f"{told} predictor ranks better; it takes {FEWEST} of either kind."


def verdict(records: Sequence[Record], baseline: str) -> str:
    """Say whether any predictor tells right from wrong better than the baseline, and what the threshold gives."""
    found = rows(records)
    base = next(row for row in found if row.name == baseline)
    if nothing := _nothing(base):
        return nothing
    return f"{_ranking(found, base)} {_threshold(found, base)}".strip()


def advice(records: Sequence[Record], baseline: str) -> tuple[str, ...]:
    """Say what to do next: which to rank by, and where a threshold comes from."""
    found = rows(records)
    base = next(row for row in found if row.name == baseline)
    if _nothing(base):
        return ("Judge rows on which some answers are right and some wrong: rows of a test set, not those trained on.",)
    better, name = [row for row in found if _better(row)], _called(baseline)
    if len(found) == 1:
        return (_certify(),)
    if _few(base):
        return (f"Judge more rows before choosing; until then rank by {name}.", _certify())
    if better:
        best = max(better, key=_auroc)
        return (
            f"Rank by {best.name}: what is reviewed first, or left unanswered, is chosen better than by {name}.",
            _certify(best.name),
        )
    return (
        f"Rank by {name}: a review queue gains nothing that these rows can show from the others. What a learned "
        "predictor may still give is a threshold: compare TPR and TNR.",
        _certify(),
    )


def _certify(name: str = "") -> str:
    """Say what to type for a threshold: the classifier's own confidence is in the file, another is written first."""
    first = JUDGED.format(name=name if name.isidentifier() else "NAME") if name else ""
    return f"{CERTIFY.format(first=first, file='JUDGED.npz' if name else 'ROWS.npz')} --max-error 0.02."


def _nothing(base: Row) -> str:
    """Say why nothing can be ranked, or nothing if it can."""
    accuracy = base.cells["accuracy"]
    if accuracy.n == 1:
        return "One row says nothing: there is nothing to rank."
    if not math.isnan(_auroc(base)):
        return ""
    return f"Every answer is {'right' if accuracy.value > 0.5 else 'wrong'}: there is nothing to rank."


def _ranking(found: list[Row], base: Row) -> str:
    others = sorted((row for row in found if row is not base), key=_auroc, reverse=True)
    name, level = _called(base.name), f"AUROC {_short(base)}"
    better = [row for row in others if _better(row)]
    if not others:
        return f"{name.capitalize()} tells right from wrong with {level}; no other predictor was judged."
    if _few(base):
        return f"Too few rows to say whether any predictor ranks better than {name} ({level}): {_listed(others)}."
    if not better:
        return f"No predictor tells right from wrong better than {name} ({level}): {_listed(others)}."
    best = better[0]
    rest = [row for row in others if row is not best]
    said = f"{best.name} tells right from wrong better than {name}: AUROC {_short(best)} against {_short(base)}, "
    said += f"difference {change(best.change)}."
    return f"{said} Of the others: {_listed(rest)}." if rest else said


def _listed(others: list[Row]) -> str:
    """Name those that rank alike together, and of the rest the best with their differences."""
    alike = [row.name for row in others if _alike(row)]
    apart = [row for row in others if not _alike(row)]
    said = [f"{row.name} {_short(row)} ({change(row.change)})" for row in apart[:LISTED]]
    if len(apart) > LISTED:
        said.append(f"{len(apart) - LISTED} more in the table")
    if alike:
        said.append(f"{_joined(alike)} rank{'s' if len(alike) == 1 else ''} as it does")
    return ", ".join(said)


def _few(base: Row) -> bool:
    return bool(too_few(base.cells["tpr"].n, base.cells["tnr"].n))


def _alike(row: Row) -> bool:
    """Whether the difference to the baseline is nothing at all, to the last digit shown."""
    told = row.change
    ends = (math.nan,) if told is None else (told.value, told.low, told.high)
    return all(end is not None and abs(end) < SEEN for end in ends)


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]


def _threshold(found: list[Row], base: Row) -> str:
    shown = [base]
    others = [row for row in found if row is not base and not math.isnan(_both(row))]
    if others:
        shown.append(max(others, key=_both))
    said = "; ".join(_sides(row) for row in shown)
    return f"Trusting above {base.cells['tpr'].settings['threshold']:g}: {said}."


def _sides(row: Row) -> str:
    right, wrong = (row.cells[metric] for metric in ("tpr", "tnr"))
    below = wrong.settings["threshold"]
    where = "" if below == right.settings["threshold"] else f" (below {below:.3g})"
    return (
        f"{row.name} trusts {percent(right.value, digits=1)} % of the right answers and distrusts "
        f"{percent(wrong.value, digits=1)} % of the wrong{where}"
    )


def _both(row: Row) -> float:
    return row.cells["tpr"].value + row.cells["tnr"].value


def _better(row: Row) -> bool:
    return row.change is not None and row.change.low is not None and row.change.low > 0


def _auroc(row: Row) -> float:
    return row.cells["failure_auroc"].value


def _short(row: Row) -> str:
    return percent(_auroc(row), digits=1)


def _called(baseline: str) -> str:
    return "max-softmax" if baseline == "mcp" else baseline
