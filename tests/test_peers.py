"""The numbers of other packages, reproduced on purpose: torchmetrics, netcal, the 2017 loop, scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torchmetrics.functional.classification import binary_calibration_error, multiclass_calibration_error

from calibrant.registry import METRICS


def random_rows(seed, n=300):
    g = torch.Generator().manual_seed(seed)
    c = torch.rand(n, generator=g, dtype=torch.float64)
    return c, torch.rand(n, generator=g, dtype=torch.float64) < c**2


def edge_rows(bins, copies=3):
    """Every edge of so many bins, 0 and 1 included, a few times; right in turns."""
    c = torch.arange(bins + 1, dtype=torch.float64).repeat(copies) / bins
    return c, torch.arange(len(c)) % 3 != 1


def certain_rows():
    return torch.tensor([0.95, 1.0, 1.0, 0.0, 0.5], dtype=torch.float64), torch.tensor([1, 0, 1, 1, 0]) == 1


ROWS = [*(random_rows(s) for s in range(3)), *(edge_rows(b) for b in (4, 5, 10, 15, 20)), certain_rows()]


# torchmetrics 1.9.0: of two classes its edges have the type of the probabilities, of many they are float32


@pytest.mark.parametrize("bins", [1, 4, 5, 10, 15, 20])
@pytest.mark.parametrize(("ours", "theirs"), [("top_label_ece", "l1"), ("mce", "max")])
def test_torchmetrics_on_two_classes(bins, ours, theirs):
    for confidence, correct in ROWS:
        expected = binary_calibration_error(confidence, correct.long(), n_bins=bins, norm=theirs).item()
        found = METRICS[ours](confidence, correct, bins=bins, convention="torchmetrics")
        assert found == pytest.approx(expected, abs=1e-12)
        probs = torch.stack([1 - confidence, confidence], 1)
        if ours == "top_label_ece":
            found = METRICS["binary_ece"](probs, correct.long(), bins=bins, convention="torchmetrics")
            assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_torchmetrics_on_many_classes(dtype):
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        probs = (2 * torch.randn(400, 6, generator=g, dtype=torch.float64)).softmax(1).to(dtype)
        labels = torch.multinomial(probs.double(), 1, generator=g).squeeze(1)
        top = probs.max(1)
        for bins in (10, 15):
            expected = multiclass_calibration_error(probs, labels, num_classes=6, n_bins=bins).item()
            found = METRICS["top_label_ece"](top.values, top.indices == labels, bins=bins, convention="torchmetrics")
            assert found == pytest.approx(expected, abs=1e-6)  # it adds up in float32


def test_torchmetrics_on_many_classes_at_edges():
    probs = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [0.25, 0.5, 0.25]])
    labels = torch.tensor([0, 1, 1, 2, 1])
    top = probs.max(1)
    expected = multiclass_calibration_error(probs, labels, num_classes=3, n_bins=4).item()
    found = METRICS["top_label_ece"](top.values, top.indices == labels, bins=4, convention="torchmetrics")
    assert found == pytest.approx(expected, abs=1e-7)


def test_a_certain_row_is_where_we_differ_from_torchmetrics():
    confidence, correct = torch.tensor([0.95, 1.0], dtype=torch.float64), torch.tensor([True, False])
    assert binary_calibration_error(confidence, correct.long(), n_bins=10).item() == pytest.approx(0.525)
    assert METRICS["top_label_ece"](confidence, correct, bins=10, convention="torchmetrics") == pytest.approx(0.525)
    assert METRICS["top_label_ece"](confidence, correct, bins=10) == pytest.approx(0.475)


# The loop of 2017


def loop_of_2017(confidence, correct, bins):
    edges = np.linspace(0, 1, bins + 1)
    error = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (confidence > low) & (confidence <= high)
        share = inside.mean()
        if share > 0:
            error += abs(confidence[inside].mean() - correct[inside].mean()) * share
    return error


@pytest.mark.parametrize("bins", [1, 4, 5, 10, 15, 20])
def test_the_loop_of_2017(bins):
    for confidence, correct in ROWS:
        found = METRICS["top_label_ece"](confidence, correct, bins=bins, convention="guo2017")
        assert found == pytest.approx(loop_of_2017(confidence.numpy(), correct.numpy(), bins), abs=1e-12)


def test_the_loop_of_2017_is_ours_where_nothing_is_exactly_zero():
    for confidence, correct in ROWS[:3]:
        found = METRICS["top_label_ece"](confidence, correct, convention="guo2017")
        assert found == pytest.approx(METRICS["top_label_ece"](confidence, correct), abs=1e-12)


@pytest.mark.parametrize("bins", [1, 5, 10, 15])
@pytest.mark.parametrize("digits", [None, 1, 2])
def test_netcal(bins, digits):
    # netcal asks for pyro, gpytorch and tensorboard; its metrics need none of them, so it is installed without.
    from netcal.metrics import ECE, MCE

    g = np.random.default_rng(bins)
    confidence = np.concatenate([g.uniform(0, 1, 400), [0.0, 1.0, 1.0, 0.5]])
    confidence = confidence if digits is None else np.round(confidence, digits)
    correct = g.random(404) < confidence
    given = torch.from_numpy(confidence), torch.from_numpy(correct)
    for theirs, ours in ((ECE, "top_label_ece"), (MCE, "mce")):
        expected = theirs(bins).measure(confidence, correct.astype(int))
        assert METRICS[ours](*given, bins=bins, convention="netcal") == pytest.approx(expected, abs=1e-12)


# scikit-learn


@pytest.mark.parametrize("decimals", [1, 2, 17], ids=["many ties", "some ties", "no ties"])
def test_scikit_learn_ranks_alike(decimals):
    for seed in range(5):
        c, a = random_rows(seed)
        c = c.round(decimals=decimals)
        weights = torch.randint(0, 4, (len(c),), generator=torch.Generator().manual_seed(seed)).double()
        for w in (None, weights):
            theirs = {"sample_weight": None if w is None else w.numpy()}
            assert METRICS["failure_auroc"](c, a, weights=w) == pytest.approx(roc_auc_score(a, c, **theirs), abs=1e-12)
            expected = average_precision_score(a, c, **theirs)
            assert METRICS["aupr_success"](c, a, weights=w) == pytest.approx(expected, abs=1e-12)
            expected = average_precision_score(~a, -c, **theirs)
            assert METRICS["aupr_error"](c, a, weights=w) == pytest.approx(expected, abs=1e-12)


def test_scikit_learn_ranks_out_of_distribution_alike():
    for seed in range(3):
        inside, outside = random_rows(seed)[0].round(decimals=1), random_rows(seed + 9, 70)[0].pow(2).round(decimals=1)
        truth = np.repeat([1, 0], [len(inside), len(outside)])
        expected = roc_auc_score(truth, torch.cat([inside, outside]))
        assert METRICS["ood_auroc"](inside, outside) == pytest.approx(expected, abs=1e-12)
        assert METRICS["ood_auroc"](-inside, -outside) == pytest.approx(1 - expected, abs=1e-12)
