"""The audit: right words for known models, every promised number, stated answers in degenerate cases."""

import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import calibrant as cb
from calibrant.records import Record, scalars, to_json
from calibrant.registry import METRICS
from calibrant.report.sections import SECTIONS, grouped


def model(sharpness, n=3000, k=5, seed=0, **extra):
    g = torch.Generator().manual_seed(seed)
    truth = 1.5 * torch.randn(n, k, generator=g)
    labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    return cb.Predictions(logits=sharpness * truth, labels=labels, **extra)


@pytest.fixture(scope="module")
def over():
    return cb.audit(model(3.0, groups=["east", "west", "west"] * 1000), resamples=60)


def test_a_model_too_sure_of_itself_is_called_over_confident(over):
    assert over.verdict.startswith("Over-confident: when it says ")
    assert "Expect a temperature above 1" in over.findings.advice[0]


def test_a_timid_model_is_called_under_confident():
    found = cb.audit(model(0.4), resamples=60)
    assert found.verdict.startswith("Under-confident: when it says ")
    assert "Expect a temperature below 1" in found.findings.advice[0]


def test_a_calibrated_model_is_left_alone():
    found = cb.audit(model(1.0), resamples=100)
    assert found.verdict.startswith("No miscalibration found in 3 000 rows; calibration error ")
    assert found.findings.advice[0].startswith("Leave the confidence as it is")


def test_errors_that_cancel_in_the_mean_are_found():
    g = np.random.default_rng(0)
    confidence = np.where(np.arange(4000) % 2, 0.9, 0.6)
    correct = g.random(4000) < np.where(confidence > 0.8, 0.8, 0.7)
    found = cb.audit(cb.Predictions(confidence=confidence, correct=correct), resamples=100)
    assert found.verdict.startswith("Right on average, wrong in places: when it says ")


def test_every_section_of_the_audit_has_its_numbers(over):
    metrics = {r.metric for r in over.records if r.where == "all"}
    assert metrics >= {
        "accuracy",
        "nll",
        "brier",
        "corp_miscalibration",
        "corp_discrimination",
        "corp_uncertainty",
        "signed_gap",
        "calibration_slope",
        "calibration_intercept",
        "ece_debiased",
        "sm_ece",
        "top_label_ece",
        "ece_excess",
        "classwise_ece",
        "ks_pvalue",
        "kuiper_pvalue",
        "spiegelhalter_pvalue",
        "aurc",
        "e_aurc",
        "augrc",
        "failure_auroc",
        "risk_at_coverage",
        "coverage_at_risk",
    }


def test_one_list_decides_what_is_measured_and_under_which_heading_it_stands(over):
    lines = [line for section in SECTIONS for line in section.lines]
    assert {line.metric for line in lines} <= set(METRICS)
    measured = [r.metric for r in over.records if r.where == "all"]
    assert measured == [line.metric for line in lines if line.when(3000, 5)]
    assert "other" not in [section.slug for section, _ in grouped(over.findings)]


def test_a_calibration_number_never_stands_alone(over):
    for metric in ("ece_debiased", "sm_ece", "top_label_ece", "classwise_ece"):
        record = over.findings.record(metric)
        assert record.low <= record.value <= record.high
        assert record.floor < record.value
        assert record.p < 0.05


def test_the_brier_split_adds_up(over):
    parts = {r.metric: r.value for r in over.records if r.settings.get("score") == "brier"}
    p = model(3.0)
    whole = ((p.confidence - p.correct.double()) ** 2).mean().item()
    total = parts["corp_miscalibration"] - parts["corp_discrimination"] + parts["corp_uncertainty"]
    assert total == pytest.approx(whole)


def test_the_worst_classes_and_groups_have_their_gap_with_an_interval(over):
    places = {r.where for r in over.records}
    assert {"group: east", "group: west"} <= places
    assert sum(place.startswith("class: ") for place in places) == 5
    for record in over.records:
        if record.where != "all" and record.metric == "signed_gap":
            assert record.low <= record.value <= record.high
            assert 0 <= record.p <= 1


