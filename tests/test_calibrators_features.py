"""Calibrators that look at features, and those that set rows aside, against slow oracles that share no code."""

import math
import re

import numpy as np
import pytest
import torch
from scipy.optimize import isotonic_regression, minimize, minimize_scalar
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from calibrant.calibrators import feature_clipping, group, meta, procal
from calibrant.calibrators._solvers import lbfgs
from calibrant.calibrators.feature_clipping import FeatureClipping
from calibrant.calibrators.group import Group
from calibrant.calibrators.meta import MetaAcc, MetaMis
from calibrant.calibrators.procal import Procal
from calibrant.calibrators.temperature import Temperature
from calibrant.io.sealed import load
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.predictions import Predictions

F1 = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
F1_LABELS = torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.fixture(scope="module")
def network():
    """A small over-confident network on noisy digits: logits, labels, features, weight, bias of 1 397 rows."""
    x, y = load_digits(return_X_y=True)
    g = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=g)
    x, y = torch.tensor(x / 16, dtype=torch.float32)[order], torch.tensor(y)[order]
    x = x + 0.45 * torch.randn(x.shape, generator=g)
    sizes = [(64, 32), (32,), (32, 10), (10,)]
    a, b, c, d = parameters = [(0.15 * torch.randn(s, generator=g)).requires_grad_() for s in sizes]
    step = torch.optim.Adam(parameters, lr=0.01)
    for _ in range(200):
        batch = torch.randint(0, 400, (64,), generator=g)
        loss = cross_entropy((x[batch] @ a + b).relu() @ c + d, y[batch])
        step.zero_grad()
        loss.backward()
        step.step()
    with torch.no_grad():
        features = (x[400:] @ a + b).relu()
        return features @ c + d, y[400:], features, c.detach().T.contiguous(), d.detach()


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def best_temperature(z, y):
    """The temperature of least log loss by a bounded search, in plain numpy."""
    z = z - z.max(1, keepdims=True)

    def loss(u):
        s = z * np.exp(-u)
        return np.mean(np.log(np.exp(s).sum(1)) - s[np.arange(len(y)), y])

    return math.exp(minimize_scalar(loss, bounds=(-6, 6), method="bounded", options={"xatol": 1e-10}).x)


# --- many small problems at once


