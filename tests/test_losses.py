"""Losses and penalties: values, gradients, extremes. A method without a row here fails the suite."""

import inspect
import math
import subprocess
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import jaxtyping
import loss_oracles as oracle
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from calibrant.losses.ada_focal import AdaFocal
from calibrant.losses.cal_focal import CalFocal
from calibrant.losses.confidence import CONFIDENCES, confidence_of, unit_confidence_of
from calibrant.losses.correctness_ranking import CorrectnessRanking, ranking
from calibrant.losses.criterion import Criterion
from calibrant.losses.functional import top
from calibrant.losses.online_label_smoothing import OnlineLabelSmoothing
from calibrant.losses.seca import class_sums
from calibrant.metrics.scores import entropy
from calibrant.predictions.predictions import Predictions
from calibrant.registry import LOSSES, PENALTIES, SCORES

Z = [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]]
Y = [0, 1, 2, 2, 1, 0]


def fixture(dtype=torch.float64):
    return torch.tensor(Z, dtype=dtype), torch.tensor(Y)


def batch(n, k, seed=0, dtype=torch.float64, scale=2.0):
    g = torch.Generator().manual_seed(seed)
    return scale * torch.randn(n, k, generator=g, dtype=torch.float64).to(dtype), torch.randint(k, (n,), generator=g)


@dataclass(frozen=True)
class Row:
    """A method with options, its oracle, and its published mean on the fixture."""

    name: str
    options: dict = field(default_factory=dict)
    value: float | None = None
    per_row: list | None = None


LOSS_ROWS = [
    Row("cross_entropy", {}, 0.7969173746342092),
    Row("label_smoothing", {"alpha": 0.05}, 0.8288618190786536),
    Row("label_smoothing", {"alpha": 0.05, "convention": "k_minus_1"}, 0.8448340413008758),
    Row("label_smoothing", {"alpha": 0.1}, 0.8608062635230981),
    Row("label_smoothing", {"alpha": 0.1, "convention": "k_minus_1"}, 0.8927507079675426),
    Row("brier", {}, 0.44611659392754266),
    Row("focal", {"gamma": 1.0}, 0.5389948991803893),
    Row("focal", {"gamma": 2.0}, 0.4002104440765845),
    Row(
        "focal",
        {"gamma": 3.0},
        0.3110585313717438,
        [
            1.653583387477e-02,
            1.695742443582e-03,
            3.586001175729e-01,
            1.226079176390e-04,
            0.1752920650495,
            1.314104821372,
        ],
    ),
    Row("focal", {"gamma": 0.5}),
    Row("focal", {"gamma": 0.0}, 0.7969173746342092),
    Row("focal", {"gamma": 3.0, "detach_weight": True}, 0.3110585313717438),
    Row("flsd", {}, 0.2566472405866678),
    Row("flsd", {"gamma": 2.0}),
    Row(
        "inverse_focal",
        {"gamma": 2.0},
        1.431900345891864,
        [1.147785366115, 0.714925661109, 1.985659665749, 0.394076578380, 1.759591722976, 2.589363081023],
    ),
    Row(
        "dual_focal",
        {},
        0.3585021666428561,
        [2.819148264583e-02, 5.915781343048e-04, 0.9765940155093, 1.089698129697e-05, 0.1579879499248, 0.9876370766616],
    ),
    Row("dual_focal", {"competitor": "competitor"}, 2.3041345448532957),
    Row("dual_focal", {"competitor": "only_if_right"}, 0.20703054106919005),
    Row("dual_focal", {"gamma": 0.5}),
    Row(
        "seca",
        {},
        1.9568882956484461,
        [1.725211479320, 1.243463742434, 2.252080215769, 1.333650152662, 1.856290757412, 3.330633426294],
    ),
    Row("seca", {"detach_mean": False}, 1.9568882956484461),
    Row("aurc", {"confidence": "msp"}, 0.45657693232740987),
    Row("aurc", {"confidence": "msp", "weighting": "ln"}, 0.40702266229942746),
    Row("aurc", {"confidence": "msp", "weighting": "sele"}, 0.34368518648533525),
    Row("aurc", {}),
    Row("au", {}),
    Row("au", {"confidence": "msp", "bins": 4, "nu": 0.1, "kappa": 0.5}, 0.34011344747586847),
    Row("au", {"confidence": "msp", "bins": 4, "nu": 0.1, "kappa": 0.5, "constant": True}, 0.728868685528726),
    Row("au", {"confidence": "margin", "nu": 0.05}),
    Row("au", {"confidence": "normalised_negative_entropy", "nu": 0.05, "weight_gradient": 0.0}),
    Row("ada_focal", {"inner": [0.25, 0.5, 0.75], "gammas": [2.0, 1.0, 0.5, -0.4]}, 3.4678704183926263 / 6),
    Row("ada_focal", {"inner": [0.5], "gammas": [0.3, -1.5]}),
    Row(
        "cal_focal",
        {
            "case": 1,
            "rate": 10.0,
            "inner": [0.25, 0.5, 0.75],
            "accuracy": [0.3, 0.4, 0.7, 0.95],
            "gammas": [1.0] * 4,
        },
        0.6293649550124154,
    ),
    Row(
        "cal_focal",
        {
            "case": 2,
            "rate": 10.0,
            "inner": [0.25, 0.5, 0.75],
            "accuracy": [0.3, 0.4, 0.7, 0.95],
            "gammas": [math.exp(-1), math.exp(0.5), math.exp(-0.5), math.exp(-0.5)],
        },
        0.5344595187201554,
    ),
    Row("online_label_smoothing", {}, 1.1163618190786537),
    Row("online_label_smoothing", {"alpha": 0.3}),
    Row("correctness_ranking", {"weight": 2.0}),
]
PENALTY_ROWS = [
    Row("dca", {}, 0.1245438888192113),
    Row("mdca", {}, 0.021651481238832353),
    Row("mmce", {}, 0.3402707836088883),
    Row("mmce", {"normalisation": "released"}, 0.11342353196406615),
    Row("mmce", {"weighted": False}, 0.17013539180444412),
    Row("kde_ece", {"bandwidth": 0.1}, 0.8999082015031395),
    Row("kde_ece", {"bandwidth": 0.1, "p": 2}, 0.5049697879211442),
    Row("kde_ece", {"bandwidth": 0.5}, 0.6919592771340645),
    Row("kde_ece", {}),
    Row("soft_ece", {}, 0.3126653674515679),
    Row("soft_ece", {"p": 1}, 0.27985587522139943),
    Row("soft_ece", {"p": 1, "temperature": 0.005}, 0.3099978826262295),
    Row("soft_ece", {"label_binned": True}, 0.10133831757445715),
    Row("avuc", {"threshold": 0.7}, 0.19232225219127566),
    Row("avuc", {"threshold": 0.9}, 0.0),
    Row("avuc", {}),
    Row("avuc", {"threshold": 0.7, "detach_confidence": True}, 0.19232225219127566),
    Row("soft_avuc", {}, 0.3223590692639269),
    Row("soft_avuc", {"temperature": 0.5, "threshold": 0.7}, 0.19102942706703224),
    Row("dece", {}),
    Row("dece", {"bins": 5, "sharpness": 20.0, "width": 0.05}),
    Row("confidence_penalty", {}),
]
ROWS = LOSS_ROWS + PENALTY_ROWS


