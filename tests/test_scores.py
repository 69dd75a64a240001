"""One row for each score. Every property below runs on every row; then the values of the literature."""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from calibrant.predictions.predictions import Predictions
from calibrant.registry import SCORES


@dataclass
class Row:
    name: str
    oracle: Callable  # (logits, probs, label) of one row, plain numbers -> one number
    shifts: bool = False  # adding a constant to the logits moves it
    needs_labels: bool = False


def second(values):
    return sorted(values)[-2]


def entropy(p):
    return -math.fsum(v * math.log(v) for v in p if v > 0)


ROWS = [
    Row("msp", lambda z, p, y: max(p)),
    Row("margin", lambda z, p, y: max(p) - second(p)),
    Row("negative_entropy", lambda z, p, y: -entropy(p)),
    Row("normalised_negative_entropy", lambda z, p, y: 1 - entropy(p) / math.log(len(p))),
    Row("max_logit", lambda z, p, y: max(z), shifts=True),
    Row("energy", lambda z, p, y: math.log(math.fsum(math.exp(v) for v in z)), shifts=True),
    Row("logit_margin", lambda z, p, y: max(z) - second(z)),
    Row("l2_norm", lambda z, p, y: math.sqrt(math.fsum(v * v for v in p))),
    Row("gini", lambda z, p, y: math.fsum(v * v for v in p) - 1),
    Row("tcp", lambda z, p, y: p[y], needs_labels=True),
]
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)


def sample(n=80, k=5, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    z = 3 * torch.randn(n, k, generator=g, dtype=torch.float64)
    return z.to(dtype), torch.randint(0, k, (n,), generator=g)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def expected(row, logits, probs, labels):
    return [row.oracle(*r) for r in zip(logits.tolist(), probs.tolist(), labels.tolist(), strict=True)]


def test_every_score_has_a_row():
    assert {row.name for row in ROWS} == set(SCORES)


@each_row
@pytest.mark.parametrize("k", [2, 5, 40])
def test_agrees_with_its_oracle(row, k):
    z, y = sample(k=k)
    found = SCORES[row.name](Predictions(logits=z, labels=y))
    assert found.dtype == torch.float64
    assert found.numpy() == pytest.approx(expected(row, z, softmax(z.numpy()), y), abs=1e-12)


@each_row
def test_single_precision_agrees(row):
    z, y = sample(dtype=torch.float32)
    found = SCORES[row.name](Predictions(logits=z, labels=y))
    assert found.dtype == torch.float64
    assert found.numpy() == pytest.approx(expected(row, z, softmax(z.double().numpy()), y), abs=1e-5)


@each_row
def test_probabilities_give_the_score_of_their_logarithms(row):
    z, y = sample()
    probs = softmax(z.numpy())
    found = SCORES[row.name](Predictions(probs=torch.from_numpy(probs), labels=y))
    assert found.numpy() == pytest.approx(expected(row, np.log(probs), probs, y), abs=1e-12)


@each_row
def test_a_surer_row_scores_higher(row):
    lead = torch.linspace(0, 8, 50, dtype=torch.float64)
    z = torch.stack([lead, torch.zeros(50), torch.zeros(50) - 1], 1)
    found = SCORES[row.name](Predictions(logits=z, labels=torch.zeros(50, dtype=torch.int64)))
    assert (found.diff() > 0).all()


@each_row
def test_works_without_labels(row):
    z, y = sample()
    unlabelled = Predictions(logits=z)
    if row.needs_labels:
        with pytest.raises(ValueError, match=r"^labels are needed for this; these predictions have none\.$"):
            SCORES[row.name](unlabelled)
    else:
        assert torch.equal(SCORES[row.name](unlabelled), SCORES[row.name](Predictions(logits=z, labels=y)))


@each_row
def test_confidence_alone_has_only_itself(row):
    alone = Predictions(confidence=torch.tensor([0.9, 0.4]), correct=[True, False])
    if row.name == "msp":
        assert SCORES["msp"](alone).tolist() == pytest.approx([0.9, 0.4])
    else:
        with pytest.raises(ValueError, match="needed for this; these predictions"):
            SCORES[row.name](alone)


@each_row
def test_a_shift_of_the_logits_moves_only_what_says_so(row):
    z, y = sample()
    before, after = (SCORES[row.name](Predictions(logits=z + c, labels=y)) for c in (0.0, 3.0))
    assert after.numpy() == pytest.approx(before.numpy() + (3.0 if row.shifts else 0.0), abs=1e-12)
    assert ("Not invariant to a shift" in SCORES[row.name].__doc__) == row.shifts


@each_row
def test_order_of_classes_does_not_matter(row):
    z, y = sample()
    order = torch.tensor([3, 1, 4, 0, 2])
    found = SCORES[row.name](Predictions(logits=z[:, order], labels=order.argsort()[y]))
    assert found.numpy() == pytest.approx(SCORES[row.name](Predictions(logits=z, labels=y)).numpy(), abs=1e-12)


@each_row
def test_stays_in_its_range(row):
    low, high = SCORES.entry(row.name).facts["range"]
    extremes = [
        torch.zeros(1, 4),
        torch.tensor([[1e4, -1e4, 0.0, 0.0]]),
        torch.tensor([[40.0, 0.0, 0.0, 0.0]]),
        *(sample(k=4, seed=s)[0] for s in range(3)),
    ]
    for z in extremes:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            p = Predictions(logits=z.to(dtype), labels=torch.zeros(len(z), dtype=torch.int64))
            found = SCORES[row.name](p)
            assert found.isfinite().all()
            assert low <= float(found.min())
            assert float(found.max()) <= high


@each_row
def test_certain_probabilities_are_finite(row):
    found = SCORES[row.name](Predictions(probs=torch.eye(3), labels=[0, 1, 2]))
    assert found.isfinite().all()


def test_a_uniform_row_is_the_least_sure():
    uniform = Predictions(logits=torch.zeros(1, 4))
    assert SCORES["msp"](uniform).item() == pytest.approx(0.25)
    assert SCORES["margin"](uniform).item() == 0
    assert SCORES["negative_entropy"](uniform).item() == pytest.approx(-math.log(4))
    assert SCORES["normalised_negative_entropy"](uniform).item() == pytest.approx(0)
    assert SCORES["l2_norm"](uniform).item() == pytest.approx(0.5)
    assert SCORES["gini"](uniform).item() == pytest.approx(-0.75)


def test_probabilities_have_no_energy():
    assert SCORES["energy"](Predictions(probs=torch.tensor([[0.7, 0.3], [0.5, 0.5]]))).tolist() == [0, 0]


def test_rows_that_round_to_one_keep_their_order():
    z = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0]])
    for name in ("msp", "negative_entropy", "logit_margin", "margin"):
        assert (SCORES[name](Predictions(logits=z)).diff() > 0).all(), name


