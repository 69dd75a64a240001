"""Predictions: a classifier's outputs on n rows and the true classes, checked once on construction."""

import copy
import hashlib
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from calibrant.predictions import checks, fingerprints, parse, statement
from calibrant.predictions.facts import PROB_ZERO, Facts, rank
from calibrant.predictions.types import Confidence, Correct, Features, Labels, Logits, PerSample, Probs, widened


class Predictions:
    r"""A classifier's outputs, named, with the true classes.

    Exactly one of ``logits``, ``probs``, ``log_probs`` (shape (n, k); (n,) or (n, 1) for two classes, read as the
    score of class 1) with ``labels``, or a ``confidence`` in [0, 1] with ``correct``. What a tensor is, is said by
    its parameter's name and never guessed from its values.

    ``classes`` names the columns and lets ``labels`` be names; ``groups`` names a slice for each row; ``weights``
    count as repetitions (a row of weight 2 is that row twice; rows stay the unit of sampling); rows whose label equals
    ``ignore_index`` are left out and counted. Without ``labels`` (rows out of distribution, say) there are scores but
    nothing about correctness.

    A trust predictor's ``judge`` notes in ``distrust_below`` from where down its confidence means distrust.

    Arrays are copied: changing them afterwards changes nothing here.

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
        classes: Any = None,
        groups: Any = None,
        weights: Any = None,
        ignore_index: int | None = None,
    ) -> None:
        given = {"logits": logits, "probs": probs, "log_probs": log_probs, "confidence": confidence}
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            got = " and ".join(named) or "none"
            raise ValueError(f"exactly one of logits, probs, log_probs, confidence must be given; got {got}.")
        kind = named[0]
        if kind == "confidence" and labels is not None:
            raise ValueError("confidence goes with correct: whether each prediction was right, one bool a row.")
        if kind == "confidence" and (classes is not None or ignore_index is not None):
            raise ValueError("classes and ignore_index go with class scores; confidence=... has none.")
        if kind != "confidence" and correct is not None:
            raise ValueError(f"correct goes with confidence=...; with {kind}=... pass labels.")
        if kind == "confidence":
            self.rows = parse.reduced(confidence, correct)
        else:
            self.rows = parse.full(kind, given[kind], labels, classes, ignore_index)
        kept, n = self.rows.kept, len(self.rows.kept)
        self.fitted_on: tuple[str, ...] = ()
        self._hashed: fingerprints.Rows | None = None
        self.distrust_below: float | None = None
        self.groups = None if groups is None else checks.groups(groups, n)[kept.numpy()]
        self.weights = None if weights is None else checks.weights(checks.tensor(weights, "weights").cpu(), kept)
        self._features = None if features is None else checks.features(checks.tensor(features, "features"), n).clone()
        if self._features is not None and not bool(kept.all()):
            self._features = self._features[kept.to(self._features.device)]

    def __len__(self) -> int:
        return len(self.rows.confidence)

    @property
    def kind(self) -> str:
        """What came: logits, probs, log_probs or confidence."""
        return self.rows.kind

    @property
    def k(self) -> int | None:
        """The number of classes; None where only confidence and correctness are known."""
        return None if self.rows.scores is None else self.rows.scores.shape[1]

    @property
    def classes(self) -> tuple[Any, ...] | None:
        """The names of the columns, where they were given."""
        return self.rows.classes

    @property
    def facts(self) -> Facts:
        """The per-row facts computed in the pass over the scores."""
        if self.rows.facts is None:
            raise ValueError("logits are needed for this; these predictions hold only confidence and correct.")
        return self.rows.facts

    def _scores(self, view: str) -> Tensor:
        if self.rows.scores is None:
            raise ValueError(f"{view} are needed for this; these predictions hold only confidence and correct.")
        return self.rows.scores

    @cached_property
    def logits(self) -> Logits:
        """The logits; from probabilities, their logarithm in float64, which keeps ranks, floored at log 1e-12."""
        scores = self._scores("logits")
        return scores.double().clamp(min=PROB_ZERO).log() if self.kind == "probs" else scores

    @cached_property
    def probs(self) -> Probs:
        """The probabilities, in the type of the logits (half precision: float32)."""
        scores = self._scores("probs")
        return scores if self.kind == "probs" else widened(scores).softmax(1)

    @property
    def labels(self) -> Labels:
        """The true classes, as indices of columns."""
        if self.rows.labels is None:
            raise ValueError("labels are needed for this; these predictions have none.")
        return self.rows.labels

    @property
    def confidence(self) -> Confidence:
        """The probability of the predicted class."""
        return self.rows.confidence

    @property
    def correct(self) -> Correct:
        """Whether the predicted class is the true one."""
        if self.rows.correct is None:
            raise ValueError("labels are needed for this; these predictions have none.")
        return self.rows.correct

    @property
    def features(self) -> Features:
        """The features that came with the rows."""
        if self._features is None:
            raise ValueError("features are needed for this; pass features=... to Predictions.")
        return self._features

    @property
    def has_features(self) -> bool:
        """Whether features came with the rows."""
        return self._features is not None

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
        return rank(self._scores("logits"), self.labels) < 5

    @property
    def entropy(self) -> PerSample:
        """Entropy of the probabilities in nats, a row."""
        return self.facts.entropy

    def _labelled(self, name: str) -> Tensor:
        found: Tensor = getattr(self.facts, name)
        _ = self.labels  # says so if there are none
        return found

    def take(self, rows: Any) -> "Predictions":
        """Return some rows, by their numbers or by a mask, without checking or computing them again."""
        place = checks.places(checks.tensor(rows, "rows").cpu(), len(self))
        part = object.__new__(Predictions)
        part.rows = self.rows.take(place)
        part.groups = None if self.groups is None else self.groups[place.numpy()]
        part.weights = None if self.weights is None else self.weights[place]
        part._features = None if self._features is None else self._features[place.to(self._features.device)]
        part.fitted_on, part.distrust_below = self.fitted_on, self.distrust_below
        part._hashed = None if self._hashed is None else self._hashed[place.numpy()]
        return part

    def without_features(self) -> "Predictions":
        """Return the same rows without their features."""
        part = copy.copy(self)
        part._features = None
        return part

    def grouped(self, groups: Any) -> "Predictions":
        """Return the same rows in other groups, or in none."""
        part = copy.copy(self)
        part.groups = None if groups is None else checks.groups(groups, len(self))
        return part

    def calibrated(self, logits: Logits, fitted_on: tuple[str, ...]) -> "Predictions":
        """Return these rows with other logits; ``fitted_on`` are the fingerprints of the rows that made them."""
        part = object.__new__(Predictions)
        part.rows = self.rows.scored(logits)
        part.groups, part.weights, part._features = self.groups, self.weights, self._features
        part.fitted_on, part.distrust_below = (*self.fitted_on, *fitted_on), None
        part._hashed = self.hashed if part.fitted_on else None
        return part

    def judged(self, confidence: Confidence, fitted_on: tuple[str, ...], distrust_below: float) -> "Predictions":
        """Return the same answers with another confidence, that of a trust predictor fitted on other rows."""
        part = Predictions(confidence=confidence, correct=self.correct, groups=self.groups, weights=self.weights)
        part.fitted_on, part.distrust_below = fitted_on, distrust_below
        part._hashed = self.hashed if fitted_on else None
        return part

    @cached_property
    def fingerprint(self) -> str:
        """A text by which these rows, or some of them, are recognised in any order."""
        return fingerprints.text(self.hashed)

    @property
    def hashed(self) -> fingerprints.Rows:
        """A number for each row, from its scores as they came first: calibrated rows keep those they came from."""
        if self._hashed is None:
            if self.rows.scores is None:
                self._hashed = fingerprints.of_pairs(self.confidence.numpy(), self.correct.numpy())
            else:
                self._hashed = fingerprints.of_scores(self.logits)
        return self._hashed

    def known(self, prints: tuple[str, ...] = ()) -> float:
        """Return about which share of these rows is among rows of these fingerprints and of ``fitted_on``; 1: all."""
        every = (*self.fitted_on, *prints)
        if not every:
            return 0.0
        return 1.0 if self._ordered in every else fingerprints.known(self.hashed, every)

    @property
    def _ordered(self) -> str:
        """The fingerprint that calibrant 0.1.0 wrote before it had samples: of labels and predictions in order."""
        known = [self.rows.labels, self.rows.correct, None if self.rows.facts is None else self.predicted]
        seen = b"".join(column.to(torch.int64).numpy().tobytes() for column in known if column is not None)
        return hashlib.blake2b(seen, digest_size=12).hexdigest()

    @cached_property
    def understood(self) -> str:
        """One line that states what was read."""
        return statement.understood(self)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What looks suspicious, a sentence each; empty when nothing does."""
        return statement.notes(self)

    def __repr__(self) -> str:
        return "\n".join([f"Predictions: {self.understood}", *(f"note: {note}" for note in self.notes)])
