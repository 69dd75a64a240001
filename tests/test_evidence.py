"""Intervals, floors and comparisons: seeded, bounded, and right in cases that can be worked out by hand."""

import numpy as np
import pytest
import torch

from calibrant.metrics.evidence import compare, floor, interval, measure
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS


def over_confident(n=600, k=5, seed=0, sharpness=2.0):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randn(n, k, generator=g)
    labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    return Predictions(logits=sharpness * truth, labels=labels)


MEASURABLE = [name for name in METRICS if name not in ("ood_auroc", "binary_ece", "ece_kde")]


@pytest.mark.parametrize("name", MEASURABLE)
def test_every_metric_has_an_interval_a_floor_and_a_comparison(name):
    p, q = over_confident(150), over_confident(150, sharpness=1.0)
    found, noise = interval(name, p, resamples=30), floor(name, p, draws=30)
    direct = METRICS[name](*(getattr(p, view) for view in METRICS.entry(name).views))
    assert found.value == pytest.approx(direct, abs=1e-6)
    assert found.low <= found.high
    least, most = METRICS.entry(name).facts["range"]
    assert least <= found.low
    assert found.high <= most
    assert noise.value == pytest.approx(found.value)
    assert 0 < noise.p <= 1
    difference = compare(name, p, q, resamples=30)
    assert difference.difference == pytest.approx(measure(name, p) - measure(name, q))
    assert 0 < difference.p <= 1


def test_binary_and_kernel_metrics_have_evidence_too():
    p = over_confident(60, k=2)
    for name in ("binary_ece", "ece_kde"):
        assert interval(name, p, resamples=20).low <= interval(name, p, resamples=20).high
        assert 0 < floor(name, p, draws=20).p <= 1


def test_the_seed_decides_and_nothing_global_moves():
    p = over_confident()
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  the global generator is what must not move
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, two, three = (interval("top_label_ece", p, seed=s, resamples=50) for s in (0, 0, 1))
    floor("top_label_ece", p, draws=20)
    compare("top_label_ece", p, p, resamples=20)
    assert one == two
    assert one != three
    assert torch.equal(state, torch.get_rng_state())
    assert (legacy == np.random.get_state()[1]).all()  # noqa: NPY002


def test_the_interval_of_a_mean_is_the_normal_one():
    p = Predictions(confidence=[0.5] * 10_000, correct=[True, False] * 5_000)
    found = interval("accuracy", p, resamples=2000)
    half = 1.6449 * 0.5 / 100
    assert found.low == pytest.approx(0.5 - half, abs=6e-4)
    assert found.high == pytest.approx(0.5 + half, abs=6e-4)


def test_the_floor_of_the_signed_gap_is_zero_and_of_accuracy_the_mean_confidence():
    p = over_confident(2000)
    assert floor("signed_gap", p).mean == pytest.approx(0, abs=0.002)
    assert floor("accuracy", p).mean == pytest.approx(p.confidence.mean().item(), abs=0.002)


def test_the_floor_draws_labels_from_the_models_own_probabilities():
    p = over_confident(4000, k=3)
    promised = p.entropy.mean().item()  # the expected log loss of a model that is right about itself
    assert floor("nll", p, draws=50).mean == pytest.approx(promised, abs=0.01)


def test_a_model_too_sure_of_itself_is_caught_and_a_calibrated_one_is_not():
    assert floor("ece_debiased", over_confident(1000)).p < 0.01
    assert floor("ece_debiased", over_confident(1000, sharpness=1.0)).p > 0.05


def test_metrics_that_are_better_at_zero_are_tested_on_both_sides():
    assert floor("signed_gap", over_confident(1000, sharpness=2.0)).p < 0.01
    assert floor("signed_gap", over_confident(1000, sharpness=0.5)).p < 0.01


def test_two_equal_models_do_not_differ():
    p = over_confident()
    same = compare("top_label_ece", p, p)
    assert (same.difference, same.low, same.high, same.p) == (0, 0, 0, 1)


def test_a_repaired_model_beats_its_origin():
    found = compare("nll", over_confident(2000, sharpness=3.0), over_confident(2000, sharpness=1.0))
    assert found.low > 0
    assert found.p < 0.01


def test_weights_count_as_repetitions_in_the_value_and_the_floor():
    p = Predictions(confidence=[0.9, 0.6, 0.7], correct=[True, False, True], weights=[2.0, 0.0, 1.0])
    q = Predictions(confidence=[0.9, 0.9, 0.7], correct=[True, True, True])
    for name in ("accuracy", "signed_gap", "top_label_ece", "aurc", "sm_ece"):
        assert measure(name, p) == pytest.approx(measure(name, q)), name


def test_any_function_of_named_views_will_do():
    def hits(correct):
        return float(correct.double().sum())

    def mass(probs):
        return float(probs[:, 0].sum())

    p = over_confident(50)
    assert measure(hits, Predictions(confidence=[0.5, 0.6], correct=[True, True])) == 2.0
    assert interval(mass, p, resamples=20).low < measure(mass, p) < interval(mass, p, resamples=20).high


def test_an_undefined_value_stays_undefined():
    p = Predictions(confidence=[0.5, 0.6], correct=[True, True])
    assert np.isnan(interval("failure_auroc", p, resamples=20).low)
    assert np.isnan(floor("calibration_slope", p, draws=20).p)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: interval("accuracy", p, level=1.0), r"level must lie in \(0, 1\); got 1\."),
        (lambda p: interval("accuracy", p, resamples=3), r"resamples must be at least 20; got 3\."),
        (lambda p: compare("accuracy", p, over_confident(10)), "second must hold the same rows as first; got 10 rows"),
        (lambda p: compare("accuracy", p, over_confident(600, seed=3)), "the labels differ"),
    ],
)
def test_wrong_requests_are_answered_with_one_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call(over_confident())