def test_many_rosenbrock_valleys_are_walked_at_once():
    def valley(x):
        a, b = x[:, 0], x[:, 1]
        value = (1 - a) ** 2 + 100 * (b - a**2) ** 2
        return value, torch.stack([-2 * (1 - a) - 400 * a * (b - a**2), 200 * (b - a**2)], 1)

    start = torch.randn(7, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 2
    at, value = lbfgs.minimise(valley, start, steps=300)
    assert torch.allclose(at, torch.ones(7, 2, dtype=torch.float64), atol=1e-5)
    assert bool((value < 1e-10).all())


def test_a_problem_does_not_depend_on_its_company():
    def bowl(x):
        return (x - 1).square().square().sum(1), 4 * (x - 1) ** 3

    start = torch.tensor([[3.0, -2.0], [10.0, 7.0], [1.0, 1.0]], dtype=torch.float64)
    together = lbfgs.minimise(bowl, start, steps=12)[0]
    alone = torch.cat([lbfgs.minimise(bowl, row[None], steps=12)[0] for row in start])
    assert torch.equal(together, alone)


# --- group calibration


def exact_mixture(points, features, z, y, groups):
    """The objective of one partition without tables: autograd gives its slope."""
    d = features.shape[1]
    points = points.clone().requires_grad_()
    weight, log_beta = points[: groups * d].reshape(groups, d), group.REACH * points[groups * d :].tanh()
    share = (features @ weight.T).log_softmax(1)
    logs = (z[:, None] * log_beta.exp()[:, None]).log_softmax(2)[torch.arange(len(y)), :, y]
    value = -(share + logs).logsumexp(1).mean() + 0.1 * weight.square().mean()
    value.backward()
    return value.detach(), points.grad


def test_group_mixture_has_the_published_value():
    expected = [0.576280922388, 0.277192343436, 0.146526734177]
    weight, tau = torch.tensor([0.3, -0.5], dtype=torch.float64), torch.tensor([1.2, 2.0], dtype=torch.float64)
    point = torch.cat([weight, torch.atanh(-tau.log() / group.REACH)])[None]
    found = []
    for label in range(3):
        rows = FitData.read(F1[:1], [label])
        one = torch.ones(1, 1, dtype=torch.float64)
        mixture = group._Mixture(one, *group._table(rows, torch.arange(1), 1.0), 2)
        value = mixture(point)[0].item() - 0.1 * weight.square().mean().item()
        found.append(math.exp(-value))
    assert found == pytest.approx(expected, abs=1e-6)
    log = exact_mixture(point[0], torch.ones(1, 1).double(), F1[:1], torch.tensor([0]), 2)[0]
    assert math.exp(-(log.item() - 0.1 * 0.17)) == pytest.approx(expected[0], abs=1e-11)


def test_group_objective_and_slope_are_those_of_the_exact_mixture(network):
    z, y, f, *_ = (t[:300].double() if t.is_floating_point() else t[:300] for t in network)
    rows = FitData.read(z, y)
    for beta, groups in ((0.4, 2), (1.3, 3)):
        mixture = group._Mixture(f, *group._table(rows, torch.arange(300), beta), groups)
        points = torch.randn(4, groups * 33, generator=torch.Generator().manual_seed(groups)).double() * 0.4
        value, slope = mixture(points)
        for i, point in enumerate(points):
            exact, gradient = exact_mixture(point, f, z * beta, y, groups)
            assert value[i].item() == pytest.approx(exact.item(), abs=2e-5)
            assert torch.allclose(slope[i], gradient, atol=3e-4)


def test_group_partitions_are_as_good_as_those_of_scipy(network):
    z, y, f, *_ = (t[:400].double() if t.is_floating_point() else t[:400] for t in network)
    rows = FitData.read(z, y)
    unit = float(f.square().mean().sqrt())
    mixture = group._Mixture(f / unit, *group._table(rows, torch.arange(400), 0.4), 2)
    start = torch.rand(5, 66, generator=torch.Generator().manual_seed(0)).double() * 0.3
    _, ours = lbfgs.minimise(mixture, start)
    theirs = []
    for point in start:

        def both(x):
            value, slope = exact_mixture(torch.tensor(x), f / unit, z * 0.4, y, 2)
            return value.item(), slope.numpy()

        theirs.append(minimize(both, point.numpy(), jac=True, method="L-BFGS-B", options={"maxiter": 200}).fun)
    assert ours.mean() <= np.mean(theirs) + 2e-3
    assert bool((ours < mixture(start)[0] - 0.02).all())


def group_oracle(cal, z, f):
    z, f = z.double().numpy(), f.double().numpy()
    weight, beta = cal.weight.numpy(), cal.beta.numpy()
    probs = np.zeros_like(z)
    for i in range(len(z)):
        for w, b in zip(weight, beta, strict=True):
            probs[i] += softmax(z[i : i + 1] * b[np.argmax(w @ f[i])])[0] / len(weight)
    return probs


def test_group_averages_the_softmax_of_each_partition(network):
    z, y, f, *_ = network
    cal = Group.fit(z[:300], y[:300], f[:300], partitions=4, groups=3)
    found = cal(z[500:560].double(), f[500:560]).softmax(1).numpy()
    np.testing.assert_allclose(found, group_oracle(cal, z[500:560], f[500:560]), atol=1e-12)
    assert cal.n_parameters == 4 * 3 * (32 + 1)


def test_group_temperatures_are_those_of_the_rows_that_did_not_find_the_groups(network):
    z, y, f, *_ = (t[:600] for t in network)
    cal = Group.fit(z, y, f, split=0.4, seed=3, partitions=4)
    late = torch.randperm(600, generator=torch.Generator().manual_seed(3))[240:].numpy()
    z, y, f = z.double().numpy()[late], y.numpy()[late], f.double().numpy()[late]
    seen = 0
    for w, b in zip(cal.weight.numpy(), cal.beta.numpy(), strict=True):
        mine = (f @ w.T).argmax(1)
        for g in range(2):
            if (mine == g).sum() >= 10:
                seen += 1
                assert 1 / b[g] == pytest.approx(best_temperature(z[mine == g], y[mine == g]), rel=1e-5)
            else:
                assert 1 / b[g] == pytest.approx(cal.settings["common"], rel=1e-12)
    assert seen >= 4


def test_group_tells_two_populations_apart():
    g = torch.Generator().manual_seed(0)
    n = 4000
    side = torch.randint(0, 2, (n,), generator=g)
    z = 2 * torch.randn(n, 5, generator=g, dtype=torch.float64)
    y = torch.distributions.Categorical(logits=z / torch.tensor([1.0, 4.0])[side, None]).probs.multinomial(
        1, generator=g
    )[:, 0]
    f = torch.randn(n, 8, generator=g) * 0.3 + torch.where(side == 0, 1.0, -1.0)[:, None]
    cal = Group.fit(z[:2000], y[:2000], f[:2000], partitions=5)
    common = Temperature.fit(z[:2000], y[:2000])
    loss = cross_entropy(cal(z[2000:], f[2000:]), y[2000:])
    best = cross_entropy((z / torch.tensor([1.0, 4.0])[side, None])[2000:], y[2000:])
    assert loss - best < 0.15 * (cross_entropy(common(z[2000:]), y[2000:]) - best)


def test_group_without_a_split_learns_noise_by_heart_and_with_one_does_not(network):
    z, y, f, *_ = network
    alone = cross_entropy(Temperature.fit(z[:150], y[:150])(z[700:]), y[700:])
    split, whole = (Group.fit(z[:150], y[:150], f[:150], split=s, partitions=8) for s in (0.5, None))
    assert whole.fitted.after < split.fitted.after
    assert cross_entropy(split(z[700:], f[700:]), y[700:]) < alone + 0.03
    assert cross_entropy(whole(z[700:], f[700:]), y[700:]) > alone + 0.06


def test_group_fitted_on_features_refuses_to_do_without(network, tmp_path):
    z, y, f, *_ = (t[:100] for t in network)
    cal = Group.fit(z, y, f, partitions=2)
    cal.save(tmp_path / "cal.safetensors")
    for one in (cal, load(tmp_path / "cal.safetensors")):
        assert one.needs_features
        with pytest.raises(ValueError, match=r"^features must be given: group was fitted on them"):
            one(z)
        with pytest.raises(ValueError, match=r"^features must have 32 columns, as when fitted; got"):
            one(z, f[:, :5])
        assert torch.equal(one(z, f), cal(z, f))
    assert not Group.fit(z, y, partitions=2).needs_features
    with pytest.raises(ValueError, match=r"^features must be finite; 1 of 100 rows are not\.$"):
        cal(z, f.index_fill(0, torch.tensor([3]), math.nan))
    calibrated = cal.calibrate(Predictions(logits=z, labels=y, features=f))
    assert torch.equal(calibrated.logits, cal(z, f))


def test_group_without_features_reads_the_logits_less_their_mean(network):
    z, y, *_ = network
    given = (z - z.mean(1, keepdim=True)).double()
    own, told = (Group.fit(z[:300], y[:300], f, partitions=3) for f in (None, given[:300]))
    assert torch.allclose(own(z[400:].double()), told(z[400:].double(), given[400:]), atol=1e-6)
    shifted = z[400:].double() + torch.arange(len(z) - 400)[:, None]
    assert torch.allclose(own(shifted), own(z[400:].double()), atol=1e-9)


def test_group_does_not_depend_on_the_units_of_logits_and_features(network):
    z, y, f, *_ = (t[:300].double() if t.is_floating_point() else t[:300] for t in network)
    plain = Group.fit(z, y, f, partitions=2)(z, f).softmax(1)
    scaled = Group.fit(2000 * z, y, f / 512, partitions=2)(2000 * z, f / 512).softmax(1)
    assert torch.allclose(plain, scaled, atol=1e-4)


def test_group_seeds_are_explicit(network):
    z, y, f, *_ = (t[:300] for t in network)
    state = torch.random.get_rng_state()
    first, again, other = (Group.fit(z, y, f, partitions=2, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.weight, again.weight)
    assert torch.equal(first.beta, again.beta)
    assert not torch.equal(first.weight, other.weight)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_group_without_rows_takes_the_common_temperature(network):
    z, y, *_ = (t[:300] for t in network)
    cal = Group.fit(z, y, torch.ones(300, 1), partitions=3)  # one feature, the same for all: one group gets everybody
    late = torch.randperm(300, generator=torch.Generator().manual_seed(0))[150:]
    own = best_temperature(z[late].double().numpy(), y[late].numpy())
    for b in cal.beta:
        assert sorted((1 / b).tolist()) == pytest.approx(sorted([own, cal.settings["common"]]), rel=1e-5)
    assert "3 of 6 groups share the common T" in cal.fitted.notes[0]


def test_groups_too_small_for_their_own_temperature_leave_temperature_scaling():
    cal = Group.fit(F1, F1_LABELS, partitions=3)
    assert torch.allclose(cal(F1).softmax(1), Temperature.fit(F1, F1_LABELS)(F1).softmax(1), atol=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"partitions": 0}, "partitions must be at least 1; got 0."),
        ({"groups": 0}, "groups must be at least 1; got 0."),
        ({"split": 1.0}, "split must be a share between 0 and 1, or None for no split; got 1.0."),
        ({"features": torch.ones(6, 0)}, "features must have at least one column; got (6, 0)."),
        ({"features": torch.full((6, 1), math.inf)}, "features must be finite; 6 of 6 rows are not."),
    ],
)
def test_group_refuses_what_it_cannot_use(options, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Group.fit(F1, F1_LABELS, **options)


# --- ProCal


def test_proximity_has_the_published_values():
    squares = torch.tensor([[0.1, 0.4, 0.9]], dtype=torch.float64).square()
    assert procal._PROXIMITY["paper"](squares).item() == pytest.approx(0.6270890852730562, abs=1e-15)
    assert procal._PROXIMITY["code"](squares).item() == pytest.approx(0.7623505629794401, abs=1e-15)


def test_density_ratio_has_the_published_values():
    odds = math.log(2 / (0.5 * 0.25))
    assert 1 / (1 + math.exp(-odds)) == pytest.approx(0.9411764705882353, abs=1e-15)
    mine, own, others = procal._parted(F1[:1])
    found = torch.where(mine, odds, others).softmax(1)[0]
    assert found.tolist() == pytest.approx([0.941176470588, 0.041820558978, 0.017002970434], abs=1e-11)
    assert own.sigmoid().item() == pytest.approx(0.659001138886, abs=1e-11)


def proximities(f, known, skip, neighbours=10, kind="code"):
    """One row at a time: distances to all known rows, sorted."""
    f, known = (a / np.maximum(np.linalg.norm(a, axis=1, keepdims=True), 1e-300) for a in (f, known))
    out = []
    for i, row in enumerate(f):
        d = [np.linalg.norm(row - other) for j, other in enumerate(known) if not (skip and i == j)]
        nearest = np.sort(d)[:neighbours]
        out.append(np.exp(-np.mean(nearest)) if kind == "paper" else np.mean(np.exp(-(nearest**2))))
    return np.array(out)


def density(points, at):
    """Gaussian product kernels with the normal reference bandwidth, one query at a time."""
    width = 1.06 * points.std(0) * len(points) ** (-1 / 6)
    out = []
    for query in at:
        kernels = np.exp(-0.5 * ((query - points) / width) ** 2) / (math.sqrt(2 * math.pi) * width)
        out.append(kernels.prod(1).mean())
    return np.array(out)


def procal_oracle(z, y, f, new_z, new_f, kind):
    p, q = softmax(z), softmax(new_z)
    correct = z.argmax(1) == y
    points = np.stack([p.max(1), proximities(f, f, skip=True, kind=kind)], 1)
    at = np.stack([q.max(1), proximities(new_f, f, skip=False, kind=kind)], 1)
    at = np.clip(at, points.min(0), points.max(0))
    plus, minus = density(points[correct], at), density(points[~correct], at)
    chance = plus / (plus + minus * (~correct).sum() / correct.sum())
    out = q * ((1 - chance) / (1 - q.max(1)))[:, None]
    out[np.arange(len(q)), q.argmax(1)] = chance
    return out


@pytest.mark.parametrize("kind", ["code", "paper"])
def test_procal_is_the_density_ratio_of_plain_loops(network, kind):
    z, y, f, *_ = (t.double() if t.is_floating_point() else t for t in network)
    z = z / 2.5
    cal = Procal.fit(z[:250], y[:250], f[:250], proximity=kind)
    found = cal(z[300:400], f[300:400]).softmax(1).numpy()
    expected = procal_oracle(*(t.numpy() for t in (z[:250], y[:250], f[:250], z[300:400], f[300:400])), kind)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    half = cal(z[300:400].float(), f[300:400].half()).softmax(1)
    assert half.dtype == torch.float32
    assert torch.allclose(half.double(), torch.from_numpy(expected), atol=0.02)


def test_procal_is_judged_with_no_row_its_own_neighbour(network):
    z, y, f, *_ = (t[:200].double() if t.is_floating_point() else t[:200] for t in network)
    z = z / 2.5
    cal = Procal.fit(z, y, f)
    p, correct = softmax(z.numpy()), (z.argmax(1) == y).numpy()
    points = np.stack([p.max(1), proximities(f.numpy(), f.numpy(), skip=True)], 1)
    plus, minus = density(points[correct], points), density(points[~correct], points)
    chance = plus / (plus + minus * (~correct).sum() / correct.sum())
    p_true = p[np.arange(200), y.numpy()]
    expected = np.where(correct, chance, p_true * (1 - chance) / (1 - p.max(1)))
    assert cal.fitted.after == pytest.approx(-np.log(expected).mean(), abs=1e-9)
    assert cal.fitted.after != cal.fitted.log_loss[1]


def test_procal_bins_hold_the_accuracy_of_their_cell(network):
    z, y, f, *_ = (t[:500].double() if t.is_floating_point() else t[:500] for t in network)
    cal = Procal.fit(z, y, f, kind="bin_mean_shift")
    c, correct = softmax(z.numpy()).max(1), (z.argmax(1) == y).numpy()
    close = proximities(f.numpy(), f.numpy(), skip=True)
    order = np.sort(close)
    edges = [(order[100 * i - 1] + order[100 * i]) / 2 for i in range(1, 5)]
    np.testing.assert_allclose(cal.edges.numpy(), edges, rtol=1e-12)
    odds, filled = cal.cells
    for low in range(5):
        for sure in range(10):
            mine = (np.searchsorted(edges, close) == low) & (np.ceil(c * 10) - 1 == sure)
            assert bool(filled[low * 10 + sure]) == bool(mine.any())
            if mine.any():
                chance = (correct[mine].sum() + c[mine].mean()) / (mine.sum() + 1)
                assert odds[low * 10 + sure].sigmoid().item() == pytest.approx(chance, abs=1e-9)


def test_a_row_in_an_empty_cell_is_left_alone(network):
    z, y, f, *_ = network
    cal = Procal.fit(z[:400], y[:400], f[:400], kind="bin_mean_shift")
    low = torch.zeros(1, 10).index_fill(1, torch.tensor([4]), 0.01)  # confidence 0.1: no fitted row is so unsure
    assert torch.allclose(cal(low, f[:1]).softmax(1), low.softmax(1), atol=1e-6)


def test_procal_far_from_everything_counts_as_on_the_border(network):
    z, y, f, *_ = network
    cal = Procal.fit(z[:300], y[:300], f[:300])
    far = cal(z[300:350], -f[300:350])  # the opposite direction of every known row
    assert bool(far.isfinite().all())
    assert float(far.softmax(1).amax(1).min()) > 0.1
    assert torch.allclose(far, cal(z[300:350], -2 * f[300:350]), atol=1e-4)


def test_procal_slices_do_not_change_the_answer(network, monkeypatch):
    z, y, f, *_ = network
    whole = Procal.fit(z[:300], y[:300], f[:300])
    expected = whole(z[300:], f[300:])
    monkeypatch.setattr(procal, "SLICE", 2000)
    sliced = Procal.fit(z[:300], y[:300], f[:300])
    assert torch.allclose(sliced.right, whole.right, atol=1e-12)
    assert torch.allclose(sliced(z[300:], f[300:]), expected, atol=1e-5)


@pytest.mark.parametrize("right", [True, False])
def test_procal_has_nothing_to_compare_where_all_rows_are_alike(network, right):
    z, _, f, *_ = (t[:50] for t in network)
    labels = z.argmax(1) if right else (z.argmax(1) + torch.arange(50) % 9 + 1) % 10
    cal = Procal.fit(z, labels, f)
    assert torch.equal(cal(z, f), z)
    assert cal.fitted.notes == (f"All rows are {'right' if right else 'wrong'}, so logits are left as they are.",)


def test_procal_may_change_a_prediction():
    g = torch.Generator().manual_seed(0)
    z = torch.tensor([[1.0, 0.9, -3.0]]).repeat(200, 1) + 0.01 * torch.randn(200, 3, generator=g)
    labels = (torch.arange(200) % 5 > 1).long()  # the class that it predicts is true twice in five
    cal = Procal.fit(z, labels, torch.randn(200, 4, generator=g))
    assert cal.fitted.log_loss[1] < cal.fitted.log_loss[0]
    assert not bool((cal(z, torch.ones(200, 4)).argmax(1) == z.argmax(1)).all())


def test_procal_refuses_what_it_does_not_know():
    f = torch.ones(6, 2)
    with pytest.raises(ValueError, match=r"^neighbours must be at least 1; got 0\.$"):
        Procal.fit(F1, F1_LABELS, f, neighbours=0)
    with pytest.raises(ValueError, match=r"^features are needed"):
        Procal.fit(F1, F1_LABELS, None)


# --- feature clipping


def test_clipping_has_the_published_value():
    features = torch.tensor([[0.2, 3.0, -4.0]], dtype=torch.float64)
    weight = torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
    logits = features @ weight.T
    assert logits[0].tolist() == pytest.approx([1.7, 7.0])
    cal = FeatureClipping.fit(logits.repeat(4, 1), [1, 1, 1, 0], features.repeat(4, 1), weight=weight)
    cal.clip.fill_(1.0)
    assert cal(logits, features)[0].tolist() == pytest.approx([0.7, 2.0], abs=1e-12)


def ece(p, y):
    c, a = p.max(1), p.argmax(1) == y
    place = np.clip(np.ceil(c * 15 - 1e-5) - 1, 0, 14).astype(int)
    return np.abs(np.bincount(place, c - a)).sum() / len(y)


def naive_clip(z, y, f, w, b):
    """Two thousand matrix products, one for each clip."""
    original, best, chosen = np.mean(z.argmax(1) == y), math.inf, None
    for c in np.arange(1, 2001) / 100:
        p = softmax(np.clip(f, -c, c) @ w.T + b)
        value = ece(p, y)
        if np.mean(p.argmax(1) == y) > 0.99 * original and value < best - 1e-9:
            best, chosen = value, c
    return chosen, best


@pytest.mark.parametrize("cut", [1.3, 30.0])  # where the truth cuts the features; at 30, beyond the grid
def test_clipping_finds_what_two_thousand_products_find(cut, monkeypatch):
    g = np.random.default_rng(3)
    f, w, b = g.standard_t(2, (300, 6)) * 1.5, g.normal(size=(4, 6)), g.normal(size=4)
    z = f @ w.T + b
    truth = softmax(np.clip(f, -cut, cut) @ w.T + b)
    y = np.array([g.choice(4, p=p) for p in truth])
    assert np.abs(f).max() > 20
    expected, value = naive_clip(z[:200], y[:200], f[:200], w, b)
    assert expected is not None
    for chunk in (feature_clipping.CHUNK, 1600):
        monkeypatch.setattr(feature_clipping, "CHUNK", chunk)
        cal = FeatureClipping.fit(z[:200], y[:200], f[:200], weight=w, bias=b)
        assert cal.clip.item() == expected
        assert cal.fitted.objective == "ECE (15 bins)"
        assert value == pytest.approx(cal.fitted.after, abs=1e-9) or cal.fitted.identity
    new = np.clip(f[200:], -expected, expected) @ w.T + b
    found = cal(torch.from_numpy(z[200:]), torch.from_numpy(f[200:]))
    np.testing.assert_allclose(found, z[200:] if cal.fitted.identity else new, atol=1e-10)


def test_clipping_knows_negative_features_and_one_logit():
    g = torch.Generator().manual_seed(1)
    f = 3 * torch.randn(150, 6, generator=g, dtype=torch.float64)
    w, b = torch.randn(1, 6, generator=g, dtype=torch.float64), torch.tensor([0.3], dtype=torch.float64)
    z = (f @ w.T + b)[:, 0]
    y = (torch.rand(150, generator=g) < (z / 3).sigmoid()).long()
    two = [np.stack([np.zeros(k.shape[1:]), k[0]]) for k in (w.numpy(), b.numpy()[:, None])]
    both = torch.stack([torch.zeros_like(z), z], 1).numpy()
    expected, value = naive_clip(both, y.numpy(), f.numpy(), two[0], two[1][:, 0])
    cal = FeatureClipping.fit(z, y, f, weight=w, bias=b)
    assert (cal.clip.item(), cal.fitted.after) == (expected, pytest.approx(value, abs=1e-9))
    assert cal(z, f).shape == (150,)
    assert cal(z[:, None], f).shape == (150, 1)


def test_a_row_without_large_features_keeps_its_logits_to_the_last_bit(network):
    z, y, f, w, b = network
    cal = FeatureClipping.fit(z[:700], y[:700], f[:700], weight=w, bias=b)
    small = (f <= cal.clip).all(1)
    assert 0 < int(small.sum()) < len(z)
    assert torch.equal(cal(z, f)[small], z[small])
    assert not bool((cal(z, f)[~small] == z[~small]).all())
    assert cal.n_parameters == 1


def test_clipping_refuses_features_of_another_layer(network):
    z, y, f, w, b = (t[:100] if len(t) > 100 else t for t in network)
    for bad in ({"weight": w.flip(1), "bias": b}, {"weight": w, "bias": b + 3}, {"weight": w * 1.1, "bias": b}):
        with pytest.raises(ValueError, match=r"^features @ weight\.T \+ bias must reproduce the logits to 1%"):
            FeatureClipping.fit(z, y, f, **bad)
    with pytest.raises(ValueError, match=r"^weight must have shape \(10, 32\), that of the last layer; got \(32, 10\)"):
        FeatureClipping.fit(z, y, f, weight=w.T, bias=b)
    with pytest.raises(ValueError, match=r"^bias must have shape \(10,\)"):
        FeatureClipping.fit(z, y, f, weight=w, bias=b[:3])
    half = FeatureClipping.fit(z.half(), y, f.half(), weight=w.half(), bias=b.half())  # rounding is no other layer
    assert half(z.half(), f.half()).dtype == torch.float32


def test_clipping_leaves_alone_what_no_clip_keeps_right(network):
    z, y, f, w, b = (t[:200] if len(t) > 200 else t for t in network)
    cal = FeatureClipping.fit(z, y, 100 * f, weight=w / 100, bias=b)  # the grid ends far below the features
    assert cal.fitted.identity
    assert cal.fitted.notes[0] == "No clip keeps 99% of the accuracy."
    assert torch.equal(cal(z, 100 * f), z)


# --- Meta-Cal


def test_meta_mis_threshold_has_the_published_value():
    h = np.arange(1, 11) / 10
    threshold, share = meta._upper(h, 0.2)
    assert threshold == 0.9
    assert threshold == np.quantile(h, 0.8, method="higher")
    assert share == 2 / 11


def curve_oracle(h, correct, bins, closed):
    cuts = np.quantile(h, np.linspace(0, 1, bins + 1))
    accuracy, mean = [], []
    for i in range(bins):
        inside = (h > cuts[i]) & (h <= cuts[i + 1]) | (closed and i == 0) & (h == cuts[0])
        accuracy.append(correct[inside].mean())
        mean.append(h[inside].mean())
    reached = np.round(np.cumsum(accuracy) / np.arange(1, bins + 1), 12)
    x = np.unique(reached)
    y = np.array([np.mean([m for m, r in zip(mean, reached, strict=True) if r == at]) for at in x])
    weights = np.array([(reached == at).sum() for at in x])
    return reached, lambda a: np.interp(a, x, isotonic_regression(y, weights=weights, increasing=False).x)


def test_meta_acc_curve_has_the_published_values():
    h, correct = np.linspace(0.05, 1, 20), np.arange(20) < 15
    reached, read = curve_oracle(h, correct, 5, closed=False)
    np.testing.assert_allclose(reached, [1, 1, 1, 0.9375, 0.75])
    assert read(0.9) == pytest.approx(0.765)
    assert read(0.95) == pytest.approx(0.6466666666667)  # the smallest entropy is in no bin, as the authors have it
    accuracy, entropy = meta._curve(torch.from_numpy(h), torch.from_numpy(correct), bins=5)
    np.testing.assert_allclose(accuracy, [0.75, 0.9375, 1])
    assert np.interp(0.9, accuracy, entropy) == pytest.approx(0.765)
    assert np.interp(0.95, accuracy, entropy) == pytest.approx(0.645)  # it is in the first: (.125 + .325 + .525) / 3
    assert np.interp(0.95, accuracy, entropy) == pytest.approx(curve_oracle(h, correct, 5, closed=True)[1](0.95))


def test_meta_acc_curve_is_the_isotonic_one_of_scipy():
    g = np.random.default_rng(0)
    for _ in range(20):
        h = g.random(200) * 2
        correct = g.random(200) < 0.9 - 0.2 * h + 0.2 * np.sin(9 * h)
        accuracy, entropy = meta._curve(torch.from_numpy(h), torch.from_numpy(correct))
        _, read = curve_oracle(h, correct, 20, closed=True)
        at = np.linspace(accuracy[0], accuracy[-1], 50)
        np.testing.assert_allclose(np.interp(at, accuracy, entropy), read(at), atol=1e-9)
        assert bool((np.diff(entropy) <= 1e-12).all())


def entropies(z):
    p = softmax(z)
    return -(p * np.log(p)).sum(1)


def test_meta_mis_is_a_quantile_and_a_temperature(network):
    z, y, *_ = (t.double() if t.is_floating_point() else t for t in network)
    cal = MetaMis.fit(z[:900], y[:900], alpha=0.2, seed=5)
    right = np.flatnonzero((z[:900].argmax(1) == y[:900]).numpy())
    drawn = right[torch.randperm(len(right), generator=torch.Generator().manual_seed(5))[: len(right) // 10].numpy()]
    h = entropies(z.numpy())
    eta = np.quantile(h[drawn], 0.8, method="higher")
    assert cal.threshold.item() == pytest.approx(eta, abs=1e-12)
    fitted = np.setdiff1d(np.flatnonzero(h[:900] < eta - 1e-9), drawn)
    temperature = best_temperature(z.numpy()[fitted], y.numpy()[fitted])
    assert cal.temperature.item() == pytest.approx(temperature, rel=1e-6)
    kept = torch.from_numpy(h < eta - 1e-9)
    expected = torch.where(kept[:, None], z / cal.temperature, 0)
    assert torch.equal(cal(z), expected)
    assert torch.equal(cal.accepted(z), kept)
    assert torch.equal(cal.accepted(z.float()), kept)
    assert cal.fitted.objective == "log loss of the accepted rows"
    assert cal.fitted.after < cal.fitted.before


def test_meta_mis_rejects_right_rows_as_often_as_it_says():
    g = torch.Generator().manual_seed(0)
    shares = []
    for seed in range(80):
        z = torch.stack([torch.randn(800, generator=g), torch.zeros(800)], 1)
        y = (torch.rand(800, generator=g) > (z[:, 0]).sigmoid()).long()
        right = z[:400].argmax(1) == y[:400]
        cal = MetaMis.fit(z[:400], y[:400], alpha=0.2, seed=seed)
        n1 = int(right.sum()) // 10
        said = (n1 - math.ceil((n1 - 1) * 0.8 - 1e-9)) / (n1 + 1)
        later = z[400:][z[400:].argmax(1) == y[400:]]
        shares.append(float((~cal.accepted(later)).double().mean()) - said)
    assert abs(np.mean(shares)) < 3 * np.std(shares) / math.sqrt(80) + 1e-3


def test_meta_acc_accepts_rows_until_they_are_right_as_often_as_asked(network):
    z, y, *_ = network
    cal = MetaAcc.fit(z[:900], y[:900], accuracy=0.8, seed=2)
    drawn = torch.randperm(900, generator=torch.Generator().manual_seed(2))[:90].numpy()
    correct = (z[:900].argmax(1) == y[:900]).numpy()
    _, read = curve_oracle(entropies(z[:900].double().numpy())[drawn], correct[drawn], 20, closed=True)
    assert cal.threshold.item() == pytest.approx(float(read(0.8)), rel=1e-6)
    assert cal.settings["accuracy"] == 0.8
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(60_000, generator=g).abs() * 2
    z = torch.stack([scores, torch.zeros_like(scores)], 1)
    y = (torch.rand(len(z), generator=g) > scores.sigmoid()).long()
    assert MetaAcc.fit(z[:30_000], y[:30_000], accuracy=0.9).coverage(z[30_000:], y[30_000:]).accuracy == pytest.approx(
        0.9, abs=0.03
    )


def test_meta_acc_refuses_an_accuracy_that_was_not_reached(network):
    z, y, *_ = network
    for bad in (0.05, 1.5):
        with pytest.raises(ValueError, match=r"^accuracy must be between 0\.\d+ \(no row rejected\) and"):
            MetaAcc.fit(z, y, accuracy=bad)
    with pytest.raises(ValueError, match=r"^alpha must be a share between 0 and 1; got 1\.0\.$"):
        MetaMis.fit(z, y, alpha=1.0)
    middle = MetaAcc.fit(z, y)
    low, high = (MetaAcc.fit(z, y, accuracy=a) for a in (middle.settings["accuracy"] - 0.1, 0.9))
    assert low.threshold > middle.threshold > high.threshold


def test_coverage_counts_rejected_rows_by_their_own_prediction(network):
    z, y, *_ = network
    cal = MetaAcc.fit(z[:900], y[:900], accuracy=0.85)
    kept, right = cal.accepted(z), z.argmax(1) == y
    told = cal.coverage(z, y)
    assert told.accepted == pytest.approx(float(kept.double().mean()))
    assert told.accuracy == pytest.approx(float(right[kept].double().mean()))
    assert told.original == pytest.approx(float(right.double().mean()))
    assert told.argmax == pytest.approx(float(torch.where(kept, right, y == 0).double().mean()))
    assert told.argmax < told.original < told.accuracy


def test_meta_mis_accepts_rows_that_tie_with_the_threshold():
    z = torch.tensor([[3.0, 0.0, 0.0]]).repeat(400, 1)  # every entropy is the same: reject all, or none
    cal = MetaMis.fit(z, torch.arange(400) % 4 // 3)
    assert bool(cal.accepted(z).all())
    assert meta._upper(np.array([0.1, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.7]), 0.3)[0] == 0.7


def test_few_rows_are_said_to_be_few(network):
    z, y, *_ = network
    assert MetaMis.fit(z[:14], y[:14]).fitted.notes[0].startswith("The threshold rests on 1 right rows: expect 50.0 %")
    assert MetaAcc.fit(z[:60], y[:60]).fitted.notes[0] == "The threshold rests on 6 rows, less than one a bin."
    assert MetaMis.fit(z[:2], (z[:2].argmax(1) + 1) % 10).fitted.notes[0] == "No row is right, so none is rejected."


def test_accepted_rows_that_are_all_right_keep_their_temperature():
    z = torch.cat([torch.tensor([[5.0, 0.0]]).repeat(200, 1), torch.tensor([[0.5, 0.0]]).repeat(200, 1)])
    y = torch.cat([torch.zeros(200), torch.arange(200) % 2]).long()
    cal = MetaMis.fit(z, y, alpha=0.3)
    assert cal.temperature.item() == 1
    assert any(note.startswith("T = 1: among accepted rows every row is right") for note in cal.fitted.notes)
    assert torch.equal(cal(z), torch.where(torch.arange(400)[:, None] < 200, z, 0))


# --- all of them


METHODS = {
    "group on features": lambda z, y, f, w: Group.fit(z, y, f, partitions=2),
    "group": lambda z, y, f, w: Group.fit(z, y, partitions=2, split=None),
    "procal": lambda z, y, f, w: Procal.fit(z, y, f),
    "procal in bins": lambda z, y, f, w: Procal.fit(z, y, f, kind="bin_mean_shift", proximity="paper"),
    "feature clipping": lambda z, y, f, w: FeatureClipping.fit(z, y, f, weight=w),
    "meta mis": lambda z, y, f, w: MetaMis.fit(z, y),
    "meta acc": lambda z, y, f, w: MetaAcc.fit(z, y),
}


def odd_rows(name):
    g = torch.Generator().manual_seed(0)
    n, k = (1, 3) if name == "one row" else (40, 2 if name in ("two classes", "one logit") else 3)
    f, w = torch.randn(n, 4, generator=g), torch.randn(k, 4, generator=g)
    if name in ("constant", "zero features"):
        f = f * 0 + (name == "constant")
    f = f[:1].repeat(n, 1) if name == "ties" else f
    f = f * 2000 if name == "huge" else f
    f, w = (f.half(), w.half()) if name == "half" else (f, w)
    z = f.float() @ w.float().T
    right = z.argmax(1)
    labels = {
        "all right": right,
        "all wrong": (right + torch.randint(1, k, (n,), generator=g)) % k,
        "one class": torch.ones(n),
    }
    y = labels.get(name, torch.randint(0, k, (n,), generator=g)).long()
    if name == "one logit":
        return z[:, 1] - z[:, 0], y, f, (w[1:] - w[:1])
    return (z.half() if name == "half" else z), y, f, w


@pytest.mark.parametrize(
    "rows",
    [
        *("one row", "one class", "all right", "all wrong", "random", "constant", "zero features"),
        *("ties", "huge", "two classes", "one logit", "half"),
    ],
)
@pytest.mark.parametrize("method", METHODS)
def test_odd_rows_neither_crash_nor_give_anything_but_numbers(method, rows, tmp_path):
    z, y, f, w = odd_rows(rows)
    cal = METHODS[method](z, y, f, w)
    features = f if cal.needs_features else None
    out = cal(z, features)
    assert out.shape == z.shape
    assert bool(out.isfinite().all())
    assert out.dtype == torch.float32
    if cal.keeps_argmax and z.ndim == 2:
        assert torch.equal(out.argmax(1), z.argmax(1))
    cal.save(tmp_path / "cal.safetensors")
    assert torch.equal(load(tmp_path / "cal.safetensors")(z, features), out)
    assert type(cal).__name__ in repr(cal)


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_of_any_number_of_rows_can_be_exported(method, network):
    z, y, f, w, b = network
    cal = METHODS[method](z[:100] - b, y[:100], f[:100], w)
    few, many = ((z[s], f[s]) if cal.needs_features else (z[s],) for s in (slice(5), slice(100, 300)))
    program = torch.export.export(cal, few, dynamic_shapes=tuple({0: torch.export.Dim("n")} for _ in few))
    assert torch.allclose(program.module()(*many), cal(*many), atol=1e-6)
