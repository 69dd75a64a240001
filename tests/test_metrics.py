"""One row for each metric and option. Every property below runs on every row; then the values of the literature."""

import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import get_args

import jaxtyping
import metric_oracles as oracles
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from calibrant.metrics.binned import per_class_ece
from calibrant.metrics.bins import Convention, assign
from calibrant.metrics.blocks import tied_blocks
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS


@dataclass
class Row:
    name: str
    options: dict = field(default_factory=dict)
    repeats: str = ""  # why writing the data out twice changes the value; empty: it does not
    relabels: str = ""  # why another order of the classes changes the value
    unweighted: str = ""  # why it takes no weights
    with_losses: bool = False  # give each row a loss of its own
    k: int = 4
    n: int = 60
    tolerance: float = 1e-10  # against the oracle
    noise: float = 1e-10  # between two ways to the same answer

    @property
    def oracle(self) -> Callable:
        return getattr(oracles, self.name)

    def __str__(self) -> str:
        return "-".join([self.name, *(f"{k}={v}" for k, v in self.options.items()), *["losses"] * self.with_losses])


LEAVE_ONE_OUT = "a row's copy stays behind when the row is left out"
EVIDENCE = "twice the rows are twice the evidence"
BIAS = "the bias taken out depends on how many rows a bin holds"
EVERY_K = "it averages over every number of rows kept, and there are more of them"
UNEVEN = "60 rows are not a multiple of 7, so the groups of twice as many are cut elsewhere"
RELEASED_EDGES = "the released code's edges depend on the number of rows"
NOT_SYMMETRIC = "the released code treats the smallest value differently from the largest"
UNBIASED = "the variance divides by one row less"
NO_WEIGHTS = "the published variant does not define weights"
GRID = 5e-6  # 2 048 cells share residuals linearly, and the widening is undone only to the next order

ROWS = [
    Row("accuracy"),
    Row("top5_accuracy", k=8),
    Row("nll"),
    *(Row("brier", {"normalise": how}) for how in ("sum", "mean_over_classes", "half")),
    Row("top_label_brier"),
    *(
        Row(f"corp_{part}", {"score": score})
        for part in ("miscalibration", "discrimination", "uncertainty")
        for score in ("brier", "log")
    ),
    *(
        Row(name, {"convention": convention})
        for name in ("top_label_ece", "mce")
        for convention in ("calibrant", "guo2017", "torchmetrics", "netcal")
    ),
    *(Row("binary_ece", {"convention": c}, k=2) for c in ("calibrant", "guo2017", "torchmetrics", "netcal")),
    *(Row(name, {"bins": bins}) for name in ("top_label_ece", "mce", "classwise_ece") for bins in (1, 10)),
    *(Row(name, {"scheme": "mass"}) for name in ("top_label_ece", "mce", "classwise_ece")),
    *(Row(name, {"scheme": "mass", "bins": 7}, UNEVEN) for name in ("top_label_ece", "mce", "classwise_ece")),
    *(
        Row(name, {"scheme": "mass", "convention": c, "bins": 7}, why, unweighted=NO_WEIGHTS)
        for name in ("top_label_ece", "mce")
        for c, why in (("torrvision", ""), ("au", RELEASED_EDGES))
    ),
    Row("binary_ece", {"scheme": "mass"}, k=2),
    *(
        Row("binary_ece", {"scheme": "mass", "convention": c, "bins": 7}, why, NOT_SYMMETRIC, NO_WEIGHTS, k=2)
        for c, why in (("torrvision", ""), ("au", RELEASED_EDGES))
    ),
    Row("classwise_ece"),
    *(Row("ece_excess", {"scheme": scheme, "bins": 10}, BIAS) for scheme in ("width", "mass")),
    *(
        Row("ece_debiased", {"norm": norm, "scheme": scheme}, BIAS)
        for norm in ("l1", "l2", "l2_squared")
        for scheme in ("mass", "width")
    ),
    Row("ece_debiased", {"bins": 4}, BIAS),
    Row("ece_sweep", {"scheme": "mass"}, "59 rows fit no number of bins, and twice as many are cut elsewhere", n=59),
    Row("ece_sweep", {"scheme": "width"}),
    Row("smooth_ce", n=30),
    Row("sm_ece", n=20, tolerance=GRID, noise=1e-9),
    Row("sm_ece", {"sigma": 0.1}, n=20, tolerance=GRID),
    *(
        Row("ece_kde", {"kind": kind, "power": power, "bandwidth": bandwidth}, LEAVE_ONE_OUT, n=16)
        for kind in ("canonical", "top_label", "marginal")
        for power, bandwidth in ((1, 0.02), (2, 0.3))
    ),
    Row("ks_error"),
    Row("ks_pvalue", repeats=EVIDENCE),
    Row("kuiper_error"),
    Row("kuiper_pvalue", repeats=EVIDENCE),
    Row("spiegelhalter_z", repeats=EVIDENCE),
    Row("spiegelhalter_pvalue", repeats=EVIDENCE),
    Row("mean_confidence"),
    Row("signed_gap"),
    Row("calibration_slope", tolerance=1e-8),  # two nested roots, each to 1e-12, of a flat likelihood
    Row("calibration_intercept", tolerance=1e-9),
    Row("failure_auroc"),
    Row("aupr_success"),
    Row("aupr_error"),
    Row("fpr_at_95_tpr"),
    *(Row(name, {"threshold": t}) for name in ("tpr", "tnr") for t in (0.5, 0.25)),
    Row("ood_auroc", unweighted="two samples, of which weights would need two"),
    *(Row("separability_kl", {"released": r}, UNBIASED) for r in (False, True)),
    Row("separability_bhattacharyya", repeats=UNBIASED, tolerance=1e-9),
    Row("aurc", {"convention": "exact"}, EVERY_K),
    Row("aurc", repeats=EVERY_K, with_losses=True),
    *(Row("aurc", {"convention": c}, EVERY_K, unweighted=NO_WEIGHTS) for c in ("logarithm", "geifman")),
    Row("aurc", {"convention": "confidnet"}, unweighted=NO_WEIGHTS),
    *(Row("e_aurc", {"oracle": oracle}, EVERY_K) for oracle in ("asymptotic", "exact")),
    Row("augrc"),
    Row("risk_at_coverage"),
    Row("risk_at_coverage", {"coverage": 0.34}, "0.34 of 60 rows is rounded up to 21, of 120 to 41"),
    Row("risk_at_coverage", {"coverage": 1.0}),
    *(Row("coverage_at_risk", {"risk": r}) for r in (0.0, 0.05, 0.3)),
    Row("mean_entropy"),
    Row("class_kl", {"leave_out": True}, LEAVE_ONE_OUT),
    Row("class_kl", {"leave_out": False}),
    Row("class_cosine"),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=str)


