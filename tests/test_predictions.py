"""The door: every mistake has one row, and its answer is tested to the letter."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

from calibrant.calibrators.autocalibrate import autocalibrate
from calibrant.calibrators.temperature import Temperature
from calibrant.cli import app
from calibrant.evaluation.audit import audit
from calibrant.predictions.predictions import Predictions


def model(n=2000, k=10, seed=0, dtype=torch.float32):
    """A classifier twice too sure of itself."""
    g = torch.Generator().manual_seed(seed)
    truth = 2.5 * torch.randn(n, k, generator=g)
    labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    return (2 * truth).to(dtype), labels


LOGITS, LABELS = model()
PROBS = LOGITS.softmax(1)
BROKEN = LOGITS.clone()
BROKEN[3, 2] = torch.nan
SPARSE = LABELS.clone()
SPARSE[:500] = -100
SHIFTED = (LABELS + 3) % 10
TWO = LOGITS[:, :2]
SOFT = torch.full((2000, 10), 0.1)
SEVERAL = torch.nn.functional.one_hot(LABELS, 10) + torch.nn.functional.one_hot((LABELS + 1) % 10, 10)
SEVERAL[:2] = 0


@dataclass
class Mistake:
    name: str
    inputs: dict
    error: str


MISTAKES = [
    Mistake(
        "probabilities as logits",
        {"logits": PROBS, "labels": LABELS},
        "logits must be raw scores; every row lies in [0, 1] and sums to 1, so these are probabilities. "
        "Pass probs=..., or the model's raw outputs.",
    ),
    Mistake(
        "logits as probabilities",
        {"probs": LOGITS[:2], "labels": LABELS[:2]},
        "probs must lie in [0, 1]; 19 of 20 values do not (min -10.6, max 6.19). Pass logits=... instead?",
    ),
    Mistake(
        "percent as probabilities",
        {"probs": torch.tensor([[90.0, 10.0]]), "labels": [0]},
        "probs must lie in [0, 1]; 2 of 2 values do not (min 10, max 90). Divide by 100 if these are percent.",
    ),
    Mistake(
        "one NaN",
        {"logits": BROKEN, "labels": LABELS},
        "logits must be finite; 1 of 2000 rows is not (first: row 3). Leave them out, and say how many.",
    ),
    Mistake(
        "infinite rows",
        {"logits": LOGITS.masked_fill(LOGITS > 14, torch.inf), "labels": LABELS},
        "logits must be finite; 56 of 2000 rows are not (first: row 5). Leave them out, and say how many.",
    ),
    Mistake(
        "a masked class",
        {"logits": torch.tensor([[1.0, -torch.inf]]), "labels": [0]},
        "logits must be finite; 1 of 1 rows is not (first: row 0). Leave them out, and say how many.",
    ),
    Mistake(
        "NaN probabilities",
        {"probs": BROKEN.softmax(1), "labels": LABELS},
        "probs must be finite; 1 of 2000 rows is not (first: row 3). Leave them out, and say how many.",
    ),
    Mistake(
        "labels from 1",
        {"logits": LOGITS, "labels": LABELS + 1},
        "labels must lie in [0, 10); got [1, 10]. With labels - 1 the accuracy is 0.61, as given 0.04. "
        "Pass labels - 1, or classes=range(1, 11).",
    ),
    Mistake(
        "columns in another order",
        {"logits": LOGITS, "labels": SHIFTED},
        "accuracy is 0.05, below chance (0.10), and 0.61 if the columns are relabelled (column 0 is class 3, column 1 "
        "is class 4, column 2 is class 5, column 3 is class 6, ...); the columns appear to be in another order than "
        "the labels. Pass classes=[...], the name of each column in order (classes=range(10) if it is right).",
    ),
    Mistake(
        "two columns swapped",
        {"logits": TWO, "labels": 1 - TWO.argmax(1)},
        "accuracy is 0.00, below chance (0.50), and 1.00 if the columns are relabelled (column 0 is class 1, column 1 "
        "is class 0); the columns appear to be in another order than the labels. Pass classes=[...], the name of each "
        "column in order (classes=range(2) if it is right).",
    ),
    Mistake(
        "labels from 1 without the first class",
        {"logits": LOGITS[LABELS > 0], "labels": LABELS[LABELS > 0] + 1},
        "labels must lie in [0, 10); got [2, 10]. With labels - 1 the accuracy is 0.61, as given 0.04. "
        "Pass labels - 1, or classes=range(1, 11).",
    ),
    Mistake(
        "several values that are no class",
        {"logits": LOGITS[:3], "labels": [-100, 77, 1]},
        "labels must lie in [0, 10); got [-100, 77]: 2 of 3 are no class.",
    ),
    Mistake(
        "a fill value left in",
        {"logits": LOGITS, "labels": SPARSE},
        "labels must lie in [0, 10); 500 of 2000 equal -100, which is no class. "
        "Pass Predictions(..., ignore_index=-100), or --ignore-index -100, to leave them out.",
    ),
    Mistake(
        "only fill values",
        {"logits": LOGITS[:5], "labels": SPARSE[:5], "ignore_index": -100},
        "labels must hold at least one class; every label equals ignore_index=-100.",
    ),
    Mistake(
        "soft labels",
        {"logits": LOGITS, "labels": SOFT},
        "labels must be class indices (n,) or one-hot rows; got rows that are not one-hot. Soft labels have no single "
        "right class, so calibration is not defined for them: pass the most likely class, or draw one.",
    ),
    Mistake(
        "several labels a row",
        {"logits": LOGITS, "labels": SEVERAL},
        "labels must be class indices (n,) or one-hot rows; got 1998 rows with several classes and 2 with none. Audit "
        "each class of several labels by itself: Predictions(logits=logits[:, k], labels=labels[:, k]).",
    ),
    Mistake(
        "scores that do not sum to 1",
        {"probs": 0.7 * PROBS, "labels": LABELS},
        "probs must sum to 1 in each row; row 1054 sums to 0.7, and rows sum to 0.7 on average. For independent "
        "sigmoids audit each class by itself, Predictions(probs=probs[:, k], labels=labels == k); to rescale on "
        "purpose pass probs / probs.sum(1, keepdim=True).",
    ),
    Mistake(
        "logits as log-probabilities",
        {"log_probs": torch.tensor([[1.0, 2.0]]), "labels": [0]},
        "log_probs must be logarithms of probabilities; exp of a row sums to 10.1 on average. Pass logits=... instead?",
    ),
    Mistake(
        "names without classes",
        {"logits": LOGITS[:2], "labels": ["cat", "dog"]},
        "labels must be numbers; got <U3. Pass classes=[...], the name of each column in order.",
    ),
    Mistake(
        "an unknown name",
        {"logits": LOGITS[:2, :2], "labels": ["cat", "cow"], "classes": ["cat", "dog"]},
        "labels must be among classes; got 'cow', which is not in ['cat', 'dog'].",
    ),
    Mistake(
        "too few class names",
        {"logits": LOGITS[:2], "labels": [0, 1], "classes": ["cat", "dog"]},
        "classes must name each of the 10 columns; got 2 names.",
    ),
    Mistake(
        "a class name twice",
        {"logits": LOGITS[:2, :2], "labels": ["a", "a"], "classes": ["a", "a"]},
        "classes must be distinct; got 'a' twice.",
    ),
    Mistake(
        "labels as a column",
        {"logits": LOGITS, "labels": LABELS[:, None]},
        "labels must have shape (2000,) to match the scores; got (2000, 1). Did you mean labels.squeeze(1)?",
    ),
    Mistake(
        "another number of labels",
        {"logits": LOGITS, "labels": LABELS[:7]},
        "labels must have shape (2000,) to match the scores; got (7,).",
    ),
    Mistake(
        "fractional labels",
        {"logits": LOGITS[:2], "labels": [0.5, 1.0]},
        "labels must be integer class indices; got fractions or NaN.",
    ),
    Mistake(
        "no rows", {"logits": LOGITS[:0], "labels": LABELS[:0]}, "logits must have at least one row; got shape (0, 10)."
    ),
    Mistake(
        "integer logits",
        {"logits": LOGITS.long(), "labels": LABELS},
        "logits must be floating point; got int64.",
    ),
    Mistake(
        "an image of logits",
        {"logits": torch.zeros(2, 3, 4, 4), "labels": [0, 1]},
        "logits must have shape (n, k), or (n,) for two classes; got (2, 3, 4, 4). "
        "Move the class axis last and flatten the others.",
    ),
    Mistake(
        "two kinds of score",
        {"logits": LOGITS, "probs": PROBS, "labels": LABELS},
        "exactly one of logits, probs, log_probs, confidence must be given; got logits and probs.",
    ),
    Mistake(
        "no score", {"labels": LABELS}, "exactly one of logits, probs, log_probs, confidence must be given; got none."
    ),
    Mistake(
        "confidence with labels",
        {"confidence": [0.5], "labels": [1]},
        "confidence goes with correct: whether each prediction was right, one bool a row.",
    ),
    Mistake(
        "logits with correct",
        {"logits": LOGITS[:1], "correct": [True]},
        "correct goes with confidence=...; with logits=... pass labels.",
    ),
    Mistake(
        "percent as confidence",
        {"confidence": [97.0, 88.0], "correct": [1, 0]},
        "confidence must lie in [0, 1]; got [88, 97]. Divide by 100 if these are percent.",
    ),
    Mistake(
        "scores as confidence",
        {"confidence": [-3.0, 1.0], "correct": [1, 0]},
        "confidence must lie in [0, 1]; got [-3, 1]. Pass a probability.",
    ),
    Mistake(
        "missing confidence",
        {"confidence": [0.5, float("nan")], "correct": [1, 0]},
        "confidence must be finite; 1 of 2 rows is not (first: row 1). Leave them out, and say how many.",
    ),
    Mistake(
        "classes as correctness",
        {"confidence": [0.5, 0.6], "correct": [3, 1]},
        "correct must be bool, or 0 and 1: whether the prediction was right; got 3. "
        "Pass labels=... with class scores if these are classes.",
    ),
    Mistake(
        "no confident rows",
        {"confidence": torch.empty(0), "correct": torch.empty(0)},
        "confidence must have shape (n,) with n >= 1; got (0,).",
    ),
    Mistake(
        "negative weights",
        {"confidence": [0.5], "correct": [1], "weights": [-1.0]},
        "weights must not be negative and not all zero; got [-1, -1].",
    ),
    Mistake(
        "normalised weights",
        {"confidence": [0.5, 0.6], "correct": [1, 0], "weights": [0.5, 0.5]},
        "weights count as repetitions, so they must sum to at least the number of rows that have any (2); got 1. "
        "Multiply them by 2 / weights.sum().",
    ),
    Mistake(
        "missing weights",
        {"confidence": [0.5], "correct": [1], "weights": [float("nan")]},
        "weights must be finite; 1 of 1 rows is not (first: row 0). Leave them out, and say how many.",
    ),
    Mistake(
        "classes without scores",
        {"confidence": [0.5], "correct": [1], "classes": ["a"]},
        "classes and ignore_index go with class scores; confidence=... has none.",
    ),
    Mistake(
        "rows of different lengths",
        {"logits": [[1.0, 2.0], [1.0]], "labels": [0, 1]},
        "logits must be rectangular; got rows of different lengths.",
    ),
    Mistake(
        "a sparse tensor",
        {"logits": torch.eye(2).to_sparse(), "labels": [0, 1]},
        "logits must be a dense tensor with values; got torch.sparse_coo on cpu.",
    ),
    Mistake(
        "masked values",
        {"logits": np.ma.masked_greater(np.eye(2), 0.5), "labels": [0, 1]},
        "logits must have no masked values; got 2. Leave those rows out.",
    ),
    Mistake(
        "a number of classes instead of names",
        {"logits": LOGITS[:2], "labels": [0, 1], "classes": 10},
        "classes must be a list of names, one a column; got 10.",
    ),
    Mistake(
        "a missing label among names",
        {"logits": LOGITS[:2, :2], "labels": ["a", None], "classes": ["a", "b"]},
        "labels must be among classes; got None, which is not in ['a', 'b'].",
    ),
    Mistake(
        "positive log-probabilities in one column",
        {"log_probs": [0.5, 0.7], "labels": [0, 1]},
        "log_probs must be logarithms of probabilities; exp of a row sums to 1.83 on average. Pass logits=... instead?",
    ),
    Mistake(
        "another number of weights",
        {"confidence": [0.5], "correct": [1], "weights": [1.0, 1.0]},
        "weights must have shape (1,); got (2,).",
    ),
    Mistake(
        "another number of groups",
        {"confidence": [0.5], "correct": [1], "groups": ["a", "b"]},
        "groups must have shape (1,), one name a row; got (2,).",
    ),
    Mistake(
        "flat features",
        {"confidence": [0.5], "correct": [1], "features": [1.0]},
        "features must have shape (1, d); got (1,).",
    ),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_a_mistake_is_answered_with_one_sentence(mistake):
    with pytest.raises((ValueError, TypeError)) as raised:
        Predictions(**mistake.inputs)
    assert str(raised.value) == mistake.error


TWICE = PROBS.softmax(1)
NOTES = [
    (
        "softmax applied twice",
        {"probs": TWICE, "labels": LABELS},
        "confidences never exceed 0.23 with 10 classes and accuracy is 0.61; "
        "this is what softmax applied twice looks like.",
    ),
    (
        "half precision saturates",
        {"probs": (3 * LOGITS).softmax(1).half(), "labels": LABELS},
        "float16 input: 40 % of confidences are exactly 1; pass logits, or cast first.",
    ),
    (
        "exact ones",
        {"confidence": [1.0, 0.5], "correct": [True, False]},
        "1 of 2 confidences are exactly 0 or 1; pass logits to tell them apart.",
    ),
    (
        "one value",
        {"confidence": [0.9, 0.9], "correct": [True, False]},
        "confidence takes one value (0.9); calibration cannot be measured beyond its mean, "
        "and no threshold can separate right from wrong.",
    ),
    (
        "training data",
        {"logits": 20.0 * torch.nn.functional.one_hot(LABELS, 10), "labels": LABELS},
        "accuracy here is 1.0000 and NLL 0.0000; this looks like the data the model was trained on.",
    ),
    (
        "padding",
        {"logits": torch.cat([LOGITS, LOGITS[:3]]), "labels": torch.cat([LABELS, LABELS[:3]])},
        "3 of 2 003 rows repeat an earlier row exactly; a distributed sampler pads its last batch this way.",
    ),
    (
        "named columns that look permuted",
        {"logits": LOGITS, "labels": [f"c{y}" for y in SHIFTED.tolist()], "classes": [f"c{i}" for i in range(10)]},
        "accuracy is 0.05, below chance (0.10), and 0.61 if the columns are relabelled (column 0 is class 3, column 1 "
        "is class 4, column 2 is class 5, column 3 is class 6, ...); the columns appear to be in another order than "
        "the labels.",
    ),
]


@pytest.mark.parametrize(("name", "inputs", "note"), NOTES, ids=[n[0] for n in NOTES])
def test_a_suspicion_is_noted(name, inputs, note):
    predictions = Predictions(**inputs)
    assert note in predictions.notes
    assert f"note: {note}" in repr(predictions)


def test_saturated_rows_are_not_taken_for_padding():
    assert len(Predictions(probs=(3 * LOGITS).softmax(1).half(), labels=LABELS).notes) == 1


def test_rounding_dust_is_not_refused_and_does_not_stay():
    p = Predictions(probs=np.array([[1 + 1e-9, -1e-9], [0.5, 0.5]]), labels=[0, 1])
    assert p.confidence.tolist() == [1.0, 0.5]
    assert Predictions(confidence=[1.0000001], correct=[1]).confidence.tolist() == [1.0]
    rounded = PROBS.double().mul(1000).round().div(1000)
    assert len(Predictions(probs=rounded, labels=LABELS)) == 2000


def test_scores_on_a_grid_are_not_taken_for_padding():
    g = np.random.default_rng(0)
    votes = g.multinomial(10, [0.5, 0.3, 0.2], 500) / 10
    notes = Predictions(probs=votes, labels=g.integers(0, 3, 500)).notes
    assert not any("repeat" in note for note in notes)


def test_the_fingerprint_is_that_of_rows_not_of_a_label_order():
    one, two = (
        Predictions(logits=logits, labels=[0] * 20 + [1] * 20) for logits in (LOGITS[:40, :3], LOGITS[40:80, :3])
    )
    assert one.fingerprint != two.fingerprint
    assert one.fingerprint == Predictions(logits=LOGITS[:40, :3], labels=[1] * 20 + [0] * 20).fingerprint


def test_a_sound_model_raises_no_suspicion():
    assert Predictions(logits=LOGITS, labels=LABELS).notes == ()


UNDERSTOOD = [
    ({"logits": LOGITS, "labels": LABELS}, "2 000 rows x 10 classes, logits, labels 0-9, accuracy 0.609"),
    (
        {"logits": LOGITS, "labels": torch.nn.functional.one_hot(LABELS, 10)},
        "2 000 rows x 10 classes, logits, labels 0-9, one-hot labels read as indices, accuracy 0.609",
    ),
    (
        {"logits": LOGITS, "labels": SPARSE, "ignore_index": -100},
        "1 500 rows x 10 classes, logits, labels 0-9, 500 rows with label -100 left out, accuracy 0.600",
    ),
    (
        {"probs": [0.9, 0.2], "labels": [1, -1]},
        "2 rows x 2 classes, probs, labels 0-1, labels -1/1 read as 0/1, accuracy 1.000",
    ),
    (
        {"logits": [2.0, -1.0], "labels": ["spam", "ham"], "classes": ["ham", "spam"]},
        "2 rows x 2 classes, logits of class 'spam', labels 'ham'-'spam', accuracy 1.000",
    ),
    (
        {"logits": LOGITS[:3], "labels": LABELS[:3], "weights": [1.0, 2.0, 1.0], "groups": ["a", "b", "a"]},
        "3 rows x 10 classes, logits, labels 0-9 (9 classes absent), weights summing to 4, 2 groups, accuracy 0.750",
    ),
    (
        {"logits": LOGITS[:2, :2], "labels": [1, 1], "classes": ["cat", "dog"]},
        "2 rows x 2 classes, logits, labels 'cat'-'dog' (1 class absent), labels read as indices of the named "
        "classes, accuracy 0.000",
    ),
    (
        {"logits": LOGITS[:3, :2], "labels": [-1, 1, -1], "ignore_index": -1},
        "1 row x 2 classes, logits, labels 0-1 (1 class absent), 2 rows with label -1 left out, accuracy 0.000",
    ),
    (
        {"confidence": [0.5, 0.7], "correct": [True, False]},
        "2 rows, confidence and correctness, accuracy 0.500",
    ),
    ({"logits": LOGITS[:1]}, "1 row x 10 classes, logits"),
]


@pytest.mark.parametrize(("inputs", "line"), UNDERSTOOD)
def test_what_was_understood_is_said_back(inputs, line):
    assert Predictions(**inputs).understood == line


@pytest.mark.parametrize("shape", [(2000,), (2000, 1)])
@pytest.mark.parametrize("kind", ["logits", "probs", "log_probs"])
def test_two_classes_may_come_in_one_column(shape, kind):
    score = LOGITS[:, 0].double().clamp(-10, 10)
    one = {"logits": score, "probs": score.sigmoid(), "log_probs": torch.nn.functional.logsigmoid(score)}[kind]
    labels = LABELS > 4
    given = Predictions(**{kind: one.reshape(shape)}, labels=labels)
    wide = Predictions(logits=torch.stack([torch.zeros_like(score), score], 1), labels=labels)
    torch.testing.assert_close(given.confidence, wide.confidence, atol=1e-12, rtol=0)
    torch.testing.assert_close(given.nll, wide.nll, atol=1e-10, rtol=0)
    assert torch.equal(given.correct, wide.correct)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_floating_type_gives_float64_facts(dtype):
    exact = Predictions(logits=LOGITS.double(), labels=LABELS)
    given = Predictions(logits=LOGITS.to(dtype), labels=LABELS)
    assert given.confidence.dtype == torch.float64
    tolerance = {torch.float16: 5e-3, torch.bfloat16: 5e-2, torch.float32: 1e-6, torch.float64: 0}[dtype]
    torch.testing.assert_close(given.confidence, exact.confidence, atol=tolerance, rtol=0)


def test_small_logits_are_logits_because_the_name_says_so():
    logits = torch.rand(50, 4)
    assert torch.allclose(Predictions(logits=logits).confidence, logits.double().softmax(1).amax(1))


def test_numpy_lists_and_dlpack_are_accepted():
    class OnlyDlpack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, **options):
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    expected = Predictions(logits=LOGITS, labels=LABELS).confidence
    for logits in (LOGITS.numpy(), LOGITS.tolist(), OnlyDlpack(LOGITS), LOGITS.numpy().astype(">f4")):
        given = Predictions(logits=np.asarray(logits, dtype=np.float32) if isinstance(logits, list) else logits)
        torch.testing.assert_close(given.confidence, expected, atol=1e-7, rtol=0)


def test_many_classes_and_one_row_work():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 100_000, generator=g)
    p = Predictions(logits=logits, labels=[5, 99_999, 0])
    torch.testing.assert_close(p.nll, torch.nn.functional.cross_entropy(logits.double(), p.labels, reduction="none"))
    assert len(Predictions(logits=logits[:1], labels=[1])) == 1


def test_the_rows_of_a_part_are_those_of_the_whole():
    whole = Predictions(logits=LOGITS, labels=LABELS, groups=["a", "b"] * 1000, weights=torch.arange(1.0, 2001.0))
    mask = LABELS == 3
    part = whole.take(mask)
    assert len(part) == int(mask.sum())
    for view in ("confidence", "correct", "nll", "brier", "entropy", "labels", "probs", "logits", "weights"):
        assert torch.equal(getattr(part, view), getattr(whole, view)[mask]), view
    assert part.groups.tolist() == [g for g, kept in zip(["a", "b"] * 1000, mask, strict=True) if kept]


def test_views_that_are_not_there_say_what_is_missing():
    reduced = Predictions(confidence=[0.5], correct=[True])
    unlabelled = Predictions(logits=LOGITS[:1])
    for predictions, view, word in [
        (reduced, "probs", "probs are needed"),
        (reduced, "logits", "logits are needed"),
        (reduced, "labels", "labels are needed"),
        (reduced, "nll", "logits are needed"),
        (reduced, "features", "features are needed"),
        (unlabelled, "labels", "labels are needed"),
        (unlabelled, "correct", "labels are needed"),
        (unlabelled, "brier", "labels are needed"),
    ]:
        with pytest.raises(ValueError, match=word):
            getattr(predictions, view)


def test_an_ignored_row_takes_its_group_weight_and_features_along():
    p = Predictions(
        logits=LOGITS[:3],
        labels=[0, -1, 2],
        ignore_index=-1,
        groups=["a", "b", "c"],
        weights=[1.0, 2.0, 3.0],
        features=torch.arange(6.0).reshape(3, 2),
    )
    assert p.groups.tolist() == ["a", "c"]
    assert p.weights.tolist() == [1.0, 3.0]
    assert p.features.tolist() == [[0.0, 1.0], [4.0, 5.0]]


def test_the_audit_warns_when_the_rows_a_calibrator_was_fitted_on_come_back():
    rows = Predictions(logits=LOGITS[:300], labels=LABELS[:300])
    others = Predictions(logits=LOGITS[300:600], labels=LABELS[300:600])
    again = audit(rows, fitted_on=(rows.fingerprint,), resamples=20)
    fresh = audit(others, fitted_on=(rows.fingerprint,), resamples=20)
    assert again.findings.notes == (
        "these 300 rows are the rows the calibrator was fitted on; its numbers are optimistic.",
    )
    assert fresh.findings.notes == ()


@pytest.mark.parametrize("kind", ["logits", "probs", "log_probs"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_arrays_that_change_afterwards_change_nothing(kind, library):
    probs = torch.rand(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(1)
    scores = {"logits": 3 * probs.log(), "probs": probs, "log_probs": probs.log()}[kind].clone()
    given = {kind: scores, "labels": torch.arange(50) % 4, "features": torch.ones(50, 2), "weights": torch.ones(50)}
    if library == "numpy":
        given = {name: value.numpy() for name, value in given.items()}
    p, same = (
        Predictions(**given),
        Predictions(**{name: value.copy() if library == "numpy" else value.clone() for name, value in given.items()}),
    )
    for value in given.values():
        value *= 0
    for view in ("logits", "probs", "labels", "features", "weights", "confidence", "correct", "nll"):
        assert torch.equal(getattr(p, view), getattr(same, view)), view


def test_confidence_and_correctness_that_change_afterwards_change_nothing():
    confidence, correct = torch.full((4,), 0.5, dtype=torch.float64), torch.ones(4, dtype=torch.bool)
    p = Predictions(confidence=confidence, correct=correct)
    confidence.fill_(1.0)
    correct.fill_(False)
    assert bool(p.correct.all())
    assert float(p.confidence.max()) == 0.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"labels": torch.zeros(2, dtype=torch.complex64)}, "labels must be real numbers; got complex64."),
        ({"labels": np.zeros(2, complex)}, "labels must be numbers; got complex128."),
        (
            {"labels": np.array([0, 2**64 - 1], np.uint64)},
            "labels must fit in 64 signed bits; got 18446744073709551615.",
        ),
        ({"weights": torch.ones(2) * 1j}, "weights must be real numbers; got complex64."),
        ({"weights": [1e308, 1e308]}, "weights must be at most 1e+15; got 1e+308. Divide them all by a number."),
        ({"weights": [0.0, 1.0], "ignore_index": 1}, "weights must not be negative and not all zero; got [0, 0]."),
    ],
    ids=str,
)
def test_numbers_that_would_be_misread_are_refused(given, said):
    with pytest.raises((TypeError, ValueError)) as raised:
        Predictions(**{"logits": 3 * torch.eye(2), "labels": [0, 1], **given})
    assert str(raised.value) == said


def test_unsigned_labels_are_read():
    for labels in (np.array([0, 1], np.uint64), torch.tensor([0, 1]).to(torch.uint64)):
        assert Predictions(logits=torch.eye(2) * 3, labels=labels).labels.tolist() == [0, 1]


@pytest.mark.parametrize("rows", [[0, 4, 4], np.array([0, 4, 4]), torch.tensor([0, 4, -196]), (0, 4, 4)], ids=str)
def test_some_rows_are_taken_by_numbers_of_any_kind(rows):
    p = Predictions(logits=LOGITS[:200], labels=LABELS[:200], groups=list("ab") * 100)
    assert torch.equal(p.take(rows).logits, LOGITS[[0, 4, 4]])
    assert p.take(rows).groups.tolist() == ["a", "a", "a"]


def test_some_rows_are_taken_by_a_mask():
    p, mask = Predictions(logits=LOGITS[:200], labels=LABELS[:200]), np.arange(200) % 3 == 0
    for kind in (mask, torch.from_numpy(mask), mask.tolist()):
        assert torch.equal(p.take(kind).logits, LOGITS[:200:3])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "rows must be whole numbers, or a mask of shape (200,); got float64 of shape (0,)."),
        (np.zeros(0, int), "rows must name at least one row; got none."),
        ([False] * 200, "rows must name at least one row; got none."),
        ([0, 200], "rows must lie in [0, 200); got [0, 200]."),
        ([-201], "rows must lie in [0, 200); got [-201, -201]."),
        ([0.5], "rows must be whole numbers, or a mask of shape (200,); got float64 of shape (1,)."),
        ([[0]], "rows must be whole numbers, or a mask of shape (200,); got int64 of shape (1, 1)."),
        ([True], "rows must be whole numbers, or a mask of shape (200,); got bool of shape (1,)."),
        ("ab", "rows must be numbers; got <U2."),
        (None, "rows must be numbers; got object."),
        ([None, 1], "rows must be numbers; got object, such as None."),
    ],
    ids=str,
)
def test_rows_that_are_not_there_are_refused(rows, said):
    with pytest.raises((TypeError, ValueError)) as raised:
        Predictions(logits=LOGITS[:200], labels=LABELS[:200]).take(rows)
    assert str(raised.value) == said


def test_the_remedy_for_fill_values_works_in_a_fit_and_in_commands(tmp_path):
    kept = SPARSE != -100
    expected = Temperature.fit(LOGITS[kept], LABELS[kept]).temperature
    with pytest.raises(ValueError, match=r"Pass Predictions\(\.\.\., ignore_index=-100\), or --ignore-index -100"):
        Temperature.fit(LOGITS, SPARSE)
    rows = Predictions(logits=LOGITS, labels=SPARSE, ignore_index=-100)
    assert Temperature.fit(rows).temperature == pytest.approx(float(expected), rel=1e-9)
    assert autocalibrate(rows, methods=("temperature",)).calibrator.fitted.n == int(kept.sum())
    np.savez(tmp_path / "rows.npz", logits=LOGITS.numpy(), labels=SPARSE.numpy())
    command = ["calibrate", str(tmp_path / "rows.npz"), "--method", "temperature", "--ignore-index", "-100"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output


def test_the_remedy_for_several_labels_a_row_works():
    for k in range(3):
        one = Predictions(logits=LOGITS[:, k], labels=SEVERAL[:, k])
        assert one.understood.startswith("2 000 rows x 2 classes")


@pytest.mark.parametrize(
    "types", [("Float64", "boolean", "Int64"), ("double[pyarrow]", "bool[pyarrow]", "int64[pyarrow]")]
)
def test_columns_of_pandas_are_numbers_whatever_their_type(types):
    real, truth, whole = types
    sure = Predictions(
        confidence=pd.Series([0.9, 0.8, 0.7], dtype=real), correct=pd.Series([True, False, True], dtype=truth)
    )
    assert sure.confidence.tolist() == [0.9, 0.8, 0.7]
    assert sure.correct.tolist() == [True, False, True]
    logits = pd.DataFrame(LOGITS[:50].double().numpy()).astype(real)
    rows = Predictions(logits=logits, labels=pd.Series(LABELS[:50].numpy(), dtype=whole))
    assert rows.correct.equal(Predictions(logits=LOGITS[:50].double(), labels=LABELS[:50]).correct)
    with pytest.raises((TypeError, ValueError), match=r"^confidence must be (numbers|finite); "):
        Predictions(confidence=pd.Series([0.9, None], dtype=real), correct=[True, False])
