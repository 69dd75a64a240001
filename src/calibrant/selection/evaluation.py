"""Evaluation of a policy on new rows: coverage, selective error, and whether its guarantee held."""

from dataclasses import dataclass
from typing import Any

from calibrant.metrics.binomial import interval
from calibrant.predictions import scalars
from calibrant.predictions.fingerprints import digest, share_of
from calibrant.records import Record, count
from calibrant.selection.policy import Policy
from calibrant.selection.reasons import share
from calibrant.selection.thresholds import read

MOST = 0.5  # share of rows that may match by chance: float32 scores near 1 often coincide
FEWEST = 5  # hashes that must be within the range of the sample to say anything


@dataclass(frozen=True)
class Evaluation:
    """What a policy did on other rows: records of coverage and selective error, and a verdict in words.

    ``held`` is True if the error seen is within the promise, False if its interval lies above it, None between.
    """

    records: tuple[Record, ...]
    verdict: str
    held: bool | None

    def __str__(self) -> str:
        return self.verdict


def evaluate(
    policy: Policy, confidence: Any, correct: Any = None, *, predicted: Any = None, level: float = 0.95
) -> Evaluation:
    """Measure coverage and error of the accepted rows, with exact intervals, and say whether the promise held.

    Refuses the rows that the policy was certified on, in any order, and rows most of which are among them: their error
    was searched for. They are recognised by a sample of hashed scores; where over a tenth of the scores had ties, only
    the whole set is. ``confidence`` may be `Predictions`; with one threshold a class, ``predicted`` goes with a plain
    confidence, and the error is that of the accepted rows of all classes together.

    Example:
        >>> from calibrant.selection.certification import certify
        >>> sure = torch.linspace(0, 1, 1000, dtype=torch.float64)
        >>> policy = certify(sure, sure > 0.5, max_error=0.05)
        >>> new = torch.linspace(0, 1, 333, dtype=torch.float64)
        >>> evaluate(policy, new, new > 0.5).held
        True
    """
    scalars.share(level, "level")
    if not isinstance(policy, Policy):
        raise TypeError(f"policy must be what certify or review made; got {type(policy).__name__}.")
    rows = read(confidence, correct)
    if policy.fingerprint and digest(rows.hashed) == policy.fingerprint:
        raise ValueError(
            f"these {count(len(rows))} rows are the rows the policy was certified on; pass other rows, or the numbers "
            "would be optimistic."
        )
    if (known := share_of(rows.hashed, policy.sample, least=FEWEST)) > MOST:
        raise ValueError(
            f"about {share(known)} of these {count(len(rows))} rows are among those the policy was certified on; pass "
            "other rows, or the numbers would be optimistic."
        )
    accepted = policy(confidence).numpy() if correct is None else policy(rows.confidence, predicted)
    m, errors = int(accepted.sum()), int((accepted & ~rows.correct).sum())
    spread, low_high = interval(m, len(rows), level), interval(errors, m, level)
    seen = errors / m if m else float("nan")
    settings = {"max_error": policy.max_error, "delta": policy.delta, "score": policy.score, "errors": errors}
    records = (
        Record("coverage", m / len(rows), len(rows), *spread, level, settings=settings, method=policy.method),
        Record("selective_error", seen, m, *low_high, level, settings=settings, method=policy.method),
    )
    held = None if m == 0 else True if seen <= policy.max_error else False if low_high[0] > policy.max_error else None
    return Evaluation(records, _verdict(policy, m, errors, low_high, held=held), held)


def _verdict(policy: Policy, m: int, errors: int, bounds: tuple[float, float], *, held: bool | None) -> str:
    if m == 0:
        return "The policy accepts none of these rows, so nothing can be said about its error."
    word = {True: "held", False: "broken", None: "in doubt"}[held]
    low, high = map(share, bounds)
    return (
        f"The promise is {word}: of {count(m)} accepted rows {count(errors)} are wrong, {share(errors / m)} "
        f"[{low}, {high}], and at most {share(policy.max_error)} was promised."
    )