def named(row):
    return f"{row.name}-{'-'.join(f'{k}={v}' for k, v in row.options.items())}" if row.options else row.name


each_row = pytest.mark.parametrize("row", ROWS, ids=named)
each_loss = pytest.mark.parametrize("row", LOSS_ROWS, ids=named)
each_penalty = pytest.mark.parametrize("row", PENALTY_ROWS, ids=named)


LEARNED = {"ada_focal": ("inner", "gammas"), "cal_focal": ("inner", "accuracy", "gammas")}


def made(row, k=3, dtype=torch.float64):
    """Return the method as a function of logits and labels; what it has learned is given by the row."""
    known = LEARNED.get(row.name, ())
    options = {key: value for key, value in row.options.items() if key not in known}
    if row.name in PENALTIES or not isinstance(LOSSES[row.name], type):
        return partial((PENALTIES if row.name in PENALTIES else LOSSES)[row.name], **options)
    if known:
        options["bins"] = len(row.options["inner"]) + 1
    loss = LOSSES[row.name](**oracle.sizes(row.name, k, n=50), **options).to(dtype)
    for key in known:
        getattr(loss, key).copy_(torch.tensor(row.options[key], dtype=dtype))
    if row.name == "online_label_smoothing":
        loss.soft.fill_(1 / k)
    if row.name == "correctness_ranking":
        loss.eval().counts.copy_(torch.stack([torch.arange(50) % 7, torch.full((50,), 10)], 1))
        return lambda logits, labels: loss(logits, labels, torch.arange(len(labels)))
    return loss


def expected(row, z, y):
    z, y, options = z.double().numpy(), y.numpy(), dict(row.options)
    if row.name == "online_label_smoothing":
        k = z.shape[1]
        options["soft"] = np.full((k, k), 1 / k)
    if row.name == "correctness_ranking":
        options["share"] = (np.arange(len(y)) % 7) / 10
    return getattr(oracle, row.name)(z, y, **options)


def test_every_loss_and_penalty_has_a_row():
    assert {row.name for row in LOSS_ROWS} == set(LOSSES)
    assert {row.name for row in PENALTY_ROWS} == set(PENALTIES)


