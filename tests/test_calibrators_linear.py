"""Affine maps of logits and of log probabilities, and class temperatures, against slow oracles and known values."""

import math

import numpy as np
import pytest
import torch
from real_data import DEMO, larger

from calibrant.calibrators import dirichlet as dirichlet_module
from calibrant.calibrators._solvers.affine import Regression, Ridge
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.class_temperature import ClassTemperature, Descent
from calibrant.calibrators.dirichlet import Dirichlet
from calibrant.calibrators.matrix import Matrix
from calibrant.calibrators.structured import StructuredMatrix, StructuredVector
from calibrant.calibrators.vector import Vector
from calibrant.metrics.binned import top_label_ece
from calibrant.predictions.facts import from_logits
from calibrant.predictions.fit_data import FitData

Z = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 2, 1, 0])
W = torch.tensor([[1.1, 0.2, -0.1], [0.0, 0.9, 0.3], [0.05, -0.2, 1.2]], dtype=torch.float64)
B = torch.tensor([0.1, -0.2, 0.05], dtype=torch.float64)

METHODS = {
    "vector": Vector.fit,
    "matrix": lambda z, y: Matrix.fit(z, y, iterations=50),
    "structured_vector": StructuredVector.fit,
    "structured_matrix": StructuredMatrix.fit,
    "dirichlet": Dirichlet.fit,
    "class_temperature": ClassTemperature.fit,
}
every_method = pytest.mark.parametrize("fit", METHODS.values(), ids=METHODS)


def sample(n=400, k=4, seed=0, scale=3.0):
    """Over-confident logits of an affinely distorted model, so that every part of an affine map has work to do."""
    source = torch.Generator().manual_seed(seed)
    true = torch.randn(n, k, generator=source, dtype=torch.float64) * 1.5
    labels = torch.multinomial(true.softmax(1), 1, generator=source).squeeze(1)
    bend = torch.eye(k, dtype=torch.float64) + 0.2 * torch.randn(k, k, generator=source, dtype=torch.float64)
    return scale * (true @ bend + 0.3 * torch.randn(k, generator=source, dtype=torch.float64)), labels


