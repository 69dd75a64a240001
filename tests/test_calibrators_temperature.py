"""One temperature, mixtures of it, and temperatures for each row: spec values, slow oracles, passes, extremes."""

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq, minimize, minimize_scalar

from calibrant import Predictions
from calibrant.calibrators._solvers import network, newton
from calibrant.calibrators._solvers.objectives import GOALS, LogSum, Scaled, printed, soft_binned
from calibrant.calibrators._solvers.samplewise import INDICATORS, look
from calibrant.calibrators.ensemble_temperature import EnsembleTemperature, on_simplex
from calibrant.calibrators.parameterised_temperature import ParameterisedTemperature
from calibrant.calibrators.smart import Smart, temperature_bounds
from calibrant.calibrators.smart_proper import SmartProper
from calibrant.calibrators.temperature import Temperature
from calibrant.losses.penalties.soft_ece import soft_ece
from calibrant.predictions.fit_data import FitData

Z = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 2, 1, 0])
CONFIDENCE = Z.softmax(1).amax(1).numpy()
CORRECT = (Z.argmax(1) == Y).double().numpy()


def over_confident(n, k, times=2.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    truth = 2.5 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return times * truth, torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)


def slow_log_loss(logits, labels, t):
    """Plain loops over rows, in float64."""
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        top = max(row)
        total += math.log(sum(math.exp((z - top) / t) for z in row)) - (row[label] - top) / t
    return total / len(labels)


# ---- one temperature


def test_four_rows_of_which_three_are_right_have_a_known_temperature():
    cal = Temperature.fit(torch.tensor([[4.0, 0.0]]).repeat(4, 1), torch.tensor([0, 0, 0, 1]))
    assert float(cal.temperature) == pytest.approx(4 / math.log(3), rel=1e-8)


@pytest.mark.parametrize(
    ("rule", "t", "objective"),
    [
        ("nll", 0.9381095609, 0.7961426415609018),
        ("nll_grid", 0.9, None),
        ("ece_grid", 7.3, 0.12319427553847909),
        ("mse", 0.91101684, 3 * 0.1484199959407307),
    ],
)
def test_the_rules_give_their_published_values(rule, t, objective):
    cal = Temperature.fit(Z, Y, rule=rule)
    assert float(cal.temperature) == pytest.approx(t, rel=1e-6)
    if objective is not None:
        assert cal.fitted.after == pytest.approx(objective, abs=1e-12)


