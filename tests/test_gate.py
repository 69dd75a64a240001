"""A gate passes, fails, or says how much data it would take."""

import math

import pytest

from calibrant.evaluation.gate import decide, parse
from calibrant.records import Record

RECORDS = (
    Record("ece_excess", 0.010, 1000, low=0.004, high=0.016),
    Record("accuracy", 0.9, 1000, low=0.88, high=0.92),
    Record("ks_pvalue", 0.3, 1000),
    Record("brier", 0.0, 1, low=0.0, high=1e-17),
    Record("aurc", 0.1, 2, low=math.nan, high=math.nan),
    Record("failure_auroc", math.nan, 1000, low=math.nan, high=math.nan),
    Record("accuracy", 0.1, 50, low=0.0, high=0.2, where="group: a"),
)


@pytest.mark.parametrize(
    ("rule", "code", "reason"),
    [
        ("ece_excess<0.02", 0, "pass: ece_excess 0.0100 [0.0040, 0.0160], limit < 0.02."),
        (" ece_excess <= 0.016 ", 0, "pass: ece_excess 0.0100 [0.0040, 0.0160], limit <= 0.016."),
        ("ece_excess<0.003", 1, "fail: ece_excess 0.0100 [0.0040, 0.0160], limit < 0.003."),
        (
            "ece_excess<0.013",
            3,
            "not enough data: ece_excess 0.0100 [0.0040, 0.0160], limit < 0.013; "
            "about 4 000 rows like these 1 000 would settle it.",
        ),
        (
            "ece_excess<1e-2",
            3,
            "not enough data: ece_excess 0.0100 [0.0040, 0.0160], limit < 0.01; "
            "the value lies at the limit, so no number of rows would settle it.",
        ),
        ("accuracy>0.8", 0, "pass: accuracy 0.9000 [0.8800, 0.9200], limit > 0.8."),
        ("accuracy>=0.95", 1, "fail: accuracy 0.9000 [0.8800, 0.9200], limit >= 0.95."),
        ("ks_pvalue>0.05", 0, "pass: ks_pvalue 0.3000, limit > 0.05."),
        ("ks_pvalue>0.5", 1, "fail: ks_pvalue 0.3000, limit > 0.5."),
        ("brier<0.5", 3, "not enough data: brier 0.0000 has no interval on 1 rows."),
        ("aurc<0.5", 3, "not enough data: aurc 0.1000 has no interval on 2 rows."),
        ("failure_auroc>0.5", 3, "not enough data: failure_auroc is undefined on these rows."),
    ],
)
def test_a_rule_is_judged_by_the_whole_interval(rule, code, reason):
    outcome = decide(parse(rule), RECORDS)
    assert (outcome.code, outcome.reason) == (code, reason)


@pytest.mark.parametrize("rule", ["ece", "ece=0.02", "<0.1", "accuracy>", "accuracy>high", ""])
def test_a_rule_that_is_none_is_refused(rule):
    with pytest.raises(ValueError, match=r"gate must look like ece_excess<0\.02; got"):
        parse(rule)


def test_an_unknown_metric_is_answered_with_the_known_ones():
    with pytest.raises(
        ValueError, match="got 'ece', and the audit has ece_excess, accuracy, ks_pvalue, brier, aurc, failure_auroc"
    ):
        decide(parse("ece<0.1"), RECORDS)