def minimum(loss, *shapes):
    """Minimise by torch's own L-BFGS and automatic slopes."""
    parts = [torch.zeros(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    search = torch.optim.LBFGS(
        parts, max_iter=3000, tolerance_grad=1e-11, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def closure():
        search.zero_grad()
        value = loss(*parts)
        value.backward()
        return value

    search.step(closure)
    return [part.detach() for part in parts]


def cross_entropy(logits, labels):
    return torch.nn.functional.cross_entropy(logits, labels)


def close(logits, expected, atol=1e-5):
    torch.testing.assert_close(logits.double().softmax(1), expected.double().softmax(1), rtol=0, atol=atol)


# --- the objective -------------------------------------------------------------------------------------------------


def test_the_dirichlet_objective_has_its_known_value():
    x = torch.log_softmax(Z, 1)
    ridge = Ridge(other=0.1 / 6, bias=0.1 / 3)
    value = Regression(x, torch.zeros_like(x), Y, full=True, ridge=ridge).value(W, B)[0]
    assert value == pytest.approx(0.8830916573059295, abs=1e-12)
    plain = Regression(x, torch.zeros_like(x), Y, full=True, ridge=Ridge()).value(W, B)[0]
    assert value - plain == pytest.approx(0.1 * 0.030416666666666661 + 0.1 * 0.0175, abs=1e-12)


@pytest.mark.parametrize("full", [False, True])
def test_slopes_are_those_of_automatic_differentiation(full):
    z, y = sample(50)
    ridge = Ridge(0.3, 0.2, 0.1)
    weight = torch.linspace(-1, 1, 16 if full else 4, dtype=torch.float64).view((4, 4) if full else (4,))
    bias = torch.linspace(0.5, -0.5, 4, dtype=torch.float64)
    _, slope, bias_slope = Regression(z, z / 3, y, full=full, ridge=ridge).value(weight, bias)
    w, b = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    wide = w if full else torch.diag(w)
    loss = cross_entropy(z / 3 + z @ wide.T + b, y) + 0.3 * wide.diagonal().square().sum() + 0.1 * b.square().sum()
    loss = loss + 0.2 * (wide.square().sum() - wide.diagonal().square().sum())
    loss.backward()
    torch.testing.assert_close(slope, w.grad, rtol=0, atol=1e-12)
    torch.testing.assert_close(bias_slope, b.grad, rtol=0, atol=1e-12)


# --- each method against a minimum found another way ---------------------------------------------------------------


def test_vector_scaling_is_the_least_log_loss():
    z, y = sample()
    w, b = minimum(lambda w, b: cross_entropy(z * w + b, y), 4, 4)
    cal = Vector.fit(z, y)
    close(cal(z), z * w + b)
    assert cal.fitted.converged
    assert cal.fitted.after == pytest.approx(float(cross_entropy(z * w + b, y)), abs=1e-9)


def test_matrix_scaling_is_the_least_log_loss():
    z, y = sample()
    w, b = minimum(lambda w, b: cross_entropy(z @ w.T + b, y), (4, 4), 4)
    cal = Matrix.fit(z, y)
    close(cal(z), z @ w.T + b, atol=1e-4)
    assert cal.fitted.after == pytest.approx(float(cross_entropy(z @ w.T + b, y)), abs=1e-8)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_structured_scaling_is_the_least_ridged_log_loss(full, strength):
    z, y = sample(200, 5, seed=3)
    n, k = z.shape
    p = (z * least_log_loss(FitData.read(z, y)).beta).softmax(1)
    x = (p * n / (n + 1) + 1 / (k * (n + 1))).log()

    def loss(v, m, b):
        m = m - torch.diag(m.diagonal()) if full else 0 * m
        out = x + v * x + x @ m.T + b
        ridge = k / n * (v.square().sum() + b.square().sum()) + k * (k - 1) / n * m.square().sum()
        return cross_entropy(out, y) + strength * ridge

    v, m, b = minimum(loss, 5, (5, 5), 5)
    m = m - torch.diag(m.diagonal()) if full else 0 * m
    cal = (StructuredMatrix if full else StructuredVector).fit(z, y, strength=strength)
    close(cal(z), x + v * x + x @ m.T + b)


def test_dirichlet_calibration_is_the_least_odir_log_loss():
    z, y = sample()
    x = torch.log_softmax(z, 1).clamp(min=math.log(1e-12))

    def loss(w, b):
        other = w.square().sum() - w.diagonal().square().sum()
        return cross_entropy(x @ w.T + b, y) + 0.5 / 12 * other + 0.2 / 4 * b.square().sum()

    w, b = minimum(loss, (4, 4), 4)
    cal = Dirichlet.fit(z, y, odir=0.5, bias=0.2)
    close(cal(z), x @ w.T + b, atol=1e-4)
    torch.testing.assert_close(cal.weight, w, rtol=0, atol=1e-3)


def test_the_dirichlet_map_has_its_known_value_and_the_identity_returns_p():
    cal = Dirichlet.fit(Z, Y, odir=1.0, bias=1.0)
    cal.weight, cal.bias = W, B
    known = torch.tensor([0.769334433259, 0.132360037804, 0.098305528937], dtype=torch.float64)
    torch.testing.assert_close(cal.map(Z, None)[0].softmax(0), known, rtol=0, atol=1e-11)
    cal.weight, cal.bias = torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(cal.map(Z, None).softmax(1), Z.softmax(1), rtol=0, atol=1e-14)


# --- strengths -----------------------------------------------------------------------------------------------------


def test_a_very_strong_ridge_leaves_temperature_scaling_mixed_with_the_uniform():
    z, y = sample()
    expected = (z * least_log_loss(FitData.read(z, y)).beta).softmax(1) * 400 / 401 + 1 / (4 * 401)
    for method in (StructuredVector, StructuredMatrix):
        close(method.fit(z, y, strength=1e9)(z), expected.log(), atol=1e-6)


def test_a_strong_odir_empties_the_matrix_off_the_diagonal_and_leaves_the_diagonal_free():
    z, y = sample()
    cal = Dirichlet.fit(z, y, odir=1e9, bias=1e9)
    other = cal.weight - torch.diag(cal.weight.diagonal())
    assert other.abs().max() < 1e-6
    assert cal.bias.abs().max() < 1e-6
    assert cal.weight.diagonal().max() - cal.weight.diagonal().min() > 0.05


def test_dirichlet_takes_the_strengths_of_least_held_out_log_loss():
    z, y = sample(120, 3)
    cal = Dirichlet.fit(z, y, odir=[0.1, 10.0], bias=[1.0], folds=3, seed=5)
    fold = torch.randperm(120, generator=torch.Generator().manual_seed(5)) % 3
    x = torch.log_softmax(z, 1)
    for odir, bias, held_out in cal.settings["tried"]:
        total = 0.0
        for i in range(3):
            inner, outer = fold != i, fold == i

            def loss(w, b, inner=inner, odir=odir, bias=bias):
                other = w.square().sum() - w.diagonal().square().sum()
                return cross_entropy(x[inner] @ w.T + b, y[inner]) + odir / 6 * other + bias / 3 * b.square().sum()

            w, b = minimum(loss, (3, 3), 3)
            total += float(cross_entropy(x[outer] @ w.T + b, y[outer])) / 3
        assert held_out == pytest.approx(total, abs=1e-4)
    best = min(cal.settings["tried"], key=lambda each: each[2])
    assert [cal.settings["odir"], cal.settings["bias"]] == best[:2]


def test_dirichlet_tries_every_pair_of_a_given_grid_and_one_path_by_default():
    z, y = sample(60, 3)
    grid = Dirichlet.fit(z, y, odir=[0.01, 1.0, 0.1], bias=[0.0, 0.1])
    assert [each[:2] for each in grid.settings["tried"]] == [
        [odir, bias] for odir in (1.0, 0.1, 0.01) for bias in (0.1, 0.0)
    ]
    path = Dirichlet.fit(z, y).settings["tried"]
    assert all(odir == bias for odir, bias, _ in path)
    assert [odir for odir, *_ in path] == [10.0**power for power in range(2, 2 - len(path), -1)]
    losses = [loss for *_, loss in path]
    assert len(path) == 6 or losses.index(min(losses)) == len(path) - 3  # it stops when two in a row are no better
    one = Dirichlet.fit(z, y, bias=0.5).settings["tried"]
    assert len(one) > 1
    assert {bias for _, bias, _ in one} == {0.5}


def test_dirichlet_holds_out_fewer_folds_where_they_would_take_long(monkeypatch):
    z, y = sample(100, 3)
    assert Dirichlet.fit(z, y).settings["folds"] == 5
    monkeypatch.setattr(dirichlet_module, "WORK", 2.5 * 100 * 9)
    assert Dirichlet.fit(z, y).settings["folds"] == 2


def test_dirichlet_does_not_depend_on_chance_beyond_its_seed():
    z, y = sample(100, 3)
    torch.manual_seed(1)
    first = Dirichlet.fit(z, y, seed=7)
    torch.manual_seed(2)
    assert torch.equal(first(z), Dirichlet.fit(z, y, seed=7)(z))
    assert first.settings["tried"] != Dirichlet.fit(z, y, seed=8).settings["tried"]


def test_matrix_scaling_of_few_rows_says_that_it_did_not_converge():
    z, y = sample(60, 10)
    cal = Matrix.fit(z, y, iterations=20)
    assert not cal.fitted.converged
    assert "fell for 20 iterations: 60 rows are too few" in cal.fitted.notes[0]
    assert StructuredMatrix.fit(z, y).fitted.converged


# --- classes without rows, units, shifts ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_a_class_without_rows_keeps_the_shared_correction(name):
    z, y = sample(300, 5)
    z, y = z[y != 3], y[y != 3]
    cal = METHODS[name](z, y)
    assert any("1 of 5 classes have no rows" in note for note in cal.fitted.notes)
    beta = least_log_loss(FitData.read(z, y)).beta
    if name == "class_temperature":
        assert float(cal.temperature[3]) == 1 / beta
        return
    shared = 1.0 if name.startswith("structured") else beta
    row = cal.weight[3] if cal.weight.ndim == 1 else cal.weight[3] - shared * torch.eye(5, dtype=torch.float64)[3]
    torch.testing.assert_close(row, torch.full_like(row, shared if cal.weight.ndim == 1 else 0.0), rtol=0, atol=1e-12)
    assert float(cal.bias[3]) == pytest.approx(0.0, abs=1e-12)
    assert (
        cal(z).softmax(1)[:, 3].mean() > 0.2 * (z * beta).softmax(1)[:, 3].mean()
    )  # nor do the others leave it behind


@pytest.mark.parametrize("fit", [Vector.fit, Matrix.fit], ids=["vector", "matrix"])
def test_nothing_is_learned_from_one_class_beyond_its_temperature(fit):
    z, _ = sample(50, 3)
    y = torch.full((50,), 1)
    close(fit(z, y)(z), z * least_log_loss(FitData.read(z, y)).beta, atol=1e-9)


@pytest.mark.parametrize("name", ["vector", "structured_vector", "structured_matrix"])
def test_units_of_the_logits_do_not_matter(name):
    z, y = sample()
    once = METHODS[name](z, y)(z)
    close(METHODS[name](2000 * z, y)(2000 * z), once)
    close(METHODS[name](z / 2000, y)(z / 2000), once)


def test_relative_class_temperatures_do_not_depend_on_units_either():
    z, y = sample()
    once = ClassTemperature.fit(z, y, candidates="relative")
    more = ClassTemperature.fit(1024 * z, y, candidates="relative")
    torch.testing.assert_close(more.temperature, 1024 * once.temperature, rtol=1e-7, atol=0)


@pytest.mark.parametrize("name", ["structured_vector", "structured_matrix", "dirichlet"])
def test_methods_on_log_probabilities_are_blind_to_a_shift_of_a_row(name):
    z, y = sample(100, 3)
    shifted = z + torch.linspace(-5, 5, 100, dtype=torch.float64)[:, None]
    close(METHODS[name](shifted, y)(shifted), METHODS[name](z, y)(z))


@pytest.mark.parametrize("name", ["vector", "matrix", "class_temperature"])
def test_methods_on_logits_are_not(name):
    z, y = sample(100, 3)
    cal = METHODS[name](z, y)
    assert (cal(z + 5).softmax(1) - cal(z).softmax(1)).abs().max() > 0.01


# --- class temperatures --------------------------------------------------------------------------------------------


def slow_ece(logits, temperatures, labels):
    """15-bin ECE in plain Python."""
    gaps = [0.0] * 15
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        scaled = [value / t for value, t in zip(row, temperatures, strict=True)]
        top = max(scaled)
        confidence = 1 / sum(math.exp(value - top) for value in scaled)
        place = min(max(math.ceil(confidence * 15 - 1e-5) - 1, 0), 14)
        gaps[place] += confidence - (scaled.index(top) == label)
    return sum(map(abs, gaps)) / len(labels)


def slow_descent(logits, labels, start, candidates, sweeps):
    temperatures = [start] * logits.shape[1]
    error = slow_ece(logits, temperatures, labels)
    for _ in range(sweeps):
        before = list(temperatures)
        for k in range(len(temperatures)):
            tried = [
                (slow_ece(logits, [*temperatures[:k], t, *temperatures[k + 1 :]], labels), t)
                for t in candidates(temperatures[k])
            ]
            best = min(tried, key=lambda each: each[0])
            if best[0] < error - 1e-7:
                error, temperatures[k] = best
        if before == temperatures:
            break
    return temperatures, error


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("offsets", lambda now: [t for t in (now - 0.2, now - 0.1, now + 0.1, now + 0.2) if t > 0.3]),
        ("grid", lambda now: [t / 10 for t in range(5, 51)]),
    ],
)
def test_class_temperatures_are_those_of_the_naive_loop(name, candidates):
    z, y = sample(150, 4, seed=2, scale=2.0)
    cal = ClassTemperature.fit(z, y, candidates=name, sweeps=3)
    expected, error = slow_descent(z, y, 1 / least_log_loss(FitData.read(z, y)).beta, candidates, 3)
    assert cal.temperature.tolist() == pytest.approx(expected, rel=1e-9)
    assert cal.fitted.after == pytest.approx(error, abs=1e-12)
    assert len(set(expected)) > 1


def test_the_running_ece_is_that_of_all_rows_afresh():
    z, y = sample(500, 12, seed=4)
    rows = FitData.read(z, y)
    descent = Descent(rows, 1 / least_log_loss(rows).beta)
    began = descent.error
    for _ in range(3):
        descent.run(lambda now, shared: now * np.array([0.5, 0.8, 1.25, 2.0]), 1)
        facts = from_logits(z / torch.from_numpy(descent.temperature), y)
        assert descent.error == pytest.approx(top_label_ece(facts.confidence, facts.predicted == y), abs=1e-12)
    assert descent.error < began


def test_a_class_temperature_can_turn_the_prediction():
    z = torch.tensor([[1.5, 1.4, 0.2]])
    cal = ClassTemperature.fit(Z, Y)
    cal.temperature = torch.tensor([2.0, 1.0, 1.0], dtype=torch.float64)
    out = cal.map(z, None)
    torch.testing.assert_close(out, torch.tensor([[0.75, 1.4, 0.2]]))
    assert (int(z.argmax()), int(out.argmax()), cal.keeps_argmax) == (0, 1, False)


def test_class_temperatures_never_leave_a_larger_ece_on_their_rows():
    for seed in range(5):
        z, y = sample(200, 3, seed=seed)
        fitted = ClassTemperature.fit(z, y).fitted
        assert fitted.objective == "ECE (15 bins)"
        assert fitted.after <= fitted.before


# --- rows that are hard on a fit -----------------------------------------------------------------------------------

SOURCE = torch.Generator().manual_seed(0)
HARD = {
    "one row": (torch.tensor([[1.0, 3.0, 0.0]]), torch.tensor([2])),
    "two rows": (torch.tensor([[1.0, 3.0, 0.0], [0.0, 0.5, 2.0]]), torch.tensor([2, 0])),
    "all right": (4 * torch.eye(3).repeat(5, 1), torch.tensor([0, 1, 2] * 5)),
    "all wrong": (4 * torch.eye(3).repeat(5, 1), torch.tensor([1, 2, 0] * 5)),
    "constant": (torch.full((12, 3), 1.5), torch.tensor([0, 1, 2] * 4)),
    "ties": (torch.tensor([[1.0, 1.0, 0.0]]).repeat(12, 1), torch.tensor([0, 1, 2] * 4)),
    "random": (torch.randn(60, 3, generator=SOURCE), torch.randint(3, (60,), generator=SOURCE)),
    "x 2000": (2000 * torch.randn(60, 3, generator=SOURCE), torch.randint(3, (60,), generator=SOURCE)),
    "one class": (torch.randn(40, 3, generator=SOURCE), torch.full((40,), 2)),
    "half": (torch.randn(60, 3, generator=SOURCE).half(), torch.randint(3, (60,), generator=SOURCE)),
    "two columns": (torch.randn(60, 2, generator=SOURCE), torch.randint(2, (60,), generator=SOURCE)),
    "one column": (torch.randn(60, generator=SOURCE), torch.randint(2, (60,), generator=SOURCE)),
    "wide": (torch.randn(10, 30, generator=SOURCE), torch.randint(30, (10,), generator=SOURCE)),
    "beyond float32": (3e38 * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]] * 6), torch.tensor([0, 1] * 6)),
}


