"""The one pass over the logits against plain float64 numpy, for every width, type and layout."""

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from calibrant.predictions import facts
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS

WIDTHS = (2, 3, 10, 99, 100, 101, 250, 1000, 1003)
TYPES = {torch.float16: 2e-5, torch.bfloat16: 2e-5, torch.float32: 2e-5, torch.float64: 1e-12}  # arithmetic, not input
NAMES = tuple(f.name for f in fields(facts.Facts))


def oracle(logits, labels):
    """Each fact of each row in float64, from its definition; ``logits`` is a numpy array."""
    found = {name: [] for name in NAMES}
    for z, y in zip(logits.astype(np.float64), labels.tolist(), strict=True):
        first = int(np.flatnonzero(z == z.max())[0])
        d = z - z[first]
        total = math.fsum(np.exp(d))
        log_p = np.maximum(d - math.log(total), -1e300)
        p = np.exp(log_p)
        second = np.delete(z, first).max()
        found["confidence"].append(p[first])
        found["predicted"].append(first)
        found["margin"].append(p[first] - math.exp(second - z[first]) * p[first])
        found["entropy"].append(-math.fsum(p[p > 0] * log_p[p > 0]))
        found["square"].append(math.fsum(p * p))
        found["max_logit"].append(z[first])
        found["energy"].append(z[first] + math.log(total))
        found["logit_margin"].append(z[first] - second)
        found["nll"].append(-log_p[y])
        found["brier"].append(math.fsum((p - (np.arange(len(z)) == y)) ** 2))
    return {name: np.array(values) for name, values in found.items()}


def sample(n, k, dtype=torch.float64, seed=0):
    g = torch.Generator().manual_seed(seed)
    z = (3 * torch.randn(n, k, generator=g, dtype=torch.float64)).to(dtype)
    return z, torch.randint(0, k, (n,), generator=g)


def numpy(z):
    return z.detach().double().numpy()


def assert_close(found, expected, tolerance):
    for name in NAMES:
        values = getattr(found, name)
        assert values.dtype == (torch.int64 if name == "predicted" else torch.float64)
        np.testing.assert_allclose(values.numpy(), expected[name], rtol=tolerance, atol=tolerance, err_msg=name)


def assert_identical(a, b):
    for name in NAMES:
        np.testing.assert_array_equal(getattr(a, name).numpy(), getattr(b, name).numpy(), err_msg=name)


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_fact_agrees_with_its_oracle(k, dtype):
    z, y = sample(40, k, dtype, seed=k)
    assert_close(facts.from_logits(z, y), oracle(numpy(z), y), TYPES[dtype])


@pytest.mark.parametrize("k", WIDTHS)
def test_memory_layout_does_not_matter(k):
    z, y = sample(30, k, torch.float32)
    plain = facts.from_logits(z, y)
    wide = torch.stack([z, z + 1], 2)
    for other in (z.T.contiguous().T, wide[:, :, 0], z.repeat_interleave(2, 0)[::2]):
        assert not other.is_contiguous()
        assert torch.equal(other, z)
        assert_identical(facts.from_logits(other, y), plain)


@pytest.mark.parametrize("kind", ["logits", "probs"])
def test_negative_strides_of_numpy_are_read(kind):
    z, y = sample(30, 7)
    given = z.softmax(1) if kind == "probs" else z
    backwards = given.numpy()[::-1, ::-1]
    found = Predictions(**{kind: backwards}, labels=6 - y.numpy()[::-1])
    expected = Predictions(**{kind: given}, labels=y)
    assert found.predicted.flip(0).tolist() == (6 - expected.predicted).tolist()
    np.testing.assert_allclose(found.nll.flip(0).numpy(), expected.nll.numpy(), atol=1e-12)
    np.testing.assert_allclose(found.confidence.flip(0).numpy(), expected.confidence.numpy(), atol=1e-12)


