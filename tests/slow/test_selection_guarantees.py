"""Truths of statistics, by simulation: a certified policy breaks its promise in at most delta of draws, ties included.

The populations are finite: equally likely scores 0, 1, ..., with an error rate each, so that the true error of every
cut is known. ``sharp``: 1 % of the upper 40 % are wrong, 60 % of the others. ``flat``: the error of every cut is above
the limit by a hair, so that any acceptance is a failure. ``crossing``: errors rise steadily, and the true error of the
accepted reaches the limit at half of the rows. ``waves``: it crosses the limit several times.
"""

from functools import partial
from math import sqrt

import numpy as np
import pytest
import torch
from scipy.stats import binom

from calibrant.metrics.binomial import p_value
from calibrant.selection.capacity import review
from calibrant.selection.certification import certify, fixed_sequence, guaranteed_risk
from calibrant.selection.prediction_sets import aps, conformal, raps, thr
from calibrant.selection.thresholds import Cuts, Scored

pytestmark = pytest.mark.slow

TRIALS, DELTA, LIMIT = 2_000, 0.1, 0.1
ALLOWED = DELTA + 3 * sqrt(DELTA * (1 - DELTA) / TRIALS)
FINE, COARSE = 1_000_000, 20  # scores: hardly ever tied, and always


def population(kind, size):
    share = 1 - (np.arange(size) + 0.5) / size  # of rows above, 0 for the surest
    return {
        "sharp": np.where(share < 0.4, 0.01, 0.6),
        "flat": np.full(size, LIMIT + 1e-9),
        "crossing": np.minimum(4 * LIMIT * share, 1.0),
        "waves": LIMIT * (1 + np.cos(6 * np.pi * share)) + 1e-9,
    }[kind]


def true_error(rates):
    """Return the error of accepting scores above s, for s = -1, 0, ..., shifted by one: entry s + 1."""
    above = np.append(np.cumsum(rates[::-1])[::-1], 0.0)
    return above / np.maximum(np.arange(len(rates), -1, -1), 1)


def failures(kind, size, n, searches, seed=0):
    """Return how often each search ends at a cut whose true error is above the limit, and how often at any cut."""
    rng = np.random.default_rng([seed, size, n])
    rates = population(kind, size)
    truth = true_error(rates)
    bad, some = np.zeros(len(searches)), np.zeros(len(searches))
    for _ in range(TRIALS):
        score = rng.integers(0, size, n)
        cuts = Cuts.of(Scored(score.astype(np.float64), rng.random(n) >= rates[score]))
        for i, search in enumerate(searches):
            chosen = search(cuts)
            if chosen is not None:
                some[i] += 1
                bad[i] += truth[max(int(cuts.threshold[chosen]), -1) + 1] > LIMIT
    return bad / TRIALS, some / TRIALS


def halving(cuts):
    return guaranteed_risk(cuts, LIMIT, DELTA)


def walking(start):
    return lambda cuts: fixed_sequence(cuts, LIMIT, DELTA, start)


@pytest.mark.parametrize("n", [100, 1_000])
@pytest.mark.parametrize("size", [FINE, COARSE])
@pytest.mark.parametrize("kind", ["sharp", "flat", "crossing", "waves"])
def test_a_policy_breaks_its_promise_in_at_most_delta_of_draws(kind, size, n):
    bad, _ = failures(kind, size, n, [walking(0.0), walking(0.25), *([halving] if kind != "waves" else [])])
    assert (bad <= ALLOWED).all(), bad


@pytest.mark.parametrize(("kind", "size"), [("sharp", COARSE), ("crossing", FINE), ("flat", COARSE)])
def test_a_policy_of_10_000_rows_breaks_its_promise_in_at_most_delta_of_draws(kind, size):
    bad, some = failures(kind, size, 10_000, [walking(0.125), halving])
    assert (bad <= ALLOWED).all(), bad
    assert kind == "flat" or (some > 0.99).all()


def test_the_walk_spends_delta_and_not_much_less():
    bad, _ = failures("flat", FINE, 2_000, [walking(0.5)], seed=1)
    assert 0.075 <= bad[0] <= ALLOWED  # the binomial is discrete, so exactly delta is not reached


def test_the_widest_cut_that_passes_would_break_the_promise_far_too_often():
    def widest(cuts):
        passed = np.flatnonzero(p_value(cuts.errors, cuts.accepted, LIMIT) <= DELTA)
        return int(passed[-1]) if len(passed) else None

    bad, _ = failures("flat", FINE, 1_000, [widest])
    assert bad[0] > 2 * DELTA


def test_a_start_inside_a_block_of_ties_keeps_delta_by_exact_computation():
    """Two blocks, then the rest; every cut is bad, and which is tested first depends on how many rows each holds."""
    n, rng, worst = 40, np.random.default_rng(0), 0.0
    rows = np.arange(n + 1)
    allowed = np.array([_allowed(m) for m in rows])
    fewest = int(np.argmax(allowed >= 0))
    for _ in range(60):
        first, second = rng.dirichlet([1, 1, 0.5])[:2]
        rate = min(LIMIT * (1 + rng.exponential(0.5)), 1.0)
        other = max(0.0, (LIMIT * (first + second) - first * rate) / second)  # the second cut is bad by nothing
        total = 0.0
        for m in rows:
            seen = binom.pmf(m, n, first)
            if m >= fewest:
                total += seen * binom.cdf(allowed[m], m, rate)
                continue
            more = np.arange(n - m + 1)
            weight = seen * binom.pmf(more, n - m, min(second / (1 - first), 1.0))
            for e in range(m + 1):
                passed = binom.cdf(allowed[m + more] - e, more, other)
                total += binom.pmf(e, m, rate) * (weight * np.where(m + more >= fewest, passed, 0.0)).sum()
        worst = max(worst, total)
    assert 0.05 < worst <= DELTA


