"""Monte Carlo dropout and ensembles: what many answers say, and that no network is any different afterwards."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from calibrant.registry import TRUST
from calibrant.trust._machinery.sampling import (
    CONFIDENCES,
    log_mean_probs,
    mutual_information,
    negative_entropy,
)
from calibrant.trust.ensemble import Ensemble
from calibrant.trust.mc_dropout import McDropout

# the published example: three passes over one row
PASSES = torch.tensor([[2, 0, 0], [0, 1, 0], [1, 0.5, 0]], dtype=torch.float64)[:, None]


def network(seed=0, k=4, dropout=0.5):
    """A small network with what must not move: batch normalisation, dropout, and a layer already in eval mode."""
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 8), nn.Dropout(0.2),
            nn.BatchNorm1d(8), nn.Linear(8, k),
        )  # fmt: skip
        nn.init.normal_(model[7].weight, std=2.0)  # answers that differ from row to row
        model(torch.randn(64, 6))  # statistics that are not those of a new layer
    model[5].eval()
    model[6].eval()
    return model


def inputs(n=32, seed=9):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


class Fails(nn.Module):
    """Passes its input on, until it was asked too often."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def forward(self, x):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("asked too often")
        return x


def softmax(z):
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def entropy(p):
    return -sum(v * math.log(v) for v in p if v > 0)


# --- what many answers say


def test_values_of_the_published_example():
    assert negative_entropy(PASSES).item() == pytest.approx(-1.0117478286650121, abs=1e-14)
    assert mutual_information(PASSES).item() == pytest.approx(0.1247172127344317, abs=1e-14)
    assert negative_entropy(PASSES, average="logits").item() == pytest.approx(-1.0201913367268314, abs=1e-14)


def test_confidences_are_those_of_plain_loops():
    z = 3 * torch.randn(5, 20, 4, generator=torch.Generator().manual_seed(0))
    answers = torch.arange(20) % 4
    p = softmax(z.double().numpy())
    for i in range(20):
        mean = p[:, i].mean(0)
        from_logits = softmax(z[:, i].double().numpy().mean(0))
        spread = entropy(mean) - np.mean([entropy(row) for row in p[:, i]])
        expected = {
            ("entropy", "probs"): 1 - entropy(mean) / math.log(4),
            ("entropy", "logits"): 1 - entropy(from_logits) / math.log(4),
            ("mutual_information", "probs"): 1 - spread / math.log(4),
            ("msp", "probs"): mean[i % 4],
            ("msp", "logits"): from_logits[i % 4],
        }
        for (score, average), value in expected.items():
            assert CONFIDENCES[score](z, answers, average)[i].item() == pytest.approx(value, abs=1e-12)


def test_extreme_logits_stay_numbers_between_0_and_1():
    z = torch.tensor([[[1e4, -1e4, 0.0]], [[-1e4, 1e4, 0.0]], [[0.0, -math.inf, 0.0]]])
    for confidence in CONFIDENCES.values():
        value = confidence(z, torch.tensor([2]), "probs").item()
        assert 0 <= value <= 1
    same = torch.randn(1, 70, 3, generator=torch.Generator().manual_seed(0)).expand(4, 70, 3)
    assert mutual_information(same).min() == 0
    assert mutual_information(same).max() < 1e-14
    with pytest.raises(ValueError, match=r"logits must be stacked as \(s, n, k\), s answers to n rows; got \(7, 3\)"):
        log_mean_probs(torch.zeros(7, 3))


# --- Monte Carlo dropout


def passes_by_hand(model, x, seed, passes):
    """Switch dropout on by hand in a copy of the modes, and ask."""
    with torch.random.fork_rng([]), torch.no_grad():
        model.eval()
        torch.manual_seed(seed)
        for layer in model.modules():
            if isinstance(layer, nn.Dropout):
                layer.train()
        return torch.stack([model(x) for _ in range(passes)])


@pytest.mark.parametrize("average", ["probs", "logits"])
def test_dropout_is_on_and_all_else_in_eval_mode(average):
    found = McDropout.fit(network(), passes=7, seed=3, average=average).confidence(inputs())
    stacked = passes_by_hand(network(), inputs(), 3, 7)
    assert not torch.equal(stacked[0], stacked[1])
    assert torch.equal(found, CONFIDENCES["entropy"](stacked, torch.zeros(32).long(), average))
    assert found.dtype == torch.float64


def test_msp_is_the_mean_probability_of_the_answer_without_dropout():
    found = McDropout.fit(network(), passes=7, score="msp").confidence(inputs())
    stacked = passes_by_hand(network(), inputs(), 0, 7)
    answers = network().eval()(inputs()).argmax(1)
    mean = stacked.double().softmax(2).mean(0)
    assert found.tolist() == pytest.approx(mean.gather(1, answers[:, None]).squeeze(1).tolist())
    assert (mean.argmax(1) != answers).any()  # else this could not fail


def test_same_seed_same_answer_whatever_came_before():
    trust = McDropout.fit(network(), passes=5)
    first = trust.confidence(inputs())
    trust.confidence(inputs(seed=1))
    assert torch.equal(trust.confidence(inputs()), first)
    assert not torch.equal(McDropout.fit(network(), passes=5, seed=1).confidence(inputs()), first)


def test_mutual_information_sees_disagreement_alone():
    trust = McDropout.fit(network(dropout=1e-9), score="mutual_information", passes=5)
    trust.classifier[5].p = 0.0
    assert trust.confidence(inputs()).min() == pytest.approx(1)
    assert McDropout.fit(network(), score="mutual_information", passes=5).confidence(inputs()).max() < 0.9999