def one_sided(d):
    return bool(d.correct.all() or not d.correct.any())


def too_few_to_spread(d):
    return int(d.correct.sum()) < 2 or int((~d.correct).sum()) < 2


def without_variance(d):
    return all(c in (0.0, 0.5, 1.0) for c in d.confidence.tolist())


UNDEFINED = {  # when a metric answers NaN; one that is not here never does
    "failure_auroc": one_sided,
    "aupr_success": one_sided,
    "aupr_error": one_sided,
    "fpr_at_95_tpr": one_sided,
    "calibration_intercept": one_sided,
    "tpr": lambda d: not d.correct.any(),
    "tnr": lambda d: bool(d.correct.all()),
    "separability_kl": too_few_to_spread,
    "separability_bhattacharyya": too_few_to_spread,
    "spiegelhalter_z": without_variance,
    "spiegelhalter_pvalue": without_variance,
    "calibration_slope": lambda d: oracles.has_no_slope(d.confidence.numpy(), d.correct.numpy()),
    "ece_kde": lambda d: len(d.labels) == 1,
    "class_kl leave_out": lambda d: len(set(d.labels.tolist())) == len(d.labels),
}


@dataclass
class Data:
    """The views of n rows, float64, made without the package."""

    logits: Tensor
    probs: Tensor
    labels: Tensor
    confidence: Tensor
    correct: Tensor
    losses: Tensor
    ood_confidence: Tensor

    def take(self, rows: Tensor) -> "Data":
        """Some rows, all of those out of distribution."""
        named = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "ood_confidence"}
        return replace(self, **named)

    def to(self, dtype: torch.dtype) -> "Data":
        floats = ("logits", "probs", "confidence", "losses", "ood_confidence")
        return replace(self, **{name: getattr(self, name).to(dtype) for name in floats})


def from_probs(probs, labels, g):
    confidence, predicted = probs.numpy().max(1), probs.numpy().argmax(1)
    return Data(
        logits=probs.clamp(min=1e-12).log() + 1.5,
        probs=probs,
        labels=labels,
        confidence=torch.from_numpy(confidence),
        correct=torch.from_numpy(predicted) == labels,
        losses=2 * torch.rand(len(probs), generator=g, dtype=torch.float64),
        ood_confidence=torch.from_numpy(np.repeat(confidence**2, 2)[: len(confidence) + 3].copy()),
    )


@functools.cache
def smooth(n=60, k=4, seed=0):
    """Distinct confidences; calibrated for an even seed, so that gaps have both signs, else two times too sure."""
    g = torch.Generator().manual_seed(seed)
    z = 2 * torch.randn(n, k, generator=g, dtype=torch.float64)
    truth = (z / (1 + seed % 2)).softmax(1)
    return from_probs(z.softmax(1), torch.multinomial(truth, 1, generator=g).squeeze(1), g)


@functools.cache
def coarse(n=60, k=4, seed=0):
    """Tenths: heavily tied, on the edges of bins, some exactly 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    sure = (4 * torch.randn(n, k, generator=g, dtype=torch.float64)).softmax(1)
    votes = torch.multinomial(sure, 10, replacement=True, generator=g)
    counts = torch.zeros(n, k, dtype=torch.float64).scatter_add_(1, votes, torch.ones(n, 10, dtype=torch.float64))
    return from_probs(counts / 10, torch.multinomial((sure + 0.1), 1, generator=g).squeeze(1), g)


@functools.cache
def saturated(n=60, k=4, seed=0):
    """Half of the rows are certain; a quarter of the confidences are exactly 0, as another score's may be."""
    d, g = smooth(n, k, seed), torch.Generator().manual_seed(seed)
    certain = torch.arange(n) % 2 == 0
    one_hot = (d.probs == d.probs.amax(1, keepdim=True)).double()
    d = from_probs(torch.where(certain[:, None], one_hot, d.probs), d.labels, g)
    return replace(d, confidence=torch.where(torch.arange(n) % 4 == 1, 0.0, d.confidence))


KINDS = (smooth, coarse, saturated)


def views(row, d):
    return [getattr(d, name) for name in METRICS.entry(row.name).views]


def value(row, d, **more):
    options = {**row.options, **({"losses": d.losses} if row.with_losses else {}), **more}
    return METRICS[row.name](*views(row, d), **options)


def same(a, b, tolerance=1e-10):
    return (a == b) or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * max(1.0, abs(b))


# Properties


def test_every_metric_has_a_row():
    assert {row.name for row in ROWS} == set(METRICS)


def test_every_named_option_value_has_a_row():
    for entry in METRICS.entries():
        for p in inspect.signature(entry.method).parameters.values():
            if p.kind is not p.KEYWORD_ONLY or p.name == "weights":
                continue
            literals = [v for v in get_args(p.annotation) if isinstance(v, str)]
            tested = {row.options.get(p.name, p.default) for row in ROWS if row.name == entry.name}
            assert tested >= set(literals), (entry.name, p.name)


@each_row
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_its_oracle(row, kind):
    for seed in range(2):
        d = kind(row.n, row.k, seed)
        extra = {"losses": d.losses.numpy()} if row.with_losses else {}
        expected = row.oracle(*(v.numpy() for v in views(row, d)), **row.options, **extra)
        assert same(value(row, d), float(expected), row.tolerance), (seed, value(row, d), expected)


@each_row
@pytest.mark.parametrize("kind", KINDS)
def test_order_of_rows_does_not_matter(row, kind):
    d = kind(row.n, row.k)
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        other = d.take(torch.randperm(row.n, generator=g))
        other.ood_confidence = d.ood_confidence[torch.randperm(len(d.ood_confidence), generator=g)]
        assert same(value(row, d), value(row, other), row.noise), seed