@each_row
@pytest.mark.parametrize(("n", "k"), [(6, 3), (12, 2), (9, 7), (30, 4)])
def test_it_agrees_with_its_oracle(row, n, k):
    z, y = batch(n, k, seed=n + k)
    found = made(row, k)(z, y)
    assert found.shape == ((n,) if row in LOSS_ROWS else ())
    assert np.allclose(found.detach().numpy(), expected(row, z, y), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("row", [row for row in ROWS if row.value is not None], ids=named)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_it_has_its_published_value(row, dtype, close):
    found = made(row, dtype=dtype)(*fixture(dtype))
    assert found.dtype == dtype
    close = max(close, 5e-10 if row.name == "mmce" else 0)  # 1e-10 below its root is not in its published value
    assert float(found.mean()) == pytest.approx(row.value, abs=close)
    if row.per_row:
        assert found.tolist() == pytest.approx(row.per_row, abs=max(close, 1e-12))


# Gradients


@each_row
def test_its_gradient_is_that_of_finite_differences(row):
    z, y = batch(7, 4, seed=3, scale=1.0)
    method = made(row, 4)
    if held(row):
        weights_are_held(row, method, z, y)
        return
    z.requires_grad_(True)
    assert torch.autograd.gradcheck(lambda z: method(z, y), (z,), atol=1e-6)


def class_means(p, y):
    near = class_sums(p, y)
    return near / near.sum(1, keepdim=True)


def held(row):
    """Whether a part of the method is constant on purpose, so that finite differences see more than its gradient."""
    return (
        (row.name == "cal_focal" and row.options["case"] == 1)
        or (row.name == "seca" and row.options.get("detach_mean", True))
        or row.options.get("detach_weight", False)
        or row.options.get("detach_confidence", False)
        or row.name == "au"
    )


def weights_are_held(row, method, z, y):
    """Compare with finite differences of the method in which the held part is taken from the first point."""
    z = z.clone().requires_grad_(True)
    (found,) = torch.autograd.grad(method(z, y).sum(), z)
    frozen = HELD[row.name](row, method, z.detach(), y)
    slope = torch.zeros_like(z)
    for i in range(z.shape[0]):
        for j in range(z.shape[1]):
            step = torch.zeros_like(z)
            step[i, j] = 1e-6
            slope[i, j] = (frozen(z.detach() + step) - frozen(z.detach() - step)) / 2e-6
    assert torch.allclose(found, slope, atol=2e-6 if row.name != "au" else 2e-4)


def _focal_held(row, method, z, y):
    weight = method(z, y) / F.cross_entropy(z, y, reduction="none")
    return lambda at: float((weight * F.cross_entropy(at, y, reduction="none")).sum())


def _cal_focal_held(row, method, z, y):
    p = torch.tensor(np.exp(-oracle.cross_entropy(z.numpy(), y.numpy())))
    index = torch.bucketize(p, torch.tensor(row.options["inner"], dtype=torch.float64), right=False)
    gamma = (row.options["rate"] * (p - torch.tensor(row.options["accuracy"]).double()[index])).exp()

    def at_point(at):
        q = (-F.cross_entropy(at, y, reduction="none")).exp()
        return float((-((1 - q) ** gamma) * q.log()).sum())

    return at_point


def _seca_held(row, method, z, y):
    target = F.one_hot(y, z.shape[1]) + class_means(z.softmax(1), y)
    return lambda at: float(-(target * at.log_softmax(1)).sum())


def _avuc_held(row, method, z, y):
    held_confidence = z.softmax(1).amax(1)
    correct = z.argmax(1) == y

    def at_point(at):
        u = entropy(at)
        unsure, amount, t = (
            u >= row.options["threshold"],
            torch.where(correct, held_confidence, 1 - held_confidence),
            u.tanh(),
        )
        good = (amount * torch.where(correct, (1 - t) * ~unsure, t * unsure)).sum()
        bad = (amount * torch.where(correct, t * unsure, (1 - t) * ~unsure)).sum()
        return float(torch.log1p(bad / (good + 1e-10)))

    return at_point


def _au_held(row, method, z, y):
    """Histogram and threshold stay those of the first point; the confidence moves by its share of the gradient."""
    first = unit_confidence_of(z, method.confidence)
    counts = torch.tensor(np.histogram(first, bins=np.linspace(0, 1, method.bins + 1))[0])
    centres = (torch.arange(method.bins) + 0.5) / method.bins
    threshold, n = float(np.quantile(first, method.kappa)), len(y)
    nu = oracle.usual(z.shape[1]) if method.nu is None else method.nu

    def share(x):
        return ((counts * torch.sigmoid((x[:, None] - centres) / nu)).sum(1) / n).clamp(1 / (n + 1), n / (n + 1))

    top_share = share(torch.tensor([threshold], dtype=torch.float64))

    def at_point(at):
        s = first + method.weight_gradient * (unit_confidence_of(at, method.confidence) - first)
        weight = -torch.log1p(-torch.where(first >= threshold, top_share, share(s)))
        times = 1 / float(top_share) if method.constant else 1
        return float((times * weight * F.cross_entropy(at, y, reduction="none")).sum())

    return at_point


HELD = {"focal": _focal_held, "cal_focal": _cal_focal_held, "seca": _seca_held, "avuc": _avuc_held, "au": _au_held}


EXTREMES = {
    "sure and right": ([[1e4, 0.0, -1e4], [30.0, 0.0, 0.0], [200.0, 0.0, 0.0]], [0, 0, 0]),
    "sure and wrong": ([[1e4, 0.0, -1e4], [30.0, 0.0, 0.0], [200.0, 0.0, 0.0]], [2, 1, 2]),
    "all equal": ([[0.0, 0.0, 0.0]] * 3, [0, 1, 2]),
    "one row": ([[1.0, -2.0, 0.5]], [2]),
    "one sure row": ([[1e4, 0.0, 0.0]], [0]),
    "one class only": ([[1.0, -2.0, 0.5], [0.3, 0.1, 0.0]], [1, 1]),
    "equal rows": ([[1.0, -2.0, 0.5]] * 4, [0, 1, 0, 1]),
}


@each_row
@pytest.mark.parametrize("case", EXTREMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_finite_at_extremes(row, case, dtype):
    z, y = torch.tensor(EXTREMES[case][0], dtype=dtype, requires_grad=True), torch.tensor(EXTREMES[case][1])
    found = made(row, dtype=dtype)(z, y)
    assert found.isfinite().all()
    (slope,) = torch.autograd.grad(found.sum(), z)
    assert slope.isfinite().all()


@each_row
@pytest.mark.parametrize(("n", "k"), [(5, 2), (16, 1000), (1, 1000)])
def test_few_and_many_classes_are_finite_in_single_precision(row, n, k):
    z, y = batch(n, k, dtype=torch.float32, scale=10.0)
    z.requires_grad_(True)
    found = made(row, k, torch.float32)(z, y)
    (slope,) = torch.autograd.grad(found.sum(), z)
    assert found.isfinite().all()
    assert slope.isfinite().all()


@each_row
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_autocast_and_half_precision_are_computed_in_single_precision(row, half):
    z, y = batch(12, 5, dtype=torch.float32)
    z = z.to(half)
    alone = made(row, 5, torch.float32)(z.float(), y)
    with torch.autocast("cpu", dtype=half):
        within = made(row, 5, torch.float32)(z, y)
    assert within.dtype == torch.float32
    assert torch.allclose(within, alone, atol=1e-6)
    within32 = made(row, 5, torch.float32)(batch(12, 5, dtype=torch.float32)[0], y)
    smooth = row.name not in ("aurc", "au", "avuc", "dece", "flsd", "dual_focal", "kde_ece", "soft_ece")
    assert not smooth or torch.allclose(within, within32, rtol=5e-2, atol=1e-2)


COMPILED = """
import sys, torch
sys.path.insert(0, {folder!r})
from test_losses import ROWS, batch, made, named
for row in ROWS:
    torch._dynamo.reset()
    slopes, whole = [], row.name != "correctness_ranking"  # which reads what it counts
    for wrap in (lambda f: f, lambda f: torch.compile(f, fullgraph=whole, backend="aot_eager")):
        z, y = batch(8, 5, dtype=torch.float32)
        method = made(row, 5, torch.float32)
        wrap(lambda z, y: method(z, y).sum())(z.requires_grad_(True), y).backward()
        slopes.append(z.grad)
    print(named(row), "same" if torch.allclose(*slopes, atol=1e-6) else "differs")
"""


def test_everything_compiles_as_one_graph():
    code = COMPILED.format(folder=str(Path(__file__).parent))  # elsewhere: the checks of shapes cannot be compiled
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [f"{named(row)} same" for row in ROWS]


@each_row
def test_the_order_of_rows_does_not_matter(row):
    if row.name == "correctness_ranking":  # pairs a row with the next
        return
    z, y = batch(11, 4, seed=5)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(1))
    before, after = made(row, 4)(z, y), made(row, 4)(z[order], y[order])
    assert torch.allclose(before[order] if row in LOSS_ROWS else before, after, atol=1e-9)


@each_penalty
def test_a_penalty_changes_the_gradient(row):
    z, y = batch(24, 4, seed=2)
    z.requires_grad_(True)
    (slope,) = torch.autograd.grad(made(row, 4)(z, y), z)
    if row.options == {"threshold": 0.9}:  # nobody is sure, or wrong and sure: rightly 0 on the fixture only
        slope = torch.ones(1)
    assert float(slope.abs().max()) > 1e-6


def test_labels_that_torch_would_ignore_are_refused():
    with pytest.raises(ValueError, match="labels must lie in 0 to 2; got -100"):
        LOSSES["cross_entropy"](torch.zeros(2, 3), torch.tensor([0, -100]))


# Single losses


def test_the_second_argument_of_each_wrong_option_is_named():
    z, y = fixture()
    for name, options, says in [
        ("focal", {"gamma": -1.0}, "gamma must not be negative"),
        ("flsd", {"gamma": -1.0}, "gamma must not be negative"),
        ("inverse_focal", {"gamma": -1.0}, "gamma must not be negative"),
        ("dual_focal", {"gamma": -1.0}, "gamma must not be negative"),
        ("label_smoothing", {"alpha": 1.5}, "alpha must lie in"),
    ]:
        with pytest.raises(ValueError, match=says):
            LOSSES[name](z, y, **options)
    for name, options, says in [
        ("ada_focal", {"gamma_min": 1.0}, "gamma_min must be below 0"),
        ("ada_focal", {"switch": 5.0}, "switch must lie in"),
        ("ada_focal", {"bins": 0}, "bins must be at least 1"),
        ("cal_focal", {"case": 3}, "case must be 1 or 2"),
        ("au", {"kappa": 0.0}, "kappa must lie in"),
        ("au", {"confidence": "nonsense"}, "confidence must be one of"),
        ("online_label_smoothing", {"k": 1}, "k must be the number of classes"),
        ("online_label_smoothing", {"k": 3, "alpha": 2.0}, "alpha must lie in"),
        ("correctness_ranking", {"n": 0}, "n must be the number of training rows"),
    ]:
        with pytest.raises(ValueError, match=says):
            LOSSES[name](**options)
    for name, options, says in [
        ("kde_ece", {"bandwidth": 0.0}, "bandwidth must be positive"),
        ("kde_ece", {"p": 3}, "p must be 1 or 2"),
        ("soft_ece", {"bins": 0}, "bins must be at least 1"),
        ("soft_avuc", {"threshold": 1.0}, "threshold must lie in"),
        ("dece", {"width": 0.0}, "width positive"),
    ]:
        with pytest.raises(ValueError, match=says):
            PENALTIES[name](z, y, **options)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0, 5.0])
