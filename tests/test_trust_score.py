"""Trust score and the search for neighbours, against brute force in float64 that shares no code."""

import math

import numpy as np
import pytest
import torch

from calibrant.predictions.predictions import Predictions
from calibrant.registry import TRUST
from calibrant.trust._machinery import neighbours
from calibrant.trust._machinery.neighbours import by_class
from calibrant.trust.trust_score import TrustScore

# the published example: class 0, class 1, and a query that is predicted as 0
ROWS = torch.tensor([[0, 0], [0.1, 0], [0, 0.2], [1, 1], [1.1, 1], [1, 1.3]], dtype=torch.float64)
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])
QUERY = torch.tensor([[0.3, 0.2]], dtype=torch.float64)
SAYS_0 = torch.tensor([[2.0, 0.0]])


def logits_of(labels, k):
    return 5 * torch.eye(k)[labels]


def draw(n, k, d, seed=0, spread=1.0, offset=0.0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(k, (n,), generator=g)
    means = torch.randn(k, d, generator=g)
    return (offset + means[labels] + spread * torch.randn(n, d, generator=g)), labels


def brute(queries, rows, labels, k, neighbour=1):
    """Every distance by plain numpy differences, one query at a time."""
    q, x, y = queries.double().numpy(), rows.double().numpy(), labels.numpy()
    out = np.full((len(q), k), np.inf)
    for i in range(len(q)):
        away = np.sqrt(((x - q[i]) ** 2).sum(1))
        for c in range(k):
            own = np.sort(away[y == c])
            if len(own) >= neighbour:
                out[i, c] = own[neighbour - 1]
    return torch.from_numpy(out)


def in_classes(rows, labels, k):
    return rows[labels.argsort(stable=True)], [0, *labels.bincount(minlength=k).cumsum(0).tolist()]


def agrees(queries, rows, labels, k, neighbour=1, rel=1e-13):
    found = by_class(queries, *in_classes(rows, labels, k), neighbour=neighbour)
    torch.testing.assert_close(found, brute(queries, rows, labels, k, neighbour), rtol=rel, atol=0.0)


def pair_agrees(queries, rows, labels, k, judged, neighbour=1):
    """Compare the judged class and the nearest other one."""
    found = by_class(queries, *in_classes(rows, labels, k), neighbour=neighbour, judged=judged)
    oracle, own = brute(queries, rows, labels, k, neighbour), judged[:, None]
    torch.testing.assert_close(found.gather(1, own), oracle.gather(1, own), rtol=1e-13, atol=0.0)
    others = [table.scatter(1, own, torch.inf).amin(1) for table in (found, oracle)]
    torch.testing.assert_close(*others, rtol=1e-13, atol=0.0)
    return found


@pytest.fixture
def small_pieces(monkeypatch):
    """Blocks so small that every seam is crossed."""
    monkeypatch.setattr(neighbours, "ROWS", 16)
    monkeypatch.setattr(neighbours, "QUERIES", 7)
    monkeypatch.setattr(neighbours, "VALUES", 100)
    monkeypatch.setattr(neighbours, "NARROW", 8)


# --- the search


@pytest.mark.parametrize("neighbour", [1, 2, 5])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_distances_are_those_of_brute_force(neighbour, kind):
    rows, labels = draw(700, 5, 12)
    agrees(draw(40, 5, 12, seed=1)[0].to(kind), rows.to(kind), labels, 5, neighbour)


@pytest.mark.parametrize("neighbour", [1, 2, 3])
@pytest.mark.usefixtures("small_pieces")
def test_blocks_make_no_difference(neighbour):
    rows, labels = draw(150, 4, 3)
    labels[labels == 2] = 3  # a class without rows, in the middle
    queries, judged = draw(30, 4, 3, seed=1)
    agrees(queries, rows, labels, 4, neighbour)
    pair_agrees(queries, rows, labels, 4, judged, neighbour)


def test_a_few_rows_of_a_large_class_in_the_last_block_are_not_taken_for_all_of_it(monkeypatch):
    monkeypatch.setattr(neighbours, "ROWS", 150)
    rows, labels = draw(700, 3, 4)
    assert [size % 150 < 128 for size in labels.bincount().tolist()].count(True)
    queries, judged = draw(60, 3, 4, seed=1)
    pair_agrees(queries, rows, labels, 3, judged)


@pytest.mark.parametrize("spread", [1e-1, 1e-3, 1e-5])
@pytest.mark.usefixtures("small_pieces")
def test_near_duplicates_far_from_the_origin_are_told_apart(spread):
    g = torch.Generator().manual_seed(3)
    base = 1e6 + 1e3 * torch.randn(6, 20, generator=g, dtype=torch.float64)
    rows = base.repeat_interleave(50, 0) + spread * torch.randn(300, 20, generator=g, dtype=torch.float64)
    labels = torch.arange(300) % 3
    queries = base.repeat(3, 1) + spread * torch.randn(18, 20, generator=g, dtype=torch.float64)
    agrees(queries, rows, labels, 3)
    agrees(queries, rows, labels, 3, neighbour=2)
    squares = queries.float().square().sum(1)[:, None] + rows.float().square().sum(1)
    naive = (squares - 2 * queries.float() @ rows.float().T).clamp(min=0).sqrt().amin(1)  # what this is a test of
    assert (naive / brute(queries, rows, labels, 3).amin(1)).log().abs().max() > 0.5


@pytest.mark.usefixtures("small_pieces")
def test_a_row_among_its_near_duplicates_is_found_at_distance_0():
    g = torch.Generator().manual_seed(4)
    rows = torch.cat([1e3 * torch.randn(100, 8, generator=g), 1e3 + 1e-4 * torch.randn(100, 8, generator=g)])
    labels = torch.zeros(200, dtype=torch.long)
    assert by_class(rows, rows, [0, 200]).eq(0).all()
    agrees(rows, rows, labels, 1, neighbour=2)


@pytest.mark.parametrize("neighbour", [1, 2])
@pytest.mark.usefixtures("small_pieces")
def test_rows_that_stand_there_often_count_as_often_as_they_do(neighbour):
    rows, labels = draw(20, 2, 4)
    agrees(draw(9, 2, 4, seed=1)[0], rows.repeat(30, 1), labels.repeat(30), 2, neighbour)
    one_near = torch.cat([torch.tensor([[0.1]]), torch.ones(30, 1)])
    found = by_class(torch.zeros(20, 1), one_near, [0, 31], neighbour=neighbour)
    assert found.eq([one_near[0].item(), 1][neighbour - 1]).all()
    assert by_class(torch.full((2, 3), 0.1), torch.full((400, 3), 0.1), [0, 200, 400], neighbour=neighbour).eq(0).all()


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 3e38])
def test_tiny_and_huge_float32_features_neither_vanish_nor_overflow(size):
    rows, labels = draw(300, 2, 4)
    rows, queries = rows / 10 * size, draw(10, 2, 4, seed=1)[0] / 10 * size
    agrees(queries, rows, labels, 2)