@pytest.mark.parametrize("row", [row for row in ROWS if not row.unweighted], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_weight_is_a_repetition(row, kind):
    for seed in range(3):
        d = kind(row.n, row.k, seed)
        weights = torch.randint(0, 4, (row.n,), generator=torch.Generator().manual_seed(seed))
        written_out = d.take(torch.arange(row.n).repeat_interleave(weights))
        assert same(value(row, d, weights=weights.double()), value(row, written_out), row.noise), seed


@pytest.mark.parametrize("row", [row for row in ROWS if not row.unweighted], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_weights_of_one_change_nothing_in_any_type(row, dtype):
    d = smooth(row.n, row.k)
    assert same(value(row, d, weights=torch.ones(row.n, dtype=dtype)), value(row, d), row.noise)


@pytest.mark.parametrize("row", [row for row in ROWS if row.unweighted], ids=str)
def test_weights_are_refused_where_they_mean_nothing(row):
    if "weights" in inspect.signature(METRICS[row.name]).parameters:
        with pytest.raises(ValueError, match="weights must be left out with convention="):
            value(row, smooth(row.n, row.k), weights=torch.ones(row.n, dtype=torch.float64))
    else:
        with pytest.raises(TypeError, match="weights"):
            value(row, smooth(row.n, row.k), weights=torch.ones(row.n, dtype=torch.float64))


@each_row
def test_data_written_out_twice_gives_the_same_value(row):
    alike = [
        same(value(row, d), value(row, d.take(torch.arange(row.n).repeat(2))), 1e-9)
        for d in (kind(row.n, row.k, seed) for kind in KINDS for seed in range(4))
    ]
    assert all(alike) is not bool(row.repeats), row.repeats


of_classes = [row for row in ROWS if {"probs", "logits"} & set(METRICS.entry(row.name).views)]


@pytest.mark.parametrize("row", of_classes, ids=str)
def test_order_of_classes_does_not_matter(row):
    for seed in range(3):
        d = smooth(row.n, row.k, seed)
        order = torch.randperm(row.k, generator=torch.Generator().manual_seed(seed + 1))
        if row.k == 2:
            order = torch.tensor([1, 0])
        other = replace(d, probs=d.probs[:, order], logits=d.logits[:, order], labels=order.argsort()[d.labels])
        assert same(value(row, d), value(row, other)) is not bool(row.relabels), row.relabels


@functools.cache
def extremes(k):
    """Rows few, all right, all wrong, all alike, and exactly 0 or 1."""
    found = [kind(n, k, seed) for n, seed, kind in itertools.product((1, 2, 50), range(3), KINDS)]
    d = smooth(50, k)
    found.append(replace(d, labels=d.probs.argmax(1), correct=torch.ones(50, dtype=torch.bool)))
    found.append(replace(d, labels=d.probs.argmin(1), correct=torch.zeros(50, dtype=torch.bool)))
    for level, n in itertools.product((0.0, 0.1, 0.5, 0.7, 1.0), (1, 31, 50)):
        probs = torch.full((n, k), (1 - level) / (k - 1), dtype=torch.float64)
        probs[:, 0] = level
        confidence = torch.full((n,), level, dtype=torch.float64)
        found.append(replace(smooth(n, k), probs=probs, logits=probs.clamp(min=1e-12).log(), confidence=confidence))
    return found


@each_row
def test_stays_in_its_range_and_is_nan_only_where_it_says_so(row):
    low, high = METRICS.entry(row.name).facts["range"]
    undefined = UNDEFINED.get(row.name, lambda d: False)
    if row.name == "class_kl" and row.options["leave_out"]:
        undefined = UNDEFINED["class_kl leave_out"]
    for d in extremes(row.k):
        found = value(row, d)
        assert math.isnan(found) == undefined(d), (found, d)
        assert math.isnan(found) or low - 1e-12 <= found <= high + 1e-12, (found, d)


@each_row
def test_answers_a_python_float(row):
    assert type(value(row, smooth(row.n, row.k))) is float
    assert type(value(row, smooth(1, row.k))) is float


@each_row
def test_single_precision_agrees(row):
    d = smooth(row.n, row.k)
    assert same(value(row, d.to(torch.float32)), value(row, d), 1e-5)


@each_row
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_narrow_type_gives_the_value_of_what_it_holds(row, kind, dtype):
    held = kind(row.n, row.k).to(dtype)
    tolerance = 1e-6 if row.name == "classwise_ece" else row.noise  # its sums run in the type of many probabilities
    assert same(value(row, held), value(row, held.to(torch.float64)), tolerance)


@each_row
def test_memory_layout_does_not_matter(row):
    d = smooth(row.n, row.k)
    strided = {}
    for f in fields(d):
        x = getattr(d, f.name)
        strided[f.name] = torch.stack([x, x], 1)[:, 0] if x.ndim == 1 else x.T.contiguous().T
        assert not strided[f.name].is_contiguous()
    assert same(value(row, Data(**strided)), value(row, d), 1e-12)


@each_row
def test_leaves_its_input_alone(row):
    d = coarse(row.n, row.k)
    before = [v.clone() for v in views(row, d)]
    value(row, d)
    assert all(torch.equal(a, b) for a, b in zip(before, views(row, d), strict=True))


@pytest.mark.parametrize("entry", METRICS.entries(), ids=lambda e: e.name)
def test_docstring_has_formula_reference_and_example(entry):
    doc = inspect.getdoc(entry.method)
    assert ".. math::" in doc
    assert "\nExample:" in doc
    assert ">>>" in doc
    assert entry.reference
    assert entry.summary.endswith(".") or entry.summary.endswith(")")


@pytest.mark.parametrize("entry", METRICS.entries(), ids=lambda e: e.name)
def test_says_what_is_better_its_range_and_its_family(entry):
    assert entry.facts["better"] in ("lower", "higher", "zero", "one", "neither")
    low, high = entry.facts["range"]
    assert low < high
    assert entry.facts["family"] in (
        "accuracy",
        "calibration",
        "direction",
        "dynamics",
        "ood",
        "proper",
        "ranking",
        "selective",
        "test",
    )


means = [entry for entry in METRICS.entries() if "mean_of" in entry.facts]


@pytest.mark.parametrize("entry", means, ids=lambda e: e.name)
@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_a_mean_of_rows_is_the_mean_of_that_view(entry, kind):
    d = saturated(50)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5), (torch.float16, 1e-2)):
        scores = getattr(d, kind).to(dtype)
        weights = torch.arange(50, dtype=torch.float64)
        p = Predictions(**{kind: scores}, labels=d.labels, weights=weights)
        rows = getattr(p, entry.facts["mean_of"]).double()
        expected = float((weights * rows).sum() / weights.sum())
        found = entry.method(*(getattr(p, name) for name in entry.views), weights=weights)
        assert same(found, expected, tolerance), (dtype, found, expected)


def test_some_metrics_are_means_of_rows():
    found = {e.name: e.facts["mean_of"] for e in means}
    expected = {"accuracy": "correct", "mean_confidence": "confidence", "nll": "nll", "mean_entropy": "entropy"}
    assert expected.items() <= found.items()


# Values of the literature: the fixtures of the specification


def tensors(confidence, correct):
    return torch.tensor(confidence, dtype=torch.float64), torch.tensor(correct) == 1


