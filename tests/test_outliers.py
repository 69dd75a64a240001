"""Rows out of distribution: every formula against a slow oracle, any score, and one sentence for what cannot be."""

import numpy as np
import pytest
import torch

from calibrant.evaluation.ood import DEFAULT, MEASURES, outlier_records
from calibrant.predictions.predictions import Predictions
from calibrant.registry import SCORES
from calibrant.report.trust_table import outliers


def scores(n, shift, seed, digits):
    return torch.from_numpy(np.random.default_rng(seed).normal(shift, 1, n).round(digits))


def logits(n, k=4, scale=3.0, seed=0, labels=True):
    g = torch.Generator().manual_seed(seed)
    z = scale * torch.randn(n, k, generator=g)
    return Predictions(logits=z, labels=z.argmax(1) if labels else None)


def precision(positive, negative):
    """Average precision of finding the positive by a high score: a step at each distinct threshold."""
    total, before = 0.0, 0.0
    for t in sorted({*positive, *negative}, reverse=True):
        hits, false = sum(s >= t for s in positive), sum(s >= t for s in negative)
        recall = hits / len(positive)
        total, before = total + (recall - before) * hits / (hits + false), recall
    return total


def slow(inside, outside):
    inside, outside = inside.tolist(), outside.tolist()
    pairs = [(a > b) + (a == b) / 2 for a in inside for b in outside]
    kept = [t for t in inside if sum(s >= t for s in inside) >= 0.95 * len(inside)]
    return {
        "ood_auroc": sum(pairs) / len(pairs),
        "fpr_at_95_tpr": sum(s >= max(kept) for s in outside) / len(outside),
        "aupr_in": precision(inside, outside),
        "aupr_out": precision([-s for s in outside], [-s for s in inside]),
    }


@pytest.mark.parametrize("digits", [6, 0], ids=["distinct", "ties"])
@pytest.mark.parametrize(("n", "m"), [(40, 30), (7, 60), (1, 1)])
def test_every_measure_is_that_of_the_slow_oracle(n, m, digits):
    inside, outside = scores(n, 1.0, 0, digits), scores(m, 0.0, 1, digits)
    found = outlier_records(inside, {"far": outside}, resamples=20)
    assert {r.metric: r.value for r in found} == pytest.approx(slow(inside, outside))
    assert [r.metric for r in found] == list(MEASURES)


def test_entropies_of_the_literature_give_three_quarters():
    found = outlier_records(-torch.tensor([0.2, 0.5, 0.3, 0.9]), {"x": -torch.tensor([0.8, 1.0, 0.4])}, resamples=20)
    assert found[0].value == 0.75


def test_each_score_and_each_set_has_its_records():
    inside, sets = (
        logits(80),
        {"near": logits(50, scale=2.0, seed=1), "far": logits(40, scale=0.5, seed=2, labels=False)},
    )
    found = outlier_records(inside, sets, resamples=20, model="net", dataset="cifar", seed=5)
    assert [(r.where, r.method) for r in found[::4]] == [(f"outside: {s}", m) for s in sets for m in DEFAULT]
    for record in found:
        score, name = SCORES[record.method], record.where.removeprefix("outside: ")
        assert record.value == pytest.approx(slow(score(inside), score(sets[name]))[record.metric])
        assert (record.model, record.dataset, record.seed, record.n) == ("net", "cifar", 5, 80 + len(sets[name]))
        assert record.settings == {"inside": 80, "outside": len(sets[name])}


def test_a_function_of_predictions_is_a_score_as_well():
    inside, outside = logits(30), {"far": logits(20, scale=1.0, seed=1)}
    own = outlier_records(inside, outside, scores={"mine": lambda p: p.logits.amax(1)}, resamples=20)
    named = outlier_records(inside, outside, scores="max_logit", resamples=20)
    assert [r.value for r in own] == [r.value for r in named]
    assert {r.method for r in own} == {"mine"}


def test_the_interval_is_about_as_wide_as_theory_says():
    inside, outside = scores(400, 1.0, 0, 6), scores(300, 0.0, 1, 6)
    (auroc, *others) = outlier_records(inside, {"far": outside}, resamples=150)
    above = (inside[:, None] > outside[None, :]).double()
    spread = (above.mean(1).var() / 400 + above.mean(0).var() / 300).sqrt()  # DeLong
    assert (auroc.high - auroc.low) / (2 * 1.645 * spread) == pytest.approx(1, abs=0.2)
    assert auroc.level == 0.9
    assert all(record.low is None for record in others)


