"""A trust predictor on disk: every method of rows comes back to the bit, and no broken file gets past one sentence."""

import copy
import math
import tracemalloc
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from fitted_calibrators import fitted as fitted_calibrator
from safetensors.torch import load as tensors_of
from test_saving import record_of, refusal, sealed

from calibrant.io.sealed import CALIBRATOR, TRUST_PREDICTOR, load, read
from calibrant.predictions.predictions import Predictions
from calibrant.registry import TRUST
from calibrant.trust._machinery import heads
from calibrant.trust.bce import Bce
from calibrant.trust.mcp import Mcp
from calibrant.trust.tcp import Tcp
from calibrant.trust.trust_score import TrustScore

METHODS = [entry.name for entry in TRUST.entries() if entry.facts["reads"] == "rows"]
K, D = 4, 5


@cache
def rows(n=300, seed=0):
    """Logits, labels and features, of which the first says more about being right than the logits do."""
    g = torch.Generator().manual_seed(seed)
    logits, features = 2 * torch.randn(n, K, generator=g), torch.randn(n, D, generator=g)
    right = torch.rand(n, generator=g) < (3 * features[:, 0]).sigmoid()
    return logits, (logits.argmax(1) + (~right).long()) % K, features


@cache
def fitted(name):
    return TRUST[name].fit(*rows())


