"""What every calibrator must do, whatever its method. Adding a method adds its row here, and its oracle elsewhere."""

import math
import time
import warnings
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch

from calibrant import Predictions, audit
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS

K, D = 4, 6


@dataclass(frozen=True)
class Row:
    """A method, the options it is tried with, and why a property does not hold for it by nature."""

    name: str
    options: dict = field(default_factory=dict)
    saturates: str = ""  # why log loss stays high when logits are 2 000 times too large

    def __str__(self):
        return self.name + "".join(f"-{v}" for v in self.options.values() if isinstance(v, (str, int, float)))


SATURATED = "the confidence is 1, and what is left for the other classes cannot be told apart"

ROWS = [
    Row("identity", saturates="it does nothing"),
    *(Row("temperature", {"rule": r}) for r in ("nll", "mse")),
    *(Row("temperature", {"rule": r}, "the grid ends at 10") for r in ("nll_grid", "ece_grid", "ece_em_grid")),
    Row("ensemble_temperature"),
    Row("parameterised_temperature"),
    Row("class_temperature"),
    *(Row("smart", {"objective": o, "steps": 60}) for o in ("charbonnier", "soft_ece", "nll", "label_smoothing")),
    *(Row("smart", {"objective": o, "steps": 60}) for o in ("mse", "brier")),
    *(Row("smart", {"indicator": i, "steps": 60}) for i in ("entropy", "confidence", "all_logits", "max_logit")),
    Row("smart", {"indicator": "max_less_mean", "steps": 60}),
    Row("smart_proper"),
    Row("vector"),
    Row("matrix"),
    Row("structured_vector"),
    Row("structured_matrix"),
    Row("dirichlet"),
    Row("platt"),
    Row("beta"),
    Row("histogram", {"lift": "top_label"}, SATURATED),
    Row("histogram", {"lift": "one_vs_rest"}),
    Row("isotonic", {"lift": "top_label"}, SATURATED),
    *(Row("isotonic", {"lift": lift}) for lift in ("one_vs_rest", "pooled")),
    Row("bbq"),
    Row("spline", {"lift": "top_label"}, SATURATED),
    Row("spline", {"lift": "one_vs_rest"}),
    Row("venn_abers"),
    Row("group"),
    Row("procal", saturates=SATURATED),
    Row("feature_clipping"),
    Row("meta_mis"),
    Row("meta_acc"),
]

each_row = pytest.mark.parametrize("row", ROWS, ids=str)
each_place = pytest.mark.parametrize("place", range(len(ROWS)), ids=[str(row) for row in ROWS])


def rows_of(n, *, k=K, seed=0, scale=2.5, dtype=torch.float64):
    """A model that is too sure by 2.5, its features, and the layer that makes its logits of them."""
    g = torch.Generator().manual_seed(seed)
    features = torch.randn(n, D, generator=g, dtype=torch.float64)
    weight, bias = (
        1.5 * torch.randn(k, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64),
        torch.zeros(k),
    )
    truth = features @ weight.T
    labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
    return (scale * truth).to(dtype), labels, features.to(dtype), scale * weight, bias.double()


@cache
def fitted(place, n=300):
    """The calibrator of a row of the table, fitted once for all tests that do not change it."""
    return refit(ROWS[place], *rows_of(n))


def refit(row, logits, labels, features, weight, bias):
    entry = CALIBRATORS.entry(row.name)
    more = dict(row.options)
    if row.name == "feature_clipping":
        more |= {"weight": weight, "bias": bias}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if entry.facts.get("needs_features"):
            return entry.method.fit(logits, labels, features, **more)
        return entry.method.fit(logits, labels, **more)


def called(cal, logits, features):
    return cal(logits, features) if cal.needs_features else cal(logits)


def test_every_calibrator_has_a_row():
    assert {row.name for row in ROWS} == set(CALIBRATORS)


def test_every_calibrator_states_its_facts():
    for entry in CALIBRATORS.entries():
        assert isinstance(entry.facts["keeps_argmax"], bool), entry.name
        assert entry.facts["parameters"], entry.name
        assert ".. math::" in entry.method.__doc__, entry.name
        assert "Example:" in entry.method.__doc__, entry.name


@each_place
def test_it_gives_finite_logits_of_the_same_shape_and_type(place):
    cal = fitted(place)
    for dtype in (torch.float32, torch.float64):
        logits, _, features, *_ = rows_of(50, seed=1, dtype=dtype)
        out = called(cal, logits, features)
        assert out.shape == logits.shape
        assert out.dtype == dtype
        assert out.isfinite().all()
    half = rows_of(50, seed=1, dtype=torch.float16)
    assert called(cal, half[0], half[2].float()).dtype == torch.float32


