"""Maps of one probability, and how they are lifted to k classes: published values, slow oracles, and odd rows."""

import itertools
import math

import jaxtyping
import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize
from scipy.special import expit, gammaln, logit

from calibrant.calibrators._solvers import one_vs_rest, tables
from calibrant.calibrators._solvers.logistic import platt_targets
from calibrant.calibrators._solvers.one_vs_rest import BinaryProblems
from calibrant.calibrators.bbq import BBQ, default_bins, histograms
from calibrant.calibrators.beta import Beta
from calibrant.calibrators.export import to_program
from calibrant.calibrators.histogram import Histogram, equal_mass, equal_width, frequencies
from calibrant.calibrators.isotonic import Isotonic, blocks
from calibrant.calibrators.platt import Platt
from calibrant.calibrators.spline import Spline, nearest_spline, recalibrated
from calibrant.calibrators.venn_abers import VennAbers, steps
from calibrant.metrics.bins import assign
from calibrant.predictions.fit_data import FitData

METHODS = (Platt, Beta, Histogram, Isotonic, BBQ, Spline, VennAbers)
LIFTS = ("one_vs_rest", "pooled", "top_label", "tempered")
F1 = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
F1_LABELS = torch.tensor([0, 1, 2, 2, 1, 0])
F2 = np.array([0.35, 0.42, 0.48, 0.55, 0.61, 0.68, 0.74, 0.83, 0.91, 0.97])
F2_HITS = np.array([0, 1, 0, 1, 0, 1, 1, 1, 0, 1], dtype=bool)


def made_up(n=400, k=4, *, scale=3.0, seed=0, dtype=torch.float64):
    """Logits of an over-confident model."""
    source = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(n, k, generator=source, dtype=torch.float64)
    labels = torch.multinomial((logits / 2).softmax(1), 1, generator=source).squeeze(1)
    return logits.to(dtype), labels


def two_classes(n=300, seed=0):
    """Logits of class 1, in quarters so that many tie, and labels."""
    source = np.random.default_rng(seed)
    odds = np.round(4 * source.normal(0, 2, n)) / 4
    return torch.from_numpy(odds), torch.from_numpy((source.random(n) < expit(odds / 2 - 0.3)).astype(np.int64))


def prob(calibrator, p):
    """The calibrated probability of class 1, from a probability."""
    return calibrator(torch.as_tensor(logit(np.atleast_1d(p)))).sigmoid().numpy()


# Published values


def test_platts_targets():
    hits = np.array([True, False] * 3)
    assert np.array_equal(platt_targets(hits), np.where(hits, 0.8, 0.2))


def beta(a, b, c):
    fitted = Beta.fit(F1[:, :2], torch.tensor([0, 1, 0, 0, 1, 1]))
    state = {name: torch.tensor([value], dtype=torch.float64) for name, value in (("a", a), ("b", b), ("c", c))}
    return Beta(state, fitted.settings, fitted.fitted)


def test_the_beta_map():
    wanted = [0.115511233556, 0.429178649105, 0.868073026078]
    assert prob(beta(1.5, 0.8, 0.2), [0.2, 0.5, 0.9]) == pytest.approx(wanted, abs=1e-10)
    assert prob(beta(1.0, 1.0, 0.0), F2) == pytest.approx(F2, abs=1e-12)


def test_histogram_of_the_confidence():
    ((odds, hits),) = BinaryProblems.of(FitData.read(F1, F1_LABELS), "top_label", many="pooled")
    rates, counts = frequencies(odds, hits, equal_width(odds, 5))
    assert rates == pytest.approx([0.1, 0, 0, 1, 1], abs=1e-12)
    assert counts.tolist() == [0, 1, 2, 1, 2]