def test_one_bad_group_among_good_ones_comes_first():
    p = model(1.0, n=4000)
    logits = p.logits.clone()
    logits[:400] *= 5
    groups = np.array(["fine"] * 4000, dtype=object)
    groups[:400] = "broken"
    found = cb.audit(cb.Predictions(logits=logits, labels=p.labels, groups=groups), resamples=40)
    broken = found.findings.record("signed_gap", "group: broken")
    assert broken.p < 0.001
    assert broken.low > 0
    assert next(r.where for r in found.records if r.where.startswith("group")) == "group: broken"


def test_a_changed_base_rate_is_named():
    g = torch.Generator().manual_seed(0)
    labels = (torch.rand(2000, generator=g) < 0.03).long()
    logits = torch.randn(2000, generator=g) + 2.5 * labels - 0.5
    found = cb.audit(_named(logits, labels), resamples=40)
    advice = " ".join(found.findings.advice)
    assert "Check the base rate: class fraud is given 4" in advice
    assert "observed 3.4 %" in advice


def _named(logits, labels):
    return cb.Predictions(logits=logits, labels=[("ok", "fraud")[i] for i in labels.tolist()], classes=["ok", "fraud"])


def test_a_confidence_that_ranks_at_chance_is_named():
    g = np.random.default_rng(0)
    found = cb.audit(cb.Predictions(confidence=g.uniform(0.5, 1, 2000), correct=g.random(2000) < 0.75), resamples=40)
    assert any("barely ranks right above wrong" in step for step in found.findings.advice)


@pytest.mark.parametrize(("n", "digits"), [(3000, 8), (3000, 2)], ids=["thinned", "ties"])
def test_the_certified_point_lies_where_the_slider_accepts_the_same_rows(n, digits):
    p = model(2.0, n=n)
    p = cb.Predictions(confidence=p.confidence.numpy().round(digits), correct=p.correct)
    found = cb.audit(p, resamples=20).findings
    certified, risk = found.curve("certified"), found.curve("risk_coverage")
    threshold, limit = float(certified["threshold"][0]), float(certified["max_error"][0])
    policy = cb.certify(p, max_error=limit, delta=0.05 / 8)
    assert policy.threshold == threshold
    at_least = float(risk["threshold"][int(certified["point"][0])])
    assert torch.equal(p.confidence >= at_least, policy(p.confidence))
    assert at_least > threshold
    assert certified["coverage"][0] == pytest.approx(policy.coverage)
    assert certified["risk"][0] == pytest.approx(policy.errors / policy.accepted)
    said = certified.settings["says"]
    assert said.startswith("above confidence 0.")
    assert f"at most {100 * limit:g} % with 95 % confidence (covers {100 * policy.coverage:.0f} % of the rows)" in said


def test_nothing_is_marked_where_nothing_is_certified():
    p = model(2.0, n=300)
    weighted = cb.Predictions(confidence=p.confidence, correct=p.correct, weights=torch.ones(300))
    seen = cb.audit(p, resamples=20, fitted_on=(p.fingerprint,))
    for found in (cb.audit(weighted, resamples=20), seen):
        assert found.findings.curve("certified") is None