def test_the_derivatives_of_focal_and_inverse_focal_are_the_closed_ones(gamma):
    p = torch.linspace(0.02, 0.98, 49, dtype=torch.float64, requires_grad=True)
    z = torch.stack([p.log(), (1 - p).log()], 1)
    y = torch.zeros(49, dtype=torch.int64)
    (slope,) = torch.autograd.grad(LOSSES["focal"](z, y, gamma=gamma).sum(), p, retain_graph=True)
    q = p.detach()
    assert torch.allclose(slope, gamma * (1 - q) ** (gamma - 1) * q.log() - (1 - q) ** gamma / q)
    with_warning = pytest.warns(UserWarning, match="3.59") if gamma > 3.5911 else None
    if with_warning is None:
        value = LOSSES["inverse_focal"](z, y, gamma=gamma)
    else:
        with with_warning:
            value = LOSSES["inverse_focal"](z, y, gamma=gamma)
    (slope,) = torch.autograd.grad(value.sum(), p)
    # the first term is positive, whatever is printed elsewhere
    assert torch.allclose(slope, -gamma * (1 + q) ** (gamma - 1) * q.log() - (1 + q) ** gamma / q)
    assert bool((slope > 0).any()) == (gamma > 3.5911)


def test_inverse_focal_turns_round_at_3_59():
    p = torch.linspace(0.001, 0.999, 100_001, dtype=torch.float64)
    turns = ((1 + p) / (-p * p.log())).min()
    assert float(turns) == pytest.approx(3.591121476668622, abs=1e-8)


