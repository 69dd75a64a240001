"""Certified abstention: the search against a slow oracle, ties, the JSON that a server applies, and every refusal."""

import json
import math
import re
import textwrap
from contextlib import nullcontext

import numpy as np
import pytest
import torch

import calibrant
from calibrant.metrics.binomial import fewest_rows, interval, rows_needed, upper_bound
from calibrant.predictions.predictions import Predictions
from calibrant.selection.capacity import review
from calibrant.selection.certification import certify, certify_sgr
from calibrant.selection.evaluation import evaluate
from calibrant.selection.policy import Part, Policy
from calibrant.selection.thresholds import LOWEST


def draw(n, seed=0, digits=16, top=1.0):
    g = np.random.default_rng(seed)
    confidence = np.round(g.random(n) ** 0.25, digits)
    return confidence, g.random(n) < top * confidence**2


def cdf(errors, rows, rate):
    return sum(math.comb(rows, i) * rate**i * (1 - rate) ** (rows - i) for i in range(errors + 1))


def slow_cuts(confidence, correct):
    for value in sorted(set(confidence), reverse=True):
        above = [bool(right) for sure, right in zip(confidence, correct, strict=True) if sure >= value]
        yield value, len(above), above.count(False)


def slow_walk(confidence, correct, max_error, delta, start):
    """Return the least score accepted, and nothing if none is, by plain loops."""
    chosen = None
    for value, rows, errors in slow_cuts(confidence, correct):
        if (1 - max_error) ** rows > delta or rows < start * len(confidence):
            continue
        if cdf(errors, rows, max_error) > delta:
            break
        chosen = value
    return chosen


def slow_halving(confidence, correct, max_error, delta):
    level, n = delta, 1
    while n < len(confidence) + 1:
        n *= 2
    level = delta / math.log2(n)
    cuts = [cut for cut in slow_cuts(confidence, correct) if (1 - max_error) ** cut[1] <= level]
    chosen = None
    while cuts:
        middle = (len(cuts) - 1) // 2
        value, rows, errors = cuts[middle]
        if cdf(errors, rows, max_error) <= level:
            chosen, cuts = value, cuts[middle + 1 :]
        else:
            cuts = cuts[:middle]
    return chosen


@pytest.mark.parametrize("digits", [1, 2, 16])
@pytest.mark.parametrize("start", [0.0, 0.25, 0.7])
def test_the_walk_agrees_with_plain_loops(digits, start):
    for seed in range(12):
        confidence, correct = draw(120, seed, digits)
        for max_error in (0.05, 0.15, 0.3):
            policy = certify(confidence, correct, max_error=max_error, delta=0.1, start=start)
            least = slow_walk(confidence.tolist(), correct, max_error, 0.1, start)
            expected = confidence >= (math.inf if least is None else least)
            assert (policy(confidence) == expected).all()
            assert (policy.threshold is None) == (least is None)
            assert policy.accepted == expected.sum()
            assert policy.errors == (expected & ~correct).sum()


@pytest.mark.parametrize("digits", [1, 2, 16])
def test_the_search_by_halving_agrees_with_plain_loops(digits):
    for seed in range(12):
        confidence, correct = draw(127 + seed, seed, digits)
        for max_error in (0.1, 0.2, 0.4):
            policy = certify_sgr(confidence, correct, max_error=max_error, delta=0.1)
            least = slow_halving(confidence.tolist(), correct, max_error, 0.1)
            assert (policy(confidence) == (confidence >= (math.inf if least is None else least))).all()


def test_published_and_hand_made_values_of_the_bound():
    assert upper_bound(5, 100, 0.001) == pytest.approx(0.15536730581, abs=1e-11)  # Geifman & El-Yaniv's inversion
    assert upper_bound(0, 75, 0.05) == pytest.approx(1 - 0.05 ** (1 / 75), abs=1e-12)
    assert upper_bound(4, 4, 0.05) == upper_bound(0, 0, 0.05) == 1.0
    assert fewest_rows(0.02, 0.05) == 149
    assert fewest_rows(0.05, 0.05) == 59
    assert fewest_rows(0.5, 0.5) == 1
    low, high = interval(0, 10, 0.9)
    assert (low, high) == (0.0, pytest.approx(1 - 0.05**0.1))


def test_the_bound_is_where_the_binomial_tail_equals_delta():
    for errors, rows in ((0, 30), (3, 50), (20, 60)):
        assert cdf(errors, rows, upper_bound(errors, rows, 0.03)) == pytest.approx(0.03, abs=1e-10)