@pytest.mark.parametrize("k", [2, 10, 100])
@pytest.mark.parametrize("times", [0.01, 1, 20, 200, 2000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [600, 5000])
def test_the_optimum_is_reached_at_every_scale_in_few_passes(k, times, dtype, n):
    logits, labels = over_confident(n, k)
    given = (times * logits).to(dtype)
    found = newton.least_log_loss(FitData.read(given, labels))
    z = given.double() - given.double().amax(1, keepdim=True)

    def slope(u):  # of the log loss in log beta: an independent root search, by torch's own softmax
        b = math.exp(u)
        return float(((b * z).softmax(1) * z).sum(1).mean() - z.gather(1, labels[:, None]).mean())

    root = brentq(slope, math.log(found.beta) - 3, math.log(found.beta) + 3, xtol=1e-13)
    assert math.log(found.beta) == pytest.approx(root, abs=1e-6)
    assert not found.bound
    assert found.passes <= (
        3.5 if n == 5000 else 6
    )  # 5 000 rows begin with a tenth of them: three full passes and a bit


def test_passes_are_counted_as_they_happen(monkeypatch):
    rows_read = []
    real = newton._moments

    def counting(logits, top, behind, beta):
        rows_read.append(len(top))
        return real(logits, top, behind, beta)

    monkeypatch.setattr(newton, "_moments", counting)
    logits, labels = over_confident(5000, 20)
    found = newton.least_log_loss(FitData.read(logits, labels))
    assert sum(rows_read) / 5000 == pytest.approx(found.passes)
    assert sum(n == 5000 for n in rows_read) <= 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_where_there_is_no_optimum_the_bound_is_returned_with_the_reason(dtype):
    logits, labels = over_confident(500, 6)
    logits = logits.to(dtype)
    cases = {
        "every row is right": (logits, logits.argmax(1)),
        "no more likely among large logits": (logits, logits.argmin(1)),
        "all logits of a row are equal": (torch.ones_like(logits), labels),
    }
    for why, (z, y) in cases.items():
        with pytest.warns(UserWarning, match=why):
            cal = Temperature.fit(z, y) if why[0] == "e" else _unchecked(z, y)
        assert why in cal.bound
        assert why in repr(cal)
        assert not cal.fitted.converged
        assert 0 < float(cal.temperature) < math.inf
        assert cal(z).isfinite().all()


def _unchecked(logits, labels):
    """Labels that the door would call permuted, given with their classes named."""
    rows = FitData(Predictions(logits=logits, labels=labels, classes=range(logits.shape[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FitData, "read", classmethod(lambda cls, *a, **k: rows))
        return Temperature.fit(logits, labels)


def test_random_labels_one_class_and_one_row_have_an_answer():
    logits, labels = over_confident(2000, 5)
    g = torch.Generator().manual_seed(1)
    for z, y in (
        (logits, torch.randint(5, (2000,), generator=g)),
        (logits, torch.zeros(2000, dtype=torch.long)),
        (logits[:1], labels[:1]),
        (logits[:1], (logits[:1].argmax(1) + 1) % 5),
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cal = Temperature.fit(z, y)
        best = minimize_scalar(lambda u, z=z, y=y: slow_log_loss(z, y, math.exp(u)), bounds=(-12, 12)).fun
        assert cal.fitted.log_loss[1] <= best + 1e-6
        assert 0 < float(cal.temperature) < math.inf


def test_a_constant_added_to_a_row_changes_nothing_and_log_probs_are_as_good_as_logits():
    logits, labels = over_confident(800, 7)
    shift = torch.linspace(-50, 50, 800, dtype=torch.float64)[:, None]
    fits = [Temperature.fit(z, labels) for z in (logits, logits + shift, logits.log_softmax(1))]
    for other in fits[1:]:
        assert float(other.temperature) == pytest.approx(float(fits[0].temperature), rel=1e-9)


def test_the_spread_is_the_standard_error_of_log_t():
    found = [Temperature.fit(*over_confident(800, 5, seed=s)) for s in range(150)]
    logs = np.array([math.log(float(cal.temperature)) for cal in found])
    said = np.mean([float(cal.spread) for cal in found])
    assert said == pytest.approx(logs.std(), rel=0.2)
    inside = np.abs(logs - math.log(2)) < 1.96 * np.array([float(cal.spread) for cal in found])
    assert 0.88 <= inside.mean() <= 1.0


def test_t_is_said_in_words_with_its_interval():
    assert "the model was over-confident" in repr(Temperature.fit(*over_confident(2000, 5, times=2)))
    assert "the model was under-confident" in repr(Temperature.fit(*over_confident(2000, 5, times=0.5)))
    assert "no clear sign that 1 was wrong" in repr(Temperature.fit(*over_confident(2000, 5, times=1)))


WILD = {
    "one row surer than all others": lambda z, y: (_with_row(z, y, 1e9), y),
    "a class masked by a very low logit": lambda z, y: (torch.cat([z, torch.full((len(z), 1), -1e9)], 1), y),
    "a class masked by the lowest float": lambda z, y: (torch.cat([z, torch.full((len(z), 1), -3e38)], 1), y),
    "every other row without an opinion": lambda z, y: (z * (torch.arange(len(z)) % 2)[:, None], y),
}


def _with_row(z, y, value):
    z = z.clone()
    z[0] = 0
    z[0, y[0]] = value
    return z


@pytest.mark.parametrize("kind", WILD)
@pytest.mark.parametrize("n", [1000, 6000])
def test_wild_rows_do_not_hide_the_optimum(kind, n):
    logits, labels = WILD[kind](*over_confident(n, 8))
    cal = Temperature.fit(logits, labels)
    best = minimize_scalar(
        lambda u: float(torch.nn.functional.cross_entropy(logits / math.exp(u), labels)), bounds=(-4, 4)
    ).fun
    assert cal.fitted.log_loss[1] <= best + 1e-6
    assert float(cal.temperature) == pytest.approx(2, rel=0.2)
    assert not cal.bound


# ---- a mixture


def test_the_mixture_has_its_published_values():
    cal = EnsembleTemperature.fit(Z, Y)
    assert float(cal.temperature) == pytest.approx(0.91101684, abs=1e-7)
    assert cal.weights.tolist() == pytest.approx([1, 0, 0], abs=1e-9)
    assert cal.fitted.after / 3 == pytest.approx(0.1484199959407307, abs=1e-12)
    cal.weights.copy_(torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    cal.temperature.fill_(2.0)
    assert cal(Z)[0].exp().tolist() == pytest.approx([0.515210886878, 0.291541061017, 0.193248052105], abs=1e-11)


def test_the_weights_are_those_of_a_general_solver():
    logits, labels = over_confident(700, 5, times=3)
    logits = torch.where(torch.rand(700, 1, generator=torch.Generator().manual_seed(0)) < 0.3, 0.2 * logits, logits)
    cal = EnsembleTemperature.fit(logits, labels)
    parts = np.stack([(logits / cal.temperature).softmax(1), logits.softmax(1), torch.full_like(logits, 0.2)])
    truth = np.eye(5)[labels]

    def brier(w):
        return np.square(np.tensordot(w, parts, 1) - truth).sum(1).mean()

    rule = [{"type": "eq", "fun": lambda w: w.sum() - 1}]
    slsqp = minimize(brier, [1 / 3] * 3, bounds=[(0, 1)] * 3, constraints=rule, tol=1e-12)
    assert brier(cal.weights.numpy()) <= slsqp.fun + 1e-9
    assert cal.fitted.after == pytest.approx(brier(cal.weights.numpy()), abs=1e-9)


def test_the_simplex_is_searched_on_every_face():
    g = np.random.default_rng(0)
    grid = np.array([(i, j, 40 - i - j) for i in range(41) for j in range(41 - i)]) / 40
    for _ in range(50):
        root = g.normal(size=(3, 3))
        inner, linear = root @ root.T, g.normal(size=3)
        w = on_simplex(inner, linear)
        assert w.min() >= 0
        assert w.sum() == pytest.approx(1)
        values = np.einsum("gi,ij,gj->g", grid, inner, grid) - 2 * grid @ linear
        assert w @ inner @ w - 2 * linear @ w <= values.min() + 1e-9


# ---- what a temperature for each row is made of


@pytest.mark.parametrize("k", [2, 10, 16, 17, 100, 400])
def test_the_log_sum_and_its_derivative_are_exact_enough(k):
    g = torch.Generator().manual_seed(k)
    logits = 3 * torch.randn(300, k, generator=g)
    beta = torch.empty(300, dtype=torch.float64).uniform_(-2.3, 2.3, generator=g).exp()
    value, slope = LogSum(logits, low=0.05, high=10.0)(beta.numpy())
    d = logits.double() - logits.double().amax(1, keepdim=True)
    scaled = d * beta[:, None]
    assert np.abs(value - scaled.logsumexp(1).numpy()).max() < (1e-12 if k <= 16 else 3e-5)
    assert np.abs(slope - (scaled.softmax(1) * d).sum(1).numpy()).max() < (1e-12 if k <= 16 else 2e-3)


@pytest.mark.parametrize("name", GOALS)
@pytest.mark.parametrize("k", [5, 30])
def test_every_objective_has_the_derivative_of_its_value(name, k):
    logits, labels = over_confident(40, k)
    rows = Scaled(FitData.read(logits, labels), low=0.05, high=20.0)
    beta = np.random.default_rng(0).uniform(0.3, 1.5, 40)
    value, slope = GOALS[name](beta, rows)
    assert math.isfinite(value)
    for i in range(0, 40, 7):
        step = np.zeros(40)
        step[i] = 1e-5
        numeric = (GOALS[name](beta + step, rows)[0] - GOALS[name](beta - step, rows)[0]) / 2e-5
        assert slope[i] == pytest.approx(numeric, abs=2e-6)


def test_objectives_are_what_their_names_say():
    logits, labels = over_confident(60, 6)
    beta = np.random.default_rng(0).uniform(0.3, 1.5, 60)
    rows = Scaled(FitData.read(logits, labels), low=0.05, high=20.0)
    scaled = logits * torch.from_numpy(beta)[:, None]
    p, truth = scaled.softmax(1), torch.nn.functional.one_hot(labels, 6).double()
    c, a = p.amax(1), (p.argmax(1) == labels).double()
    smooth = 0.95 * truth + 0.05 / 6
    expected = {
        "nll": torch.nn.functional.cross_entropy(scaled, labels),
        "label_smoothing": -(smooth * scaled.log_softmax(1)).sum(1).mean(),
        "brier": (p - truth).square().sum(1).mean(),
        "mse": (c - a).square().mean(),
    }
    for name, value in expected.items():
        assert GOALS[name](beta, rows)[0] == pytest.approx(float(value), rel=1e-9), name


def slow_soft_ece(c, a, bins, delta):
    """Plain loops: memberships row by row, bins averaged, then the root."""
    centre = [(b + 0.5) / bins for b in range(bins)]
    mass, conf, hit = [0.0] * bins, [0.0] * bins, [0.0] * bins
    for ci, ai in zip(c, a, strict=True):
        w = [math.exp(-((ci - x) ** 2) / (2 * 0.05**2)) for x in centre]
        for b in range(bins):
            share = w[b] / sum(w)
            mass[b], conf[b], hit[b] = mass[b] + share, conf[b] + share * ci, hit[b] + share * ai
    gaps = [(m, (x - y) / m) for m, x, y in zip(mass, conf, hit, strict=True) if m > 0]
    return sum(m / len(c) * math.sqrt(gap**2 + delta**2) for m, gap in gaps)


def test_the_soft_binned_error_is_that_of_the_penalty():
    c, a = torch.rand(50, generator=torch.Generator().manual_seed(0)).double() / 2 + 0.5, torch.arange(50) % 3 > 0
    logits = torch.stack([c.log(), (1 - c).log()], 1)
    wanted = soft_ece(logits, (~a).long(), temperature=2 * 0.05**2, p=1)
    assert soft_binned(c.numpy(), a.double().numpy(), delta=0.0)[0] == pytest.approx(float(wanted), rel=1e-9)


def test_the_soft_binned_error_has_its_published_values():
    assert soft_binned(CONFIDENCE, CORRECT)[0] == pytest.approx(0.30999996635469257, abs=1e-11)
    assert soft_binned(CONFIDENCE, CORRECT, bins=5)[0] == pytest.approx(0.3362235093798063, abs=1e-11)
    assert soft_binned(CONFIDENCE, CORRECT, delta=0.0)[0] == pytest.approx(0.3099978826262295, abs=1e-11)
    g = np.random.default_rng(0)
    c, a = g.random(80), (g.random(80) < 0.6) * 1.0
    c[:3] = 0.0, 1.0, 1.0
    for bins, delta in ((15, 1e-3), (15, 0.0), (4, 0.1)):
        assert soft_binned(c, a, bins=bins, delta=delta)[0] == pytest.approx(slow_soft_ece(c, a, bins, delta), rel=1e-9)


@pytest.mark.parametrize(
    ("p", "as_printed", "soft"),
    [
        (0.5, 0.5000010103, 0.2000025),
        (0.7, 0.4200014178, 0.001),
        (0.9, 0.3411111441, 0.2000025),
        (1.0, 0.3159866861, None),
    ],
)
def test_the_printed_objective_falls_to_certainty_and_ours_to_the_accuracy(p, as_printed, soft):
    right = (np.arange(10) < 7) * 1.0
    assert printed(np.full(10, p), right)[0] == pytest.approx(as_printed, abs=1e-7)
    if soft is not None:
        assert soft_binned(np.full(10, p), right)[0] == pytest.approx(soft, abs=1e-8)


def flattened(named):
    """The weights of each layer with its bias as the last column, one layer after the other."""
    layers = range(1, sum(name.startswith("w") for name in named) + 1)
    return np.concatenate([torch.cat([named[f"w{i}"], named[f"b{i}"][:, None]], 1).flatten().numpy() for i in layers])


@pytest.mark.parametrize("widths", [(16,), (5, 5)])
def test_the_gradient_of_the_network_is_that_of_autograd(widths):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(50, 3, generator=g, dtype=torch.float64)
    net = network.Network(x, widths)
    flat = net.start(0.3, seed=1)
    out = net(flat).copy()
    pull = np.random.default_rng(0).normal(size=50)
    state = {name: value.requires_grad_(name[0] in "wb") for name, value in net.state(flat).items()}
    again = network.output(x, state)
    assert np.abs(out - again.detach().numpy()).max() < 1e-12
    (again * torch.from_numpy(pull)).sum().backward()
    slopes = {name: value.grad for name, value in state.items() if name[0] in "wb"}
    net(flat)
    assert np.abs(net.gradient(flat, pull) - flattened(slopes)).max() < 1e-12


def test_training_is_adam():
    logits, labels = over_confident(100, 4)
    scaled = Scaled(FitData.read(logits, labels), low=0.05, high=20.0)
    net = network.Network(look(logits, ["margin"]), (3,))
    begin = net.start(0.3, seed=0)
    ours = [
        w.copy()
        for _, w in network.adam(
            net, begin, lambda o: (np.exp(o), np.exp(o)), lambda b: GOALS["nll"](b, scaled), steps=20
        )
    ]
    state = {k: v.requires_grad_(k[0] in "wb") for k, v in net.state(begin).items()}
    free = [state[name] for name in ("w1", "b1", "w2", "b2")]
    optimiser = torch.optim.Adam(free, lr=5e-3)
    for _ in range(20):
        optimiser.zero_grad()
        z = logits * network.output(look(logits, ["margin"]), state).exp()[:, None]
        torch.nn.functional.cross_entropy(z, labels).backward()
        optimiser.step()
    assert np.abs(ours[-1] - flattened({name: value.detach() for name, value in state.items()})).max() < 1e-9
    assert len(ours) == 21


# ---- SMART


def smart_with(weights, k=3):
    """A SMART whose network is given by hand."""
    cal = Smart.fit(Z, Y, steps=1)
    for name, value in weights.items():
        cal.register_buffer(name, torch.tensor(value, dtype=torch.float64))
    return cal


def test_the_margin_network_has_its_published_values():
    given = {"w1": [[0.5], [-0.3]], "b1": [0.1, 0.2], "w2": [[0.7, -0.4]], "b2": [0.3]}
    cal = smart_with(given | {"unit": 1.0})
    assert look(Z, ["margin"]).squeeze(1).tolist() == pytest.approx([1, 2, 0.2, 2.8, 0.1, 0.5])
    assert float(cal.mean) == pytest.approx(1.1)
    assert float(cal.std) == pytest.approx(0.9899494936611665)
    t = cal.temperature(Z)
    assert t.tolist() == pytest.approx(
        [0.921742813397, 1.195315592354, 0.850135604871, 1.392173599382, 0.843757260197, 0.869490263029], abs=1e-11
    )
    c = (Z / t[:, None]).softmax(1).amax(1).numpy()
    assert soft_binned(c, CORRECT)[0] == pytest.approx(0.32458477049914536, abs=1e-11)


def test_it_has_49_weights_whatever_the_number_of_classes():
    assert Smart.fit(*over_confident(60, 3), steps=2).n_parameters == 49
    assert Smart.fit(*over_confident(60, 40), steps=2).n_parameters == 49


def test_steps_on_the_table_lead_where_exact_ones_do(monkeypatch):
    logits, labels = over_confident(1500, 60)
    logits = logits * (1 + look(logits, ["margin"]).clamp(max=4) / 4)
    quick = Smart.fit(logits, labels, steps=10)
    monkeypatch.setattr("calibrant.calibrators._solvers.objectives.EXACT", 1000)
    exact = Smart.fit(logits, labels, steps=10)
    assert float((quick.temperature(logits) - exact.temperature(logits)).abs().max()) < 1e-4


def test_it_lowers_calibration_error_below_that_of_one_temperature_where_margins_matter():
    logits, labels = over_confident(4000, 10)
    warped = logits * (1 + 2 * look(logits, ["margin"]).clamp(max=4) / 4)  # wider margins are more over-confident
    fresh, truth = over_confident(8000, 10, seed=7)
    fresh = fresh * (1 + 2 * look(fresh, ["margin"]).clamp(max=4) / 4)
    one, many = Temperature.fit(warped, labels), Smart.fit(warped, labels)
    error = [
        soft_binned(cal(fresh).softmax(1).amax(1).numpy(), (fresh.argmax(1) == truth).double().numpy())[0]
        for cal in (one, many)
    ]
    assert error[1] < 0.5 * error[0]


def test_the_printed_objective_drives_confidence_to_one_or_to_its_least():
    g = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(100, 10, generator=g, dtype=torch.float64)
    for rate, edge in ((8, "one"), (4, "least")):
        right = torch.arange(100) % 10 < rate
        labels = torch.where(right, logits.argmax(1), logits.argmin(1))
        bad = Smart.fit(logits, labels, objective="charbonnier_printed", steps=1500)
        good = Smart.fit(logits, labels, steps=800)
        said, honest = (cal(logits).softmax(1).amax(1).mean() for cal in (bad, good))
        assert abs(honest - right.double().mean()) < 0.05
        assert said > 0.95 if edge == "one" else said < honest - 0.1


def test_seeds_differ_a_little_and_few_rows_are_enough():
    logits, labels = over_confident(50, 5)
    a, b = (Smart.fit(logits, labels, seed=s) for s in (1, 2))
    assert not torch.equal(a(logits), b(logits))
    for cal in (a, b):
        assert cal.fitted.after < cal.fitted.before
        fresh = over_confident(2000, 5, seed=9)
        assert (
            Predictions(logits=cal(fresh[0]), labels=fresh[1]).nll.mean()
            < Predictions(logits=fresh[0], labels=fresh[1]).nll.mean()
        )


def test_the_scale_of_the_logits_does_not_matter_far_from_one():
    logits, labels = over_confident(400, 5)
    a, b = (Smart.fit(s * logits, labels, steps=100) for s in (100, 10_000))
    torch.testing.assert_close(a(100 * logits), b(10_000 * logits), rtol=1e-5, atol=1e-6)


def test_indicators_see_what_they_say():
    for name, see in INDICATORS.items():
        x = see(Z)
        assert x.shape[0] == 6, name
    assert INDICATORS["entropy"](torch.zeros(1, 4)).item() == pytest.approx(math.log(4))
    assert INDICATORS["max_less_mean"](Z)[0].item() == pytest.approx(2.0 - 3.1 / 3)
    assert INDICATORS["largest_logits"](torch.arange(24.0).reshape(2, 12))[0].tolist() == list(range(11, 1, -1))


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="steps must be at least 1"):
        Smart.fit(Z, Y, steps=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        ParameterisedTemperature.fit(Z, Y, steps=0)
    with pytest.raises(ValueError, match="folds must be at least 2"):
        SmartProper.fit(Z, Y, folds=1)


def test_the_margin_bounds_the_temperature():
    z, target = np.array([3.0, 1.0, 0.5, -1.0]), 0.8
    low, high = temperature_bounds(2.0, target, 4)
    assert (low, high) == pytest.approx((0.8048592087636893, 1.4426950408889634))
    solved = brentq(lambda t: 1 / np.exp((z - 3) / t).sum() - target, 0.1, 10)
    assert solved == pytest.approx(1.025830146827723)
    assert low <= solved <= high
    g = np.random.default_rng(0)
    for _ in range(200):
        z, target = np.sort(g.normal(size=5))[::-1], g.uniform(0.25, 0.95)
        if z[0] - z[1] < 0.05:
            continue
        low, high = temperature_bounds(z[0] - z[1], target, 5)
        solved = brentq(lambda t, z=z, target=target: 1 / np.exp((z - z[0]) / t).sum() - target, 5e-3, 1e3)
        assert low - 1e-9 <= solved <= high + 1e-9
    same = temperature_bounds(1.0, 0.7, 2)
    assert same[0] == pytest.approx(same[1])
    for wrong in ((0.0, 0.8, 3), (1.0, 0.2, 3), (1.0, 1.0, 3), (1.0, 0.8, 1)):
        with pytest.raises(ValueError, match="must"):
            temperature_bounds(*wrong)


# ---- SMART made proper


def test_with_few_rows_it_is_temperature_scaling():
    logits, labels = over_confident(40, 5)
    cal, one = SmartProper.fit(logits, labels), Temperature.fit(logits, labels)
    assert torch.allclose(cal.temperature(logits), one.temperature.expand(40), rtol=1e-6)
    assert "one temperature for all rows" in repr(cal)


def test_where_one_temperature_is_right_it_does_no_harm():
    worse = []
    for seed in range(4):
        logits, labels = over_confident(200, 6, seed=seed)
        fresh, truth = over_confident(3000, 6, seed=100 + seed)
        loss = [
            Predictions(logits=cal.fit(logits, labels)(fresh), labels=truth).nll.mean()
            for cal in (Temperature, SmartProper)
        ]
        worse.append(float(loss[1] - loss[0]))
    assert np.mean(worse) < 0.003


def test_where_rows_differ_it_beats_one_temperature_on_every_score():
    logits, labels = over_confident(3000, 10)
    fresh, truth = over_confident(6000, 10, seed=7)
    warp = lambda z: z * (1 + 2 * look(z, ["margin"]).clamp(max=4) / 4)  # noqa: E731
    one, proper = Temperature.fit(warp(logits), labels), SmartProper.fit(warp(logits), labels)
    before, after = (Predictions(logits=cal(warp(fresh)), labels=truth) for cal in (one, proper))
    assert after.nll.mean() < before.nll.mean() - 0.005
    assert after.brier.mean() < before.brier.mean()
    assert proper.settings["steps"] > 0


# ---- PTS


def test_the_parameterised_temperature_has_its_published_values():
    cal = ParameterisedTemperature.fit(Z, Y, steps=1)
    hand = {"w1": [[0.1, 0.2, -0.1], [0.3, -0.1, 0.0]], "b1": [0.5, 0.1], "w2": [[0.6, -0.4]], "b2": [0.7]}
    plain = {"mean": [0.0] * 3, "std": [1.0] * 3, "low": [-100.0] * 3, "high": [100.0] * 3, "unit": 1.0}
    cal.fitted = replace(cal.fitted, identity=False)
    for name in list(dict(cal.named_buffers())):
        delattr(cal, name)
    for name, value in (hand | plain).items():
        cal.register_buffer(name, torch.tensor(value, dtype=torch.float64))
    assert cal.temperature(Z).tolist() == pytest.approx([0.994, 0.872, 0.994, 0.806, 1.082, 1.0], abs=1e-12)
    assert cal(Z)[0].softmax(0).tolist() == pytest.approx([0.660707711510, 0.241598035155, 0.097694253335], abs=1e-11)


def test_it_stops_before_it_learns_the_rows_by_heart():
    logits, labels = over_confident(800, 6)
    fresh, truth = over_confident(4000, 6, seed=5)
    stopped, long = (ParameterisedTemperature.fit(logits, labels, steps=s) for s in (None, 3000))
    loss = [Predictions(logits=cal(fresh), labels=truth).brier.mean() for cal in (stopped, long)]
    assert long.fitted.after < stopped.fitted.after
    assert loss[0] < loss[1]