def test_flsd_takes_the_power_5_below_a_fifth():
    z, y = fixture()
    p = (-F.cross_entropy(z, y, reduction="none")).exp()
    power = torch.tensor([3, 3, 3, 3, 3, 5])
    assert torch.allclose(LOSSES["flsd"](z, y), -((1 - p) ** power) * p.log())


def test_the_gradient_of_seca_is_equation_12():
    z, y = batch(20, 4, seed=8)
    z.requires_grad_(True)
    (slope,) = torch.autograd.grad(LOSSES["seca"](z, y).sum(), z)
    p = z.detach().softmax(1)
    assert torch.allclose(slope, 2 * p - F.one_hot(y, 4) - class_means(p, y))
    z0, y0 = fixture()
    z0.requires_grad_(True)
    (row,) = torch.autograd.grad(LOSSES["seca"](z0, y0).sum(), z0)
    assert row[0].tolist() == pytest.approx([-0.078033634622, 0.199998919534, -0.121965284913], abs=1e-11)
    (row,) = torch.autograd.grad(LOSSES["seca"](z0, y0, detach_mean=False).sum(), z0)
    assert row[0].tolist() == pytest.approx([-0.102260573320, 0.203207975400, -0.100947402080], abs=1e-11)


def test_the_class_means_of_seca_are_published_and_both_ways_agree():
    z, y = fixture()
    means = class_means(z.softmax(1), y)
    assert means[0].tolist() == pytest.approx([0.396035912393, 0.284867021875, 0.319097065731], abs=1e-11)
    assert means[1].tolist() == pytest.approx([0.283936783043, 0.609021794090, 0.107041422866], abs=1e-11)
    assert means[2].tolist() == pytest.approx([0.222595638988, 0.169372218776, 0.608032142235], abs=1e-11)
    z, y = batch(6, 9)
    wide = class_means(z.softmax(1), y)  # by pairs of rows
    tall = class_means(z.softmax(1).repeat(2, 1), y.repeat(2))  # by classes
    assert torch.allclose(wide, tall[:6])