def test_only_the_judged_class_and_the_nearest_other_are_measured():
    rows, labels = draw(900, 6, 10)
    queries, judged = draw(50, 6, 10, seed=1)
    found = pair_agrees(queries, rows, labels, 6, judged)
    assert found.isinf().any()


@pytest.mark.usefixtures("small_pieces")
def test_coarser_products_that_the_user_allows_change_no_distance(monkeypatch):
    rows, labels = draw(400, 2, 32, spread=0.01)
    queries = draw(20, 2, 32, seed=1)[0]
    with torch.autocast("cpu", torch.bfloat16):
        agrees(queries, rows, labels, 2)
    assert neighbours._product_type(rows) == torch.float32
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    assert neighbours._product_type(rows) == torch.float64
    agrees(queries, rows, labels, 2)

    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    assert neighbours._product_type(rows) == torch.float64


# --- the score


def test_values_of_the_published_example():
    for neighbour, ratio in ((1, 3.7583240945932275), (2, 3.7712361663282543)):
        trust = TrustScore.fit(logits_of(LABELS, 2), LABELS, ROWS, neighbour=neighbour)
        assert trust.ratio(SAYS_0, QUERY).item() == pytest.approx(ratio, rel=1e-11)
        assert trust(SAYS_0, QUERY).item() == pytest.approx(ratio / (1 + ratio), rel=1e-11)


@pytest.mark.parametrize("neighbour", [1, 2])
def test_score_is_that_of_brute_force(neighbour):
    rows, labels = draw(600, 4, 6)
    queries, said = draw(60, 4, 6, seed=1)
    trust = TrustScore.fit(logits_of(labels, 4), labels, rows, neighbour=neighbour)
    table = brute(queries, rows, labels, 4, neighbour)
    expected = [min(d for c, d in enumerate(row) if c != own) / row[own] for row, own in zip(table, said, strict=True)]
    assert trust.ratio(logits_of(said, 4), queries).tolist() == pytest.approx([float(r) for r in expected], rel=1e-9)
    confidence = trust(logits_of(said, 4), queries)
    assert confidence.dtype == torch.float64
    assert confidence.tolist() == pytest.approx([float(r / (1 + r)) for r in expected], rel=1e-12)


