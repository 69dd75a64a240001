"""Real classifiers' logits: the numbers known for them come out."""

import numpy as np
import pytest
import torch
from real_data import both_sizes, larger, small

import calibrant as cb
from calibrant.registry import CALIBRATORS, METRICS, SCORES
from calibrant.selection.prediction_sets import aps, conformal, raps


def metric(name, p, **options):
    return METRICS[name](*(getattr(p, view) for view in METRICS.entry(name).views), **options)


@both_sizes
@pytest.mark.parametrize(("model", "accuracy"), [("resnet20", 0.9173), ("resnet32", 0.9263), ("resnet56", 0.9339)])
def test_the_published_accuracies_come_out(model, accuracy, real):
    data = np.load(real(f"logits/cifar10_{model}_test.npz"))
    p = cb.Predictions(logits=data["logits"], labels=data["labels"])
    rounding = 3e-4 if real is small else 1e-9  # float16 ties a few logits
    assert metric("accuracy", p) == pytest.approx(accuracy, abs=rounding)
    assert p.notes == ()


@both_sizes
@pytest.mark.parametrize(
    ("loss", "error", "ece"), [("ce", 0.3130, 0.1200), ("seca", 0.3049, 0.0079), ("adafocal", 0.3206, 0.0143)]
)
def test_the_known_errors_of_three_training_losses_come_out(loss, error, ece, real):
    data = np.load(real(f"logits/cifar100_resnet32_{loss}_val_test.npz"))
    p = cb.Predictions(logits=data["test_logits"], labels=data["test_labels"])
    chance = 0.03 if real is small else 0  # a fifth of the rows: three standard errors, and the bias of the bins
    assert 1 - metric("accuracy", p) == pytest.approx(error, abs=5e-5 + chance)
    assert metric("top_label_ece", p) == pytest.approx(ece, abs=1e-4 + chance)


@pytest.mark.parametrize(("model", "auroc"), [("resnet20", 0.860), ("resnet56", 0.864)])
def test_the_known_ood_auroc_of_max_softmax_comes_out(model, auroc):
    inside = cb.Predictions(logits=np.load(small(f"logits/cifar10_{model}_test.npz"))["logits"])
    outside = cb.Predictions(logits=np.load(small(f"logits/cifar10_{model}_on_cifar100_ood.npz"))["logits"])
    found = METRICS["ood_auroc"](SCORES["msp"](inside), SCORES["msp"](outside))
    assert found == pytest.approx(auroc, abs=5e-4)


def test_an_llms_answers_by_subject_and_a_detectors_pairs_can_be_audited():
    mmlu, coco = np.load(small("logits/mmlu_llama13b_probs.npz")), np.load(small("logits/coco_detector_scores.npz"))
    answers = cb.Predictions(probs=mmlu["probs"], labels=mmlu["labels"], groups=mmlu["groups"])
    detections = cb.Predictions(confidence=coco["confidence"], correct=coco["correct"], groups=coco["groups"])
    uneven, too_sure = "Right on average, wrong in places: ", "Over-confident: when it says 74 %, it is right 44 %"
    for predictions, rows, verdict in ((answers, 2886, uneven), (detections, 12_274, too_sure)):
        found = cb.audit(predictions, resamples=40)
        assert len(predictions) == rows
        assert found.verdict.startswith(verdict)
        assert sum(r.where.startswith("group: ") and r.metric == "signed_gap" for r in found.records) == 10


@both_sizes
def test_temperatures_for_each_row_win_on_a_real_classifier(real):
    data = np.load(real("logits/cifar100_vgg16_bn_test.npz"))
    half = len(data["labels"]) // 2
    fit = cb.Predictions(logits=data["logits"][:half], labels=data["labels"][:half])
    test = cb.Predictions(logits=data["logits"][half:], labels=data["labels"][half:])
    after = {
        name: CALIBRATORS[name].fit(fit.logits, fit.labels).calibrate(test)
        for name in ("temperature", "smart", "smart_proper")
    }
    ece = {name: metric("top_label_ece", p) for name, p in after.items()}
    assert ece["smart"] < 0.7 * ece["temperature"]
    assert ece["smart_proper"] < (ece["smart"] + 0.005 if real is larger else ece["temperature"])
    for score in ("nll", "brier"):
        assert metric(score, after["smart_proper"]) < metric(score, after["temperature"])


@pytest.mark.parametrize(
    ("score", "seed", "coverage", "size"),
    [(aps, None, 0.992, 31.2), (aps, 0, 0.909, 4.2), (raps, None, 0.935, 5.1), (raps, 0, 0.904, 3.0)],
)
def test_the_sizes_of_prediction_sets_in_the_docstring_of_conformal_come_out(score, seed, coverage, size):
    data = np.load(larger("logits/cifar100_resnet56_test.npz"))
    probs, labels = torch.tensor(data["logits"]).double().softmax(1), torch.tensor(data["labels"]).long()
    g, found = torch.Generator().manual_seed(0), []
    for _ in range(5):
        here, there = torch.randperm(10_000, generator=g).split(5_000)
        sets = conformal(probs[here], labels[here], alpha=0.1, score=score, seed=seed)(probs[there])
        held = sets.gather(1, labels[there][:, None]).double()
        found.append((float(held.mean()), float(sets.sum(1).double().mean())))
    assert np.mean(found, 0)[0] == pytest.approx(coverage, abs=0.003)
    assert np.mean(found, 0)[1] == pytest.approx(size, rel=0.02)