@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_of_tied_classes_the_first_is_predicted(k, dtype):
    places = sorted({0, 1, k // 2, k // 2 + 1, k - 2, k - 1} & set(range(k)))
    for i, first in enumerate(places):
        z = torch.zeros(1, k, dtype=dtype)
        z[0, places[i:]] = 5.0  # one place, or several in different blocks of the search
        found = facts.from_logits(z, torch.tensor([first]))
        assert found.predicted.tolist() == [first]
        if i + 1 < len(places):
            assert found.margin.tolist() == [0.0]
            assert found.logit_margin.tolist() == [0.0]
        p = z.double().softmax(1)
        assert facts.from_probs(p, torch.tensor([first])).predicted.tolist() == [first]


def test_a_row_of_equal_logits_predicts_the_first_class():
    for k in (2, 100, 1003):
        found = facts.from_logits(torch.zeros(3, k), None)
        assert found.predicted.tolist() == [0, 0, 0]
        assert found.confidence.tolist() == pytest.approx([1 / k] * 3)
        assert found.entropy.tolist() == pytest.approx([math.log(k)] * 3, rel=1e-6)


@pytest.mark.parametrize("k", [2, 3, 250])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1e4, 1e30, 3e38])
def test_huge_logits_are_exact(k, dtype, size):
    z = torch.zeros(4, k, dtype=dtype)
    z[0, 0], z[1, 1], z[2, 0], z[3, 0] = size, size, -size, size
    z[3, 1] = -size
    y = torch.tensor([0, 0, 0, 1])
    found = facts.from_logits(z, y)
    assert_close(found, oracle(numpy(z), y), 1e-6)
    assert found.nll[1].item() == pytest.approx(size)
    assert found.nll[3].item() == pytest.approx(2 * size)
    assert found.logit_margin[0].item() == pytest.approx(size)


def test_the_largest_half_precision_logits_are_exact():
    z = torch.tensor([[65504.0, -65504.0, 0.0], [0.0, -65504.0, -65504.0]], dtype=torch.float16)
    y = torch.tensor([1, 0])
    assert_close(facts.from_logits(z, y), oracle(numpy(z), y), 1e-6)


@pytest.mark.parametrize("k", [2, 3, 5, 10, 100, facts.EXACT])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_rows_with_the_same_logits_in_another_order_have_the_same_confidence(k, dtype):
    distinct, _ = sample(30, k, dtype)
    g = torch.Generator().manual_seed(1)
    orders = torch.stack([torch.randperm(k, generator=g) for _ in range(900)])
    z = distinct.repeat(30, 1).gather(1, orders)
    found = facts.from_logits(z, None)
    for name in ("confidence", "margin", "logit_margin", "max_logit", "energy"):
        values = getattr(found, name).view(30, 30)
        assert len(getattr(found, name).unique()) == len(values[0].unique()), name
    right = torch.arange(900) % 3 > 0
    exact = facts.from_logits(distinct, None).confidence.repeat(30)
    assert METRICS["failure_auroc"](found.confidence, right) == METRICS["failure_auroc"](exact, right)


@pytest.mark.parametrize("k", [300, 1000])
def test_one_class_ahead_of_equal_ones_has_one_confidence_wherever_it_is(k):
    z = torch.zeros(k, k).fill_diagonal_(7.0)
    assert len(facts.from_logits(z, None).confidence.unique()) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_saturated_rows_keep_their_order(dtype):
    z = torch.tensor([[20.0, 0.0], [25.0, 0.0], [30.0, 0.0]], dtype=dtype)
    found = facts.from_logits(z, torch.tensor([0, 0, 0]))
    assert (found.confidence.diff() > 0).all()
    assert (1 - found.confidence).tolist() == pytest.approx([math.exp(-20), math.exp(-25), math.exp(-30)], rel=2e-3)
    assert found.nll.tolist() == pytest.approx([math.exp(-20), math.exp(-25), math.exp(-30)], rel=1e-5)
    assert found.brier.tolist() == pytest.approx([2 * math.exp(-2 * g) for g in (20, 25, 30)], rel=1e-5)
    assert (found.entropy.diff() < 0).all()


