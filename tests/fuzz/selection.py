"""Policies, review, costs and conformal sets: every promise is recomputed from the rows by exact sums."""

import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile import JUNK, Given, labels, numpy_of, probs

import calibrant as cb
from calibrant.selection import certify, certify_sgr, cheapest, conformal, decide, evaluate, review
from calibrant.selection.prediction_sets import aps, raps, thr

SIZES = (1, 2, 5, 30, 100, 300)


def case(chance: random.Random, folder: Path) -> None:
    """Make one decision rule, and check what it says about the rows."""
    chance.choice([certified, certified, reviewed, priced, sets, decided, saved])(chance, folder)


def rows(chance: random.Random) -> Given:
    """Scores and correctness: ties, good and bad rankings, scores beyond [0, 1]."""
    g, n, given = numpy_of(chance), chance.choice(SIZES), Given()
    sure = g.random(n) * chance.choice([1, 1, 1, 50]) - chance.choice([0, 0, 10])
    if chance.random() < 0.3:
        sure = np.round(sure, 1)
    right = g.random(n) < chance.choice([0.5, 0.9, 0.99, 1.0, 0.0])
    given.add(chance, "confidence", sure)
    given.add(chance, "correct", right, exact=True)
    return given


def share(chance: random.Random, given: Given) -> Any:
    if chance.random() < 0.06:
        given.good = False
        return chance.choice([*JUNK, 0, 1, -0.1, 5])
    return chance.choice([0.01, 0.05, 0.1, 0.3, 0.5])


def p_value(errors: int, m: int, rate: float) -> Fraction:
    """Pr[Bin(m, rate) <= errors], exactly."""
    r = Fraction(rate)
    return sum((Fraction(math.comb(m, e)) * r**e * (1 - r) ** (m - e) for e in range(errors + 1)), Fraction(0))


def called(given: Given, work: Any) -> Any:
    try:
        found = work()
    except (ValueError, TypeError) as error:
        assert not given.good, f"good input refused: {error}"
        raise
    assert not given.hopeless, "bad input accepted"
    return found


def certified(chance: random.Random, folder: Path) -> None:
    given = rows(chance)
    limit, delta, method = share(chance, given), share(chance, given), chance.choice([certify, certify_sgr])
    policy = called(given, lambda: method(**given.arguments, max_error=limit, delta=delta))
    if not given.good:
        return
    sure, right = given.truth["confidence"], given.truth["correct"].astype(bool)
    mask = np.asarray(policy(given.arguments["confidence"]))
    assert mask.dtype == bool
    if policy.threshold is None:
        assert not mask.any(), "an infeasible policy accepts"
        assert "No threshold" in policy.reason
        return
    accepted = sure > policy.threshold
    assert np.array_equal(mask, accepted), "mask"
    m, errors = int(accepted.sum()), int((accepted & ~right).sum())
    assert (policy.accepted, policy.errors, policy.n) == (m, errors, len(sure)), "counts"
    level = delta if method is certify else delta / max(1, math.ceil(math.log2(len(sure) + 1)))
    assert p_value(errors, m, limit) <= Fraction(level) * (1 + Fraction(1, 10**9)), "the chosen cut fails its own test"
    again = cb.Policy.from_json(policy.to_json())
    assert np.array_equal(np.asarray(again(given.arguments["confidence"])), mask), "JSON"
    try:
        evaluate(policy, **given.arguments)
    except ValueError as error:
        assert "certified on" in str(error), error
    else:
        raise AssertionError("its own rows were not refused")


def reviewed(chance: random.Random, folder: Path) -> None:
    given = rows(chance)
    capacity = chance.choice([0.0, 0.2, 0.5, 0.99])
    if chance.random() < 0.06:
        capacity, given.good = chance.choice([*JUNK, 1.0, -1, 2]), False
    policy = called(given, lambda: review(**given.arguments, capacity=capacity))
    if not given.good:
        return
    sure, right = given.truth["confidence"], given.truth["correct"].astype(bool)
    most = math.floor((1 - capacity) * len(sure) + 1e-9)
    assert policy.accepted <= most, "more are accepted than the capacity allows"
    if policy.threshold is not None:
        accepted = sure > policy.threshold
        assert (policy.accepted, policy.errors) == (int(accepted.sum()), int((accepted & ~right).sum())), "counts"
        exact = p_value(policy.errors, policy.accepted, policy.max_error) if policy.errors < policy.accepted else 0
        assert policy.max_error == 1 or abs(float(exact) - 0.05) < 1e-6, "bound"


