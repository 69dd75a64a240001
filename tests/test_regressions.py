"""Defects met in other packages, each as a test that passes here. The name says what went wrong elsewhere."""

import numpy as np
import pytest
import torch

import calibrant as cb
from calibrant.metrics import curves
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS
from calibrant.report import figures


def metric(name, p, **options):
    return METRICS[name](*(getattr(p, view) for view in METRICS.entry(name).views), **options)


def binary(n=4000, seed=0):
    """A two-class model, over-confident about class 1."""
    g = torch.Generator().manual_seed(seed)
    score = 2 * torch.randn(n, generator=g)
    labels = torch.rand(n, generator=g) < (score / 2 - 0.5).sigmoid()
    return Predictions(logits=score, labels=labels)


def test_half_precision_counts_do_not_saturate_at_a_million_rows():
    g = torch.Generator().manual_seed(0)
    confidence = (0.5 + 0.5 * torch.rand(1_000_000, generator=g)).half()
    correct = torch.rand(1_000_000, generator=g) < 0.6
    exact = metric("top_label_ece", Predictions(confidence=confidence.double(), correct=correct))
    assert exact > 0.1
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        given = metric("top_label_ece", Predictions(confidence=confidence.to(dtype), correct=correct))
        assert given == pytest.approx(exact, abs=1e-3)


def test_one_nan_does_not_turn_probabilities_into_logits():
    probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]])
    probs[0, 0] = torch.nan
    with pytest.raises(ValueError, match="probs must be finite; 1 of 2 rows is not"):
        Predictions(probs=probs, labels=[0, 1])


def test_the_kind_of_input_does_not_depend_on_the_batch():
    g = torch.Generator().manual_seed(0)
    logits = torch.rand(400, 5, generator=g) * 3 - 1
    whole = Predictions(logits=logits).confidence
    rows = torch.cat([Predictions(logits=row[None]).confidence for row in logits])
    assert torch.allclose(whole, rows, atol=1e-7)


def test_a_confidence_of_one_is_in_the_last_bin_not_in_a_hidden_one():
    p = Predictions(confidence=[0.95, 1.0], correct=[True, False])
    assert metric("top_label_ece", p, bins=10) == pytest.approx(0.475)
    assert metric("top_label_ece", p, bins=10, convention="torchmetrics") == pytest.approx(0.525)


def test_a_confidence_of_zero_is_counted():
    p = Predictions(confidence=[0.0, 0.0, 0.5], correct=[True, True, True])
    assert metric("top_label_ece", p, bins=10) == pytest.approx(2.5 / 3)


def test_b_bins_are_b_bins():
    confidence = (torch.arange(15) + 0.5) / 15
    curve = curves.reliability(Predictions(confidence=confidence, correct=torch.ones(15)), bins=15, scheme="width")
    assert curve["count"].tolist() == [1] * 15


def test_equal_mass_bins_do_not_depend_on_row_order_and_do_not_split_ties():
    g = np.random.default_rng(0)
    confidence = np.round(g.uniform(0.5, 1, 1000), 1)
    correct = g.random(1000) < 0.7
    orders = [np.arange(1000), np.argsort(confidence), g.permutation(1000), np.lexsort([correct, confidence])]
    found = {
        round(metric("top_label_ece", Predictions(confidence=confidence[o], correct=correct[o]), scheme="mass"), 12)
        for o in orders
    }
    assert len(found) == 1


def test_fewer_rows_than_bins_is_no_reason_for_nan():
    p = Predictions(confidence=[0.6, 0.7, 0.9], correct=[True, False, True])
    for name in ("top_label_ece", "ece_debiased", "mce"):
        assert np.isfinite(metric(name, p, bins=15, scheme="mass"))


def test_the_two_binary_errors_have_two_names_and_two_values():
    p = binary()
    top, positive = metric("top_label_ece", p), metric("binary_ece", p)
    assert abs(top - positive) > 0.01
    records = {r.metric: r.value for r in cb.audit(p, resamples=20).records if r.where == "all"}
    assert records["top_label_ece"] == pytest.approx(top)
    assert records["binary_ece"] == pytest.approx(positive)


def test_two_columns_are_not_silently_read_as_the_positive_class():
    p = binary()
    wide = Predictions(probs=p.probs, labels=p.labels)
    assert metric("top_label_ece", wide) == pytest.approx(metric("top_label_ece", p), abs=1e-6)


def test_log_loss_is_finite_when_a_probability_underflows():
    p = Predictions(logits=torch.tensor([[0.0, 200.0]]), labels=[0])
    assert metric("nll", p) == pytest.approx(200)
    assert p.nll.item() == pytest.approx(200)


@pytest.mark.parametrize("seed", range(3))
def test_aurc_of_constant_confidence_is_the_error_rate_in_any_order(seed):
    correct = np.arange(100) >= 30
    np.random.default_rng(seed).shuffle(correct)
    assert metric("aurc", Predictions(confidence=[0.7] * 100, correct=correct)) == pytest.approx(0.3)


def test_a_perfect_ranking_has_no_excess_aurc():
    p = Predictions(confidence=np.linspace(1, 0.5, 20), correct=np.arange(20) < 13)
    assert metric("e_aurc", p, oracle="exact") == pytest.approx(0, abs=1e-12)
    assert metric("e_aurc", p) >= 0


def test_the_figure_shows_the_number_that_was_computed():
    p = binary()
    found = cb.audit(p, resamples=20).findings
    curve = found.curve("generalised_risk_coverage")
    line = figures.generalised_risk_coverage(found).lines[0]
    area = np.trapezoid(line.get_ydata(), line.get_xdata())
    assert np.array_equal(line.get_ydata(), curve["risk"])
    assert area == pytest.approx(found.record("augrc").value, abs=1e-4)


def test_an_interval_of_90_percent_is_not_one_of_99_9():
    p = binary(400)
    narrow = cb.evidence.interval("top_label_ece", p, level=0.9)
    wide = cb.evidence.interval("top_label_ece", p, level=0.999)
    assert (wide.high - wide.low) > 1.4 * (narrow.high - narrow.low)


def test_rounded_scores_do_not_switch_the_estimator():
    g = np.random.default_rng(0)
    confidence = g.uniform(0.5, 1, 5000)
    correct = g.random(5000) < confidence - 0.05
    exact = metric("ece_debiased", Predictions(confidence=confidence, correct=correct), norm="l2")
    rounded = metric("ece_debiased", Predictions(confidence=np.round(confidence, 2), correct=correct), norm="l2")
    assert rounded == pytest.approx(exact, abs=0.01)


def test_class_wise_error_of_an_absent_class_is_counted_not_skipped():
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2]], dtype=torch.float64)
    p = Predictions(probs=probs, labels=[0, 1])
    assert metric("classwise_ece", p, bins=1) == pytest.approx((abs(0.9 - 1) + abs(0.7 - 1) + 0.4) / 2 / 3)


def test_labels_are_checked_when_scores_are_floating_point():
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 3\); 1 of 2 equal 7"):
        Predictions(logits=torch.zeros(2, 3), labels=[0, 7])


def test_averaging_over_batches_would_inflate_the_error():
    p = binary()
    parts = [metric("top_label_ece", p.take(torch.arange(i, i + 40))) for i in range(0, 4000, 40)]
    assert np.mean(parts) > metric("top_label_ece", p) + 0.02