Z = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 2, 1, 0])
P = Z.exp() / Z.exp().sum(1, keepdim=True)
F1 = {
    "logits": Z,
    "probs": P,
    "labels": Y,
    "confidence": P.max(1).values,
    "correct": torch.tensor([True, True, False, True, False, False]),
}
F2 = dict(
    zip(
        ("confidence", "correct"),
        tensors([0.35, 0.42, 0.48, 0.55, 0.61, 0.68, 0.74, 0.83, 0.91, 0.97], [0, 1, 0, 1, 0, 1, 1, 1, 0, 1]),
        strict=True,
    )
)
F3_Z = torch.tensor([2.0, 0.5, -1.0, 1.5, -0.3, 0.2], dtype=torch.float64)
F3 = {"confidence": 1 / (1 + (-F3_Z).exp()), "correct": torch.tensor([1, 1, 0, 1, 1, 0]) == 1}
F4 = dict(zip(("confidence", "correct"), tensors([0.9] * 10 + [0.6] * 10, ([1] * 6 + [0] * 4) * 2), strict=True))
SMALL = dict(zip(("confidence", "correct"), tensors([0.3, 0.8], [1, 0]), strict=True))
GAUSS = {  # exactly N(0, 1) and N(1, 4) by mean and unbiased variance
    "confidence": torch.tensor([-(0.5**0.5), 0.5**0.5, 1 - 2**0.5, 1 + 2**0.5], dtype=torch.float64),
    "correct": torch.tensor([True, True, False, False]),
}
OOD = {  # entropies, negated: higher is surer
    "confidence": -torch.tensor([0.2, 0.5, 0.3, 0.9], dtype=torch.float64),
    "ood_confidence": -torch.tensor([0.8, 1.0, 0.4], dtype=torch.float64),
}

LITERATURE = [
    ("accuracy", F1, {}, 0.5, 1e-10),
    ("nll", F1, {}, 0.7969173746342092, 1e-10),
    ("brier", F1, {}, 0.44611659392754266, 1e-10),
    ("brier", F1, {"normalise": "mean_over_classes"}, 0.1487055313091809, 1e-10),
    ("brier", F1, {"normalise": "half"}, 0.44611659392754266 / 2, 1e-10),
    ("top_label_brier", F2, {}, 0.22918, 1e-10),
    ("top_label_ece", F2, {"bins": 5}, 0.164, 1e-10),
    ("top_label_ece", F2, {"bins": 10}, 0.25, 1e-10),
    ("top_label_ece", F2, {"bins": 15}, 0.416, 1e-10),
    ("top_label_ece", F1, {"bins": 5}, 0.3386534145484447, 1e-10),
    ("top_label_ece", F1, {"bins": 15}, 0.3386534145484447, 1e-10),
    ("mce", F2, {"bins": 5}, 0.35, 1e-10),
    ("top_label_ece", F2, {"scheme": "mass", "bins": 2}, 0.054, 1e-10),
    ("top_label_ece", F2, {"scheme": "mass", "bins": 3}, 0.094, 1e-10),
    ("top_label_ece", F2, {"scheme": "mass", "bins": 5}, 0.186, 1e-10),
    ("top_label_ece", F2, {"scheme": "mass", "bins": 5, "convention": "torrvision"}, 0.161, 1e-10),
    ("top_label_ece", F2, {"scheme": "mass", "bins": 5, "convention": "au"}, 0.19, 1e-10),
    ("classwise_ece", F1, {"bins": 5}, 0.2900799030608953, 1e-10),
    ("classwise_ece", F1, {"bins": 15}, 0.296135174695011, 1e-10),
    ("classwise_ece", F1, {"bins": 3, "scheme": "mass"}, 0.2014614671646058, 1e-10),
    ("top_label_ece", F4, {"scheme": "mass"}, 0.15, 1e-10),
    ("ece_debiased", F4, {}, 0.08663932359761592, 1e-10),
    ("ece_debiased", F4, {"norm": "l2"}, 0.135400640077266, 1e-10),
    ("ece_debiased", F4, {"norm": "l2_squared"}, 0.018333333333333333, 1e-10),
    ("ece_debiased", F2, {"bins": 2}, -0.05757274426618558, 1e-10),
    ("ece_debiased", F2, {"bins": 2, "norm": "l2"}, 0.0, 1e-10),
    ("ece_sweep", F2, {"scheme": "mass"}, 0.094, 1e-10),
    ("ece_sweep", F2, {"scheme": "width"}, 0.054, 1e-10),
    ("smooth_ce", SMALL, {}, 0.225, 1e-10),
    ("smooth_ce", F2, {}, 0.06862, 1e-10),
    ("sm_ece", F2, {"sigma": 0.1}, 0.0770448, 1e-6),
    ("sm_ece", F2, {"sigma": 0.05}, 0.1540142, 1e-6),
    ("sm_ece", F2, {}, 0.0882519, 1e-6),
    ("ece_kde", F1, {"bandwidth": 0.1}, 0.8999082015031395, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.1, "power": 2}, 0.5049697879211442, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.1, "kind": "top_label"}, 0.15719363101277958, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.1, "kind": "marginal"}, 0.6677566389025837, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.5}, 0.6919592771340645, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.5, "power": 2}, 0.2901358173936927, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.5, "kind": "top_label"}, 0.15004279162638376, 1e-10),
    ("ece_kde", F1, {"bandwidth": 0.5, "kind": "marginal"}, 0.5725058765783851, 1e-10),
    ("ks_error", F2, {}, 0.057, 1e-10),
    ("aurc", F2, {}, 0.30107142857142855, 1e-10),
    ("aurc", F2, {"convention": "geifman"}, 0.2519047619047619, 1e-10),
    ("aurc", F2, {"convention": "confidnet"}, 0.24440476190476187, 1e-10),
    ("aurc", F2, {"convention": "logarithm"}, 0.27246478067316005, 1e-10),
    ("e_aurc", F2, {}, 0.20756680283102297, 1e-10),
    ("e_aurc", F2, {"oracle": "exact"}, 0.18845238095238093, 1e-10),
    ("failure_auroc", F2, {}, 2 / 3, 1e-10),
    ("aupr_success", F2, {}, 0.7662698412698412, 1e-10),
    ("aupr_error", F2, {}, 0.6777777777777778, 1e-10),
    ("fpr_at_95_tpr", F2, {}, 0.75, 1e-10),
    ("tpr", F2, {}, 5 / 6, 1e-10),
    ("tnr", F2, {}, 0.5, 1e-10),
    ("tnr", F2, {"threshold": 0.1}, 0.0, 1e-10),
    ("failure_auroc", F3, {}, 0.875, 1e-10),
    ("aupr_success", F3, {}, 0.95, 1e-10),
    ("aupr_error", F3, {}, 0.8333333333, 1e-10),
    ("fpr_at_95_tpr", F3, {}, 0.5, 1e-10),
    ("separability_kl", GAUSS, {}, 0.875, 1e-10),
    ("separability_kl", GAUSS, {"released": True}, 2.25, 1e-10),
    ("separability_bhattacharyya", GAUSS, {}, 0.1615717756571049, 1e-10),
    ("separability_kl", F3, {}, 0.9416189354973545, 1e-10),
    ("separability_bhattacharyya", F3, {}, 0.23510425773274302, 1e-10),
    ("ood_auroc", OOD, {}, 0.75, 1e-10),
    ("mean_entropy", F1, {}, 0.8207765418687941, 1e-10),
    ("class_kl", F1, {}, 0.6783887582908851, 1e-10),
    ("class_kl", F1, {"leave_out": False}, 0.18483611912474737, 1e-10),
    ("class_cosine", F1, {}, 0.8976894335086388, 1e-10),
]