@each_place
def test_types_agree(place):
    cal = fitted(place)
    wide, narrow = rows_of(200, seed=1), rows_of(200, seed=1, dtype=torch.float32)
    close = (called(cal, wide[0], wide[2]).softmax(1) - called(cal, narrow[0], narrow[2]).softmax(1)).abs().amax(
        1
    ) < 1e-3
    assert close.double().mean() >= 0.99  # a row on the edge of a bin may fall to the other side


@each_place
def test_rows_do_not_see_each_other(place):
    cal = fitted(place)
    logits, _, features, *_ = rows_of(30, seed=1)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    together = called(cal, logits, features)
    torch.testing.assert_close(called(cal, logits[order], features[order]), together[order], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(called(cal, logits[:1], features[:1]), together[:1], rtol=1e-9, atol=1e-9)


@each_row
def test_it_repairs_a_model_that_is_too_sure(row):
    """Log loss on fresh rows falls, if the method calibrates at all; those that only look at ECE may not lose much."""
    cal = refit(row, *rows_of(1500))
    fresh = rows_of(4000, seed=5)
    before = Predictions(logits=fresh[0], labels=fresh[1]).nll.mean()
    after = Predictions(logits=called(cal, fresh[0], fresh[2]), labels=fresh[1]).nll.mean()
    if row.name == "identity":
        assert after == before
    elif row.name != "feature_clipping":  # it looks for the least ECE, and log loss may rise
        assert after < before


@each_place
def test_it_keeps_the_argmax_to_the_bit_if_it_says_so(place):
    if not CALIBRATORS.entry(ROWS[place].name).facts["keeps_argmax"]:
        return
    cal = fitted(place)
    g = torch.Generator().manual_seed(3)
    logits, _, features, *_ = rows_of(2000, seed=2, dtype=torch.float32)
    near = torch.full((2000, K), 3.0) + torch.randint(0, 2, (2000, K), generator=g) * 2.4e-7  # one rounding unit apart
    huge = logits * 1e4
    ties = logits.round()
    for hard in (logits, near, huge, ties, logits * 1e-6):
        assert torch.equal(called(cal, hard, features).argmax(1), hard.argmax(1))


@each_row
@pytest.mark.parametrize("n", [1, 3, 12])
def test_few_rows_do_not_break_it(row, n):
    logits, _, features, *_ = rows_of(20, seed=1)
    assert called(refit(row, *rows_of(n)), logits, features).isfinite().all()


LABELS = {
    "one class only": lambda z, y: torch.zeros_like(y),
    "a class is absent": lambda z, y: y.clamp(max=K - 2),
    "all rows right": lambda z, y: z.argmax(1),
    "all rows wrong": lambda z, y: (z.argmax(1) + 1 + (torch.arange(len(y)) % (K - 1))) % K,
    "random labels": lambda z, y: torch.randint(K, y.shape, generator=torch.Generator().manual_seed(8)),
}


@each_row
@pytest.mark.parametrize("kind", LABELS)
def test_strange_labels_do_not_break_it(row, kind):
    logits, labels, features, weight, bias = rows_of(200)
    odd = LABELS[kind](logits, labels)
    cal = refit(row, logits, odd, features, weight, bias)
    out = called(cal, logits, features)
    assert out.isfinite().all()
    if kind == "a class is absent":
        assert out.softmax(1)[:, K - 1].max() > 0


STRANGE = {
    "constant": lambda z: torch.zeros_like(z) + 1.0,
    "one value a row": lambda z: z[:, :1].expand(-1, K).contiguous(),
    "two values": lambda z: (z > 0).to(z.dtype),
    "times 2000": lambda z: 2000 * z,
    "times 0.001": lambda z: 0.001 * z,
    "shifted by 1e6": lambda z: z + 1e6,
}


@each_row
@pytest.mark.parametrize("kind", STRANGE)
def test_strange_logits_do_not_break_it(row, kind):
    logits, labels, features, weight, bias = rows_of(200)
    odd = STRANGE[kind](logits)
    if row.name == "feature_clipping":
        with pytest.raises(ValueError, match="weight"):
            refit(row, odd, labels, features, weight, bias)  # these are not the logits of that layer
        return
    cal = refit(row, odd, labels, features, weight, bias)
    out = called(cal, odd, features)
    assert out.isfinite().all()
    if not row.saturates:
        assert Predictions(logits=out, labels=labels).nll.mean() < 2
    assert called(cal, logits, features).isfinite().all()


@each_row
def test_two_classes_may_come_as_one_column(row):
    logits, labels, features, weight, bias = rows_of(400, k=2)
    one = logits[:, 1] - logits[:, 0]
    two = torch.stack([torch.zeros_like(one), one], 1)
    layer = weight - weight[:1], bias - bias[:1]
    a, b = refit(row, one, labels, features, *layer), refit(row, two, labels, features, *layer)
    pair = called(b, two, features)
    for column in (one, one[:, None]):
        out = called(a, column, features)
        assert out.shape == column.shape
        torch.testing.assert_close(out.reshape(-1), pair[:, 1] - pair[:, 0])


@each_row
def test_the_same_seed_gives_the_same_calibrator_and_leaves_the_world_alone(row):
    numpy_state = np.random.get_state
    state = torch.get_rng_state(), numpy_state()[1].copy(), torch.is_grad_enabled(), torch.get_num_threads()
    a, b = refit(row, *rows_of(200)), refit(row, *rows_of(200))
    for (name, x), (_, y) in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert torch.equal(x, y), name
    assert torch.equal(state[0], torch.get_rng_state())
    assert (state[1] == numpy_state()[1]).all()
    assert (torch.is_grad_enabled(), torch.get_num_threads()) == state[2:]


@each_place
def test_it_says_what_was_fitted(place):
    cal = fitted(place)
    assert cal.name == ROWS[place].name
    assert cal.fitted.n == 300
    assert cal.fitted.k == K
    assert cal.fitted.seconds > 0
    assert cal.fitted.after <= cal.fitted.before
    assert math.isfinite(cal.fitted.log_loss[1])
    text = repr(cal)
    assert text.startswith(type(cal).__name__ + ": ")
    assert "fitted on 300 rows x 4 classes" in text
    assert cal.n_parameters >= 0
    assert not any(p.requires_grad for p in cal.parameters())


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
def test_the_audit_warns_when_the_fitted_rows_come_back(name):
    place = next(i for i, row in enumerate(ROWS) if row.name == name)
    logits, labels, features, *_ = rows_of(300)
    cal = fitted(place)
    again = cal.calibrate(Predictions(logits=logits, labels=labels, features=features))
    fresh = rows_of(300, seed=4)
    other = cal.calibrate(Predictions(logits=fresh[0], labels=fresh[1], features=fresh[2]))
    says = [
        any("rows the calibrator was fitted on" in note for note in audit(p, resamples=20).findings.notes)
        for p in (again, other)
    ]
    assert says == [True, False]


def test_a_fit_that_does_not_help_leaves_logits_alone_and_says_why():
    logits, labels, *_ = rows_of(300)
    Temperature = CALIBRATORS["temperature"]
    fit = Temperature.fit(logits, labels)
    worse = Temperature.made(
        FitData.read(logits, labels), {"temperature": torch.tensor(1e-3), "spread": torch.tensor(0.0)}, fit.settings
    )
    assert worse.fitted.identity
    assert torch.equal(worse(logits), logits)
    assert "did not fall" in worse.fitted.notes[-1]
    assert "so logits are left as they are" in repr(worse)
    assert not fit.fitted.identity


MISTAKES = [
    (lambda z, y: (z.softmax(1), y), "these are probabilities"),
    (lambda z, y: (z.where(z < z.max(), torch.nan), y), "must be finite"),
    (lambda z, y: (z, y + 1), "labels"),
    (lambda z, y: (z, None), "labels must be given"),
    (lambda z, y: (z, y[:-1]), "labels"),
    (lambda z, y: (z.long(), y), "floating point"),
    (lambda z, y: (z[:0], y[:0]), "at least one row"),
]


@pytest.mark.parametrize("name", sorted(CALIBRATORS))
@pytest.mark.parametrize(("wrong", "said"), MISTAKES)
def test_a_mistake_at_the_door_gets_one_sentence(name, wrong, said):
    logits, labels, features, weight, bias = rows_of(60)
    row = next(r for r in ROWS if r.name == name)
    with pytest.raises((ValueError, TypeError), match=said):
        refit(row, *wrong(logits, labels), features, weight, bias)


@pytest.mark.parametrize("place", range(len(ROWS)))
def test_what_comes_in_as_numpy_goes_out_as_numpy(place):
    cal = fitted(place)
    given = cal.probe(7)
    with torch.no_grad():
        expected = cal(*given).numpy()
    for arrays in ([x.numpy() for x in given], [x.tolist() for x in given]):
        found = cal(*arrays)
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)  # a list is read as float64
    assert cal(given[0].numpy(), *given[1:]).dtype == np.float32
    called = []
    with cal.register_forward_hook(lambda *_: called.append(1)):
        cal(*[x.numpy() for x in given])
    assert called == [1]