def test_rows_that_are_not_finite_are_marked():
    z = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [1.0, 2.0], [-math.inf, 0.0]])
    found = facts.from_logits(z, None)
    bad = found.entropy.isnan() | found.max_logit.isinf()
    assert bad.tolist()[:3] == [True, True, False]
    for row in (0, 1, 3):
        with pytest.raises(ValueError, match=r"logits must be finite; 1 of 2 rows is not \(first: row 1\)"):
            Predictions(logits=torch.stack([z[2], z[row]]), labels=[0, 1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_a_hundred_thousand_classes(dtype):
    z, y = sample(3, 100_000, dtype)
    assert_close(facts.from_logits(z, y), oracle(numpy(z), y), 5e-5)


def test_one_row():
    z, y = sample(1, 5)
    assert_close(facts.from_logits(z, y), oracle(numpy(z), y), 1e-12)


def test_without_labels_there_is_no_loss():
    z, y = sample(5, 4)
    bare, labelled = facts.from_logits(z, None), facts.from_logits(z, y)
    assert bare.nll.isnan().all()
    assert bare.brier.isnan().all()
    assert torch.equal(bare.confidence, labelled.confidence)
    assert facts.from_probs(z.softmax(1), None).nll.isnan().all()


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("from_", [facts.from_logits, facts.from_probs])
def test_the_ends_of_chunks_do_not_show(monkeypatch, extra, from_):
    z, y = sample(60 + extra, 7, torch.float32)
    given = z.softmax(1) if from_ is facts.from_probs else z
    whole = from_(given, y)
    monkeypatch.setattr(facts, "CHUNK", 7 * 10)
    assert_identical(from_(given, y), whole)
    monkeypatch.setattr(facts, "CHUNK", 1)  # less than a row: a row at a time
    assert_identical(from_(given, y), whole)


def test_many_chunks_and_threads_change_nothing():
    threads = torch.get_num_threads()
    z, y = sample(50_000, 100, torch.float32)  # 10 chunks
    assert z.numel() > 4 * facts.CHUNK
    try:
        torch.set_num_threads(1)
        alone = facts.from_logits(z, y)
        torch.set_num_threads(2)
        together = facts.from_logits(z, y)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert_identical(alone, together)
    rows = torch.arange(0, 50_000, 997)
    assert_close(together.take(rows), oracle(numpy(z[rows]), y[rows]), 2e-5)


def test_threads_and_gradients_are_left_as_found(monkeypatch):
    monkeypatch.setattr(facts, "CHUNK", 40)
    z, y = sample(100, 4)
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            facts.from_logits(z, y)
            assert torch.get_num_threads() == count
            with pytest.raises((RuntimeError, IndexError)):
                facts.from_logits(z, torch.full_like(y, 99))  # fails inside a thread
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        facts.from_logits(z, y)
        assert not torch.is_grad_enabled()


def test_the_input_is_left_alone():
    for dtype in TYPES:
        z, y = sample(30, 250, dtype)
        before = z.clone()
        facts.from_logits(z, y)
        assert torch.equal(z, before)
        p = z.double().softmax(1)
        kept = p.clone()
        facts.from_probs(p, y)
        assert torch.equal(p, kept)


def test_logits_that_require_a_gradient_are_accepted():
    z, y = sample(20, 5, torch.float32)
    plain = facts.from_logits(z, y)
    z.requires_grad_(requires_grad=True)
    found = facts.from_logits(z, y)
    assert_identical(found, plain)
    assert not found.confidence.requires_grad
    assert z.grad is None
    assert_identical(Predictions(logits=z, labels=y).facts, plain)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("k", [2, 3, 250])
def test_probabilities_are_kept_exactly(k, dtype):
    z, y = sample(30, k)
    p = z.softmax(1).to(dtype)
    found, held = facts.from_probs(p, y), p.double()
    assert torch.equal(found.confidence, held.max(1).values)
    assert torch.equal(found.predicted, torch.from_numpy(held.numpy().argmax(1)))
    ordered = held.sort(1, descending=True).values
    assert torch.equal(found.margin, ordered[:, 0] - ordered[:, 1])
    true = held[torch.arange(30), y]
    np.testing.assert_allclose(found.nll, -true.clamp(min=1e-12).log(), atol=1e-12)
    one_hot = torch.eye(k, dtype=torch.float64)[y]
    np.testing.assert_allclose(found.brier, (held - one_hot).square().sum(1), atol=1e-12)
    np.testing.assert_allclose(found.entropy, torch.special.entr(held).sum(1), atol=1e-9)
    np.testing.assert_allclose(found.square, held.square().sum(1), atol=1e-12)


def test_a_certain_probability_is_certain():
    found = facts.from_probs(torch.eye(2), torch.tensor([0, 0]))
    assert found.confidence.tolist() == [1, 1]
    assert found.entropy.tolist() == [0, 0]
    assert found.nll.tolist() == pytest.approx([0, -math.log(1e-12)])
    assert found.brier.tolist() == [0, 2]
    assert found.energy.tolist() == [0, 0]
    assert found.logit_margin.tolist() == pytest.approx([-math.log(1e-12)] * 2)


def test_logits_of_half_precision_probabilities_are_finite():
    for dtype in TYPES:
        p = Predictions(probs=torch.eye(2, dtype=dtype), labels=[0, 1])
        assert p.logits.isfinite().all(), dtype


def test_logarithms_of_probabilities_are_logits():
    z, y = sample(30, 5)
    log_p = z.log_softmax(1)
    a, b = facts.from_logits(z, y), facts.from_logits(log_p, y)
    for name in ("confidence", "margin", "entropy", "square", "logit_margin", "nll", "brier"):
        np.testing.assert_allclose(getattr(a, name), getattr(b, name), atol=1e-12, err_msg=name)
    np.testing.assert_allclose(b.energy, 0, atol=1e-12)


def test_some_rows_are_the_facts_of_those_rows():
    z, y = sample(30, 5)
    rows = torch.tensor([4, 4, 29, 0])
    assert_identical(facts.from_logits(z, y).take(rows), facts.from_logits(z[rows], y[rows]))