def test_pool_adjacent_violators():
    found = blocks(logit(F2), F2_HITS)
    assert np.repeat(found.rates, found.counts.astype(int)) == pytest.approx([0] + [0.5] * 4 + [0.75] * 4 + [1])
    knots, rates = np.stack([found.left, found.right], 1).ravel(), np.repeat(found.rates, 2)
    at = torch.tensor(logit([[0.45], [0.2], [0.99]]))
    value = tables.ramp(at, torch.tensor(knots)[None], torch.tensor(rates)[None]).sigmoid()
    assert value.squeeze(1).numpy() == pytest.approx([0.5, 0, 1], abs=1e-11)


def test_one_isotonic_map_for_all_pairs():
    rows = FitData.read(F1, F1_LABELS)
    ((odds, hits),) = BinaryProblems.of(rows, "pooled", many="pooled")
    found = blocks(odds, hits)
    inside = [int(np.searchsorted(found.left, value + 1e-9)) - 1 for value in odds[:3]]
    assert found.rates[inside] == pytest.approx([1, 1 / 3, 0])


def test_bbq():
    _, _, scores = histograms(logit(F2), F2_HITS, [1, 2, 3])
    assert scores == pytest.approx([-7.74500280351584, -8.259723962230737, -11.038113457025215], abs=1e-10)
    weights = np.exp(scores) / np.exp(scores).sum()
    assert weights == pytest.approx([0.611693610474, 0.365589223140, 0.022717166386], abs=1e-10)
    cal = BBQ.fit(torch.from_numpy(logit(F2)), F2_HITS.astype(int), bins=[1, 2, 3])
    value = cal(torch.tensor(logit([0.5, 0.9]))).sigmoid().numpy()
    assert value == pytest.approx([0.5090118361017096, 0.666741169085713], abs=1e-10)


def test_spline():
    gaps = np.cumsum(F2_HITS - F2) / 10
    values = nearest_spline(gaps, 4)(np.linspace(0, 1, 4))
    assert values == pytest.approx([-0.01138927, -0.01007318, 0.00768486, -0.05737889], abs=1e-8)
    at, rates = recalibrated(logit(F2), F2_HITS, 4)
    wanted = [0.32423034, 0.40413631, 0.49385424, 0.61338411, 0.69973204, 0.72990414, 0.68390041, 0.65799070]
    assert rates == pytest.approx([*wanted, 0.66844488, 0.70526294], abs=1e-8)
    half = tables.ramp(
        torch.zeros(1, 1, dtype=torch.float64), torch.from_numpy(at)[None], torch.from_numpy(rates)[None]
    )
    assert half.sigmoid().item() == pytest.approx(0.5280056302973182, abs=1e-10)


# Slow oracles


def smoothed_loss(odds, targets):
    return float(np.mean(np.logaddexp(0, odds) - targets * odds))


@pytest.mark.parametrize("seed", range(3))
def test_platt_finds_the_minimum(seed):
    odds, labels = two_classes(seed=seed)
    s, t = odds.numpy(), platt_targets(labels.numpy() == 1)
    best = minimize(lambda at: smoothed_loss(at[0] * s + at[1], t), [1.0, 0.0], tol=1e-12)
    cal = Platt.fit(odds, labels)
    assert [cal.slope.item(), cal.intercept.item()] == pytest.approx(best.x, abs=1e-4)
    assert cal.fitted.after <= best.fun + 1e-12


@pytest.mark.parametrize("seed", range(3))
def test_beta_finds_the_constrained_minimum(seed):
    odds, labels = two_classes(seed=seed)
    if seed == 2:  # made so that a would be negative
        labels = (odds.abs() > 2).long()
    s, t = expit(odds.numpy()), platt_targets(labels.numpy() == 1)

    def loss(at):
        return smoothed_loss(at[0] * np.log(s) - at[1] * np.log1p(-s) + at[2], t)

    best = minimize(loss, [1.0, 1.0, 0.0], bounds=[(0, None), (0, None), (None, None)], tol=1e-14)
    cal = Beta.fit(odds, labels)
    found = [cal.a.item(), cal.b.item(), cal.c.item()]
    assert min(found[:2]) >= 0
    assert loss(found) <= best.fun + 1e-9
    assert found == pytest.approx(best.x, abs=2e-3)