def priced(chance: random.Random, folder: Path) -> None:
    given = rows(chance)
    cost, price = chance.choice([0.0, 1.0, 10.0]), chance.choice([0.0, 1.0, 3.0])
    if chance.random() < 0.06:
        cost, given.good = chance.choice([*JUNK, -1, math.inf]), False
    given.good &= len(given.truth.get("confidence", [])) >= 10
    found = called(given, lambda: cheapest(**given.arguments, error_cost=cost, review_cost=price))
    if given.good:
        sure, right = given.truth["confidence"], given.truth["correct"].astype(bool)

        def total(threshold: float) -> float:
            accepted = sure > threshold
            return cost * float((accepted & ~right).sum()) + price * float((~accepted).sum())

        best = min(total(t) for t in [-math.inf, math.inf, *sure])
        assert abs(total(found.threshold) - best) < 1e-9 * max(1.0, best), "not the cheapest threshold"


def sets(chance: random.Random, folder: Path) -> None:
    n, k, given = chance.choice([1, 5, 30, 200]), chance.choice([2, 3, 8]), Given()
    p = probs(chance, n, k)
    y = labels(chance, p)
    given.add(chance, "probs", p)
    given.add(chance, "labels", y, exact=True)
    alpha, score = share(chance, given), chance.choice([thr, aps, raps])
    by_class, seed = chance.random() < 0.3, chance.choice([None, 0, 3])
    made = called(given, lambda: conformal(**given.arguments, alpha=alpha, score=score, by_class=by_class, seed=seed))
    if not given.good:
        return
    held = made(given.arguments["probs"])
    assert held.shape == (n, k)
    assert bool(held.any(1).all()), "a set is empty"
    if seed is None:
        covered = np.asarray(held)[np.arange(n), y]
        assert covered.mean() >= 1 - alpha - 1e-9 or (n + 1) * (1 - alpha) > n, (
            "calibration rows are covered too rarely"
        )


def decided(chance: random.Random, folder: Path) -> None:
    n, k, given = chance.choice([1, 5, 30]), chance.choice([2, 4]), Given()
    p, costs = probs(chance, n, k), np.round(10 * numpy_of(chance).random((k, k)), 1)
    given.add(chance, "probs", p)
    given.add(chance, "costs", costs)
    price = chance.choice([0.0, 1.0, 5.0])
    given.hopeless = False  # other numbers of rows will do
    found = called(given, lambda: decide(**given.arguments, review_cost=price))
    if given.good:
        expected = given.truth["probs"] @ given.truth["costs"]
        least = expected.min(1)
        for row, choice in enumerate(np.asarray(found).tolist()):
            cost = price if choice == -1 else expected[row, choice]
            assert cost <= min(least[row], price) + 1e-6 * max(1.0, least[row]), "not the cheapest decision"


def saved(chance: random.Random, folder: Path) -> None:
    """A policy by class, written to a file and read back after a change of some bytes."""
    g = numpy_of(chance)
    sure, predicted = g.random(300), g.integers(0, 3, 300)
    policy = certify(sure, g.random(300) < 0.97, max_error=0.2, predicted=predicted)
    path = folder / "policy.json"
    policy.save(path)
    blob = bytearray(path.read_bytes())
    changed = chance.random() < 0.8
    if changed:
        for _ in range(chance.choice([1, 3])):
            blob[chance.randrange(len(blob))] = chance.randrange(256)
        path.write_bytes(bytes(blob))
    read = cb.Policy.load(path)
    mask = read(torch.from_numpy(sure), predicted) if read.by_class else read(sure)
    assert len(mask) == 300
    assert read.errors <= read.accepted <= read.n
    if not changed:
        assert np.array_equal(np.asarray(mask), policy(sure, predicted))
