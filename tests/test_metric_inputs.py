"""What a metric is given is checked: the same refusals for every metric, arrays of every kind, and a switch."""

import inspect
import math

import numpy as np
import pytest
import torch

from calibrant.metrics.inputs import ANY_SCORE, unchecked
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS

N, K = 24, 4


def arrays(name):
    """Valid views of a metric, as float32 tensors."""
    g = torch.Generator().manual_seed(0)
    k = 2 if name == "binary_ece" else K
    logits = torch.randn(N, k, generator=g)
    labels = torch.randint(0, k, (N,), generator=g)
    p = Predictions(logits=logits, labels=labels)
    known = {"logits": logits, "probs": logits.softmax(1), "labels": labels, "correct": p.correct}
    known |= {"confidence": p.confidence.float(), "ood_confidence": p.confidence[:7].float() / 2}
    return {view: known[view] for view in METRICS.entry(name).views}


def with_views(*wanted):
    return [name for name in METRICS if set(wanted) <= set(METRICS.entry(name).views)]


def value(name, given):
    return METRICS[name](*given.values())


@pytest.mark.parametrize("name", METRICS)
def test_arrays_of_every_kind_give_the_same_value(name):
    given = arrays(name)
    expected = value(name, given)
    other = {view: values.numpy() for view, values in given.items()}
    assert value(name, other) == pytest.approx(expected, nan_ok=True)
    assert METRICS[name](**other) == pytest.approx(expected, nan_ok=True)
    listed = {view: values.tolist() for view, values in given.items()}
    assert value(name, listed) == pytest.approx(expected, nan_ok=True, rel=1e-6)
    with unchecked():
        assert value(name, given) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("name", with_views("correct"))
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.float32], ids=str)
def test_correctness_may_be_zeros_and_ones(name, dtype):
    given = arrays(name)
    assert value(name, given | {"correct": given["correct"].to(dtype)}) == pytest.approx(
        value(name, given), nan_ok=True
    )


@pytest.mark.parametrize("name", [n for n in METRICS if {"logits", "probs"} & set(METRICS.entry(n).views)])
def test_one_column_is_the_score_of_class_one(name):
    given = arrays("binary_ece") | {"logits": torch.linspace(-2, 3, N)[:, None]}
    given["probs"] = given["logits"].sigmoid()
    two = {"logits": torch.cat([torch.zeros(N, 1), given["logits"]], 1)}
    two["probs"] = torch.cat([1 - given["probs"], given["probs"]], 1)
    views = METRICS.entry(name).views
    expected = METRICS[name](*((given | two)[view] for view in views))
    for shape in ((N, 1), (N,)):
        one = {key: given[key].reshape(shape) for key in ("logits", "probs")}
        assert METRICS[name](*((given | one)[view] for view in views)) == pytest.approx(expected, rel=1e-6)


def spoiled(values, row, with_):
    out = values.clone()
    out[row] = with_
    return out


@pytest.mark.parametrize("name", with_views("labels"))
@pytest.mark.parametrize("label", [-100, -1, 99])
def test_a_label_that_is_no_class_is_refused(name, label):
    given = arrays(name)
    k = 2 if name == "binary_ece" else K
    low, high = min(label, 0), max(label, k - 1)
    message = rf"^labels must lie in \[0, {k}\); got \[{low}, {high}\]: 1 of {N} are no class\. Leave those rows out"
    with pytest.raises(ValueError, match=message):
        value(name, given | {"labels": spoiled(given["labels"], 3, label)})