@pytest.mark.parametrize("scheme", ["width", "mass"])
def test_a_bin_says_its_rate_as_metrics_count_it(scheme):
    odds, labels = two_classes()
    cal = Histogram.fit(odds, labels, bins=7, scheme=scheme)
    p, hits = expit(odds.numpy()), labels.numpy() == 1
    place, _ = assign(p, bins=7, scheme=scheme)
    for b in set(place):
        n, m = (place == b).sum(), hits[place == b].sum()
        rate = min(max(m / n, 1 / (n + 2)), (n + 1) / (n + 2))
        assert cal(odds[place == b]).sigmoid().numpy() == pytest.approx(rate)


def test_equal_mass_groups_differ_by_at_most_one_row_whatever_the_scale():
    odds = np.sort(np.random.default_rng(0).normal(size=100))
    for scale in (1, 40, 2000):
        counts = np.bincount(np.searchsorted(equal_mass(odds * scale, 7), odds * scale))
        assert counts.tolist() == [15, 15, 14, 14, 14, 14, 14]


def isotonic_rates(s, a):
    """Max-min formula on distinct scores."""
    at = np.unique(s)
    n, m = np.array([(s == x).sum() for x in at]), np.array([a[s == x].sum() for x in at])

    def mean(i, j):
        return m[i : j + 1].sum() / n[i : j + 1].sum()

    last = len(at)
    return at, np.array([max(min(mean(i, j) for j in range(x, last)) for i in range(x + 1)) for x in range(last)])