@every_method
@pytest.mark.parametrize("case", HARD)
def test_hard_rows_give_finite_logits_and_no_larger_objective(case, fit):
    z, y = HARD[case]
    cal = fit(z, y)
    assert cal(z).isfinite().all()
    assert cal(z).shape == z.shape
    assert cal.fitted.after <= cal.fitted.before
    assert repr(cal)


@pytest.mark.parametrize(
    ("fit", "told"),
    [
        (lambda: Vector.fit(Z, Y, iterations=0), "iterations must be at least 1; got 0."),
        (lambda: StructuredVector.fit(Z, Y, strength=0.0), "strength must be positive and finite; got 0.0."),
        (lambda: StructuredMatrix.fit(Z, Y, strength=math.nan), "strength must be finite; got nan."),
        (lambda: Dirichlet.fit(Z, Y, odir=-1.0), "odir must be a number of at least 0, several, or 'cv'; got -1.0."),
        (lambda: Dirichlet.fit(Z, Y, bias=[]), r"bias must be a number of at least 0, several, or 'cv'; got \[\]."),
        (lambda: Dirichlet.fit(Z, Y, folds=1), "folds must be at least 2; got 1."),
        (lambda: ClassTemperature.fit(Z, Y, sweeps=0), "sweeps must be at least 1; got 0."),
    ],
)
def test_a_bad_option_is_named(fit, told):
    with pytest.raises(ValueError, match=told):
        fit()


# --- real logits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fit", [StructuredVector.fit, StructuredMatrix.fit], ids=["vector", "matrix"])
@pytest.mark.parametrize("gain", [0.0, 0.002], ids=["demo", "larger"])
def test_structured_scaling_beats_temperature_scaling_on_real_logits(fit, gain):
    data = np.load(DEMO if gain == 0 else larger("logits/cifar100_resnet32_ce_val_test.npz"))
    z, y = torch.from_numpy(data["val_logits"]), torch.from_numpy(data["val_labels"].astype(np.int64))
    test, truth = torch.from_numpy(data["test_logits"]).double(), torch.from_numpy(data["test_labels"].astype(np.int64))
    shared = cross_entropy(test * least_log_loss(FitData.read(z, y)).beta, truth)
    assert cross_entropy(fit(z, y)(test), truth) < shared - gain