def test_a_class_of_one_row_has_the_gradient_of_cross_entropy_under_seca():
    z, _ = batch(5, 6)
    y = torch.arange(5)
    z.requires_grad_(True)
    (ours,) = torch.autograd.grad(LOSSES["seca"](z, y).sum(), z)
    (plain,) = torch.autograd.grad(F.cross_entropy(z, y, reduction="sum"), z)
    assert torch.allclose(ours, plain)


def test_the_mean_aurc_loss_is_the_mean_selective_risk():
    z, y = batch(25, 4, seed=6)
    nll = F.cross_entropy(z, y, reduction="none")
    order = z.softmax(1).amax(1).argsort(descending=True)
    risk = nll[order].cumsum(0) / torch.arange(1, 26)
    assert float(LOSSES["aurc"](z, y, confidence="msp").mean()) == pytest.approx(float(risk.mean()), abs=1e-12)
    # a last, shorter batch has weights of its own
    assert float(LOSSES["aurc"](z[:1], y[:1], confidence="msp")) == pytest.approx(float(nll[0]))


def test_every_score_may_weigh_and_is_the_score_of_that_name():
    z, y = batch(9, 5)
    found = Predictions(logits=z, labels=y)
    assert set(CONFIDENCES) == set(SCORES) - {"tcp"} | {"released"}
    for name in set(CONFIDENCES) - {"released"}:
        assert torch.allclose(confidence_of(z, name), SCORES[name](found), atol=1e-10), name
    for name in CONFIDENCES:
        unit = unit_confidence_of(z, name)
        assert bool(((unit >= 0) & (unit <= 1)).all()), name
        weights = LOSSES["au"](confidence=name).weights(unit, 0.1)
        assert bool((weights > 0).all()), name


def test_the_weights_of_au_are_published_and_vary():
    z, _ = fixture()
    loss = LOSSES["au"](confidence="msp", bins=4, nu=0.1, kappa=0.5).double()
    s = z.softmax(1).amax(1).requires_grad_(True)
    weights = loss.weights(s, 0.1)
    sure = 0.628543648700
    assert weights.tolist() == pytest.approx(
        [sure, sure, 0.237662751686, sure, 0.344636440350, 0.494741886772], abs=1e-10
    )
    (slope,) = torch.autograd.grad(weights.sum(), s)
    assert slope.tolist() == pytest.approx(
        [0, 0, 1.4211887347162628, 0, 1.6939678381401369, 2.064232009740574], abs=1e-9
    )
    # the default: scores of a second softmax lie close together, but the weights of a batch differ
    z, y = batch(64, 10)
    default = LOSSES["au"]().double()
    spread = default(z, y) / F.cross_entropy(z, y, reduction="none")
    assert float(spread.std()) > 0.01


def test_au_on_almost_no_rows_below_the_threshold_is_a_multiple_of_cross_entropy():
    z, y = batch(30, 4)
    loss = LOSSES["au"](confidence="msp", kappa=1e-9, nu=0.1).double()
    ratio = loss(z, y) / F.cross_entropy(z, y, reduction="none")
    assert torch.allclose(ratio, ratio[0].expand(30))


def test_au_counts_the_rows_of_the_epoch_in_train_mode_only():
    z, y = batch(40, 4)
    loss = LOSSES["au"](confidence="msp", histogram="epoch", nu=0.1).double()
    both = LOSSES["au"](confidence="msp", nu=0.1).double()
    loss(z[:20], y[:20])
    assert float(loss.counts.sum()) == 20
    second = loss(z[20:], y[20:])
    assert float(loss.counts.sum()) == 40
    assert not torch.allclose(second, both(z[20:], y[20:]))
    loss.eval()
    loss(z, y)
    assert float(loss.counts.sum()) == 40
    loss.epoch_end()
    assert float(loss.counts.sum()) == 0


# Losses with state


def test_the_powers_of_ada_focal_move_as_published():
    rule = AdaFocal(bins=6)
    gamma = torch.tensor([1.0, 0.21, -0.21, 19.5, -1.9, -1.0])
    error = torch.tensor([0.1, -0.1, 0.1, 0.2, -0.2, 0.1])
    expected_gamma = [1.1051709180756477, -0.2, 0.2, 20.0, -2.0, -0.9048374180359595]
    assert rule._moved(gamma, error).tolist() == pytest.approx(expected_gamma, abs=1e-6)


def test_a_validation_set_sets_edges_and_powers_of_ada_focal():
    confidence = torch.tensor([0.35, 0.42, 0.48, 0.55, 0.61, 0.68, 0.74, 0.83, 0.91, 0.97])
    correct = torch.tensor([0, 1, 0, 1, 0, 1, 1, 1, 0, 1]).bool()
    loss = AdaFocal(bins=5)
    loss.epoch_end(confidence, correct)
    assert loss.inner.tolist() == pytest.approx([0.45, 0.58, 0.71, 0.87])
    error = [-0.115, 0.015, 0.145, -0.215, 0.44]
    assert loss.gammas.tolist() == pytest.approx([math.exp(e) for e in error], abs=1e-6)
    history = loss.history
    assert history["gamma"].tolist() == pytest.approx(loss.gammas.tolist())
    assert history["error"].tolist() == pytest.approx(error, abs=1e-6)
    assert history["bin"].tolist() == [0, 1, 2, 3, 4]
    assert set(history["epoch"]) == {1}


