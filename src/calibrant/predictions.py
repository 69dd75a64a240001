"""What a classifier said about n rows, and what was true. The only door: checked once, facts in one pass."""

import hashlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant import check, facts, statement
from calibrant.nouns import Confidence, Correct, Features, Labels, Logits, PerSample, Probs, Weights


class Predictions:
    r"""A classifier's outputs, named, with what was true.

    Exactly one of ``logits``, ``probs``, ``log_probs`` (shape (n, k); (n,) or (n, 1) for two classes, read as the
    score of class 1) with ``labels``, or a ``confidence`` in [0, 1] with ``correct``. What a tensor is, is said by
    its parameter's name and never guessed from its values.

    ``classes`` names the columns and lets ``labels`` be names; ``groups`` names a slice for each row; ``weights``
    count as repetitions; rows whose label equals ``ignore_index`` are left out and counted. Without ``labels`` (rows
    out of distribution, say) there are scores but nothing about correctness.

    ``understood`` says back in one line what was read, ``notes`` what looks suspicious. The per-row facts
    (`confidence`, `predicted`, `margin`, `entropy`, `nll`, `brier`, ...) are float64 on the CPU.

    Example:
        >>> p = Predictions(logits=torch.tensor([[2.0, 1.0], [0.0, 3.0]]), labels=[0, 0])
        >>> p.understood
        '2 rows x 2 classes, logits, labels 0-1 (1 class absent), accuracy 0.500'
        >>> p.confidence
        tensor([0.7311, 0.9526], dtype=torch.float64)
    """

    def __init__(  # noqa: PLR0913  the door names everything it takes
        self,
        *,
        logits: Any = None,
        probs: Any = None,
        log_probs: Any = None,
        labels: Any = None,
        confidence: Any = None,
        correct: Any = None,
        features: Any = None,
        classes: Sequence[Any] | None = None,
        groups: Any = None,
        weights: Any = None,
        ignore_index: int | None = None,
    ) -> None:
        given = {"logits": logits, "probs": probs, "log_probs": log_probs, "confidence": confidence}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ValueError(f"exactly one of logits, probs, log_probs, confidence must be given; got {got}.")
        self.kind = named[0]
        self._scores: Tensor | None = None
        self._labels: Labels | None = None
        self.one_column = False
        self.column_doubt = ""
        self._said: list[str] = []
        scores = check.tensor(given[self.kind], self.kind)
        if self.kind == "confidence":
            self._reduced(scores, labels, correct)
        else:
            if correct is not None:
                raise ValueError(f"correct goes with confidence=...; with {self.kind}=... pass labels.")
            self._full(scores, labels, classes, ignore_index)
        kept = self._kept
        n = len(kept)
        self._features = None if features is None else check.tensor(features, "features")
        if self._features is not None and (self._features.ndim != 2 or len(self._features) != n):
            raise ValueError(f"features must have shape ({n}, d); got {tuple(self._features.shape)}.")
        self.groups = None if groups is None else np.array(check.groups(groups, n), dtype=object)[kept.numpy()]
        self.weights: Weights | None = None
        if weights is not None:
            self.weights = check.weights(check.tensor(weights, "weights").cpu(), n)[kept]
        if self._features is not None and not bool(kept.all()):
            self._features = self._features[kept.to(self._features.device)]

    def _reduced(self, confidence: Tensor, labels: Any, correct: Any) -> None:
        if labels is not None or correct is None:
            raise ValueError("confidence goes with correct: whether each prediction was right, one bool a row.")
        self.classes: tuple[Any, ...] | None = None
        self.k: int | None = None
        self._confidence, self._correct = check.reduced(confidence.cpu(), check.tensor(correct, "correct").cpu())
        self._kept = torch.ones(len(self._confidence), dtype=torch.bool)

    def _full(self, scores: Tensor, labels: Any, classes: Sequence[Any] | None, ignore_index: int | None) -> None:
        scores = check.scores(scores, self.kind)
        n, columns = scores.shape
        self.k, self.one_column = max(columns, 2), columns == 1
        self.classes = None if classes is None else check.class_names(classes, self.k)
        translated = None if labels is None else self._translate(labels, n, ignore_index)
        self._kept = torch.ones(n, dtype=torch.bool)
        if translated is not None and ignore_index is not None:
            self._kept = translated != ignore_index
            dropped = n - int(self._kept.sum())
            self._said.append(f"{dropped} rows with label {ignore_index} left out")
            if dropped == n:
                raise ValueError(
                    f"labels must hold at least one class; every label equals ignore_index={ignore_index}."
                )
            if dropped:
                translated, scores = translated[self._kept], scores[self._kept.to(scores.device)]
        self._labels = translated
        self._scores = self._checked(scores)
        if translated is not None:
            self._match(translated, self.k)

    def _translate(self, labels: Any, n: int, ignore_index: int | None) -> Tensor:
        if self.classes is not None and self.classes != tuple(range(len(self.classes))):
            if ignore_index is not None:
                raise ValueError("ignore_index goes with integer labels; with named classes leave those rows out.")
            return check.named(labels, self.classes)
        found, said = check.indices(check.tensor(labels, "labels").cpu(), n, self.k or 2)
        if said:
            self._said.append(said)
        return found

    def _checked(self, scores: Tensor) -> Tensor:
        """Check the scores by their kind and widen one column to two."""
        if self.kind == "logits":
            check.not_probs(scores)
            return scores if scores.shape[1] > 1 else torch.cat([torch.zeros_like(scores), scores], 1)
        if self.kind == "log_probs":
            check.log_probs(scores)
            other = (-scores.double().expm1()).log().to(scores.dtype)
            return (scores if scores.shape[1] > 1 else torch.cat([other, scores], 1)).clamp(min=facts.LOG_ZERO)
        check.probs(scores)
        return scores if scores.shape[1] > 1 else torch.cat([1 - scores.double(), scores.double()], 1)

    def _match(self, labels: Tensor, k: int) -> None:
        outside = (labels < 0) | (labels >= k)
        guess = self._scores.argmax(1).cpu() if bool(outside.any()) and self._scores is not None else labels
        check.in_range(labels, guess, k)
        self._correct = self.facts.predicted == labels
        self.column_doubt = check.columns_match(labels, self.facts.predicted, k)
        if self.column_doubt and self.classes is None:
            raise ValueError(f"{self.column_doubt} Pass classes=[...], the name of each column in order.")

    @cached_property
    def facts(self) -> facts.Facts:
        """The per-row facts, computed in one pass when first asked for."""
        if self._scores is None:
            raise ValueError("logits are needed for this; these predictions hold only confidence and correct.")
        if self.kind == "probs":
            return facts.from_probs(self._scores, self._labels)
        found = facts.from_logits(self._scores, self._labels)
        check.finite(found.entropy.isnan() | found.max_logit.isinf(), self.kind)
        return found

    def __len__(self) -> int:
        return int(self._kept.sum())

    @cached_property
    def logits(self) -> Logits:
        """The logits; from probabilities, their logarithm floored at log 1e-12."""
        if self._scores is None:
            raise ValueError("logits are needed for this; these predictions hold only confidence and correct.")
        return self._scores.clamp(min=facts.PROB_ZERO).log() if self.kind == "probs" else self._scores

    @cached_property
    def probs(self) -> Probs:
        """The probabilities, in the type of the logits (half precision: float32)."""
        if self._scores is None:
            raise ValueError("probs are needed for this; these predictions hold only confidence and correct.")
        if self.kind == "probs":
            return self._scores
        half = self._scores.dtype in (torch.float16, torch.bfloat16)
        return (self._scores.float() if half else self._scores).softmax(1)

    @property
    def labels(self) -> Labels:
        """The true classes, as indices of columns."""
        if self._labels is None:
            raise ValueError("labels are needed for this; these predictions have none.")
        return self._labels

    @property
    def confidence(self) -> Confidence:
        """The probability of the predicted class."""
        return self._confidence if self.kind == "confidence" else self.facts.confidence

    @property
    def correct(self) -> Correct:
        """Whether the predicted class is the true one."""
        if self.kind != "confidence" and self._labels is None:
            raise ValueError("labels are needed for this; these predictions have none.")
        return self._correct

    @property
    def features(self) -> Features:
        """The features that came with the rows."""
        if self._features is None:
            raise ValueError("features are needed for this; pass features=... to Predictions.")
        return self._features

    @property
    def predicted(self) -> Labels:
        """The class with the largest score; of tied classes the first."""
        return self.facts.predicted

    @property
    def nll(self) -> PerSample:
        """Negative log likelihood of the true class, a row."""
        return self._labelled("nll")

    @property
    def brier(self) -> PerSample:
        """Squared distance between probabilities and truth, summed over classes, a row."""
        return self._labelled("brier")

    @cached_property
    def in_top5(self) -> Correct:
        """Whether the true class is among the five largest scores."""
        if self._scores is None:
            raise ValueError("logits are needed for this; these predictions hold only confidence and correct.")
        return facts.rank(self._scores, self.labels) < 5

    @property
    def entropy(self) -> PerSample:
        """Entropy of the probabilities in nats, a row."""
        return self.facts.entropy

    def _labelled(self, name: str) -> Tensor:
        found: Tensor = getattr(self.facts, name)
        _ = self.labels  # says so if there are none
        return found

    def take(self, rows: Tensor) -> "Predictions":
        """Return some rows (an index or a mask) without checking or computing them again."""
        part = object.__new__(Predictions)
        part.kind, part.k, part.classes, part.one_column = self.kind, self.k, self.classes, self.one_column
        part._said, part.column_doubt = [], ""
        place = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows
        part._kept = torch.ones(len(place), dtype=torch.bool)
        part._scores = None if self._scores is None else self._scores[place.to(self._scores.device)]
        part._labels = None if self._labels is None else self._labels[place]
        part.groups = None if self.groups is None else self.groups[place.numpy()]
        part.weights = None if self.weights is None else self.weights[place]
        part._features = None if self._features is None else self._features[place]
        if self.kind == "confidence":
            part._confidence = self._confidence[place]
        else:
            part.__dict__["facts"] = self.facts.take(place)
        if self.kind == "confidence" or self._labels is not None:
            part._correct = self._correct[place]
        return part

    @cached_property
    def fingerprint(self) -> str:
        """A short name for these rows: the same labels (or correctness) in the same order give the same name."""
        if self._labels is not None:
            known = self._labels
        else:
            known = self._correct if self.kind == "confidence" else self.predicted
        return hashlib.blake2b(known.to(torch.int64).numpy().tobytes(), digest_size=12).hexdigest()

    @cached_property
    def understood(self) -> str:
        """One line that says back what was read."""
        return statement.understood(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What looks suspicious, a sentence each; empty when nothing does."""
        return statement.notes(self)

    def __repr__(self) -> str:
        return "\n".join([f"Predictions: {self.understood}", *(f"note: {note}" for note in self.notes)])