def test_a_mistake_when_calling_gets_one_sentence():
    cal = fitted(1)
    with pytest.raises(ValueError, match=r"logits must have 4 columns, as when fitted; got \(3, 5\)"):
        cal(torch.zeros(3, 5))
    with pytest.raises(TypeError, match=r"logits must be floats of shape \(n, 4\); got torch.int64 of shape \(3, 4\)"):
        cal(torch.zeros(3, 4, dtype=torch.long))
    with pytest.raises(TypeError, match=r"logits must be numbers; got <U1\."):
        cal([["a"] * 4])
    with pytest.raises(TypeError, match=r"logits must be floats of shape \(n, 4\); got torch.int64"):
        cal(np.zeros((3, 4), int))
    with pytest.raises(ValueError, match="1 of 3 rows"):
        cal(torch.tensor([[0.0, 1, 2, 3], [0, math.inf, 1, 2], [0, 0, 0, 0]]))


@pytest.mark.parametrize("name", [e.name for e in CALIBRATORS.entries() if e.facts.get("needs_features")])
def test_a_method_that_needs_features_says_so(name):
    place = next(i for i, r in enumerate(ROWS) if r.name == name)
    row, cal = ROWS[place], fitted(place)
    logits, labels, features, weight, bias = rows_of(60)
    with pytest.raises(ValueError, match="features must be given"):
        cal(logits)
    with pytest.raises((ValueError, TypeError), match="features"):
        refit(row, logits, labels, None, weight, bias)
    with pytest.raises(ValueError, match=r"features must have shape \(60, d\)"):
        cal(logits, features[:-1])