@pytest.mark.parametrize(("name", "fixture", "options", "expected", "tolerance"), LITERATURE)
def test_gives_the_value_of_the_literature(name, fixture, options, expected, tolerance):
    found = METRICS[name](*(fixture[view] for view in METRICS.entry(name).views), **options)
    assert found == pytest.approx(expected, abs=tolerance)


def test_class_wise_error_of_each_class():
    expected = [0.315798444875, 0.281739148854, 0.272702115454]
    assert per_class_ece(P, Y, bins=5) == pytest.approx(expected, abs=1e-10)


def test_risk_coverage_points():
    blocks = tied_blocks(**F2)
    assert blocks.coverage == pytest.approx(np.arange(1, 11) / 10)
    assert blocks.risk == pytest.approx([0, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 2 / 6, 2 / 7, 3 / 8, 3 / 9, 4 / 10])


def test_oracles_of_excess_aurc():
    area = METRICS["aurc"](**F2)
    assert area - METRICS["e_aurc"](**F2) == pytest.approx(0.09350462574040558, abs=1e-10)
    assert area - METRICS["e_aurc"](**F2, oracle="exact") == pytest.approx(0.11261904761904762, abs=1e-10)


@pytest.mark.parametrize(("fixture", "wrong_sign"), [(F2, 0.40208333333333335), (F3, 0.2916666667)])
def test_errors_are_not_ranked_by_plus_confidence(fixture, wrong_sign):
    by_plus = METRICS["aupr_success"](fixture["confidence"], ~fixture["correct"])
    assert by_plus == pytest.approx(wrong_sign, abs=1e-10)
    assert METRICS["aupr_error"](**fixture) > by_plus + 0.2


def test_torrvision_drops_the_smallest_value():
    index, _ = assign(F2["confidence"].numpy(), bins=5, scheme="mass", convention="torrvision")
    assert index.tolist().count(-1) == 1
    assert index[0] == -1


def test_au_bins_are_uneven():
    index, _ = assign(F2["confidence"].numpy(), bins=5, scheme="mass", convention="au")
    assert np.bincount(index).tolist() == [1, 2, 2, 2, 3]


# Edge cases, worked by hand