def test_rows_needed_are_enough_and_hardly_fewer_would_be():
    needed = rows_needed(0.01, 0.02, 0.05)
    exact = next(m for m in range(1, 5000) if (1 - 0.02) ** m <= 0.05 and _real_cdf(0.01 * m, m, 0.02) <= 0.05)
    assert exact <= needed <= 1.01 * exact + 1
    assert rows_needed(0.02, 0.02, 0.05) == rows_needed(0.3, 0.02, 0.05) == math.inf


def _real_cdf(errors, rows, rate):
    from scipy.stats import beta  # errors need not be whole

    return beta.sf(rate, errors + 1, rows - errors)


@pytest.mark.parametrize("method", [certify, certify_sgr])
def test_tied_rows_are_on_the_same_side(method):
    confidence, correct = draw(400, 3, digits=1)
    mask = method(confidence, correct, max_error=0.3)(confidence)
    assert mask.any()
    for value in set(confidence.tolist()):
        assert len(set(mask[confidence == value].tolist())) == 1


@pytest.mark.parametrize("n", [80, 400, 1500])
def test_a_larger_limit_or_delta_never_accepts_fewer_rows(n):
    for seed in range(8):
        confidence, correct = draw(n, seed)
        limits = [certify(confidence, correct, max_error=e).coverage for e in np.linspace(0.01, 0.6, 60)]
        assert limits == sorted(limits)
        assert limits[-1] > 0
        levels = [certify(confidence, correct, max_error=0.3, delta=d).coverage for d in np.linspace(0.001, 0.5, 40)]
        assert levels == sorted(levels)


def test_the_order_of_rows_and_an_increasing_map_of_the_scores_change_nothing():
    confidence, correct = draw(500, 1, digits=2)
    policy = certify(confidence, correct, max_error=0.2)
    order = np.random.default_rng(0).permutation(500)
    again = certify(confidence[order], correct[order], max_error=0.2)
    assert (again.threshold, again.parts, again.fingerprint) == (policy.threshold, policy.parts, policy.fingerprint)
    mapped = certify(np.exp(5 * confidence) - 100, correct, max_error=0.2)
    assert (mapped(np.exp(5 * confidence) - 100) == policy(confidence)).all()


def test_predictions_are_read_as_their_confidence_and_correctness():
    p = Predictions(
        logits=torch.randn(300, 4, generator=torch.Generator().manual_seed(0)) * 6, labels=[0, 1, 2, 3] * 75
    )
    one, two = certify(p, max_error=0.9), calibrant.certify(p.confidence, p.correct, max_error=0.9)
    assert one == two
    assert torch.equal(one(p), two(p.confidence))


def test_the_mask_is_of_the_kind_that_came_and_half_precision_is_compared_exactly():
    confidence, correct = draw(300, 2)
    single = torch.tensor(confidence, dtype=torch.float32)
    policy = certify(single, correct, max_error=0.3)
    assert policy.threshold in single.double().tolist()
    assert isinstance(policy(single), torch.Tensor)
    assert isinstance(policy(single.numpy()), np.ndarray)
    assert policy(single).dtype == torch.bool
    assert int(policy(single).sum()) == policy.accepted
    assert policy(np.array([np.nan, 1.0], dtype=np.float16)).tolist() == [False, True]


def test_all_rows_right_are_all_accepted_and_all_wrong_are_none():
    confidence, _ = draw(200)
    right = certify(confidence, np.ones(200, bool), max_error=0.05)
    assert (right.threshold, right.coverage) == (LOWEST, 1.0)
    assert str(right).startswith("Accept every row: the error of the accepted rows is at most 5 % with 95 % confidence")
    wrong = certify(confidence, np.zeros(200, bool), max_error=0.05)
    assert (wrong.threshold, wrong.coverage, wrong.feasible) == (None, 0.0, False)
    assert "No number of rows would do" in wrong.reason
    assert not wrong(confidence).any()


@pytest.mark.parametrize("method", [certify, certify_sgr])
def test_a_constant_confidence_leaves_all_or_none(method):
    same = np.full(300, 0.8)
    assert method(same, np.arange(300) > 0, max_error=0.1).coverage == 1.0
    policy = method(same, np.arange(300) > 100, max_error=0.1)
    assert policy.threshold is None
    assert "the confidence takes one value" in policy.reason


def test_too_few_rows_say_what_they_prove_and_how_many_are_needed():
    policy = certify(np.linspace(0.5, 1, 75), np.ones(75, bool), max_error=0.02)
    assert policy.reason == (
        "No threshold reaches an error of 2 % at 95 % confidence: even without an error 75 rows prove 3.92 % at best; "
        "at least 149 accepted rows without an error are needed."
    )