@pytest.mark.parametrize("seed", range(4))
def test_blocks_are_the_isotonic_regression(seed):
    odds, labels = two_classes(60, seed)
    s, a = odds.numpy(), labels.numpy() == 1
    at, wanted = isotonic_rates(s, a)
    found = blocks(s, a)
    place = np.searchsorted(found.left, at, side="right") - 1
    assert found.rates[place] == pytest.approx(wanted)
    assert (at <= found.right[place]).all()
    assert (np.diff(found.rates) > 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_venn_abers_is_isotonic_regression_with_the_row_added(seed):
    odds, labels = two_classes(25, seed)
    s, a = odds.numpy(), labels.numpy() == 1
    cal = VennAbers.fit(odds, labels)
    queries = np.unique(np.concatenate([s, s + 0.1, [-20.0, 20.0]]))
    low, high = cal.interval(torch.from_numpy(queries))
    for query, p0, p1 in zip(queries, low.tolist(), high.tolist(), strict=True):
        for hit, found in ((False, p0), (True, p1)):
            at, rates = isotonic_rates(np.append(s, query), np.append(a, hit))
            assert found == pytest.approx(rates[at == query][0]), (query, hit)
    merged = high / (1 - low + high)
    assert cal(torch.from_numpy(queries)).sigmoid().numpy() == pytest.approx(merged.numpy())


def test_bbq_averages_histograms():
    odds, labels = two_classes(80, 1)
    s, a = odds.numpy(), labels.numpy() == 1
    scores, rates = [], []
    for b in (1, 3, 5):
        edges = np.array([-np.inf, *equal_mass(np.sort(s), b), np.inf])
        size, score, rate = len(edges) - 1, 0.0, np.zeros(len(s))
        for lo, hi in itertools.pairwise(edges):
            mine = (s > lo) & (s <= hi)
            n, m, c = mine.sum(), a[mine].sum(), (expit(lo) + expit(hi)) / 2
            al, be = 2 / size * c, 2 / size * (1 - c)
            score += gammaln(2 / size) - gammaln(n + 2 / size) + gammaln(m + al) - gammaln(al)
            score += gammaln(n - m + be) - gammaln(be)
            rate[mine] = (m + al) / (n + 2 / size)
        scores.append(score)
        rates.append(rate)
    weights = np.exp(np.array(scores) - max(scores))
    wanted = weights @ np.array(rates) / weights.sum()
    cal = BBQ.fit(odds, labels, bins=[1, 3, 5])
    found = tables.step(odds[:, None], cal.edges, cal.odds).sigmoid().squeeze(1)
    assert found.numpy() == pytest.approx(wanted)
    assert default_bins(1000) == range(1, 101)


def test_a_ramp_is_linear_in_the_probability():
    source = np.random.default_rng(0)
    knots, rates = np.sort(source.normal(0, 2, 9)), source.random(9)
    at = source.normal(0, 3, (200, 1))
    found = tables.ramp(torch.from_numpy(at), *tables.stacked([(knots, rates)])).sigmoid().numpy()
    assert found == pytest.approx(np.interp(expit(at), expit(knots), rates), abs=1e-12)


def test_tied_rows_get_the_mean_slope_of_the_spline_over_their_stretch():
    odds, hits = np.repeat([-1.0, 1.0], 1000), np.arange(2000) % 2 == 0
    gaps = np.cumsum(np.repeat(0.5 - expit([-1.0, 1.0]), 1000)) / 2000
    slopes = nearest_spline(gaps, 3)(np.linspace(0, 1, 2000), 1).reshape(2, 1000)
    _, rates = recalibrated(odds, hits, 3)
    assert rates == pytest.approx(expit([-1, 1]) + slopes.mean(1), abs=1e-3)
    assert abs(slopes[0, 0] - slopes[0].mean()) > 0.05  # which is not the slope at their first row
    assert prob(Spline.fit(torch.ones(1000), (torch.arange(1000) % 10 < 3).long()), 0.4) == pytest.approx(0.3, abs=1e-3)


# Lifts


def lifted(logits, lift):
    return one_vs_rest._LIFTS[lift](one_vs_rest.shifted(logits), lambda odds: (odds - 1) / 2).exp()


def test_one_vs_rest_maps_each_class_and_renormalises():
    logits, _ = made_up()
    new = expit((logit(logits.softmax(1).numpy()) - 1) / 2)
    wanted = new / new.sum(1, keepdims=True)
    assert lifted(logits, "one_vs_rest").numpy() == pytest.approx(wanted)
    assert lifted(logits, "pooled").numpy() == pytest.approx(wanted)


def test_the_top_label_takes_its_confidence_and_the_others_share_the_rest():
    logits, _ = made_up()
    p = logits.softmax(1).numpy()
    for row, new in zip(p, lifted(logits, "top_label").numpy(), strict=True):
        top = row.argmax()
        c = expit((logit(row[top]) - 1) / 2)
        wanted = row * (1 - c) / (1 - row[top])
        wanted[top] = c
        assert new == pytest.approx(wanted)


def test_tempered_rows_have_the_same_confidence_and_softer_others():
    logits, _ = made_up()
    z, new = one_vs_rest.shifted(logits), lifted(logits, "tempered")
    assert torch.equal(new.argmax(1), logits.argmax(1))
    for row, found in zip(z.numpy(), new.numpy(), strict=True):
        top, others = row.argmax(), np.delete(row, row.argmax())
        odds = -np.log(np.exp(others).sum())
        want = max((odds - 1) / 2, -math.log(3))
        assert found[top] == pytest.approx(expit(want))

        def gap(beta, others=others, want=want):
            return -np.log(np.exp(beta * others).sum()) - want

        beta = brentq(gap, 0, 1, xtol=1e-14) if want < odds and gap(0) < 0 else (0.0 if want < odds else 1.0)
        wanted = np.exp(beta * others) / np.exp(beta * others).sum() * (1 - expit(want))
        assert np.delete(found, top) == pytest.approx(wanted, rel=0.03)  # three Newton steps


def test_a_confidence_that_rises_is_not_tempered():
    z = one_vs_rest.shifted(made_up()[0])
    risen = [one_vs_rest._LIFTS[lift](z, lambda odds: odds + 0.5) for lift in ("tempered", "top_label")]
    assert torch.allclose(*risen, atol=1e-12)


def test_a_tempered_confidence_is_at_least_that_of_chance():
    logits, _ = made_up(dtype=torch.float32)
    new = one_vs_rest._LIFTS["tempered"](one_vs_rest.shifted(logits), lambda odds: odds - 20).exp()
    assert torch.equal(new.argmax(1), logits.argmax(1))
    assert torch.allclose(new, torch.tensor(0.25), atol=1e-4)


def test_log_odds_do_not_saturate():
    logits = torch.tensor([[0.0, -100.0, -101.0]])
    assert one_vs_rest.class_log_odds(logits)[0].tolist() == pytest.approx([100 - math.log1p(math.exp(-1)), -100, -101])


def test_a_value_on_an_edge_is_below_it(monkeypatch):
    edges, values = tables.stacked([(np.array([-1.0, 0.0, 0.5, 2.0]), np.arange(5.0)), (np.empty(0), np.array([7.0]))])
    odds = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.5, 0.6, 2.0, 3.0], dtype=torch.float64)[:, None].repeat(1, 2)
    for compiling in (False, True):
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda compiling=compiling: compiling)
        found = tables.step(odds, edges, values)
        assert found[:, 0].tolist() == [0, 0, 1, 1, 2, 3, 3, 4]
        assert (found[:, 1] == 7).all()


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("method", METHODS)
def test_two_ways_to_look_up_a_table_agree(method, lift, monkeypatch):
    cal = method.fit(*made_up(), lift=lift)
    queries = made_up(seed=1)[0]
    found = cal.map(queries, None)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)  # halving instead of searchsorted, no chunks
    assert torch.equal(cal.map(queries, None), found)