HAND = [
    # 0.95 and 1.0 share the last bin: |0.975 - 0.5|
    ("top_label_ece", [0.95, 1.0], [1, 0], {"bins": 10}, 0.475),
    ("mce", [0.95, 1.0], [1, 0], {"bins": 10}, 0.475),
    # torchmetrics gives 1.0 a bin of its own: (|1 - 0.95| + |0 - 1|) / 2
    ("top_label_ece", [0.95, 1.0], [1, 0], {"bins": 10, "convention": "torchmetrics"}, 0.525),
    # confidence 0 is in the first bin: |0.05 - 0.5|
    ("top_label_ece", [0.0, 0.1], [1, 0], {"bins": 10}, 0.45),
    # guo2017 drops it: |0.1 - 0| / 2
    ("top_label_ece", [0.0, 0.1], [1, 0], {"bins": 10, "convention": "guo2017"}, 0.05),
    ("top_label_ece", [0.0, 0.0], [1, 0], {"bins": 10}, 0.5),
    ("top_label_ece", [1.0, 1.0], [1, 1], {"bins": 10}, 0.0),
    # an edge belongs to the bin below it: {0.25, 0.5} and {0.75}, not {0.25} and {0.5, 0.75}
    ("top_label_ece", [0.25, 0.5, 0.75], [1, 0, 1], {"bins": 2}, (2 * 0.125 + 0.25) / 3),
    ("top_label_ece", [0.25, 0.5, 0.75], [1, 0, 1], {"bins": 2, "convention": "netcal"}, (0.75 + 2 * 0.125) / 3),
    # one bin: |mean confidence - accuracy|
    ("top_label_ece", [0.2, 0.9], [1, 1], {"bins": 1}, 0.45),
    # two far apart rows leave eight bins empty
    ("top_label_ece", [0.05, 0.95], [0, 1], {"bins": 10}, 0.05),
    # fewer rows than equally full bins: a bin each
    ("top_label_ece", [0.2, 0.9], [0, 1], {"scheme": "mass", "bins": 15}, 0.15),
    ("ece_debiased", [0.2, 0.9], [0, 1], {"scheme": "mass", "bins": 15}, 0.0),
    ("ece_sweep", [0.2], [1], {}, 0.8),
    # a fall in accuracy already at two bins: one bin, |0.55 - 0.5|, and not 0
    ("ece_sweep", [0.2, 0.9], [1, 0], {}, 0.05),
    # all tied: any order, the error rate
    ("aurc", [0.7] * 10, [1] * 7 + [0] * 3, {}, 0.3),
    ("aurc", [0.7] * 10, [0] * 3 + [1] * 7, {}, 0.3),
    ("augrc", [0.7] * 10, [0] * 3 + [1] * 7, {}, 0.15),
    ("e_aurc", [0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], {"oracle": "exact"}, 0.0),
    ("e_aurc", [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 0], {"oracle": "exact"}, 0.0),
    ("e_aurc", [0.9, 0.8, 0.7, 0.6], [0, 0, 0, 0], {}, 0.0),
    ("e_aurc", [0.9, 0.8, 0.7, 0.6], [1, 1, 1, 1], {}, 0.0),
    ("augrc", [0.9, 0.8, 0.7, 0.6], [1, 1, 0, 0], {}, 0.125),  # e^2 / 2
    # the cut takes one of two tied rows, of which one is wrong: half an error in two rows
    ("risk_at_coverage", [0.9, 0.8, 0.8, 0.1], [1, 1, 0, 0], {"coverage": 0.5}, 0.25),
    ("risk_at_coverage", [0.9, 0.8, 0.8, 0.1], [1, 0, 1, 0], {"coverage": 0.5}, 0.25),
    ("risk_at_coverage", [0.9, 0.8, 0.7], [1, 0, 0], {"coverage": 0.01}, 0.0),
    # no threshold is safe: the surest row is wrong and every larger share has too many errors
    ("coverage_at_risk", [0.9, 0.8, 0.7], [0, 1, 1], {"risk": 0.05}, 0.0),
    ("coverage_at_risk", [0.9, 0.8, 0.7], [0, 1, 1], {"risk": 0.4}, 1.0),
    # a threshold cannot split a tie
    ("coverage_at_risk", [0.9, 0.8, 0.8], [1, 1, 0], {"risk": 0.1}, 1 / 3),
    ("failure_auroc", [0.7, 0.7, 0.7], [1, 0, 1], {}, 0.5),
    ("failure_auroc", [0.9, 0.7], [1, 1], {}, math.nan),
    ("failure_auroc", [0.9, 0.7], [0, 0], {}, math.nan),
    ("aupr_error", [0.9, 0.7], [1, 1], {}, math.nan),
    ("tpr", [0.5, 0.6], [1, 1], {}, 0.5),  # strict
    ("tnr", [0.5, 0.4], [0, 0], {}, 0.5),
    # sums after each row: 0.6, then 0.6 - 0.1 = 0.5
    ("ks_error", [0.6, 0.9], [0, 1], {}, 0.3),
    # -0.4, 0.5: they span 0.9
    ("kuiper_error", [0.6, 0.9], [1, 0], {}, 0.45),
    ("ks_pvalue", [1.0, 0.0], [1, 0], {}, 1.0),
    ("ks_pvalue", [1.0, 0.0], [0, 0], {}, 0.0),
    ("kuiper_pvalue", [1.0, 0.0], [0, 0], {}, 0.0),
    ("smooth_ce", [0.5], [1], {}, 0.5),
    ("sm_ece", [0.25, 0.75], [0, 1], {"sigma": 5.0}, 0.0),  # so wide that +0.25 and -0.25 cancel everywhere
    ("calibration_intercept", [0.8, 0.8], [1, 0], {}, -math.log(4)),
    # two values: the slope joins the log odds 0 (one of two) and log 3 (three of four)
    ("calibration_slope", [0.6] * 2 + [0.9] * 4, [1, 0, 1, 1, 1, 0], {}, math.log(3) / (math.log(9) - math.log(1.5))),
    ("separability_kl", [0.7] * 40, [1] * 30 + [0] * 10, {}, 0.0),  # two equal distributions without spread
    ("separability_bhattacharyya", [0.7] * 40, [1] * 30 + [0] * 10, {}, 0.0),
    ("separability_kl", [0.9, 0.9, 0.2, 0.2], [1, 1, 0, 0], {}, math.inf),
    ("corp_miscalibration", [0.2, 0.2, 0.8, 0.8], [1, 0, 1, 1], {}, (0.64 + 0.04 + 0.04 + 0.04) / 4 - 0.125),
    ("spiegelhalter_z", [0.5, 1.0], [1, 0], {}, math.nan),
]


@pytest.mark.parametrize(("name", "confidence", "correct", "options", "expected"), HAND)
def test_gives_the_value_worked_by_hand(name, confidence, correct, options, expected):
    assert METRICS[name](*tensors(confidence, correct), **options) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_absent_classes_count_in_the_class_wise_mean():
    probs = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0])
    assert METRICS["classwise_ece"](probs, labels) == pytest.approx((0.5 + 0.5 + 0 + 0) / 4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_probability_on_the_first_edge_is_in_one_bin(dtype):
    probs = torch.tensor([[0.2, 0.8]], dtype=dtype)
    first, second = per_class_ece(probs, torch.tensor([0]), bins=5)
    assert first == pytest.approx(0.8, abs=2e-3)
    assert second == pytest.approx(0.8, abs=2e-3)


def test_many_rows_in_half_precision_do_not_overflow():
    probs = torch.tensor([[0.25, 0.75]], dtype=torch.float16).repeat(200_000, 1)
    labels = torch.arange(200_000) % 2
    assert METRICS["classwise_ece"](probs, labels) == pytest.approx(0.25, abs=1e-6)


def test_types_agree_on_a_million_rows():
    g = torch.Generator().manual_seed(0)
    c = torch.rand(1_000_000, generator=g, dtype=torch.float64)
    a = torch.rand(1_000_000, generator=g, dtype=torch.float64) < c**1.5
    for name in ("top_label_ece", "failure_auroc", "aurc", "ks_error", "sm_ece", "signed_gap"):
        exact = METRICS[name](c, a)
        for dtype in (torch.float16, torch.bfloat16, torch.float32):
            tolerance = 1e-2 if dtype is torch.bfloat16 else 2e-3
            assert METRICS[name](c.to(dtype), a) == pytest.approx(exact, abs=tolerance), (name, dtype)


@pytest.mark.parametrize("bins", [10, 15, 20, 25, 50, 100])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_edge_belongs_to_the_bin_below_it(bins, dtype):
    edges = (np.arange(bins + 1) / bins).astype(dtype).astype(np.float64)
    index, _ = assign(edges, bins=bins)
    assert index.tolist() == [0, *range(bins)]


@pytest.mark.parametrize("bins", [1, 2, 3, 10, 15, 100])
def test_so_many_bins_are_so_many_bins(bins):
    middles = (np.arange(bins) + 0.5) / bins
    for scheme in ("width", "mass"):
        index, count = assign(middles, bins=bins, scheme=scheme)
        assert count == bins
        assert index.tolist() == list(range(bins))


def test_group_sizes_differ_by_at_most_one():
    for n, bins in itertools.product((1, 2, 9, 10, 11, 100), (1, 2, 3, 7, 15)):
        index, _ = assign(np.linspace(0.1, 0.9, n), bins=bins, scheme="mass")
        sizes = np.bincount(index)
        assert sizes.max() - sizes.min() <= 1
        assert len(sizes) == min(n, bins)
        assert sorted(sizes, reverse=True) == sizes.tolist()  # the first are larger


def test_tied_values_share_a_bin():
    c = torch.tensor([1.0] * 90 + [0.5] * 10, dtype=torch.float64).numpy()
    index, bins = assign(c, bins=15, scheme="mass")
    assert bins <= 3  # the edges are 0.5 and 1
    assert len(set(index[:90])) == 1
    assert set(index[90:]) == {0}


def test_the_convention_is_known_with_its_scheme():
    for scheme, convention in itertools.product(("width", "mass"), get_args(Convention)):
        known = convention == "calibrant" or (convention in ("torrvision", "au")) == (scheme == "mass")
        if known:
            assert assign(np.array([0.3, 0.7]), bins=2, scheme=scheme, convention=convention)[0].shape == (2,)
        else:
            with pytest.raises(ValueError, match=f"convention must be one of .* with scheme='{scheme}'"):
                assign(np.array([0.3, 0.7]), bins=2, scheme=scheme, convention=convention)


def test_the_worst_bin_of_nothing_is_not_a_crash():
    c, a = tensors([0.0, 0.0], [1, 0])  # guo2017 drops both
    assert METRICS["top_label_ece"](c, a, convention="guo2017") == 0.0
    found = METRICS["mce"](c, a, convention="guo2017")
    assert math.isnan(found) or found == 0.0


def test_generalised_area_is_the_identity_with_ties():
    for seed, kind in itertools.product(range(5), KINDS):
        d = kind(80, seed=seed)
        e = 1 - METRICS["accuracy"](d.correct)
        expected = (1 - METRICS["failure_auroc"](d.confidence, d.correct)) * e * (1 - e) + e**2 / 2
        assert METRICS["augrc"](d.confidence, d.correct) == pytest.approx(expected, abs=1e-12)


def test_area_is_the_average_over_all_orders_of_a_tie():
    losses = [0.0, 1.0, 1.0, 0.0, 1.0]
    areas = []
    for tied in itertools.permutations(losses[1:4]):
        order = [losses[0], *tied, losses[4]]
        areas.append(sum(sum(order[:j]) / j for j in range(1, 6)) / 5)
    c, a = tensors([0.9, 0.5, 0.5, 0.5, 0.1], [1, 0, 0, 1, 0])
    assert METRICS["aurc"](c, a) == pytest.approx(sum(areas) / len(areas), abs=1e-12)


def test_a_perfect_ranking_has_no_excess():
    for n, wrong in itertools.product((1, 2, 17, 500), (0.0, 0.1, 0.5, 1.0)):
        c = torch.linspace(1, 0, n, dtype=torch.float64)
        a = torch.arange(n) < n - round(n * wrong)
        assert METRICS["e_aurc"](c, a, oracle="exact") == pytest.approx(0.0, abs=1e-12)
        assert METRICS["e_aurc"](c.round(), a, oracle="exact") >= -1e-12


rows_of_pairs = st.lists(
    st.tuples(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])), st.booleans()),
    min_size=1,
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(rows_of_pairs)
def test_smooth_error_lies_between_the_mean_gap_and_the_mean_absolute_gap(rows):
    c, a = tensors(*zip(*rows, strict=True))
    found = METRICS["smooth_ce"](c, a)
    gap = a.double() - c
    assert abs(float(gap.mean())) - 1e-12 <= found <= float(gap.abs().mean()) + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=12))