@pytest.mark.parametrize("cls", [AdaFocal, CalFocal])
def test_equal_confidences_make_fewer_bins_and_an_empty_bin_keeps_its_power(cls):
    loss = cls(bins=15)
    confidence = torch.cat([torch.full((50,), 1.0), torch.full((20,), 0.4)])
    loss.epoch_end(confidence, torch.arange(70) % 2 == 0)
    inner = loss.inner[loss.inner.isfinite()]
    assert len(inner) <= 2
    assert loss(torch.tensor([[100.0, 0.0]]), torch.tensor([0])).isfinite().all()
    if cls is AdaFocal:
        assert bool((loss.gammas[len(inner) + 1 :] == 1).all())
        assert float(loss.gammas[len(inner)]) != 1  # the bin that holds a probability of 1 has moved
    with pytest.raises(ValueError, match="at least one row"):
        loss.epoch_end(torch.empty(0), torch.empty(0, dtype=torch.bool))


def test_no_confidence_is_without_a_bin():
    loss = AdaFocal(bins=4)
    loss.epoch_end(torch.linspace(0.3, 0.9, 40), torch.ones(40, dtype=torch.bool))
    rows = torch.tensor([[-50.0, 0.0], [0.0, 0.0], [50.0, 0.0]])
    assert loss(rows, torch.zeros(3, dtype=torch.int64)).isfinite().all()
    assert float(loss.history["error"].mean()) == pytest.approx(-0.4, abs=0.01)  # all forty are in some bin


def test_cal_focal_begins_as_focal_loss_and_has_its_published_powers():
    z, y = fixture()
    assert torch.allclose(CalFocal().double()(z, y), LOSSES["focal"](z, y, gamma=1.0))
    row = next(row for row in LOSS_ROWS if row.name == "cal_focal" and row.options["case"] == 1)
    p = (-F.cross_entropy(z, y, reduction="none")).exp()
    gamma = (made(row)(z, y) / -p.log()).log() / (1 - p).log()
    published = [0.663657808399, 0.228730816169, 0.448758931353, 0.583863697169, 1.168411721864, 0.188380176813]
    assert gamma.tolist() == pytest.approx(published, abs=1e-6)


def test_cal_focal_with_a_large_rate_stays_finite():
    loss = CalFocal(bins=4, rate=100.0, case=1)
    loss.epoch_end(torch.linspace(0.3, 1.0, 40), torch.zeros(40, dtype=torch.bool))
    z = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]], requires_grad=True)
    value = loss(z, torch.tensor([0, 0, 1]))
    value.sum().backward()
    assert value.isfinite().all()
    assert z.grad.isfinite().all()


def test_online_label_smoothing_learns_the_means_of_right_rows():
    z, y = fixture()
    loss = OnlineLabelSmoothing(3).double()
    loss(z, y)
    loss.epoch_end()
    p = z.softmax(1)
    assert torch.allclose(loss.soft, p[[0, 1, 3]])
    assert float(loss(z, y).mean()) == pytest.approx(0.8695689742038875, abs=1e-10)
    loss.eval()
    loss.epoch_end()
    before = loss.sums.clone()
    loss(z, y)
    assert torch.equal(loss.sums, before)  # nothing is learned in eval mode
    loss.epoch_end()
    assert torch.allclose(loss.soft, torch.full((3, 3), 1 / 3).double())  # a class without right rows is uniform
    with pytest.raises(ValueError, match="k = 3 columns"):
        loss(torch.zeros(2, 4), torch.tensor([0, 1]))


def test_correctness_ranking_counts_and_has_its_published_value():
    assert ranking(torch.tensor([0.6, 0.7]), torch.tensor([0.9, 0.4]))[0] == pytest.approx(0.6)
    z, y = fixture()
    loss = CorrectnessRanking(10)
    rows = torch.tensor([9, 8, 7, 6, 5, 4])
    first = loss(z, y, rows)
    assert torch.allclose(first, F.cross_entropy(z, y, reduction="none"))  # nothing is known yet
    assert loss.counts[rows, 0].tolist() == [1, 1, 0, 1, 0, 0]
    assert loss.counts[:, 1].tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert not torch.allclose(loss(z, y, rows), first)
    loss.eval()
    loss(z, y, rows)
    assert float(loss.counts.max()) == 2


# Errata of papers, each pinned


def test_kde_ece_has_a_gradient_and_a_bandwidth_where_all_likelihoods_are_small():
    z, y = fixture()
    z.requires_grad_(True)
    (slope,) = torch.autograd.grad(PENALTIES["kde_ece"](z, y), z)
    assert float(slope.abs().max()) > 1e-3
    # the fixture's most likely bandwidth is 1
    z = z.detach()
    assert float(PENALTIES["kde_ece"](z, y)) == pytest.approx(float(PENALTIES["kde_ece"](z, y, bandwidth=1.0)))
    far = torch.tensor([[9.0, 0.0, 0.0], [0.0, 9.0, 0.0], [0.0, 0.0, 9.0]]).double()
    assert PENALTIES["kde_ece"](far, torch.tensor([0, 1, 2])).isfinite()