def test_confidence_ranks_as_the_ratio_does_and_is_a_half_where_both_classes_are_as_far():
    rows, labels = draw(300, 3, 5)
    queries, said = draw(80, 3, 5, seed=1)
    trust = TrustScore.fit(logits_of(labels, 3), labels, rows)
    given = logits_of(said, 3), queries
    assert torch.equal(trust(*given).argsort(), trust.ratio(*given).argsort())
    assert ((trust(*given) > 0.5) == (trust.ratio(*given) > 1)).all()
    middle = TrustScore.fit(logits_of(torch.tensor([0, 1]), 2), [0, 1], [[0.0], [2.0]])
    assert middle(SAYS_0, torch.tensor([[1.0]])).item() == 0.5


def test_rows_it_was_fitted_on_are_at_distance_0_and_their_second_nearest_is_not():
    rows, labels = draw(100, 2, 5)
    logits = logits_of(labels, 2)
    assert TrustScore.fit(logits, labels, rows)(logits, rows).eq(1).all()
    second = TrustScore.fit(logits, labels, rows, neighbour=2)(logits, rows)
    assert (second < 1).all()
    assert (second > 0).all()


def test_the_same_row_in_both_classes_is_a_half_and_a_ratio_of_0():
    trust = TrustScore.fit(logits_of(torch.tensor([0, 1, 1]), 2), [0, 1, 1], [[1.0, 2.0], [1.0, 2.0], [4.0, 4.0]])
    same = torch.tensor([[1.0, 2.0]])
    assert trust(SAYS_0, same).item() == 0.5
    assert trust.ratio(SAYS_0, same).item() == 0


def test_constant_features_say_a_half_of_everything():
    labels = torch.arange(40) % 2
    trust = TrustScore.fit(logits_of(labels, 2), labels, torch.full((40, 3), 0.1))
    assert trust(logits_of(labels, 2), torch.full((40, 3), 0.1)).eq(0.5).all()
    assert trust(logits_of(labels, 2), torch.full((40, 3), 7.0)).eq(0.5).all()


def test_a_class_without_rows_is_never_near_and_an_answer_that_names_it_has_confidence_0():
    rows, labels = draw(60, 2, 3)
    labels = labels * 2  # classes 0 and 2 of 3
    trust = TrustScore.fit(logits_of(labels, 3), labels, rows)
    assert "no rows: 1." in trust.fitted.notes[0]
    queries = draw(3, 2, 3, seed=1)[0]
    said_1 = (
        trust(logits_of(torch.ones(3).long(), 3), queries),
        trust.ratio(logits_of(torch.ones(3).long(), 3), queries),
    )
    assert all(part.eq(0).all() for part in said_1)
    two = TrustScore.fit(logits_of(labels // 2, 2), labels // 2, rows)
    assert torch.equal(
        trust(logits_of(torch.tensor([0, 2, 0]), 3), queries), two(logits_of(torch.tensor([0, 1, 0]), 2), queries)
    )
    assert (
        "fewer than 2 rows: 1"
        in TrustScore.fit(
            logits_of(torch.tensor([0, 0, 1, 2, 2]), 3), [0, 0, 1, 2, 2], rows[:5], neighbour=2
        ).fitted.notes[0]
    )


def test_filtering_drops_the_share_of_each_class_with_the_farthest_neighbours():
    rows, labels = draw(200, 2, 3)
    trust = TrustScore.fit(logits_of(labels, 2), labels, rows, filtering="density", alpha=0.1, k_density=4)
    for c in range(2):
        own = rows[labels == c]
        radius = brute(own, own, torch.zeros(len(own)).long(), 1, 4)[:, 0]  # the row itself is the first
        kept = sorted(radius.argsort()[: len(own) - math.floor(0.1 * len(own))].tolist())
        low, high = trust.offsets[c : c + 2].tolist()
        assert torch.equal(trust.features[low:high], own[kept])


def test_filtering_keeps_ties_and_small_classes_and_leaves_no_class_empty():
    labels = torch.tensor([0] * 6 + [1])
    rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [50.0], [9.0]])
    trust = TrustScore.fit(logits_of(labels, 2), labels, rows, filtering="density", alpha=0.3, k_density=2)
    assert trust.features.squeeze(1).tolist() == [0, 1, 2, 3, 4, 9]  # one may go; the five others tie
    few = TrustScore.fit(logits_of(labels, 2)[1:], labels[1:], rows[1:], filtering="density", alpha=0.4)
    assert few.features.squeeze(1).tolist() == [2, 3, 4, 9]  # with fewer than 10 rows the farthest one decides
    most = TrustScore.fit(logits_of(labels, 2), labels, rows, filtering="density", alpha=0.99)
    assert (most.offsets.diff() > 0).all()