def _allowed(m):
    """Return how many errors among m rows still pass, -1 if none does, by asking the search."""
    if m == 0:
        return -1
    tried = (e for e in range(m, -1, -1) if walking(0.0)(Cuts(np.zeros(1), np.array([m]), np.array([e]))) is not None)
    return next(tried, -1)


def test_one_threshold_a_class_keeps_the_promise_for_all_classes_at_once():
    rng = np.random.default_rng(3)
    rates = np.stack([population(kind, 50) for kind in ("sharp", "flat", "crossing")])
    truth = [true_error(own) for own in rates]
    bad = 0
    for _ in range(TRIALS):
        score, predicted = rng.integers(0, 50, 900), rng.integers(0, 3, 900)
        correct = rng.random(900) >= rates[predicted, score]
        policy = certify(score.astype(np.float64), correct, max_error=LIMIT, delta=DELTA, predicted=predicted)
        limits = [policy.parts[str(c)].threshold for c in range(3)]
        bad += any(t is not None and truth[c][max(int(t), -1) + 1] > LIMIT for c, t in enumerate(limits))
    assert bad / TRIALS <= ALLOWED


def test_bounds_of_a_review_capacity_and_of_coverage_hold():
    rng = np.random.default_rng(4)
    rates = population("crossing", 1_000)
    truth = true_error(rates)
    broken = covered = found = 0
    for _ in range(TRIALS):
        score = rng.integers(0, 1_000, 400)
        rows = score.astype(np.float64), rng.random(400) >= rates[score]
        policy = review(*rows, capacity=0.6, delta=DELTA)
        broken += truth[int(policy.threshold) + 1] > policy.max_error
        chosen = certify(*rows, max_error=0.2, delta=DELTA)
        if chosen.threshold is not None:
            low, high = chosen.coverage_interval
            covered += low <= 1 - (max(chosen.threshold, -1) + 1) / 1_000 <= high
            found += 1
    assert broken / TRIALS <= ALLOWED
    assert found > 0.9 * TRIALS
    assert covered / found >= 0.95 - 3 * sqrt(0.95 * 0.05 / found)


@pytest.mark.parametrize("n", [20, 1_000])
@pytest.mark.parametrize(
    ("score", "seed"), [(thr, None), (aps, 0), (partial(raps, penalty=0.1, free=1), 0)], ids=["thr", "aps", "raps"]
)
def test_conformal_sets_cover_as_promised_on_average(score, seed, n):
    """The model is over-confident; labels come from flatter probabilities than it says."""
    rng = np.random.default_rng([n, 5])
    hits = []
    for trial in range(TRIALS):
        truth = rng.dirichlet(np.ones(4), n + 400)
        labels = torch.from_numpy((np.cumsum(truth, 1) < rng.random((len(truth), 1))).sum(1).clip(max=3))
        said = torch.from_numpy(truth**2 / (truth**2).sum(1, keepdims=True))
        own = None if seed is None else trial
        sets = conformal(said[:n], labels[:n], alpha=0.1, score=score, seed=own)
        hits.append(sets(said[n:], empty=True)[torch.arange(400), labels[n:]].double().mean())
    mean = sets.rank / (n + 1)  # what theory says; with 20 rows 19/21
    assert abs(mean - 0.9) <= 0.005
    assert abs(np.mean(hits) - mean) <= 3 * np.std(hits) / sqrt(TRIALS)
    low, high = sets.spread
    assert 0.85 <= np.mean([low - 0.02 <= h <= high + 0.02 for h in hits]) <= 1  # 400 new rows add noise of their own


def test_conformal_sets_by_class_cover_each_class():
    """Each of four classes, of which the last is rare, has its own quantile; its mean is the rank of its own rows."""
    rng = np.random.default_rng(11)
    hits, means = np.zeros((TRIALS, 4)), np.zeros((TRIALS, 4))
    for trial in range(TRIALS):
        labels = torch.from_numpy(rng.choice(4, 1_400, p=[0.4, 0.3, 0.2, 0.1]))
        said = torch.from_numpy(rng.dirichlet(np.ones(4), 1_400))
        said[torch.arange(1_400), labels] += 0.5
        said /= said.sum(1, keepdim=True)
        sets = conformal(said[:1_000], labels[:1_000], alpha=0.1, by_class=True)
        found = sets(said[1_000:], empty=True)[torch.arange(400), labels[1_000:]].double()
        for c in range(4):
            rows = int((labels[:1_000] == c).sum())
            hits[trial, c], means[trial, c] = found[labels[1_000:] == c].mean(), np.ceil((rows + 1) * 0.9) / (rows + 1)
    assert (np.abs(hits.mean(0) - means.mean(0)) <= 3 * hits.std(0) / sqrt(TRIALS)).all()
    assert (np.abs(means.mean(0) - 0.9) <= 0.006).all()
