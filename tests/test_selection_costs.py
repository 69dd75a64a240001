"""Decisions by cost: Chow's rule, and the cheapest threshold against plain loops."""

import numpy as np
import pytest
import torch

from calibrant.selection.costs import cheapest, decide


def test_with_equal_costs_of_errors_chow_accepts_where_the_confidence_is_high_enough():
    probs = torch.rand(200, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    probs /= probs.sum(1, keepdim=True)
    found = decide(probs, 1 - torch.eye(4), review_cost=0.6)
    sure, best = probs.max(1)
    assert torch.equal(found, torch.where(sure >= 0.4, best, -1))
    assert 0 < (found == -1).sum() < 200


def test_a_decision_has_the_least_expected_cost():
    g = np.random.default_rng(0)
    probs, costs = g.dirichlet(np.ones(3), 100), g.random((3, 5))  # five actions on three classes
    found = decide(probs, costs, review_cost=0.4)
    for p, action in zip(probs, found.tolist(), strict=True):
        expected = [sum(p[y] * costs[y][a] for y in range(3)) for a in range(5)]
        assert action == (int(np.argmin(expected)) if min(expected) <= 0.4 else -1)


@pytest.mark.parametrize(
    ("costs", "review_cost", "said"),
    [
        ([[0.0, 1.0]], 0.1, "costs must have a row for each of 2 classes"),
        ([[0.0, np.nan], [1.0, 0.0]], 0.1, "costs must be finite"),
        ([[0.0, 1.0], [1.0, 0.0]], -1.0, "review_cost must lie in \\[0, inf\\)"),
    ],
)
def test_costs_that_make_no_sense_are_refused(costs, review_cost, said):
    with pytest.raises(ValueError, match=said):
        decide([[0.5, 0.5]], np.array(costs), review_cost)


@pytest.mark.parametrize("digits", [1, 3])
def test_the_cheapest_threshold_is_that_of_plain_loops(digits):
    g = np.random.default_rng(2)
    confidence = np.round(g.random(150), digits)
    correct = g.random(150) < confidence
    found = cheapest(confidence, correct, error_cost=3.0, review_cost=1.0)

    def cost(t):
        return sum((3.0 * (not right)) if sure > t else 1.0 for sure, right in zip(confidence, correct, strict=True))

    tried = [-1.0, *confidence]
    assert cost(found.threshold) == pytest.approx(min(map(cost, tried)))
    assert found.coverage == (confidence > found.threshold).mean()
    assert found.of_accepting == pytest.approx(cost(-1.0) / 150)
    assert found.low < found.cost < found.high
    assert found.cost >= cost(found.threshold) / 150 - 1e-12  # honest, so not below the optimistic one


def test_extreme_costs_accept_everything_or_nothing():
    confidence, correct = np.linspace(0, 1, 40), np.arange(40) % 2 == 0
    assert cheapest(confidence, correct, error_cost=0.0, review_cost=1.0).coverage == 1.0
    nothing = cheapest(confidence, correct, error_cost=100.0, review_cost=0.0)  # the surest row is wrong
    assert (nothing.coverage, nothing.threshold, nothing.of_reviewing) == (0.0, np.inf, 0.0)
    with pytest.raises(ValueError, match="at least 10 rows"):
        cheapest(confidence[:9], correct[:9], error_cost=1.0, review_cost=1.0)