def returned(trust, folder):
    """The same predictor, read back; whatever can be seen of it is what it was."""
    trust.save(folder / "trust.safetensors")
    back = load(folder / "trust.safetensors")
    assert type(back) is type(trust)
    assert repr(back) == repr(trust)
    assert repr(back.fitted) == repr(trust.fitted)  # not ==: what was not measured is NaN
    assert repr(back.settings) == repr(trust.settings)
    was, state = trust.state_dict(), back.state_dict()
    assert list(state) == list(was)
    assert all(torch.equal(state[name], was[name]) and state[name].dtype == was[name].dtype for name in was)
    logits, _, features = rows(50, 1)
    for dtype in (torch.float32, torch.float64):
        seen = (logits.to(dtype), features.to(dtype) if trust.needs_features else None)
        assert torch.equal(back(*seen), trust(*seen))
    return back


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good file, as bytes."""
    path = tmp_path_factory.mktemp("good") / "trust.safetensors"
    fitted("steep_slope").save(path)
    return path.read_bytes()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_rows_comes_back_to_the_bit(name, tmp_path):
    trust = fitted(name)
    assert trust.needs_features == (name != "mcp")  # so that features are part of what is tried
    assert returned(trust, tmp_path).distrust_below == trust.distrust_below


def test_every_head_comes_back_with_and_without_an_anchor_or_features(tmp_path, monkeypatch):
    monkeypatch.setattr(heads, "WIDTHS", (8, 8))
    logits, labels, features = rows()
    assert {fitted(name).settings.get("head", "linear") for name in METHODS} == {"linear", "signed_distance"}
    assert returned(Bce.fit(logits, labels, features, head="mlp"), tmp_path).needs_features
    assert returned(Tcp.fit(logits, labels, features, anchor=False, head="mlp"), tmp_path).settings["width"] == D
    assert not returned(Bce.fit(logits, labels), tmp_path).needs_features
    assert returned(Bce.fit(logits[:30], labels[:30]), tmp_path).fitted.notes  # too few rows: a head without columns


def test_two_classes_and_options_of_the_trust_score_come_back(tmp_path):
    logits, labels, features = rows()
    halved = TrustScore.fit(logits, labels, features.half(), filtering="density", alpha=0.2, neighbour=2)
    assert returned(halved, tmp_path).settings["neighbour"] == 2
    single = Mcp.fit(logits[:, 0], (labels > 1).long())
    single.save(tmp_path / "two.safetensors")
    assert torch.equal(load(tmp_path / "two.safetensors")(logits[:, 0]), single(logits[:, 0]))


def test_what_was_read_back_still_knows_the_rows_it_was_fitted_on(tmp_path):
    logits, labels, features = rows()
    back = returned(fitted("bce"), tmp_path)
    assert back.judge(Predictions(logits=logits, labels=labels, features=features)).known() == 1
    logits, labels, features = rows(50, 1)
    assert back.judge(Predictions(logits=logits, labels=labels, features=features)).known() == 0


def test_tuples_and_numbers_that_json_lacks_survive(tmp_path):
    trust = Mcp.fit(*rows())
    trust.fitted = replace(
        trust.fitted, rows=("a", "b"), seconds=math.inf, auroc=(math.nan, -math.inf), spread=math.nan, notes=("ü", "")
    )
    trust.settings = {"list": [math.inf, {"deep": math.nan}], "none": None, "word": "nan"}
    back = returned(trust, tmp_path)
    assert type(back.fitted.rows) is type(back.fitted.auroc) is type(back.fitted.notes) is tuple
    assert math.isnan(back.fitted.auroc[0])


def test_the_name_of_the_file_does_not_matter(good, tmp_path):
    (tmp_path / "renamed.npz").write_bytes(good)
    assert load(str(tmp_path / "renamed.npz")).name == "steep_slope"


def test_a_predictor_that_cannot_be_used_is_not_written(tmp_path):
    trust = copy.deepcopy(fitted("bce"))
    trust.w1.fill_(math.nan)
    with pytest.raises(ValueError, match=r"tensor 'w1' must be finite; it holds nan"):
        trust.save(tmp_path / "trust.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_file_of_the_other_kind_is_not_taken_for_this_one(good, tmp_path):
    path = tmp_path / "trust.safetensors"
    path.write_bytes(good)
    with pytest.raises(ValueError, match=r"must hold a calibrator; its format is 'calibrant\.trust'\."):
        read(path, (CALIBRATOR,))
    fitted_calibrator("identity").save(path)
    with pytest.raises(ValueError, match=r"must hold a trust predictor; its format is 'calibrant\.calibrator'\."):
        read(path, (TRUST_PREDICTOR,))
    assert load(path).name == "identity"


def test_what_is_wrong_is_said(good, tmp_path):
    path, told, state = tmp_path / "trust.safetensors", record_of(good), tensors_of(good)
    np.savez(tmp_path / "rows.npz", logits=rows()[0].numpy())
    unusable = "holds no trust predictor that can be used"
    fit, settings = told["fit"], told["settings"]
    narrow = {**state, "w1": torch.ones(1, 3)}
    renamed = {("w2" if name == "w1" else name): value for name, value in state.items()}
    wanted = [
        ((tmp_path / "rows.npz").read_bytes(), "must be a whole .safetensors file"),
        (good[: len(good) // 2], "must be a whole .safetensors file"),
        (good[:-1], "was changed or damaged after it was written: its digest does not match."),
        (sealed({**told, "version": 2}, state), "has format version 2; this calibrant reads up to 1. Update calibrant"),
        (sealed({**told, "format": "calibrant.trusts"}, state), "; its format is 'calibrant.trusts'."),
        (sealed({**told, "format": "calibrant.calibrator"}, state), "holds no calibrator that can be used: "),
        (sealed({**told, "method": "step_slope"}, state), "has no 'step_slope'. Did you mean 'steep_slope'"),
        (sealed({**told, "method": "temperature"}, state), "calibrant.trust has no 'temperature'"),
        (sealed({**told, "method": "trust_score"}, state), unusable),
        (sealed({**told, "method": "oracle"}, state), "oracle looks at the classifier's inputs."),
        (sealed({**told, "settings": {**settings, "width": 2**40}}, state), "width must be that of its tensors"),
        (sealed({**told, "settings": {}}, state), f"{unusable}: head."),
        (sealed({**told, "fit": {**fit, "wrong": 1.5}}, state), "wrong of a fit must be int; got 1.5."),
        (sealed({**told, "fit": {**fit, "auroc": [0.5]}}, state), "auroc of a fit must be tuple"),
        (sealed({**told, "fit": {**fit, "k": 0}}, state), unusable),
        (sealed(told, renamed), "tensor 'w1' must have shape"),
        (sealed({**told, "tensors": {**told["tensors"], "w1": [1, 3]}}, narrow), unusable),
    ]
    for blob, words in wanted:
        assert words in refusal(path, blob)
    for place in range(0, 8 * len(good), 1001):
        blob = bytearray(good)
        blob[place // 8] ^= 1 << place % 8
        refusal(path, bytes(blob))


@pytest.mark.parametrize(
    ("offsets", "words"),
    [
        (torch.tensor([0.0, 1.0, 2.0, 3.0, math.inf], dtype=torch.float64), "must be finite; it holds inf"),
        (torch.tensor([0, 300, 300]), "offsets must be 5 whole numbers"),
        (torch.tensor([300, 200, 100, 50, 0]), "offsets must rise from 0 to 300"),
        (torch.tensor([0, 500, 500, 500, 500]), "offsets must rise from 0 to 300"),
        (torch.tensor([0, 200, 100, 250, 300]), "offsets must rise from 0 to 300"),
    ],
    ids=str,
)
def test_the_rows_of_a_trust_score_must_be_divided_by_class(offsets, words, tmp_path):
    fitted("trust_score").save(tmp_path / "good.safetensors")
    blob = (tmp_path / "good.safetensors").read_bytes()
    told = record_of(blob)
    told["tensors"]["offsets"] = list(offsets.shape)
    assert words in refusal(tmp_path / "bad.safetensors", sealed(told, {**tensors_of(blob), "offsets": offsets}))


def test_features_without_rows_are_refused_before_their_width_is_believed(tmp_path):
    fitted("trust_score").save(tmp_path / "good.safetensors")
    blob = (tmp_path / "good.safetensors").read_bytes()
    told = record_of(blob)
    told["tensors"]["features"] = [0, 2**40]
    forged = sealed(told, {**tensors_of(blob), "features": torch.empty(0, 2**40)})
    assert "features must have rows and columns" in refusal(tmp_path / "bad.safetensors", forged)


@pytest.mark.parametrize("claim", [True, "x", 1, None])
def test_a_predictor_that_reads_no_features_cannot_claim_to(claim, tmp_path):
    fitted("mcp").save(tmp_path / "good.safetensors")
    blob = (tmp_path / "good.safetensors").read_bytes()
    forged = sealed({**record_of(blob), "settings": {"features": claim}}, tensors_of(blob))
    assert "features must be " in refusal(tmp_path / "bad.safetensors", forged)


def test_a_tensor_that_promises_terabytes_is_not_believed(good, tmp_path):
    state = {**tensors_of(good), "mean": torch.empty(0, 2**40)}
    record = record_of(good)
    record["tensors"]["mean"] = [0, 2**40]
    tracemalloc.start()
    assert "width must be that of its tensors" in refusal(tmp_path / "large.safetensors", sealed(record, state))
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()