def test_smooth_error_is_the_linear_programme(rows):
    c, a = tensors(*zip(*rows, strict=True))
    expected = oracles.smooth_ce(c.numpy(), a.numpy())
    assert METRICS["smooth_ce"](c, a) == pytest.approx(expected, abs=1e-6)  # the solver holds a bound to 1e-7


@settings(max_examples=150, deadline=None)
@given(rows_of_pairs)
def test_proper_score_is_the_sum_of_its_parts(rows):
    c, a = tensors(*zip(*rows, strict=True))
    parts = [METRICS[f"corp_{p}"](c, a) for p in ("miscalibration", "discrimination", "uncertainty")]
    assert parts[0] - parts[1] + parts[2] == pytest.approx(METRICS["top_label_brier"](c, a), abs=1e-12)
    assert min(parts) >= -1e-12


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.booleans()), min_size=2, max_size=12))
def test_the_slope_is_nan_exactly_where_no_maximum_exists(rows):
    c, a = tensors(*zip(*rows, strict=True))
    spread = c.unique()
    if len(spread) > 1 and float(spread.diff().min()) < 1e-3:
        return  # nearly equal values: the answer exists but needs more digits than there are
    found = METRICS["calibration_slope"](c, a)
    assert math.isnan(found) == oracles.has_no_slope(c.numpy(), a.numpy())


@settings(max_examples=150, deadline=None)
@given(rows_of_pairs)
def test_largest_interval_error_is_between_one_and_two_largest_sums(rows):
    c, a = tensors(*zip(*rows, strict=True))
    ks, kuiper = METRICS["ks_error"](c, a), METRICS["kuiper_error"](c, a)
    assert ks - 1e-12 <= kuiper <= 2 * ks + 1e-12


@pytest.mark.parametrize("name", ["ks_pvalue", "kuiper_pvalue"])
def test_overwhelming_evidence_has_no_probability(name):
    for n in (100, 10_000, 1_000_000):  # confidence 0.5, always right: 10, 100 and 1000 deviations
        c, a = torch.full((n,), 0.5, dtype=torch.float64), torch.ones(n, dtype=torch.bool)
        assert METRICS[name](c, a) < 1e-15
    sure = torch.full((100,), 1 - 1e-9, dtype=torch.float64)
    assert METRICS[name](sure, torch.arange(100) % 2 == 0) < 1e-15