LITERATURE = {  # six rows, three classes
    "msp": [0.659001138886, 0.802479055792, 0.390693833270, 0.896191228135, 0.459269835780, 0.539628241053],
    "margin": [0.416568168181, 0.693875325485, 0.070820776934, 0.841693783428, 0.043705303391, 0.212327168008],
    "negative_entropy": [
        -0.846738178760,
        -0.632874854218,
        -1.090635605230,
        -0.405197158460,
        -0.982389138758,
        -0.966824315787,
    ],
    "normalised_negative_entropy": [
        0.229265695010,
        0.423932482145,
        0.007260690164,
        0.631173651852,
        0.105790870090,
        0.119958582514,
    ],
    "max_logit": [2.0, 2.5, 1.2, 3.0, 1.5, 0.9],
    "energy": [2.417030016278, 2.720049523021, 2.139831060844, 3.109601464521, 2.278117364138, 1.516874819003],
    "logit_margin": [1, 2, 0.2, 2.8, 0.1, 0.5],
    "tcp": [0.659001138886, 0.802479055792, 0.319873056336, 0.896191228135, 0.415564532389, 0.133070685901],
}
Z = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


@pytest.mark.parametrize("name", LITERATURE)
def test_gives_the_values_of_the_literature(name):
    found = SCORES[name](Predictions(logits=Z, labels=Y))
    assert found.tolist() == pytest.approx(LITERATURE[name], abs=1e-10)


def test_true_class_probability_tells_right_from_wrong():
    p = Predictions(logits=Z, labels=Y)
    found = SCORES["tcp"](p)
    assert p.correct[found > 0.5].all()
    assert not p.correct[found < 1 / 3].any()
    assert (-found.log()).tolist() == pytest.approx(
        [0.417030016278, 0.220049523021, 1.139831060844, 0.109601464521, 0.878117364138, 2.016874819003], abs=1e-10
    )


@pytest.mark.parametrize("entry", SCORES.entries(), ids=lambda e: e.name)
def test_docstring_has_formula_reference_and_example(entry):
    doc = inspect.getdoc(entry.method)
    assert ".. math::" in doc
    assert "\nExample:" in doc
    assert ">>>" in doc
    assert entry.reference
    assert entry.summary.endswith(".")
    low, high = entry.facts["range"]
    assert low < high