def test_a_promising_start_says_how_many_rows_would_do_and_a_hopeless_one_that_none_would():
    confidence = np.linspace(0, 1, 1000)
    correct = np.ones(1000, bool)
    correct[-8:] = False
    near = certify(confidence, correct, max_error=0.1)
    found = re.search(r"About (\d+) such rows would be needed, ([\d ]+) rows in all", near.reason)
    assert found, near.reason
    assert cdf(math.floor(0.064 * int(found[1])), int(found[1]), 0.1) <= 0.06
    assert int(found[2].replace(" ", "")) == pytest.approx(8 * int(found[1]), rel=0.02)
    correct[-200:] = False
    assert "No number of rows would do" in certify(confidence, correct, max_error=0.1).reason


def test_a_smaller_share_that_would_have_passed_is_named_but_not_taken():
    confidence = np.linspace(0, 1, 4000)
    correct = confidence > 0.95
    policy = certify(confidence, correct, max_error=0.1)
    assert policy.threshold is None
    assert "would pass by themselves" in policy.reason
    assert certify(confidence, correct, max_error=0.1, start=0.0).feasible


def test_each_class_is_certified_by_itself_with_its_share_of_delta():
    confidence, correct = draw(900, 5)
    predicted = np.random.default_rng(1).integers(0, 3, 900) * 2  # classes 0, 2, 4
    correct[predicted == 4] = False
    policy = certify(confidence, correct, max_error=0.3, predicted=predicted)
    assert set(policy.parts) == {"0", "2", "4"}
    for c in (0, 2):
        alone = certify(confidence[predicted == c], correct[predicted == c], max_error=0.3, delta=0.05 / 3)
        assert policy.parts[str(c)] == alone.parts["all"]
        assert (policy(confidence, predicted)[predicted == c] == alone(confidence[predicted == c])).all()
    assert policy.parts["4"].threshold is None
    assert not policy(confidence, predicted)[predicted == 4].any()
    assert not policy(np.array([1.0]), np.array([7])).any()  # never predicted in calibration
    assert policy.coverage == policy(confidence, predicted).mean()
    with pytest.raises(ValueError, match="one threshold a class"):
        _ = policy.threshold
    with pytest.raises(ValueError, match="predicted must be given"):
        policy(confidence)


def test_json_gives_back_the_same_policy_to_the_last_bit(tmp_path):
    confidence, correct = draw(700, 6)
    for policy in (
        certify(confidence, correct, max_error=0.1 + 1e-17, score="energy"),
        certify(confidence, correct, max_error=0.001),
        certify(confidence, correct, max_error=0.3, predicted=np.arange(700) % 3),
    ):
        again = Policy.from_json(policy.to_json())
        assert again == policy
        policy.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == policy
    told = json.loads(policy.to_json())
    assert {"format", "version", "rule", "max_error", "delta", "n", "accepted", "errors", "coverage"} <= set(told)
    assert {"coverage_interval", "score", "fingerprint", "versions"} <= set(told)


def test_the_function_shown_in_the_docstring_decides_like_the_policy():
    shown = Policy.__doc__.partition(".. code-block:: python\n")[2].partition("    Example:")[0]
    space = {}
    exec(textwrap.dedent(shown), space)
    confidence, correct = draw(600, 7, digits=2)
    classes = np.arange(600) % 3
    for policy in (certify(confidence, correct, max_error=0.2), certify(confidence, correct, max_error=1e-4)):
        served = [space["accepts"](policy.to_json(), c) for c in confidence.astype(np.float32)]
        assert served == policy(confidence.astype(np.float32)).tolist()
    by_class = certify(confidence, correct, max_error=0.3, predicted=classes)
    text = by_class.to_json()
    pairs = zip(confidence, classes, strict=True)
    assert [space["accepts"](text, c, y) for c, y in pairs] == by_class(confidence, classes).tolist()
    assert not space["accepts"](text, 1.0, 99)
    assert len([line for line in textwrap.dedent(shown).splitlines() if line.strip()]) <= 10
    with pytest.raises(ValueError, match="version 1"):
        space["accepts"](text.replace('"version": 1', '"version": 2'), 0.9, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "must be JSON"),
        ("[]", "this is something else"),
        ('{"format": "calibrant.policy", "version": 9}', "must be of version 1; got 9"),
        ('{"format": "calibrant.policy", "version": 1}', "damaged"),
        ("[" * 100_000, "must be JSON; it is nested too deeply"),
        ('{"n":' * 100_000, "must be JSON; it is nested too deeply"),
        ("1" * 10_000, "must be JSON"),
    ],
)
def test_a_text_that_is_no_policy_is_refused_in_one_sentence(text, said):
    with pytest.raises(ValueError, match=said) as raised:
        Policy.from_json(text)
    assert "\n" not in str(raised.value)