def test_transformer_layers_do_not_take_the_path_without_dropout():
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(6, 2, 12, dropout=0.3, batch_first=True)
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), layer, nn.Flatten())
    trust = McDropout.fit(model, passes=3, score="mutual_information")
    assert trust.confidence(inputs()).max() < 1
    assert torch.backends.mha.get_fastpath_enabled()


class Functional(nn.Linear):
    def forward(self, x):
        return nn.functional.dropout(super().forward(x), training=self.training)


@pytest.mark.parametrize("model", [nn.Linear(6, 3), nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0)), Functional(6, 3)])
def test_a_model_without_a_dropout_layer_is_refused(model):
    with pytest.raises(ValueError, match=r"model must have a dropout layer \(nn.Dropout and its kin, p > 0\); .* none"):
        McDropout.fit(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 1}, "passes must be at least 2; got 1"),
        (
            {"average": "logits", "score": "mutual_information"},
            "average must be 'probs' for score 'mutual_information'",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        McDropout.fit(network(), **options)


# --- ensembles


def test_an_ensemble_gives_the_mean_probability_of_the_first_members_answer():
    models = [network(seed) for seed in range(3)]
    probs = torch.stack([network(seed).eval()(inputs()) for seed in range(3)]).double().softmax(2)
    mean, answers = probs.mean(0), probs[0].argmax(1)
    found = Ensemble.fit(models).confidence(inputs())
    assert found.tolist() == pytest.approx(mean.gather(1, answers[:, None]).squeeze(1).tolist())
    assert (mean.argmax(1) != answers).any()  # they outvote it somewhere
    for score in ("entropy", "mutual_information"):
        expected = CONFIDENCES[score](probs.log(), answers, "probs")
        assert torch.allclose(Ensemble.fit(models, score=score).confidence(inputs()), expected, atol=1e-6)


def test_one_column_is_the_logit_of_class_1():
    models = [nn.Linear(6, 1), nn.Sequential(nn.Linear(6, 1), nn.Flatten(0))]
    p = torch.stack([model(inputs()).reshape(-1) for model in models]).double().sigmoid()
    expected = torch.where(p[0] > 0.5, p.mean(0), 1 - p.mean(0))
    assert torch.allclose(Ensemble.fit(models).confidence(inputs()), expected)


def test_models_that_make_no_ensemble_are_refused():
    model = network()
    for models, message in (
        ([model], "models must be at least 2, the classifier first; got 1"),
        ([model, model], "models must be different ones"),
        ([model, nn.Linear(6, 4, device="meta")], "models must be on one device; got cpu, meta"),
    ):
        with pytest.raises(ValueError, match=message):
            Ensemble.fit(models)
    with pytest.raises(ValueError, match=r"models must return logits of one shape; got \(32, 3\), \(32, 4\)"):
        Ensemble.fit([model, network(1, k=3)]).confidence(inputs())


# --- both: the networks are left as found


def everything(models):
    """All that a network could change in: parameters, buffers, gradients and the mode of every layer."""
    tensors = [value.detach().clone() for m in models for value in m.state_dict().values()]
    return (
        tensors,
        [layer.training for m in models for layer in m.modules()],
        [p.grad for m in models for p in m.parameters()],
    )


def judges(models):
    return {"dropout": McDropout.fit(models[0], passes=4), "ensemble": Ensemble.fit(models)}


@pytest.mark.parametrize("name", ["dropout", "ensemble"])
@pytest.mark.parametrize("how", ["confidence", "judge", "error"])
def test_networks_and_random_numbers_are_left_as_found(name, how):
    models = [network(0), network(1)]
    if how == "error":  # in the middle: after some passes, or in the second member
        models = [nn.Sequential(models[0], Fails(3 if name == "dropout" else 1)), nn.Sequential(models[1], Fails(0))]
    trust = judges(models)[name]
    random = torch.random.get_rng_state()
    tensors, modes, _ = everything(models)
    assert True in modes
    assert False in modes
    if how == "judge":
        trust.judge([(inputs(), torch.zeros(32).long())])
    elif how == "confidence":
        trust.confidence(inputs())
    else:
        with pytest.raises(RuntimeError, match="asked too often"):
            trust.confidence(inputs())
    after, modes_after, grads = everything(models)
    assert all(torch.equal(a, b) for a, b in zip(tensors, after, strict=True))
    assert modes_after == modes
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not any(grad is not None for grad in grads)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["dropout", "ensemble"])
def test_the_judged_answers_are_those_of_the_classifier_in_eval_mode(name):
    models = [network(0), network(1)]
    labels = torch.arange(64) % 4
    x = inputs(64)
    trust = judges(models)[name]
    judged = trust.judge([(x[:40], labels[:40]), (x[40:], labels[40:])])
    assert torch.equal(judged.correct, network(0).eval()(x).argmax(1) == labels)
    parts = [trust.confidence(part) for part in (x[:40], x[40:])]
    assert torch.equal(judged.confidence, torch.cat(parts))
    assert list(trust.parameters()) == []  # neither `.train()` nor an optimiser can reach the networks
    trust.train()
    assert not models[0][6].training


def test_both_are_registered_as_readers_of_inputs():
    for name, method in (("mc_dropout", McDropout), ("ensemble", Ensemble)):
        assert TRUST[name] is method
        assert TRUST.entry(name).facts["reads"] == "inputs"
    for refused in ({"score": "variance"}, {"average": "votes"}):
        with pytest.raises(ValueError, match=f"{next(iter(refused))} must be '"):
            McDropout.fit(network(0), **refused)