DEGENERATE = {
    "one row": {"confidence": [0.7], "correct": [True]},
    "two rows": {"confidence": [0.7, 0.8], "correct": [True, False]},
    "all right": {"confidence": [0.7, 0.8, 0.9] * 20, "correct": [True] * 60},
    "all wrong": {"confidence": [0.7, 0.8, 0.9] * 20, "correct": [False] * 60},
    "constant": {"confidence": [0.7] * 60, "correct": [True, False, True] * 20},
    "certain and right": {"confidence": [1.0] * 60, "correct": [True] * 60},
    "certain and wrong": {"confidence": [1.0] * 60, "correct": [False] * 60},
    "never sure": {"confidence": [0.0] * 60, "correct": [False] * 60},
    "one class present": {"logits": torch.randn(50, 4, generator=torch.Generator().manual_seed(0)), "labels": [2] * 50},
    "weights with zeros": {"confidence": [0.7, 0.8, 0.2], "correct": [True, False, True], "weights": [1.0, 0.0, 0.0]},
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_rows_get_stated_answers(name, tmp_path):
    found = cb.audit(cb.Predictions(**DEGENERATE[name]), resamples=30)
    assert "nan" not in found.verdict
    assert "nan" not in " ".join(found.findings.advice)
    assert " nan" not in str(found)
    found.save(tmp_path / "page.html")
    json.loads(to_json(found.findings))


def test_the_same_seed_gives_the_same_audit_and_the_same_page(tmp_path):
    one, two = (cb.audit(model(2.0, n=400), resamples=30, seed=7) for _ in range(2))
    assert to_json(one.findings) == to_json(two.findings)
    one.save(tmp_path / "one.html")
    two.save(tmp_path / "two.html")
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_an_audit_is_saved_as_page_or_json_and_nothing_else(over, tmp_path):
    over.save(tmp_path / "a.html")
    over.save(str(tmp_path / "a.json"))
    stored = json.loads((tmp_path / "a.json").read_text())
    assert stored["verdict"] == over.verdict
    assert len(stored["records"]) == len(over.records)
    with pytest.raises(ValueError, match=r"a\.pdf must end in \.html or \.json"):
        over.save(tmp_path / "a.pdf")


def test_every_record_says_where_it_comes_from(over):
    for record in over.records:
        assert record.n > 0
        assert record.versions.startswith("calibrant ")
        assert not math.isinf(record.value)


def test_nothing_global_is_touched():
    import matplotlib as mpl

    before = (dict(mpl.rcParams), np.geterr(), torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state())
    str(cb.audit(model(2.0, n=200), resamples=20))
    after = (dict(mpl.rcParams), np.geterr(), torch.get_num_threads(), torch.is_grad_enabled(), torch.get_rng_state())
    assert before[:4] == after[:4]
    assert torch.equal(before[4], after[4])


def test_the_first_print_of_an_audit_leaves_random_numbers_alone():
    code = (
        "import random, numpy, torch, calibrant as cb\n"
        "p = cb.Predictions(confidence=[0.5, 0.9] * 20, correct=[True, False] * 20)\n"
        "random.seed(0); numpy.random.seed(0); torch.manual_seed(0)\n"
        "before = random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()\n"
        "found = cb.audit(p, resamples=20); str(found); found.page()\n"
        "print(before == (random.getstate(), str(numpy.random.get_state()), torch.get_rng_state().tolist()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


def test_scalars_have_a_key_for_every_record():
    g = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(600, 3, generator=g)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
    names, groups = ["a/b", "a_b", "ü (1%)"], ["old", "new", "a:b"] * 200
    found = cb.audit(cb.Predictions(logits=logits, labels=labels.numpy(), classes=names, groups=groups))
    values = found.scalars()
    assert list(values.values()) == [record.value for record in found.records]
    assert {"accuracy", "accuracy/group/new", "corp_uncertainty/score.log", "accuracy/group/a:b"} <= set(values)
    assert values["accuracy"] == pytest.approx(float(found.findings.record("accuracy").value))
    assert not [key for key in values if re.search(r"[^\w .:/-]", key)]


def test_scalars_that_trackers_would_write_alike_are_numbered():
    rows = [Record("ece", value, 5, where=f"class: {name}") for value, name in ((0.1, "a%"), (0.2, "a?"), (0.3, "a="))]
    assert scalars(rows) == {"ece/class/a_": 0.1, "ece/class/a_:2": 0.2, "ece/class/a_:3": 0.3}
    rows = [Record("auroc", 0.9, 5, method="bce"), Record("auroc", 0.8, 5, method="mcp"), Record("auroc", 0.7, 5)]
    assert scalars(rows) == {"bce/auroc": 0.9, "mcp/auroc": 0.8, "auroc": 0.7}