WRONG = [None, "x", "0.5", [], {}, True, -1, 0, 1.5, math.nan, math.inf, 10**400, 2**70, {"a": 1}]
FREE = {"rule", "coverage", "coverage_interval"}  # written for readers, not read back
WORDS = {"score", "method", "reason", "versions"}  # any text will do


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:20])
def test_a_policy_with_a_wrong_entry_is_refused_or_means_what_it_says(wrong):
    confidence = torch.linspace(0, 1, 400, dtype=torch.float64)
    whole = certify(confidence, confidence > 0.5, max_error=0.1).to_json()
    for place in ("policy", "part"):
        for name in json.loads(whole) if place == "policy" else json.loads(whole)["parts"]["all"]:
            told = json.loads(whole)
            (told if place == "policy" else told["parts"]["all"])[name] = wrong
            allowed = name in FREE or (name in WORDS and isinstance(wrong, str))
            allowed |= name in ("max_error", "delta") and wrong in (0, 1) and type(wrong) is not bool
            allowed |= name == "threshold" and (wrong is None or (type(wrong) in (int, float) and abs(wrong) < 1e300))
            allowed |= name == "bound" and (wrong is None or wrong == 0)
            with nullcontext() if allowed else pytest.raises(ValueError, match=r"^a policy must [^\n]*$"):
                read = Policy.from_json(json.dumps(told))
                assert read.threshold is None or math.isfinite(read.threshold)
                assert 0 <= read.errors <= read.accepted <= read.n
                assert isinstance(str(read), str)


GOOD = {"confidence": np.linspace(0, 1, 50), "correct": np.ones(50, bool), "max_error": 0.1}


@pytest.mark.parametrize("method", [certify, certify_sgr])
@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"max_error": 0.0}, ValueError, r"max_error must lie in \(0, 1\); got 0"),
        ({"max_error": 2.0}, ValueError, r"got 2. Did you mean 0.02\?"),
        ({"max_error": math.nan}, ValueError, "got nan"),
        ({"delta": 1.0}, ValueError, r"delta must lie in \(0, 1\)"),
        ({"confidence": np.full(50, np.nan)}, ValueError, "confidence must be finite; 50 of 50 rows"),
        ({"confidence": np.zeros((50, 2))}, ValueError, r"confidence must have shape \(n,\)"),
        ({"confidence": np.arange(50)}, TypeError, "confidence must be floating point"),
        ({"confidence": np.zeros(0), "correct": np.ones(0, bool)}, ValueError, "n >= 1"),
        ({"correct": np.ones(49, bool)}, ValueError, r"correct must have shape \(50,\); got \(49,\)"),
        ({"correct": np.full(50, 3)}, ValueError, "correct must be bool, or 0 and 1"),
        ({"predicted": np.zeros(3, int)}, ValueError, r"predicted must have shape \(50,\)"),
        ({"predicted": np.zeros(50)}, TypeError, "predicted must be indices"),
    ],
)
def test_bad_input_gets_one_precise_sentence(method, changed, error, said):
    with pytest.raises(error, match=said):
        method(**(GOOD | changed))


def test_predictions_with_weights_or_a_second_correctness_are_refused():
    p = Predictions(confidence=[0.5, 0.7], correct=[True, False], weights=[2.0, 1.0])
    with pytest.raises(ValueError, match="weights must be left out"):
        certify(p, max_error=0.1)
    with pytest.raises(ValueError, match="correct must be left out"):
        certify(p, [True, False], max_error=0.1)
    with pytest.raises(ValueError, match=r"start must lie in \[0, 1\]"):
        certify(**GOOD, start=1.5)


def test_a_review_capacity_accepts_the_surest_and_bounds_their_error():
    confidence, correct = draw(1000, 8)
    policy = review(confidence, correct, capacity=0.3)
    assert policy.accepted == 700
    surest = np.argsort(-confidence)[:700]
    errors = int((~correct[surest]).sum())
    assert policy.errors == errors
    assert policy.max_error == upper_bound(errors, 700, 0.05)
    assert policy(confidence)[surest].all()
    assert review(confidence, correct, capacity=0.0).coverage == 1.0
    tied = review(np.array([0.9] * 6 + [0.5] * 4), np.ones(10, bool), capacity=0.3)
    assert tied.accepted == 6
    assert "Ties send 1 more row to review" in tied.reason
    none = review(np.full(10, 0.9), np.ones(10, bool), capacity=0.3)
    assert (none.threshold, none.coverage, none.max_error) == (None, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"capacity must lie in \[0, 1\)"):
        review(confidence, correct, capacity=1.0)


