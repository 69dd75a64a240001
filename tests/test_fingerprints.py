"""Rows that were fitted on are recognised: in any order, some of them, before and after calibration; others are not."""

import numpy as np
import pytest
import torch

import calibrant as cb
from calibrant.predictions import fingerprints
from calibrant.predictions.predictions import Predictions
from calibrant.registry import CALIBRATORS


def rows(n, k=5, seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, k, generator=g)
    return logits, torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)


LOGITS, LABELS = rows(1000)
WAYS = {
    "as they were": torch.arange(1000),
    "permuted": torch.randperm(1000, generator=torch.Generator().manual_seed(1)),
    "one row less": torch.arange(1, 1000),
    "a fifth of them": torch.arange(0, 1000, 5),
    "one row repeated": torch.cat([torch.arange(1000), torch.tensor([3])]),
}


def optimistic(notes):
    return any("was fitted on; its numbers are optimistic" in note for note in notes)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("method", ["temperature", "vector", "smart", "isotonic", "identity"])
def test_an_audit_of_fitted_rows_warns_in_any_order(method, way):
    cal, some = CALIBRATORS[method].fit(LOGITS, LABELS), WAYS[way]
    through = cal.calibrate(Predictions(logits=LOGITS[some], labels=LABELS[some]))
    by_hand = Predictions(logits=cal(LOGITS[some]), labels=LABELS[some])
    before = Predictions(logits=LOGITS[some], labels=LABELS[some])
    assert optimistic(cb.audit(through, resamples=20).findings.notes)
    assert optimistic(cb.audit(by_hand, resamples=20, fitted_on=cal.fitted.rows).findings.notes)
    assert optimistic(cb.audit(before, resamples=20, fitted_on=cal.fitted.rows).findings.notes)


def test_a_few_fitted_rows_among_many_are_told_by_their_share():
    cal = CALIBRATORS["temperature"].fit(LOGITS, LABELS)
    others, truth = rows(1000, seed=7)
    mixed = Predictions(logits=torch.cat([LOGITS, others]), labels=torch.cat([LABELS, truth]))
    assert cal.calibrate(mixed).known() == pytest.approx(0.5, abs=0.15)
    assert cb.audit(cal.calibrate(mixed), resamples=20).findings.notes[0].startswith("about ")


@pytest.mark.parametrize("k", [2, 3, 10, 100])
@pytest.mark.parametrize("n", [50, 1000, 20_000])
def test_other_rows_of_the_same_distribution_are_not_taken_for_them(n, k):
    first, second = (Predictions(logits=rows(n, k, seed)[0]) for seed in (1, 2))
    assert second.known((first.fingerprint,)) <= 0.01


@pytest.mark.parametrize("digits", [1, 2, 3])
def test_rounded_probabilities_are_not_mistaken(digits):
    g = np.random.default_rng(0)
    first, second = (np.round(g.dirichlet([1, 1, 1], 2000), digits) for _ in range(2))
    first, second = (Predictions(probs=p / p.sum(1, keepdims=True)) for p in (first, second))
    assert second.known((first.fingerprint,)) < fingerprints.SOME
    assert first.known((first.fingerprint,)) == 1


def test_rows_without_labels_are_recognised():
    cal = CALIBRATORS["temperature"].fit(LOGITS, LABELS)
    assert cal.calibrate(Predictions(logits=LOGITS.flip(0))).known() == 1


def test_probabilities_and_their_types_are_recognised():
    probs = LOGITS.double().softmax(1)
    fitted = Predictions(probs=probs, labels=LABELS)
    cal = CALIBRATORS["vector"].fit(fitted.logits, LABELS)
    assert cal.calibrate(Predictions(probs=probs.flip(0), labels=LABELS.flip(0))).known() == 1
    single = CALIBRATORS["vector"].fit(LOGITS.double(), LABELS)
    assert single.calibrate(Predictions(logits=LOGITS, labels=LABELS)).known() == 1


def test_two_calibrations_in_a_row_remember_both_fits():
    half = LOGITS[:500], LABELS[:500]
    first = CALIBRATORS["temperature"].fit(LOGITS[500:], LABELS[500:])
    second = CALIBRATORS["vector"].fit(first(half[0]), half[1])
    both = second.calibrate(first.calibrate(Predictions(logits=LOGITS[500:], labels=LABELS[500:])))
    assert both.known() == 1
    taken = both.take(torch.arange(10, 200))
    assert taken.known() > 0.9
    assert second.calibrate(first.calibrate(Predictions(logits=rows(300, seed=3)[0]))).known() == 0


def test_saved_calibrators_recognise_their_rows(tmp_path):
    cal = CALIBRATORS["vector"].fit(LOGITS, LABELS)
    cal.save(tmp_path / "cal.safetensors")
    again = cb.load(tmp_path / "cal.safetensors")
    assert again.calibrate(Predictions(logits=LOGITS[1:], labels=LABELS[1:])).known() > 0.9


def test_the_fingerprint_of_an_earlier_version_is_still_understood():
    p = Predictions(logits=LOGITS, labels=LABELS)
    assert p.known(("8cc2e4ae8ee1e2d2ebbf6ad6",)) == 0
    assert p.known((p._ordered,)) == 1


def test_the_digest_does_not_depend_on_the_sign_of_zero():
    zeros = fingerprints.of_pairs(np.array([0.0, 1.0]), np.array([True, False]))
    assert np.array_equal(zeros, fingerprints.of_pairs(np.array([-0.0, 1.0]), np.array([True, False])))
    one, other = torch.tensor([[0.0, 1.0]]), torch.tensor([[-0.0, 1.0]])
    assert np.array_equal(fingerprints.of_scores(one), fingerprints.of_scores(other))