def test_state_settings_and_fit_rebuild_it():
    rows, labels = draw(90, 3, 4)
    trust = TrustScore.fit(logits_of(labels, 3), labels, rows, filtering="density", alpha=0.2, neighbour=2)
    again = type(trust)(trust.state_dict(), trust.settings, trust.fitted)
    queries, said = draw(20, 3, 4, seed=1)
    assert torch.equal(again(logits_of(said, 3), queries), trust(logits_of(said, 3), queries))
    assert set(trust.state_dict()) == {"features", "offsets"}
    assert TRUST["trust_score"] is TrustScore
    assert f"{len(trust.features)} by class" in repr(trust)


def test_judged_predictions_keep_who_was_right_and_remember_the_rows_of_the_fit():
    rows, labels = draw(90, 3, 4)
    logits = logits_of(labels.roll(1), 3)
    trust = TrustScore.fit(logits, labels, rows)
    given = Predictions(logits=logits, labels=labels, features=rows)
    judged = trust.judge(given)
    assert torch.equal(judged.correct, given.correct)
    assert torch.equal(judged.confidence, trust(logits, rows))
    assert judged.fitted_on


def test_half_precision_and_one_column_of_logits_are_taken():
    rows, labels = draw(50, 2, 4)
    queries, said = draw(10, 2, 4, seed=1)
    trust = TrustScore.fit(logits_of(labels, 2), labels, rows.half())
    assert trust.features.dtype == torch.float32
    wide = TrustScore.fit(logits_of(labels, 2), labels, rows.half().float())
    expected = wide(logits_of(said, 2), queries.half().float())
    assert torch.equal(trust(logits_of(said, 2).half(), queries.half()), expected)
    assert torch.equal(trust((said * 2.0 - 1)[:, None], queries.half()), expected)
    assert trust(logits_of(said, 2)[:0], queries[:0]).shape == (0,)


def test_of_tied_classes_the_first_is_predicted():
    trust = TrustScore.fit(logits_of(LABELS, 2), LABELS, ROWS)
    assert torch.equal(trust(torch.zeros(1, 2), QUERY), trust(SAYS_0, QUERY))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filtering": "density"}, r"alpha must lie between 0 and 1, the share of rows to drop; got 0.0"),
        ({"alpha": 0.1}, r"alpha must be 0 without filtering; got 0.1. Pass filtering='density'"),
        ({"neighbour": 0}, r"neighbour must be at least 1; got 0"),
        ({"neighbour": 4}, r"labels must hold at least 2 classes of 4 or more rows; got 0"),
        ({"k_density": 0}, r"k_density must be at least 1; got 0"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrustScore.fit(logits_of(LABELS, 2), LABELS, ROWS, **options)


def test_features_that_cannot_be_measured_are_refused():
    logits, odd = logits_of(LABELS, 2), ROWS.clone()
    odd[2, 1] = math.nan
    with pytest.raises(ValueError, match=r"features must be finite; 1 of 6 rows"):
        TrustScore.fit(logits, LABELS, odd)
    with pytest.raises(ValueError, match=r"features are needed for this"):
        TrustScore.fit(logits, LABELS, None)
    with pytest.raises(ValueError, match=r"features must not exceed 1e\+150 in size; got 1e\+200"):
        TrustScore.fit(logits, LABELS, ROWS * 1e200 / 1.3)
    with pytest.raises(ValueError, match=r"labels must hold at least 2 classes of 1 or more rows; got 1"):
        TrustScore.fit(logits, LABELS * 0, ROWS)
    trust = TrustScore.fit(logits, LABELS, ROWS)
    for given, message in (
        ((SAYS_0, None), r"features must be given: trust_score was fitted on them"),
        ((SAYS_0, torch.zeros(1, 3)), r"features must have 2 columns, as when fitted; got \(1, 3\)"),
        ((SAYS_0, torch.zeros(2)), r"features must have shape \(1, d\); got \(2,\)"),
        ((SAYS_0, torch.tensor([[math.nan, 0]])), r"features must be finite; 1 of 1 rows are not"),
        ((torch.zeros(1, 3), QUERY), r"logits must have 2 columns, as when fitted; got \(1, 3\)"),
        ((torch.tensor([[math.nan, 0]]), QUERY), r"logits must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            trust(*given)