def test_small_probabilities_keep_their_digits():
    # the sum is 8 deviations: P(max |B| >= 8) = 4 P(N > 8), the range is the same
    c, a = torch.full((64,), 0.5, dtype=torch.float64), torch.ones(64, dtype=torch.bool)
    tail = 4 * math.erfc(8 / math.sqrt(2)) / 2
    assert METRICS["ks_pvalue"](c, a) == pytest.approx(tail, rel=1e-6)
    assert METRICS["kuiper_pvalue"](c, a) == pytest.approx(2 * tail, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ks_pvalue", "kuiper_pvalue", "spiegelhalter_pvalue"])
def test_a_calibrated_model_is_rejected_as_often_as_promised(name):
    g = torch.Generator().manual_seed(0)
    c = 0.5 + 0.5 * torch.rand(2000, generator=g, dtype=torch.float64)
    found = torch.tensor(
        [METRICS[name](c, torch.rand(2000, generator=g, dtype=torch.float64) < c) for _ in range(2000)]
    )
    for level in (0.05, 0.2, 0.5):
        share = float((found <= level).double().mean())
        assert share == pytest.approx(level, abs=4 * math.sqrt(level * (1 - level) / 2000) + 0.015)


@pytest.mark.parametrize("sigma", [1e-6, 1e-5, 3e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_smoothing_never_adds_error(sigma):
    c, a = tensors([0.5, 0.9, 1.0], [0, 0, 0])
    assert METRICS["sm_ece"](c, a, sigma=sigma) <= 0.8 + 1e-9  # the mean absolute gap


def test_smoothing_a_perfect_model_leaves_nothing():
    c, a = tensors([1.0, 0.0, 1.0], [1, 0, 1])
    assert METRICS["sm_ece"](c, a) == 0.0


@pytest.mark.parametrize("scheme", ["mass", "width"])
def test_sweep_of_many_right_rows_takes_few_steps(scheme):
    n = 20_000  # no number of bins ever fails; a sweep through all of them would take n steps of n rows
    c, steps = torch.linspace(0, 1, n, dtype=torch.float64), []
    sys.setprofile(lambda frame, event, arg: steps.append(event))
    try:
        found = METRICS["ece_sweep"](c, torch.ones(n, dtype=torch.bool), scheme=scheme)
    finally:
        sys.setprofile(None)
    assert found == pytest.approx(0.5, abs=1e-9)
    assert len(steps) < n / 2


def test_certain_rows_that_are_wrong_have_an_intercept():
    c, a = tensors([1.0] * 4, [1, 1, 1, 0])  # 1 is read as 1 - 1e-12
    expected = math.log(3) - math.log((1 - 1e-12) / 1e-12)
    assert METRICS["calibration_intercept"](c, a) == pytest.approx(expected, abs=1e-3)


# Refusals


@pytest.fixture
def _unchecked(monkeypatch):
    """As for a user: without the shape checks of the tests, which would answer first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


REFUSED = [
    ("top_label_ece", {"bins": 0}, r"bins must be at least 1; got 0\."),
    ("mce", {"bins": -1}, r"bins must be at least 1; got -1\."),
    ("binary_ece", {"bins": 0}, r"bins must be at least 1; got 0\."),
    ("classwise_ece", {"bins": 0}, r"bins must be at least 1; got 0\."),
    ("classwise_ece", {"bins": 0, "scheme": "mass"}, r"bins must be at least 1; got 0\."),
    ("ece_debiased", {"bins": 0}, r"bins must be at least 1; got 0\."),
    ("top_label_ece", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    ("mce", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    ("binary_ece", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    ("classwise_ece", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    ("ece_debiased", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    ("ece_sweep", {"scheme": "equal"}, r"scheme must be 'width' or 'mass'; got 'equal'\."),
    (
        "top_label_ece",
        {"convention": "sklearn"},
        r"convention must be 'calibrant', 'guo2017', 'torchmetrics', 'netcal', 'torrvision' or 'au'; got 'sklearn'\.",
    ),
    (
        "mce",
        {"convention": "guo2017", "scheme": "mass"},
        r"convention must be one of au, calibrant, torrvision with scheme='mass'; got 'guo2017'\.",
    ),
    ("ece_debiased", {"norm": "l3"}, r"norm must be 'l1', 'l2' or 'l2_squared'; got 'l3'\."),
    (
        "aurc",
        {"convention": "trapezoid"},
        r"convention must be 'exact', 'logarithm', 'geifman' or 'confidnet'; got 'trapezoid'\.",
    ),
    ("e_aurc", {"oracle": "best"}, r"oracle must be 'asymptotic' or 'exact'; got 'best'\."),
    ("risk_at_coverage", {"coverage": 0.0}, r"coverage must lie in \(0, 1\]; got 0\.0\."),
    ("risk_at_coverage", {"coverage": 1.5}, r"coverage must lie in \(0, 1\]; got 1\.5\."),
    ("coverage_at_risk", {"risk": -0.1}, r"risk must lie in \[0, 1\]; got -0\.1\."),
    ("corp_miscalibration", {"score": "nll"}, r"score must be 'brier' or 'log'; got 'nll'\."),
    ("corp_discrimination", {"score": "nll"}, r"score must be 'brier' or 'log'; got 'nll'\."),
    ("corp_uncertainty", {"score": "nll"}, r"score must be 'brier' or 'log'; got 'nll'\."),
    ("brier", {"normalise": "max"}, r"normalise must be 'sum', 'mean_over_classes' or 'half'; got 'max'\."),
    ("ece_kde", {"kind": "binary"}, r"kind must be 'canonical', 'top_label' or 'marginal'; got 'binary'\."),
    ("ece_kde", {"bandwidth": 0.0}, r"bandwidth must be positive; got 0\."),
    ("ece_kde", {"power": 0}, r"power must be at least 1; got 0\."),
    ("sm_ece", {"sigma": 0.0}, r"sigma must be positive; got 0\."),
]


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_a_wrong_option_is_refused_by_name(name, options, message):
    d = smooth(20, k=2)
    with pytest.raises(ValueError, match=f"^{message}$"):
        METRICS[name](*(getattr(d, view) for view in METRICS.entry(name).views), **options)


def test_binary_error_of_three_classes_is_refused():
    with pytest.raises(ValueError, match=r"probs must have two columns for binary_ece; got 3\. Use top_label_ece\."):
        METRICS["binary_ece"](P, Y)


def test_out_of_distribution_needs_both_kinds():
    with pytest.raises(ValueError, match=r"ood_confidence must have shape \(n,\) with n >= 1; got \(0,\)"):
        METRICS["ood_auroc"](torch.tensor([0.5]), torch.zeros(0))


def test_a_matrix_of_confidences_is_refused():
    with pytest.raises(ValueError, match=r"confidence must have shape \(n,\) with n >= 1; got \(3, 1\)"):
        METRICS["top_label_ece"](torch.rand(3, 1), torch.tensor([True, False, True]))


def test_an_unknown_name_suggests_the_near_one():
    with pytest.raises(KeyError, match="Did you mean 'brier'"):
        METRICS["breir"]


def test_a_million_rows_of_single_precision_lose_nothing_in_a_sum():
    g = torch.Generator().manual_seed(0)
    probs = torch.randn(1_000_000, 3, generator=g).softmax(1)
    labels = torch.multinomial(probs, 1, generator=g).squeeze(1)
    order = torch.randperm(len(probs), generator=g)
    names = ("classwise_ece", "mean_entropy", "class_cosine")
    for name in names:
        exact = METRICS[name](probs.double(), *([labels] if name != "mean_entropy" else []))
        for rows in (slice(None), order):
            found = METRICS[name](probs[rows], *([labels[rows]] if name != "mean_entropy" else []))
            assert found == pytest.approx(exact, rel=1e-6, abs=1e-8), name