def test_the_lift_that_is_no_default_can_be_exported():
    cal = Spline.fit(*made_up(k=3), lift="top_label")
    queries = made_up(seed=1, k=3, dtype=torch.float32)[0]
    assert torch.allclose(to_program(cal).module()(queries), cal(queries), atol=1e-6)


@pytest.mark.parametrize("lift", ["pooled", "tempered"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pooled_and_tempered_maps_keep_predictions_to_the_bit(method, lift, dtype):
    cal = method.fit(*made_up(k=6, dtype=dtype), lift=lift)
    queries = made_up(3000, k=6, seed=1, dtype=dtype)[0]
    queries[:500] = queries[:500].round()  # ties
    assert torch.equal(cal(queries).argmax(1), queries.argmax(1))


def test_rows_tied_across_a_border_stay_together_in_float32():
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(0)).repeat(50, 1)
    shuffled = torch.stack(
        [row[torch.randperm(5, generator=torch.Generator().manual_seed(i))] for i, row in enumerate(logits)]
    )
    labels = torch.where(torch.arange(300) % 6 < 3, shuffled.argmax(1), shuffled.argmin(1))
    for method in (Histogram, BBQ, VennAbers, Isotonic):
        cal = method.fit(
            shuffled.float(), labels, lift="top_label", **({"scheme": "mass"} if method is Histogram else {})
        )
        new = cal(shuffled.float()).softmax(1).amax(1).reshape(50, 6)
        assert (new - new[0]).abs().max() < 1e-5, method


def test_a_chunked_map_is_the_map(monkeypatch):
    cal = Isotonic.fit(*made_up())
    queries = made_up(seed=1)[0]
    whole = cal(queries)
    monkeypatch.setattr(one_vs_rest, "CHUNK", 100)
    assert torch.equal(cal(queries), whole)


# Odd rows


def odd_rows():
    logits, labels = made_up(60, 4)
    top = logits.argmax(1)
    source = torch.Generator().manual_seed(2)
    return {
        "one row": (logits[:1], labels[:1]),
        "two rows": (logits[:2], labels[:2]),
        "one class": (logits, torch.full_like(labels, 2)),
        "a class absent": (logits, labels.clamp(max=2)),
        "all right": (logits, top),
        "all wrong": (logits, (top + 1 + torch.arange(60) % 3) % 4),
        "random labels": (logits, torch.randint(0, 4, (60,), generator=source)),
        "constant": (torch.zeros_like(logits), labels),
        "constant rows": (logits[:1].repeat(60, 1), labels),
        "tied": (logits.round(), labels),
        "times 2000": (2000 * logits, labels),
        "times 1e-6": (1e-6 * logits, labels),
        "float16": (logits.half(), labels),
        "float32, as far as it goes": (logits.float() / logits.abs().max() * 3e38, labels),
        "two classes": (logits[:, :2], labels % 2),
        "two classes, one seen": (logits[:, :2], torch.ones_like(labels)),
        "one column": (logits[:, 0], labels % 2),
        "separable": (torch.linspace(-3, 3, 60), torch.arange(60) // 30),
    }


@pytest.mark.parametrize("lift", LIFTS)
@pytest.mark.parametrize("method", METHODS)
def test_odd_rows_give_finite_probabilities(method, lift):
    for name, (logits, labels) in odd_rows().items():
        cal = method.fit(logits, labels, lift=lift)
        for queries in (logits, logits.flip(0) / 7):
            out = cal(queries)
            assert out.shape == queries.shape, name
            assert out.isfinite().all(), name
            assert cal.map(cal._read(queries, None), None).isfinite().all(), name  # also where the fit did not help
        assert math.isfinite(cal.fitted.after), name
        assert cal.n_parameters > 0, name
        assert repr(cal), name


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_rows_does_not_matter(method):
    logits, labels = made_up(200, 4)
    logits = logits.round() + 0.5 * torch.eye(4)[logits.round().argmax(1)]  # rows tie, their first two classes do not
    shuffle = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    columns = torch.tensor([2, 0, 3, 1])
    new = torch.argsort(columns)[labels]
    for lift in LIFTS:
        cal = method.fit(logits, labels, lift=lift)
        again = method.fit(logits[shuffle][:, columns], new[shuffle], lift=lift)
        assert torch.allclose(cal(logits)[:, columns], again(logits[:, columns]), atol=1e-7), lift


@pytest.mark.parametrize("method", [Isotonic, VennAbers, Histogram])
def test_how_sure_the_model_is_does_not_matter_to_ranks(method):
    odds, labels = two_classes()
    options = {"scheme": "mass"} if method is Histogram else {}
    cal, surer = method.fit(odds, labels, **options), method.fit(2000 * odds, labels, **options)
    assert torch.allclose(surer(2000 * odds), cal(odds), atol=1e-9)
    assert torch.allclose(surer((2000 * odds).float()), cal(odds).float(), atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_two_classes_are_exact_complements(method):
    odds, labels = two_classes()
    two = torch.stack([torch.zeros_like(odds), odds], 1)
    cal = method.fit(two, labels)
    assert cal.settings["lift"] == "one_vs_rest"
    new = cal.map(two, None).exp()
    assert new.sum(1).numpy() == pytest.approx(np.ones(len(odds)), abs=1e-14)
    assert torch.allclose(cal(odds), cal(two)[:, 1] - cal(two)[:, 0])


@pytest.mark.parametrize("method", [Histogram, Isotonic, BBQ, Spline, VennAbers])
def test_no_map_claims_certainty(method):
    cal = method.fit(torch.linspace(-9, 9, 100), torch.arange(100) // 50)
    new = cal.map(cal._read(torch.tensor([-1e6, -9.0, 9.0, 1e6]), None), None)[:, 1].exp()
    assert (new > 1e-4).all()
    assert (new < 1 - 1e-4).all()


def test_what_agreeing_rows_support():
    cal = Isotonic.fit(torch.linspace(-9, 9, 100), torch.arange(100) // 50)
    assert cal.map(cal._read(torch.tensor([-9.0, 9.0]), None), None)[:, 1].exp().tolist() == pytest.approx(
        [1 / 52, 51 / 52]
    )


def test_a_small_pure_block_does_not_fall_below_its_neighbour():
    odds, labels = torch.arange(40.0), torch.ones(40, dtype=torch.int64)
    labels[[0, 38]] = 0  # 37 hits in 38 rows, then a single hit, which alone supports 2/3
    rates = Isotonic.fit(odds, labels).rates[0].unique_consecutive().tolist()
    assert rates == pytest.approx([1 / 3, 37 / 38])


def test_an_absent_class_takes_the_map_of_all_classes():
    logits, labels = made_up(k=4)
    labels[labels == 1] = 2
    cal, pooled = Platt.fit(logits, labels, lift="one_vs_rest"), Platt.fit(logits, labels, lift="pooled")
    assert cal.slope[1] == pooled.slope[0]
    assert cal.intercept[1] == pooled.intercept[0]
    assert len(set(cal.slope.tolist())) == 4
    assert "their map is that of all classes" in cal.fitted.notes[0]


def test_strict_blocks_keep_ranks():
    odds, labels = two_classes(500)
    plain, strict = Isotonic.fit(odds, labels), Isotonic.fit(odds, labels, strict=True)
    at = torch.from_numpy(np.unique(odds.numpy()))
    assert (plain(at).diff() == 0).any()
    assert (strict(at).diff() > 0).all()
    assert (strict(at).sigmoid() - plain(at).sigmoid()).abs().max() < 0.005


def test_venn_abers_is_valid_on_few_rows():
    source, errors = np.random.default_rng(0), []
    for _ in range(3000):
        s = np.round(source.normal(size=9), 1)
        hits = source.random(9) < expit(3 * s)
        edges, low, high = steps(s[1:], hits[1:])
        errors.append(hits[0] - (high if hits[0] else low)[np.searchsorted(edges, s[0])])
    assert abs(np.mean(errors)) < 3 * np.std(errors) / math.sqrt(len(errors))
    assert np.std(errors) < 0.45  # and it says something


def test_venn_abers_is_not_given_up_because_the_log_loss_rose():
    logits = torch.tensor([[9.0, 0.0], [0.0, 9.0]]).repeat(5, 1)
    cal = VennAbers.fit(logits, torch.tensor([0, 1] * 5))
    assert not cal.fitted.identity
    assert cal(logits)[0].softmax(0)[0].item() == pytest.approx(6 / 7)


def test_venn_abers_interval_of_every_lift():
    logits, labels = made_up(k=3)
    shapes = {"one_vs_rest": (400, 3), "pooled": (400, 3), "top_label": (400,), "tempered": (400,)}
    for lift, shape in shapes.items():
        low, high = VennAbers.fit(logits, labels, lift=lift).interval(logits)
        assert low.shape == high.shape == shape
        assert (low < high).all()


@pytest.mark.parametrize("method", METHODS)
def test_float32_gives_what_float64_gives(method):
    cal = method.fit(*made_up(1000, 3))
    queries = made_up(1000, 3, seed=5)[0]
    off = (cal(queries.float()).double() - cal(queries.float().double())).abs().amax(1)
    assert (off < 1e-4).double().mean() > 0.998  # a step may lie between two neighbouring floats


def test_wrong_options_are_answered_in_a_sentence(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the type checks of the tests would answer first
    logits, labels = made_up()
    for fit, message in (
        (lambda: Platt.fit(logits, labels, lift="ovr"), "lift must be 'one_vs_rest', 'pooled', "),
        (lambda: Histogram.fit(logits, labels, bins=0), "bins must be at least 1; got 0."),
        (lambda: Histogram.fit(logits, labels, scheme="log"), "scheme must be 'width' or 'mass'; got 'log'."),
        (lambda: BBQ.fit(logits, labels, bins=[]), "bins must be numbers of bins"),
        (lambda: BBQ.fit(logits, labels, bins=[2, 0]), r"got \[2, 0\]"),
        (lambda: Spline.fit(logits, labels, knots=1), "knots must be at least 2; got 1."),
    ):
        with pytest.raises(ValueError, match=message):
            fit()