def test_mmce_of_rows_that_are_all_right_is_zero_without_a_gradient():
    z, y = torch.tensor([[2.0, 0.0], [1.0, 0.0]], requires_grad=True), torch.tensor([0, 0])
    value = PENALTIES["mmce"](z, y)
    (slope,) = torch.autograd.grad(value, z)
    assert float(value.detach()) == 0
    assert float(slope.abs().max()) == 0


def test_the_numbers_behind_avuc_are_published():
    z, y = fixture()
    confidence, correct = top(z, y)
    u = entropy(z)
    sure = u < 0.7
    found = [
        float((confidence * (1 - u.tanh()))[correct & sure].sum()),
        float((confidence * u.tanh())[correct & ~sure].sum()),
        float(((1 - confidence) * (1 - u.tanh()))[~correct & sure].sum()),
        float(((1 - confidence) * u.tanh())[~correct & ~sure].sum()),
    ]
    assert found == pytest.approx([0.904774760341, 0.454290063458, 0, 1.237486054045], abs=1e-11)


@pytest.mark.parametrize("gamma", [-1.5, -0.3, 0.0, 0.4, 3.0])
def test_powers_of_either_sign_have_first_and_second_derivatives(gamma):
    logits = torch.tensor([[4.6, 0.0], [0.4, 0.0], [-1.9, 0.0], [-6.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = LOSSES["ada_focal"](bins=1).double()
    loss.gammas.fill_(gamma)
    labels = torch.zeros(4, dtype=torch.long)
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (logits,))
    assert torch.autograd.gradgradcheck(lambda z: loss(z, labels), (logits,))


def called(name, logits, labels):
    """Call a loss or a penalty by its name, directly."""
    registry = LOSSES if name in LOSSES else PENALTIES
    given = {"online_label_smoothing": {"k": 3}, "correctness_ranking": {"n": 4}}.get(name, {})
    method = registry[name](**given) if inspect.isclass(registry[name]) else registry[name]
    rows = (torch.arange(len(labels)),) if name == "correctness_ranking" else ()
    return method(logits, labels, *rows)


@pytest.mark.parametrize("name", [*LOSSES, *PENALTIES])
@pytest.mark.parametrize("label", [-100, -1, 3, 255])
def test_a_label_that_is_no_class_gets_one_sentence_and_not_a_number(name, label, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=rf"^labels must lie in 0 to 2; got {label}\. Leave out ignored rows"):
        called(name, torch.randn(4, 3), torch.tensor([0, 1, label, 2]))


@pytest.mark.parametrize("name", [*LOSSES, *PENALTIES])
@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (torch.zeros(4, 3), torch.zeros(3, dtype=torch.long), "labels must be class numbers of shape"),
        (torch.zeros(4, 3), torch.zeros(4), "labels must be class numbers of shape"),
        (torch.zeros(4, 3), torch.zeros(4, 3), "For one-hot rows pass labels.argmax"),
        (torch.zeros(4), torch.zeros(4, dtype=torch.long), "logits must be floats of shape"),
        (torch.zeros(4, 3, dtype=torch.long), torch.zeros(4, dtype=torch.long), "logits must be floats of shape"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.long), "bring the classes last and flatten"),
        ([[0.0, 1.0]], torch.zeros(1, dtype=torch.long), "logits must be a tensor; got list"),
    ],
    ids=["short", "float", "one-hot", "one column", "whole logits", "pixels", "list"],
)
def test_a_batch_of_another_shape_gets_one_sentence(name, logits, labels, said, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=said):
        called(name, logits, labels)


@pytest.mark.parametrize("name", [*LOSSES, *PENALTIES])
@pytest.mark.parametrize("size", [1e4, 1e20, 1e30])
def test_enormous_logits_have_a_gradient_without_nan(name, size):
    z = torch.tensor([[size, 0, 0], [0, size, 0], [1, 2, 3], [-size, size, 0]], requires_grad=True)
    value = called(name, z, torch.tensor([0, 1, 2, 0])).sum()
    value.backward()
    assert not math.isnan(value.item())
    assert not bool(z.grad.isnan().any())


@pytest.mark.parametrize("wrong", [math.nan, math.inf, "a", None, [1.0], True])
def test_a_weight_that_is_no_finite_number_is_refused(wrong, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises((ValueError, TypeError), match=r"^weight must be (a number|finite)"):
        Criterion(penalty="mmce", weight=wrong)
    with pytest.raises((ValueError, TypeError), match=r"^weight must be (a number|finite)"):
        Criterion(penalty={"mmce": wrong})
    with pytest.raises((ValueError, TypeError), match=r"^gamma must be (a number|finite)"):
        Criterion("focal", {"gamma": wrong})
