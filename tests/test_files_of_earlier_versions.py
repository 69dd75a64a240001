"""Files saved by an earlier version load and answer as they did then.

tests/data/saved holds what commit b6b54c0 saved: every calibrator and every trust predictor of rows, five policies, and
in answers.npz the inputs with what each answered. These files are never written anew. A later format that cannot read
them needs a reader for them, not new files; methods that came later need none here.
"""

import json

import numpy as np
import pytest
import torch
from real_data import DATA

import calibrant as cb
from calibrant.registry import ALL, CALIBRATORS, TRUST

SAVED = DATA / "saved"
ANSWERS = dict(np.load(SAVED / "answers.npz"))


def then(kind):
    """Names of the methods that answered then."""
    return [name.removeprefix(f"{kind}-") for name in ANSWERS if name.startswith(f"{kind}-")]


def tensor(name):
    return torch.from_numpy(ANSWERS[name])


def test_all_that_was_saved_is_here():
    assert {kind: len(then(kind)) for kind in ("calibrator", "trust", "policy")} == {
        "calibrator": 24,
        "trust": 8,
        "policy": 5,
    }


@pytest.mark.parametrize("name", then("calibrator"))
def test_a_calibrator_answers_as_then(name):
    found = cb.load(SAVED / f"calibrator-{name}.safetensors")
    assert type(found) is CALIBRATORS[name]
    needs = CALIBRATORS.entry(name).facts.get("needs_features", False)
    seen = (tensor("logits"), tensor("features")) if needs else (tensor("logits"),)
    same(found(*seen), f"calibrator-{name}")


@pytest.mark.parametrize("name", then("trust"))
def test_a_trust_predictor_answers_as_then(name):
    found = cb.load(SAVED / f"trust-{name}.safetensors")
    assert type(found) is TRUST[name]
    features = tensor("trust_features") if found.needs_features else None
    same(found(tensor("trust_logits"), features), f"trust-{name}")


@pytest.mark.parametrize("name", then("policy"))
def test_a_policy_accepts_the_rows_it_accepted_then(name):
    found = cb.Policy.load(SAVED / f"policy-{name}.json")
    by_class = [tensor("policy_class_confidence"), tensor("policy_class_predicted")]
    accepted = found(*by_class) if name == "by_class" else found(tensor("confidence"))
    assert np.array_equal(np.asarray(accepted), ANSWERS[f"policy-{name}"])
    assert found.to_json() == (SAVED / f"policy-{name}.json").read_text()


def test_names_that_were_public_then_are_public_still():
    names = json.loads((SAVED / "names.json").read_text())
    assert [name for name in names["public"] if not hasattr(cb, name)] == []
    lost = {registry.kind: sorted(set(names["methods"][registry.kind]) - set(registry)) for registry in ALL}
    assert not any(lost.values()), lost


def same(found, name):
    """Inputs are float32, so rounding may differ from machine to machine in its last digits."""
    torch.testing.assert_close(found, tensor(name), rtol=1e-6, atol=1e-6)