def test_leaving_rows_out_by_ignore_index_works_as_the_sentence_says():
    given = arrays("nll")
    labels = spoiled(given["labels"], 3, -100)
    left = Predictions(logits=given["logits"], labels=labels, ignore_index=-100)
    kept = torch.arange(N) != 3
    assert METRICS["nll"](left.logits, left.labels) == METRICS["nll"](given["logits"][kept], labels[kept])


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("wild", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_finite_is_refused(name, wild):
    given = arrays(name)
    for view in given:
        if given[view].is_floating_point():
            row = 5 if given[view].ndim == 1 else (5, 1)
            with pytest.raises(ValueError, match=rf"^{view} must be finite; 1 of \d+ rows is not \(first: row 5\)"):
                value(name, given | {view: spoiled(given[view], row, wild)})


@pytest.mark.parametrize("name", with_views("confidence"))
@pytest.mark.parametrize("size", [-0.5, 1.5])
def test_a_confidence_outside_the_unit_interval_is_refused_unless_it_only_ranks(name, size):
    given = arrays(name)
    odd = given | {"confidence": spoiled(given["confidence"], 0, size)}
    if METRICS.entry(name).facts["family"] in ANY_SCORE:
        assert isinstance(value(name, odd), float)
    else:
        with pytest.raises(ValueError, match=r"^confidence must lie in \[0, 1\]; got \["):
            value(name, odd)


def test_dust_beyond_the_unit_interval_is_rounding():
    c, a = torch.tensor([1 + 5e-7, 0.5]), torch.tensor([True, False])
    assert METRICS["top_label_ece"](c, a) == METRICS["top_label_ece"](torch.tensor([1.0, 0.5]), a)


@pytest.mark.parametrize("name", with_views("probs"))
def test_rows_that_are_no_distribution_are_refused(name):
    given = arrays(name)
    with pytest.raises(ValueError, match=r"^probs must sum to 1 in each row"):
        value(name, given | {"probs": 0.7 * given["probs"]})
    with pytest.raises(ValueError, match=r"^probs must lie in \[0, 1\]; .* Pass logits=\.\.\. instead\?"):
        value(name, given | {"probs": given["probs"].log()})


@pytest.mark.parametrize("name", with_views("logits"))
def test_probabilities_in_place_of_logits_are_refused(name):
    given = arrays(name)
    with pytest.raises(ValueError, match=r"^logits must be raw scores; .* these are probabilities"):
        value(name, given | {"logits": given["logits"].softmax(1)})


@pytest.mark.parametrize("name", [n for n in METRICS if len(METRICS.entry(n).views) > 1 and n != "ood_auroc"])
def test_arrays_of_different_lengths_are_refused(name):
    given = arrays(name)
    last = list(given)[-1]
    with pytest.raises(ValueError, match=rf"^{last} must have shape \({N},\)"):
        value(name, given | {last: given[last][:-1]})


@pytest.mark.parametrize("name", METRICS)
def test_nothing_is_computed_of_no_rows(name):
    given = {view: values[:0] for view, values in arrays(name).items()}
    with pytest.raises(ValueError, match=r"must have (shape \(n,\)|at least one row)"):
        value(name, given)


@pytest.mark.parametrize("name", [n for n in METRICS if "weights" in inspect.signature(METRICS[n]).parameters])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * (N - 1), r"weights must have shape \(24,\)"),
        ([math.nan] + [1.0] * (N - 1), "weights must be finite"),
        ([-1.0] + [2.0] * (N - 1), "weights must not be negative"),
        ([0.0] * N, "weights must not be negative and not all zero"),
        ([1e-3] * N, "weights count as repetitions"),
        ([1e16] * N, "weights must be at most 1e"),
        ([1j] * N, "weights must be numbers"),
    ],
    ids=["short", "nan", "negative", "zero", "tiny", "huge", "complex"],
)
def test_weights_are_checked(name, weights, message):
    with pytest.raises((ValueError, TypeError), match=f"^{message}"):
        METRICS[name](*arrays(name).values(), weights=np.array(weights))


@pytest.mark.parametrize("name", METRICS)
def test_predictions_in_place_of_an_array_are_answered_with_the_right_call(name):
    p = Predictions(confidence=[0.9, 0.8], correct=[True, False])
    views = METRICS.entry(name).views
    with pytest.raises(TypeError, match=rf"got Predictions. Call calibrant\.evidence\.measure\('{name}', predictions"):
        METRICS[name](*[p] * len(views))


@pytest.mark.parametrize("name", METRICS)
def test_an_unknown_option_is_refused_and_the_near_one_named(name):
    with pytest.raises(TypeError, match=f"^{name} has no option 'nonsense'"):
        METRICS[name](*arrays(name).values(), nonsense=1)
    with pytest.raises(TypeError, match=f"^{name} must be given"):
        METRICS[name]()


def test_a_misspelt_option_is_answered_with_the_near_one():
    with pytest.raises(TypeError, match=r"^top_label_ece has no option 'bin'\. Did you mean 'bins'\?$"):
        METRICS["top_label_ece"](torch.tensor([0.5]), torch.tensor([True]), bin=10)


@pytest.mark.parametrize(
    ("name", "option", "wrong"),
    [
        (name, option.name, wrong)
        for name in METRICS
        for option in inspect.signature(METRICS[name]).parameters.values()
        if option.kind is option.KEYWORD_ONLY and option.name not in ("weights", "losses")
        for wrong in ([1], "nonsense", {}, 1j, object(), math.nan)
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_by_its_name(name, option, wrong):
    with pytest.raises((TypeError, ValueError), match=f"^{option} must be "):
        METRICS[name](*arrays(name).values(), **{option: wrong})


def test_a_number_of_bins_that_would_fill_the_memory_is_refused():
    with pytest.raises(ValueError, match=r"^bins must be at most 1000000; got a number of 31 digits\.$"):
        METRICS["top_label_ece"](torch.tensor([0.5]), torch.tensor([True]), bins=10**30)


@pytest.mark.parametrize("scheme", ["mass", "width"])
def test_a_sweep_of_heavy_rows_ends(scheme):
    c, a = torch.tensor([0.2, 0.5, 0.9]), torch.tensor([False, False, True])
    heavy = METRICS["ece_sweep"](c, a, scheme=scheme, weights=torch.full((3,), 1e10))
    assert heavy == pytest.approx((0.2 + 0.5 + 0.1) / 3, abs=1e-5)


def test_unchecked_ends_with_its_block_also_after_an_error():
    bad = torch.tensor([math.nan, 0.5]), torch.tensor([True, False])
    with unchecked():
        METRICS["mean_confidence"](bad[0])
        with pytest.raises(ValueError, match="bins must be at least 1"):
            METRICS["top_label_ece"](*bad, bins=0)
    with pytest.raises(ValueError, match="confidence must be finite"):
        METRICS["mean_confidence"](bad[0])
    with pytest.raises(RuntimeError), unchecked():
        raise RuntimeError
    with pytest.raises(ValueError, match="confidence must be finite"):
        METRICS["mean_confidence"](bad[0])