def test_an_evaluation_refuses_rows_most_of_which_are_of_the_certificate():
    confidence, correct = draw(2_000, 9)
    new, right = draw(2_000, 10)
    policy = Policy.from_json(certify(confidence, correct, max_error=0.3).to_json())
    for part in (slice(1, None), slice(None, None, 3), slice(1_700, 2_000)):
        with pytest.raises(
            ValueError, match=r"about 100 % of these .* rows are among those the policy was certified on"
        ):
            evaluate(policy, confidence[part].astype(np.float32), correct[part])
    with pytest.raises(ValueError, match=r"about (6|7)\d.* % of these 3 000 rows"):
        evaluate(policy, np.append(confidence, new[:1_000]), np.append(correct, right[:1_000]))
    few = np.append(confidence[:200], new), np.append(correct[:200], right)
    assert len(evaluate(policy, *few).records) == len(evaluate(policy, new, right).records) == 2


@pytest.mark.parametrize("n", [50, 2_000, 20_000])
def test_new_rows_are_not_taken_for_those_of_the_certificate_by_chance(n):
    """Scores of single precision near 1, a thousand different ones or rounded ones: most of them meet again."""
    rng = np.random.default_rng(n)
    sources = (
        lambda m: (1 / (1 + np.exp(-(9 + 3 * rng.standard_normal(m))))).astype(np.float32),
        lambda m: rng.integers(0, 1_000, m) / 1_000,
        lambda m: np.round(rng.random(m), 2),
        lambda m: np.full(m, 0.7),
    )
    for source in sources:
        policy = certify(source(n), rng.random(n) < 0.9, max_error=0.3)
        for m in (n + 1, 10 * n):
            assert evaluate(policy, source(m), rng.random(m) < 0.9).records[0].n == m


def test_an_evaluation_refuses_the_rows_of_the_certificate_in_any_order():
    confidence, correct = draw(500, 9)
    policy = certify(confidence, correct, max_error=0.3)
    order = np.random.default_rng(1).permutation(500)
    with pytest.raises(ValueError, match="these 500 rows are the rows the policy was certified on"):
        evaluate(Policy.from_json(policy.to_json()), confidence[order], correct[order])


def test_an_evaluation_measures_coverage_and_error_and_judges_the_promise():
    part = Part(0.5, 100, 50, 0, 0.1, "")
    policy = Policy(0.1, 0.05, {"all": part}, "fixed_sequence")
    confidence = np.linspace(0, 1, 200)
    for wrong, held, word in ((5, True, "held"), (13, None, "in doubt"), (40, False, "broken")):
        correct = np.ones(200, bool)
        correct[100 : 100 + wrong] = False
        found = evaluate(policy, confidence, correct)
        coverage, error = found.records
        assert (coverage.metric, coverage.value, coverage.n) == ("coverage", 0.5, 200)
        assert (error.metric, error.value, error.n) == ("selective_error", wrong / 100, 100)
        assert (error.low, error.high) == interval(wrong, 100, 0.95)
        assert found.held is held
        assert f"The promise is {word}" in str(found)
    nothing = evaluate(policy, confidence / 3, np.ones(200, bool))
    assert (nothing.held, nothing.records[0].value) == (None, 0.0)
    assert "accepts none" in nothing.verdict


def test_the_public_functions_are_those_of_their_modules_even_where_these_were_imported_first():
    import calibrant.selection.capacity
    import calibrant.selection.prediction_sets
    from calibrant.selection import certify, certify_sgr, cheapest, conformal, decide, evaluate, review

    named = (certify, certify_sgr, cheapest, conformal, decide, evaluate, review)
    assert [function.__name__ for function in named] == [
        "certify",
        "certify_sgr",
        "cheapest",
        "conformal",
        "decide",
        "evaluate",
        "review",
    ]
    assert dir(calibrant.selection) == sorted(["Policy", *(function.__name__ for function in named)])


@pytest.mark.parametrize("rate", [1e-9, 1e-12, 1e-15])
def test_the_rows_that_a_tiny_rate_takes_are_found_at_once(rate):
    assert fewest_rows(rate, 0.05) == pytest.approx(-math.log(0.05) / rate, rel=1e-6)
    policy = certify(torch.linspace(0, 1, 50), torch.ones(50, dtype=torch.bool), max_error=rate, delta=0.05)
    assert policy.threshold is None
