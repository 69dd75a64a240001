"""Truths of statistics, by simulation: 90 % intervals cover, and tests have the size they claim.

The models: confidences c of a two-class classifier with logits N(1.6, 1.5), and the probability of being right is c
(calibrated), or c at temperature 1.12 (slightly over-confident) or 1.6 (over-confident). Covered is the mean of the
metric over samples of the same size.
"""

import numpy as np
import pytest
import torch

from calibrant.evaluation.advice import ALPHA
from calibrant.evaluation.audit import slices
from calibrant.metrics.evidence import compare, floor, interval
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS

pytestmark = pytest.mark.slow

SIZES = (200, 1_000, 10_000)
TRIALS = {200: 250, 1_000: 300, 10_000: 120}
TESTED = 600  # a size of 5 % is then seen within 0.9 points, one standard error
CONFIDENCE_METRICS = {
    "accuracy": {},
    "signed_gap": {},
    "calibration_slope": {},
    "top_label_ece": {},
    "ece_debiased": {"norm": "l2"},
    "sm_ece": {},
    "kuiper_error": {},
    "corp_miscalibration": {},
    "aurc": {},
    "failure_auroc": {},
}


def draw(n, temperature, rng):
    logit = np.abs(rng.normal(1.6, 1.5, n))
    right = rng.random(n) < 1 / (1 + np.exp(-logit / temperature))
    return Predictions(confidence=1 / (1 + np.exp(-logit)), correct=right)


def mean_over_samples(name, options, n, temperature, rng):
    draws = (draw(n, temperature, rng) for _ in range(max(200, 400_000 // n)))
    return np.mean([METRICS[name](*(getattr(p, v) for v in METRICS.entry(name).views), **options) for p in draws])


def coverage(name, options, n, temperature):
    rng = np.random.default_rng([n, int(100 * temperature)])
    target = mean_over_samples(name, options, n, temperature, rng)
    hits = 0
    for trial in range(TRIALS[n]):
        found = interval(name, draw(n, temperature, rng), options=options, resamples=100, seed=trial)
        hits += found.low <= target <= found.high
    return hits / TRIALS[n]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", CONFIDENCE_METRICS)
def test_a_90_percent_interval_covers_in_85_to_95_percent(name, n):
    assert 0.85 <= coverage(name, CONFIDENCE_METRICS[name], n, 1.6) <= 0.95


@pytest.mark.parametrize("name", ["signed_gap", "top_label_ece", "ece_debiased", "aurc"])
def test_it_covers_a_slightly_over_confident_model_too(name):
    assert 0.85 <= coverage(name, CONFIDENCE_METRICS[name], 1_000, 1.12) <= 0.95


@pytest.mark.parametrize("name", ["top_label_ece", "ece_debiased", "sm_ece"])
def test_it_never_covers_too_little_at_perfect_calibration(name):
    assert coverage(name, CONFIDENCE_METRICS[name], 1_000, 1.0) >= 0.85


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["nll", "brier"])
def test_the_interval_of_a_proper_score_covers(name, n):
    rng = np.random.default_rng(n)

    def model():
        logit = rng.normal(1.6, 1.5, n)
        labels = rng.random(n) < 1 / (1 + np.exp(-logit / 1.6))
        return Predictions(logits=logit, labels=labels)

    target = np.mean([getattr(model(), name).mean().item() for _ in range(max(200, 1_000_000 // n))])
    found = [interval(name, model(), resamples=100, seed=trial) for trial in range(400)]
    assert 0.85 <= np.mean([f.low <= target <= f.high for f in found]) <= 0.95


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["signed_gap", "top_label_ece", "ece_debiased", "sm_ece", "kuiper_error"])
def test_the_floor_rejects_a_calibrated_model_in_3_to_7_percent(name, n):
    rng = np.random.default_rng(n)
    options = CONFIDENCE_METRICS.get(name, {})
    # With 39 draws p <= 0.05 means at most one draw as bad: exactly 5 % under calibration.
    rejected = sum(floor(name, draw(n, 1.0, rng), options=options, draws=39, seed=t).p <= 0.05 for t in range(TESTED))
    assert 0.03 <= rejected / TESTED <= 0.07


@pytest.mark.parametrize("n", [200, 1_000])
def test_the_floor_of_a_class_wise_error_has_the_right_size_too(n):
    rejected = 0
    for trial in range(TESTED):
        g = torch.Generator().manual_seed(trial)
        logits = 1.5 * torch.randn(n, 4, generator=g)
        labels = torch.multinomial(logits.softmax(1), 1, generator=g).squeeze(1)
        rejected += floor("classwise_ece", Predictions(logits=logits, labels=labels), draws=39, seed=trial).p <= 0.05
    assert 0.03 <= rejected / TESTED <= 0.07


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["ks_pvalue", "kuiper_pvalue", "spiegelhalter_pvalue"])
def test_the_tests_without_draws_have_the_right_size(name, n):
    rng = np.random.default_rng(n)
    draws = (draw(n, 1.0, rng) for _ in range(3000))
    rejected = np.mean([METRICS[name](p.confidence, p.correct) <= 0.05 for p in draws])
    assert 0.03 <= rejected <= 0.07


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["top_label_ece", "signed_gap"])
def test_two_equally_good_models_differ_in_3_to_7_percent(name, n):
    rng = np.random.default_rng(n)
    rejected = 0
    for trial in range(TESTED):
        logit = rng.normal(1.6, 1.5, n)
        right = rng.random(n) < 1 / (1 + np.exp(-np.abs(logit) / 1.6))
        noisy = (np.abs(logit + rng.normal(0, 0.3, n)) for _ in range(2))
        one, two = (Predictions(confidence=1 / (1 + np.exp(-z)), correct=right) for z in noisy)
        rejected += compare(name, one, two, resamples=39, seed=trial).p <= 0.05
    assert 0.03 <= rejected / TESTED <= 0.07


def test_the_worst_of_many_small_groups_is_called_bad_in_at_most_5_percent():
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(100), 10)
    found = 0
    for _ in range(150):
        confidence = rng.uniform(0.9, 0.999, 1000)
        p = Predictions(confidence=confidence, correct=rng.random(1000) < confidence, groups=groups)
        found += any(r.p is not None and r.p <= 0.05 for r in slices(p, level=0.9))
    assert found / 150 <= 0.05


def test_the_verdict_calls_a_calibrated_model_miscalibrated_in_at_most_7_percent():
    rng = np.random.default_rng(0)
    alarms = 0
    for trial in range(300):
        p = draw(500, 1.0, rng)
        error = floor("ece_debiased", p, options={"norm": "l2"}, draws=99, seed=trial)
        gap = floor("signed_gap", p, draws=99, seed=trial)
        alarms += min(error.p, gap.p) <= ALPHA / 2
    assert alarms / 300 <= 0.07