def test_calibrators_chain():
    logits, labels, *_ = rows_of(500)
    first = CALIBRATORS["vector"].fit(logits, labels)
    second = CALIBRATORS["temperature"].fit(first(logits), labels)
    assert abs(float(second.temperature) - 1) < 1e-3


def test_a_fit_takes_arrays_and_lists_as_well():
    logits, labels, *_ = rows_of(100)
    fits = [CALIBRATORS["temperature"].fit(*rows) for rows in ((logits, labels), (logits.numpy(), labels.tolist()))]
    assert fits[0].temperature == fits[1].temperature


def test_fits_are_timed_from_their_beginning():
    logits, labels, *_ = rows_of(300)
    start = time.perf_counter()
    cal = CALIBRATORS["smart"].fit(logits, labels, steps=100)
    assert 0 < cal.fitted.seconds <= time.perf_counter() - start


KEEPERS = [e.name for e in CALIBRATORS.entries() if e.facts["keeps_argmax"]]


@pytest.mark.parametrize("name", KEEPERS)
def test_predictions_of_probabilities_and_of_the_largest_floats_are_kept_as_well(name):
    cal = fitted(next(i for i, row in enumerate(ROWS) if row.name == name))
    g = torch.Generator().manual_seed(1)
    near = 1 + 1e-6 * torch.rand(500, K, generator=g)
    p = Predictions(probs=near / near.sum(1, keepdim=True), labels=torch.randint(K, (500,), generator=g))
    assert torch.equal(cal.calibrate(p).predicted, p.predicted)
    edge = torch.tensor([[2.9e38, 3e38, 0.0, 0.0], [3e38, -3e38, 0.0, 1.0], [-3e38, 5.0, 4.0, -3e38]])
    out = cal(edge)
    assert out.isfinite().all()
    assert torch.equal(out.argmax(1), edge.argmax(1))


@pytest.mark.parametrize("name", ["ensemble_temperature", "smart", "smart_proper", "vector", "matrix", "dirichlet"])
def test_rows_that_are_all_right_are_not_called_converged(name):
    logits, *_ = rows_of(200)
    cal = refit(next(r for r in ROWS if r.name == name), logits, logits.argmax(1), None, None, None)
    assert not cal.fitted.converged
    assert "right" in " ".join(cal.fitted.notes)


def test_a_matrix_that_separates_its_rows_says_so():
    g = torch.Generator().manual_seed(1)
    truth = 2 * torch.randn(150, 20, generator=g)
    cal = CALIBRATORS["matrix"].fit(2 * truth, torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1))
    assert not cal.fitted.converged
    assert "too few" in " ".join(cal.fitted.notes)


def test_a_device_that_is_not_the_calibrators_is_refused():
    cal = fitted(next(i for i, row in enumerate(ROWS) if row.name == "vector"))
    with pytest.raises(ValueError, match=r"logits must be on cpu, where vector is; got meta"):
        cal(torch.zeros(2, K, device="meta"))
