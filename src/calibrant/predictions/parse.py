"""The arguments of Predictions -> its rows: checked, brought to one form, ignored rows dropped, facts computed."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from calibrant.predictions import checks, scalars
from calibrant.predictions.facts import LOG_ZERO, Facts, from_logits, from_probs
from calibrant.predictions.labels import class_names, columns_match, in_range, indices, named
from calibrant.predictions.types import Confidence, Correct, Labels


@dataclass(frozen=True)
class Rows:
    """The rows of Predictions. ``scores`` are (n, k) as given; ``said`` is what was translated or left out.

    ``kept`` marks, among the rows that came, those that are left; ``doubt`` is a sentence if the columns look permuted.
    """

    kind: str
    confidence: Confidence
    kept: Tensor
    correct: Correct | None = None
    scores: Tensor | None = None
    labels: Labels | None = None
    facts: Facts | None = None
    classes: tuple[Any, ...] | None = None
    one_column: bool = False
    said: tuple[str, ...] = ()
    doubt: str = ""

    def take(self, place: Tensor) -> "Rows":
        """Return some rows by their numbers, without checking or computing them again."""
        return replace(
            self,
            confidence=self.confidence[place],
            kept=torch.ones(len(place), dtype=torch.bool),
            correct=None if self.correct is None else self.correct[place],
            scores=None if self.scores is None else self.scores[place.to(self.scores.device)],
            labels=None if self.labels is None else self.labels[place],
            facts=None if self.facts is None else self.facts.take(place),
            said=(),
            doubt="",
        )

    def scored(self, logits: Tensor) -> "Rows":
        """Return the same rows with other logits, and the facts of those."""
        facts = from_logits(logits, self.labels)
        checks.finite(facts.entropy.isnan() | facts.max_logit.isinf(), "logits")
        return replace(
            self,
            kind="logits",
            confidence=facts.confidence,
            correct=None if self.labels is None else facts.predicted == self.labels,
            scores=logits,
            facts=facts,
        )


def reduced(confidence: Any, correct: Any) -> Rows:
    """Read confidences and whether each prediction was right."""
    if correct is None:
        raise ValueError("confidence goes with correct: whether each prediction was right, one bool a row.")
    sure = checks.confidence(checks.tensor(confidence, "confidence").cpu()).to(torch.float64, copy=True)
    right = checks.correct(checks.tensor(correct, "correct").cpu(), len(sure)).clone()
    return Rows("confidence", sure, torch.ones(len(sure), dtype=torch.bool), right)


def full(kind: str, given: Any, labels: Any, classes: Any, ignore_index: int | None) -> Rows:
    """Read scores of a kind, with labels where there are any."""
    if ignore_index is not None:
        ignore_index = scalars.whole(ignore_index, "ignore_index", least=-(2**63), most=2**63 - 1)
    scores = checks.scores(checks.tensor(given, kind), kind)
    n, columns = scores.shape
    k = max(columns, 2)
    names = None if classes is None else class_names(classes, k)
    kept, truth = torch.ones(n, dtype=torch.bool), None
    said: tuple[str, ...] = ()
    if labels is not None:
        truth, said = _indices(labels, n, k, names, ignore_index)
        if ignore_index is not None:
            kept, truth, scores, said = _without(ignore_index, truth, scores, said)
    scores = _two_columns(kind, scores)
    if truth is not None:
        in_range(truth, scores, k)
    facts = from_probs(scores, truth) if kind == "probs" else from_logits(scores, truth)
    checks.finite(facts.entropy.isnan() | facts.max_logit.isinf(), kind)
    truth = None if truth is None else truth.clone()
    rows = Rows(kind, facts.confidence, kept, None, scores, truth, facts, names, columns == 1, said)
    return rows if truth is None else _matched(rows, truth, facts, k)


def _indices(
    labels: Any, n: int, k: int, names: tuple[Any, ...] | None, ignore_index: int | None
) -> tuple[Tensor, tuple[str, ...]]:
    if names is None or names == tuple(range(k)):
        return indices(checks.tensor(labels, "labels").cpu(), n, k, ignore_index)
    if ignore_index is not None:
        raise ValueError("ignore_index goes with integer labels; with named classes leave those rows out.")
    return named(labels, names, n)


def _without(
    ignored: int, labels: Tensor, scores: Tensor, said: tuple[str, ...]
) -> tuple[Tensor, Tensor, Tensor, tuple[str, ...]]:
    kept = labels != ignored
    dropped = len(kept) - int(kept.sum())
    if dropped == len(kept):
        raise ValueError(f"labels must hold at least one class; every label equals ignore_index={ignored}.")
    if dropped:
        labels, scores = labels[kept], scores[kept.to(scores.device)]
    return kept, labels, scores, (*said, f"{dropped} {'row' if dropped == 1 else 'rows'} with label {ignored} left out")


def _two_columns(kind: str, scores: Tensor) -> Tensor:
    """Check the scores by their kind; one column, the score of class 1, becomes two."""
    one = scores.shape[1] == 1
    if kind == "logits":
        checks.not_probs(scores)
        return torch.cat([torch.zeros_like(scores), scores], 1) if one else scores.clone()
    if kind == "log_probs":
        checks.log_probs(scores)
        wide = scores.double() if one else scores  # the other class may need more digits than this one has
        return (torch.cat([(-wide.expm1()).log(), wide], 1) if one else wide).clamp(min=LOG_ZERO)
    checks.probs(scores)
    scores = scores.clamp(0, 1)
    return torch.cat([1 - scores.double(), scores.double()], 1) if one else scores


def _matched(rows: Rows, labels: Tensor, facts: Facts, k: int) -> Rows:
    doubt = columns_match(labels, facts.predicted, k)
    if doubt and rows.classes is None:
        raise ValueError(
            f"{doubt} Pass classes=[...], the name of each column in order (classes=range({k}) if it is right)."
        )
    return replace(rows, correct=facts.predicted == labels, doubt=doubt)
