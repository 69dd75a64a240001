"""Conformal sets: scores and quantiles against plain loops, few rows, classes, and what is refused."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from calibrant.selection.prediction_sets import _draws, aps, conformal, ranks, raps, thr


def draw(n, k=5, seed=0):
    g = np.random.default_rng(seed)
    probs = g.dirichlet(np.full(k, 0.5), n)
    labels = (np.cumsum(probs, 1) < g.random((n, 1))).sum(1).clip(max=k - 1)
    return torch.from_numpy(probs), torch.from_numpy(labels)


def slow_score(p, y, u, kind):
    if kind == "thr":
        return 1 - p[y]
    order = sorted(range(len(p)), key=lambda c: -p[c])
    rank = order.index(y)
    total = sum(p[c] for c in order[:rank]) + u * p[y]
    return total + (0.1 * max(0, rank + 1 - 2) if kind == "raps" else 0.0)


SCORES = {"thr": thr, "aps": aps, "raps": partial(raps, penalty=0.1, free=2)}


@pytest.mark.parametrize("kind", SCORES)
def test_scores_and_sets_agree_with_plain_loops(kind):
    probs, labels = draw(60)
    draws = torch.rand(60, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    slow = [[slow_score(p, y, float(u), kind) for y in range(5)] for p, u in zip(probs.tolist(), draws, strict=True)]
    torch.testing.assert_close(SCORES[kind](probs, draws), torch.tensor(slow, dtype=torch.float64), atol=1e-12, rtol=0)
    sets = conformal(probs, labels, alpha=0.2, score=SCORES[kind], seed=None)
    own = sorted(slow_score(p, y, 1.0, kind) for p, y in zip(probs.tolist(), labels.tolist(), strict=True))
    quantile = own[math.ceil(61 * 0.8) - 1]
    assert float(sets.quantiles[0]) == pytest.approx(quantile, abs=1e-12)
    new, _ = draw(40, seed=2)
    expected = [[slow_score(p, y, 1.0, kind) <= quantile for y in range(5)] for p in new.tolist()]
    assert sets(new, empty=True).tolist() == expected


def test_the_calibration_rows_themselves_are_covered_by_the_rank():
    probs, labels = draw(99)
    sets = conformal(probs, labels, alpha=0.1)
    assert int(sets(probs, empty=True)[torch.arange(99), labels].sum()) == 90
    assert sets.rank == 90


@pytest.mark.parametrize(
    ("n", "alpha", "enough"), [(19, 0.05, True), (18, 0.05, False), (9, 0.1, True), (8, 0.1, False)]
)
def test_too_few_rows_give_full_sets_and_say_so(n, alpha, enough):
    probs, labels = draw(n)
    sets = conformal(probs, labels, alpha=alpha)
    assert bool(sets.quantiles.isfinite().all()) == enough
    assert bool(sets(probs).all()) != enough
    needed = 19 if alpha == 0.05 else 9
    assert sets.notes == (() if enough else (sets.notes[0],))
    assert enough or f"the sets hold every class; at least {needed} rows are needed" in str(sets)
    assert enough or sets.spread == (1.0, 1.0)


def test_each_class_has_the_quantile_of_its_own_rows_and_an_absent_one_is_in_every_set():
    probs, labels = draw(400, k=4)
    kept = labels != 3
    sets = conformal(probs[kept], labels[kept], alpha=0.1, by_class=True)
    for c in range(3):
        own = conformal(probs[labels == c], labels[labels == c], alpha=0.1)
        assert sets.quantiles[c] == own.quantiles[c]
    assert sets.quantiles[3] == math.inf
    assert bool(sets(probs)[:, 3].all())
    assert "class 3 is in every set" in sets.notes[0]


def test_no_set_is_empty_unless_asked_and_a_filled_one_holds_the_top_class():
    probs, labels = draw(2000, seed=3)
    sets = conformal(probs, labels, alpha=0.6)
    left, filled = sets(probs, empty=True), sets(probs)
    bare = ~left.any(1)
    assert bare.any()
    assert bool((filled.sum(1) >= 1).all())
    assert torch.equal(filled[bare].int().argmax(1), probs[bare].argmax(1))
    assert torch.equal(filled[~bare], left[~bare])


def test_randomised_sets_are_smaller_and_repeat_with_their_seed():
    probs, labels = draw(3000, seed=4)
    state = torch.get_rng_state()
    plain, one, two = (conformal(probs, labels, alpha=0.1, score=aps, seed=s) for s in (None, 0, 0))
    new, _ = draw(2000, seed=5)
    assert torch.equal(one(new), two(new))
    assert one(new).sum() < plain(new).sum()
    assert torch.equal(state, torch.get_rng_state())


def test_sets_are_randomised_unless_asked_not_to_be_and_a_row_by_itself_has_its_set():
    probs, labels = draw(500, seed=4)
    sets = conformal(probs, labels, score=aps)
    assert sets.seed == 0
    new, _ = draw(300, seed=5)
    together = sets(new)
    assert torch.equal(together, torch.cat([sets(row[None]) for row in new]))
    assert torch.equal(together.flip(0), sets(new.flip(0)))
    assert not torch.equal(together, conformal(probs, labels, score=aps, seed=1)(new))


@pytest.mark.parametrize("k", [2, 3, 100])
@pytest.mark.parametrize("sure", [False, True])
def test_draws_are_uniform_and_say_nothing_of_their_row(k, sure):
    g = np.random.default_rng(k)
    p = g.dirichlet(np.full(k, 0.01 if sure else 1.0), 4_000)
    tail = p.max(1) < 1 - 1e-12  # rows that are not equal to each other
    u = _draws(torch.from_numpy(p[tail]), 0).numpy()
    assert len(np.unique(u)) == tail.sum()
    assert kstest(u, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(u, p[tail].max(1))[0, 1]) < 4 / math.sqrt(len(u))
    assert abs(np.corrcoef(u, _draws(torch.from_numpy(p[tail]), 1).numpy())[0, 1]) < 4 / math.sqrt(len(u))
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / math.sqrt(len(u))


def test_tied_classes_are_ranked_by_column_and_half_precision_is_taken():
    assert ranks(torch.tensor([[0.25, 0.5, 0.25]])).tolist() == [[2, 1, 3]]
    probs, labels = draw(200)
    assert conformal(probs.float(), labels, score=raps)(probs.half()).shape == (200, 5)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"alpha": 0.0}, r"alpha must lie in \(0, 1\)"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"labels must be \(20,\) indices"),
        ({"labels": torch.full((20,), 5)}, r"labels must lie in \[0, 5\); got \[5, 5\]"),
        ({"probs": torch.full((20, 5), 0.3)}, "probs must sum to 1"),
        ({"probs": torch.full((20,), 0.3)}, "a column for each class"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_bad_input_gets_one_precise_sentence(changed, said):
    probs, labels = draw(20)
    with pytest.raises(ValueError, match=said):
        conformal(**({"probs": probs, "labels": labels} | changed))


def test_sets_of_other_classes_are_refused():
    probs, labels = draw(20)
    with pytest.raises(ValueError, match="probs must have 5 columns, as in calibration; got 3"):
        conformal(probs, labels)(torch.full((2, 3), 1 / 3))