def test_scores_far_from_each_other_have_bounds_within_zero_and_one():
    found = outlier_records(torch.arange(9.0) + 100, {"far": torch.arange(5.0)}, resamples=20)
    assert [r.value for r in found] == [1.0, 0.0, 1.0, 1.0]
    assert (found[0].low, found[0].high) == (1.0, 1.0)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 30), (30, 1)])
def test_one_row_of_a_kind_has_no_interval(n, m):
    auroc = outlier_records(scores(n, 9.0, 0, 6), {"far": scores(m, 0.0, 1, 6)}, resamples=20)[0]
    assert (auroc.value, auroc.low, auroc.high, auroc.level) == (1.0, None, None, None)


def test_a_constant_score_tells_nothing():
    found = outlier_records(torch.ones(6), {"far": torch.ones(2)}, resamples=20)
    assert {r.metric: r.value for r in found} == pytest.approx(
        {"ood_auroc": 0.5, "fpr_at_95_tpr": 1.0, "aupr_in": 0.75, "aupr_out": 0.25}
    )


def test_the_table_names_sets_and_scores_in_percent():
    found = outlier_records(logits(60), {"far": logits(40, scale=0.5, seed=1)}, resamples=20, level=0.95)
    lines = outliers(found).splitlines()
    assert lines[0].split() == ["AUROC", "FPR-95", "AUPR-In", "AUPR-Out"]
    assert [line.split()[0] for line in lines[1:6]] == ["far", *DEFAULT]
    first = found[0]
    bounds = [f"[{100 * first.low:.2f},", f"{100 * first.high:.2f}]"]
    assert lines[2].split() == [
        "msp",
        f"{100 * first.value:.2f}",
        *bounds,
        *(f"{100 * r.value:.2f}" for r in found[1:4]),
    ]
    assert "[95 % interval]" in lines[-1]
    with pytest.raises(ValueError, match="records must hold at least one record"):
        outliers([])


IN = logits(10)
BAD = {
    "inside only": ((IN, {}), {}, "outside must map at least one name to rows out of distribution; got none"),
    "other classes": ((IN, {"x": logits(5, k=3)}), {}, r"outside\['x'\] must have the 4 classes of inside; got 3"),
    "no rows": (
        (torch.ones(3), {"x": torch.ones(0)}),
        {},
        r"outside\['x'\] must have shape \(n,\), at least one row; got",
    ),
    "a table": ((torch.ones(3), {"x": torch.ones(2, 2)}), {}, r"outside\['x'\] must have shape"),
    "an oracle": ((IN, {"x": IN}), {"scores": ["tcp"]}, "scores must be known without the label; tcp is not"),
    "no score": ((IN, {"x": IN}), {"scores": []}, "scores must name at least one score"),
    "too many values": (
        (IN, {"x": IN}),
        {"scores": {"f": lambda p: torch.ones(3)}},
        r"f of inside must have shape \(10,\)",
    ),
    "not finite": (
        (torch.tensor([1.0, float("nan")]), {"x": torch.ones(2)}),
        {},
        "inside must be finite; 1 of 2 rows is not",
    ),
    "weights": (
        (Predictions(logits=IN.logits, labels=IN.labels, weights=torch.ones(10)), {"x": IN}),
        {},
        "inside must have no weights",
    ),
    "level": ((IN, {"x": IN}), {"level": 1.5}, "level must lie"),
    "few draws": ((IN, {"x": IN}), {"resamples": 5}, "resamples must be at least 20; got 5"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_gets_one_sentence(name):
    arguments, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        outlier_records(*arguments, **options)


def test_a_score_that_does_not_exist_and_mixed_kinds_are_named():
    with pytest.raises(KeyError, match=r"has no 'msq'\. Did you mean 'msp'"):
        outlier_records(IN, {"x": IN}, scores=["msq"])
    with pytest.raises(TypeError, match=r"outside\['x'\] must be of the kind of inside"):
        outlier_records(IN, {"x": torch.ones(3)})
