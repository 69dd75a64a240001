"""Curves are records: hand-written small cases, and the areas under them are the metrics."""

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom

from calibrant.metrics import curves
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve
from calibrant.registry import METRICS


def predictions(n=500, seed=0, digits=None):
    g = np.random.default_rng(seed)
    confidence = g.uniform(0.3, 1.0, n)
    if digits is not None:
        confidence = np.round(confidence, digits)
    return Predictions(confidence=confidence, correct=g.random(n) < confidence**2)


def test_a_reliability_diagram_counts_every_row_once_and_leaves_empty_bins_out():
    p = Predictions(confidence=[0.05, 0.95, 0.96, 1.0, 0.0], correct=[0, 1, 0, 1, 0])
    curve = curves.reliability(p, bins=10, scheme="width")
    assert curve["count"].tolist() == [2, 3]
    assert curve["low"].tolist() == [0.0, 0.95]
    assert curve["high"].tolist() == [0.05, 1.0]
    assert curve["accuracy"].tolist() == pytest.approx([0, 2 / 3])
    assert curve["confidence"].tolist() == pytest.approx([0.025, 0.97])


def test_the_interval_of_a_bin_is_clopper_and_pearsons():
    p = Predictions(confidence=[0.5] * 10, correct=[True] * 3 + [False] * 7)
    curve = curves.reliability(p, level=0.9)
    assert curve["accuracy_low"][0] == pytest.approx(beta.ppf(0.05, 3, 8))
    assert curve["accuracy_high"][0] == pytest.approx(beta.ppf(0.95, 4, 7))


@pytest.mark.parametrize("right", [True, False])
def test_the_interval_does_not_collapse_in_a_pure_bin(right):
    curve = curves.reliability(Predictions(confidence=[0.5] * 10, correct=[right] * 10))
    assert curve["accuracy_high"][0] - curve["accuracy_low"][0] == pytest.approx(1 - 0.05**0.1)


def test_the_band_is_the_binomial_one():
    p = predictions(700)
    curve = curves.reliability(p, level=0.9)
    for q, column in ((0.05, "band_low"), (0.95, "band_high")):
        np.testing.assert_allclose(curve[column], binom.ppf(q, curve["count"], curve["confidence"]) / curve["count"])


def test_the_band_holds_a_calibrated_model_about_as_often_as_it_says():
    inside = total = 0
    for seed in range(40):
        g = np.random.default_rng(seed)
        c = g.uniform(0.3, 1.0, 1500)
        curve = curves.reliability(Predictions(confidence=c, correct=g.random(1500) < c))
        inside += ((curve["band_low"] <= curve["accuracy"]) & (curve["accuracy"] <= curve["band_high"])).sum()
        total += len(curve)
    assert 0.88 <= inside / total <= 0.97


def test_the_isotonic_curve_rises_and_keeps_the_mean():
    p = predictions()
    curve = curves.reliability_isotonic(p)
    assert (np.diff(curve["accuracy"]) >= 0).all()
    fitted = np.interp(p.confidence.numpy(), curve["confidence"], curve["accuracy"])
    assert fitted.mean() == pytest.approx(p.correct.double().mean().item(), abs=1e-9)


@pytest.mark.parametrize("digits", [None, 1])
def test_areas_under_the_curves_are_the_metrics(digits):
    p = predictions(digits=digits)
    generalised = curves.generalised_risk_coverage(p, points=10_000)
    roc = curves.roc(p, points=10_000)
    pair = (p.confidence, p.correct)
    assert np.trapezoid(generalised["risk"], generalised["coverage"]) == pytest.approx(METRICS["augrc"](*pair))
    assert np.trapezoid(roc["tpr"], roc["fpr"]) == pytest.approx(METRICS["failure_auroc"](*pair))


def test_the_last_point_of_risk_coverage_is_the_error_of_all_rows():
    p = predictions()
    curve = curves.risk_coverage(p, points=50)
    assert len(curve) <= 51
    assert curve["coverage"][-1] == 1
    assert curve["risk"][-1] == pytest.approx(1 - p.correct.double().mean().item())
    assert (np.diff(curve["threshold"]) < 0).all()


def test_the_oracle_is_never_above_the_curve():
    p = predictions()
    curve, best = curves.risk_coverage(p), curves.oracle_risk_coverage(p)
    assert (np.interp(curve["coverage"], best["coverage"], best["risk"]) <= curve["risk"] + 0.01).all()


def test_a_histogram_counts_right_and_wrong():
    p = predictions()
    curve = curves.confidence_histogram(p)
    assert curve["right"].sum() == int(p.correct.sum())
    assert curve["wrong"].sum() == int((~p.correct).sum())


def test_weights_count_as_repetitions_in_every_curve():
    p = predictions(60, digits=2)
    times = torch.arange(60) % 3
    weighted = Predictions(confidence=p.confidence, correct=p.correct, weights=times.double())
    repeated = Predictions(confidence=p.confidence.repeat_interleave(times), correct=p.correct.repeat_interleave(times))
    for make in (
        curves.reliability_isotonic,
        curves.confidence_histogram,
        curves.risk_coverage,
        curves.oracle_risk_coverage,
        curves.generalised_risk_coverage,
        curves.roc,
    ):
        one, two = make(weighted), make(repeated)
        for column in one.columns:
            np.testing.assert_allclose(one[column], two[column], atol=1e-12, err_msg=f"{make.__name__} {column}")


@pytest.mark.parametrize("correct", [[True], [False], [True] * 4, [False] * 4])
def test_one_row_all_right_and_all_wrong_give_curves(correct):
    p = Predictions(confidence=[0.7] * len(correct), correct=correct)
    for make in (curves.reliability, curves.reliability_isotonic, curves.risk_coverage, curves.confidence_histogram):
        assert all(np.isfinite(column).all() for column in make(p).columns.values())
    assert len(curves.roc(p)) == 0


def test_columns_of_a_curve_are_equally_long():
    with pytest.raises(ValueError, match="must be equally long"):
        Curve("x", {"a": np.zeros(2), "b": np.zeros(3)}, 2)
