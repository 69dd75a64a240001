"""A calibrator on disk: every method comes back to the bit, and no broken file gets past one sentence."""

import json
import math
import os
import pickle
import random
import struct
import tracemalloc
from contextlib import suppress
from dataclasses import replace
from hashlib import blake2b
from types import MappingProxyType

import pytest
import torch
from fitted_calibrators import fitted, probe, rows
from safetensors.torch import load as tensors_of
from safetensors.torch import save as bytes_of

from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.calibrators.export import to_program
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.temperature import Temperature
from calibrant.io.sealed import load
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS, Entry


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A good file, as bytes."""
    path = tmp_path_factory.mktemp("good") / "cal.safetensors"
    fitted("temperature").save(path)
    return path.read_bytes()


def sealed(record, tensors=None):
    """A file with any record and tensors, and a right digest: what a forger, or another version, would write."""
    state = (
        {"temperature": torch.tensor(2.0).double(), "spread": torch.tensor(0.1).double()}
        if tensors is None
        else tensors
    )
    blob = bytes_of(state, {"calibrant": json.dumps({**record, "digest": "0" * 64})})
    return blob.replace(b"0" * 64, digest(blob), 1)


def digest(blob):
    """The digest of a file in which its place is zeroed."""
    return blake2b(blob, digest_size=32).hexdigest().encode()


def record_of(blob):
    return json.loads(json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]["calibrant"])


def refusal(path, blob):
    path.write_bytes(blob)
    with pytest.raises(ValueError, match=r".") as raised:
        load(path)
    message = str(raised.value)
    assert path.name in message
    assert "\n" not in message
    assert message.endswith(".")
    return message


@pytest.mark.parametrize("name", CALIBRATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_method_comes_back_to_the_bit(name, dtype, tmp_path):
    cal = fitted(name)
    cal.save(tmp_path / "cal.safetensors")
    back = load(tmp_path / "cal.safetensors")
    assert type(back) is type(cal)
    assert torch.equal(back(*probe(name, dtype=dtype)), cal(*probe(name, dtype=dtype)))
    assert back.fitted == cal.fitted
    assert repr(back.settings) == repr(cal.settings)
    assert repr(back) == repr(cal)
    state = cal.state_dict()
    assert list(back.state_dict()) == list(state)
    assert all(
        torch.equal(value, state[key]) and value.dtype == state[key].dtype for key, value in back.state_dict().items()
    )


@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_tensors_of_a_method_may_not_be_missing(name, tmp_path):
    cal = fitted(name)
    cal.save(tmp_path / "cal.safetensors")
    blob = (tmp_path / "cal.safetensors").read_bytes()
    state = tensors_of(blob)
    for missing in state:
        rest = {key: value for key, value in state.items() if key != missing}
        assert missing in refusal(tmp_path / "less.safetensors", sealed(record_of(blob), rest))


def test_a_path_may_be_text_and_a_file_is_written_over_at_once(tmp_path):
    path = tmp_path / "cal.safetensors"
    Identity.fit(rows()["logits"], rows()["labels"]).save(str(path))
    assert load(str(path)).name == "identity"
    fitted("temperature").save(path)
    assert load(path).name == "temperature"
    assert [p.name for p in tmp_path.iterdir()] == ["cal.safetensors"]


def test_the_same_calibrator_gives_the_same_bytes(good, tmp_path):
    fitted("temperature").save(tmp_path / "cal.safetensors")
    assert (tmp_path / "cal.safetensors").read_bytes() == good


def test_infinite_and_missing_numbers_survive(tmp_path):
    cal = Temperature.fit(rows()["logits"], rows()["labels"])
    cal.fitted = replace(
        cal.fitted, before=math.inf, log_loss=(math.inf, -math.inf), seconds=math.nan, notes=("a", "ü")
    )
    cal.settings = {
        **cal.settings,
        "list": [math.inf, {"deep": -math.inf}],
        "nan": math.nan,
        "word": "inf",
        "none": None,
    }
    cal.save(tmp_path / "cal.safetensors")
    back = load(tmp_path / "cal.safetensors")
    assert repr(back.fitted) == repr(cal.fitted)
    assert repr(back.settings) == repr(cal.settings)
    assert b"Infinity" not in (tmp_path / "cal.safetensors").read_bytes()


def test_a_fit_at_its_bound_comes_back(tmp_path):
    with pytest.warns(UserWarning, match="every row is right"):
        cal = Temperature.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
    cal.save(tmp_path / "cal.safetensors")
    assert repr(load(tmp_path / "cal.safetensors")) == repr(cal)


def test_another_type_of_tensor_comes_back_as_it_is(tmp_path):
    cal = Temperature.fit(rows()["logits"], rows()["labels"]).float()
    cal.save(tmp_path / "cal.safetensors")
    assert load(tmp_path / "cal.safetensors").temperature.dtype == torch.float32


@pytest.mark.parametrize("odd", [(1, 2), {1: 2}, {"float": "1"}, {"float": "one"}, torch.tensor(1.0), {2}])
def test_settings_that_json_would_change_are_refused(odd, tmp_path):
    cal = Temperature.fit(rows()["logits"], rows()["labels"])
    cal.settings = {"odd": odd}
    with pytest.raises(ValueError, match="settings must be plain JSON"):
        cal.save(tmp_path / "cal.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "cal.safetensors"
    fitted("identity").save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fitted("temperature").save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cal.safetensors"]


def test_a_missing_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors does not exist\."):
        load(tmp_path / "none.safetensors")
    with pytest.raises(ValueError, match=r"must be a file; it is a folder"):
        load(tmp_path)
    with pytest.raises(ValueError, match="must be a file to write; it is a folder"):
        fitted("identity").save(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"must lie in a folder that exists; '.*none' does not"):
        fitted("identity").save(tmp_path / "none" / "cal.safetensors")


def test_what_is_wrong_is_said(good, tmp_path):
    path, told = tmp_path / "cal.safetensors", record_of(good)
    fit = told["fit"]
    foreign = bytes_of({"weight": torch.ones(3)}, {"format": "pt"})
    ours = "must hold a calibrator or a trust predictor"
    wanted = [
        (b"", "must be a whole .safetensors file; it is truncated"),
        (good[:40], "must be a whole .safetensors file; it is truncated"),
        (foreign, f"{ours}, written by its save; it is damaged, or from another program."),
        (bytes_of({}, {"calibrant": "[" * 100_000}), f"{ours}, written by its save"),
        (bytes_of({}, {"calibrant": "[1]"}), f"{ours}, written by its save"),
        (sealed({**told, "format": ["calibrant.calibrator"]}), f"{ours}, written by its save"),
        (sealed({**told, "format": "calibrant.policy"}), f"{ours}; its format is 'calibrant.policy'."),
        (sealed({**told, "format": "calibrant.trust"}), "holds no trust predictor that can be used"),
        (good[:-1], "was changed or damaged after it was written: its digest does not match."),
        (good + b"\0", "its digest does not match."),
        (sealed({**told, "version": 2}), "has format version 2; this calibrant reads up to 1. Update calibrant."),
        (sealed({**told, "version": True}), "must state its format version; got True."),
        (sealed({**told, "method": "temprature"}), "has no 'temprature'. Did you mean 'temperature'"),
        (sealed({**told, "method": ["temperature"]}), "method must be a str; got ['temperature']."),
        (sealed({k: v for k, v in told.items() if k != "settings"}), "settings must be a dict; got None."),
        (sealed({**told, "method": "vector"}), "'Vector' object has no attribute"),
        (sealed(told, {}), "tensor 'temperature' must have shape []; got none."),
        (
            sealed(told, {"temperature": torch.ones(7), "spread": torch.ones(())}),
            "holds no calibrator that can be used",
        ),
        (sealed(told, {"temperature": torch.ones(()), "spread": torch.ones(()), "map": torch.ones(())}), "map"),
        (sealed({**told, "fit": {**fit, "n": "many"}}), "n of a fit must be int; got 'many'."),
        (sealed({**told, "fit": {**fit, "n": True}}), "n of a fit must be int; got True."),
        (sealed({**told, "fit": {**fit, "log_loss": [1.0]}}), "log_loss of a fit must be tuple"),
        (sealed({**told, "fit": {**fit, "notes": [1]}}), "notes of a fit must be str; got 1."),
        (sealed({**told, "fit": {**fit, "colour": 1}}), "a fit has no entry 'colour'."),
        (sealed({**told, "fit": {**fit, "": 1}}), "a fit has no entry ''."),
        (sealed({**told, "fit": {**fit, "seconds": 10**400}}), "holds no calibrator that can be used"),
        (sealed({**told, "fit": {k: v for k, v in fit.items() if k != "n"}}), "'n'"),
        (sealed({**told, "fit": {**fit, "k": -1}}), "holds no calibrator that can be used"),
        (sealed({**told, "settings": {"a": {"float": "x"}}}), "holds no calibrator that can be used"),
    ]
    for blob, words in wanted:
        assert words in refusal(path, blob)


class Payload:
    """A pickle that writes a file when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


def with_header(blob, edit):
    """Change the header as JSON, keeping data and a right length."""
    length = int.from_bytes(blob[:8], "little")
    header = json.dumps(edit(json.loads(blob[8 : 8 + length]))).encode()
    return struct.pack("<Q", len(header)) + header + blob[8 + length :]


def edited(header, chance):
    """One edit of the header of a good file."""
    name = chance.choice(["temperature", "spread"])
    edits = {
        "offsets": lambda h: {**h, name: {**h[name], "data_offsets": [0, chance.choice([1, 2**40, 2**63, -8])]}},
        "shape": lambda h: {**h, name: {**h[name], "shape": chance.choice([[2], [2**40], [-1], [2**32, 2**32], "x"])}},
        "dtype": lambda h: {**h, name: {**h[name], "dtype": chance.choice(["F32", "I64", "F8_E4M3", "PY", 3])}},
        "gone": lambda h: {key: value for key, value in h.items() if key != name},
        "renamed": lambda h: {("b" if key == name else key): value for key, value in h.items()},
        "swapped": lambda h: {**h, "temperature": h["spread"], "spread": h["temperature"]},
        "metadata": lambda h: {
            **h,
            "__metadata__": chance.choice([None, [], "x", {}, {"calibrant": 3}, {"calibrant": "{}"}]),
        },
        "other": lambda h: {**h, "__metadata__": {"calibrant": OTHER}},
        "value": lambda h: {
            **h,
            "__metadata__": {
                "calibrant": h["__metadata__"]["calibrant"].replace(chance.choice("0123456789nab"), "7", 1)
            },
        },
    }
    return edits[chance.choice(sorted(edits))](header)


OTHER = (
    '{"format":"calibrant.calibrator","version":1,"digest":"'
    + 64 * "0"
    + '","method":"identity","settings":{},"fit":{}}'
)


def corrupt(number, good, trap):
    """The number-th broken file, and never the good one."""
    chance = random.Random(number)
    length = int.from_bytes(good[:8], "little")
    place = chance.randrange(len(good))

    def flipped():
        return good[:place] + bytes([good[place] ^ (1 << chance.randrange(8))]) + good[place + 1 :]

    def replaced():
        return good[:place] + bytes([(good[place] + chance.randrange(1, 256)) % 256]) + good[place + 1 :]

    makers = [
        lambda: good[:place],
        flipped,
        replaced,
        lambda: with_header(good, lambda header: edited(header, chance)),
        lambda: chance.randbytes(chance.randrange(2000)),
        lambda: struct.pack("<Q", chance.choice([2**63, 2**64 - 1, 10**13, 99_999_999, len(good)])) + good[8:],
        lambda: struct.pack("<Q", 40_000) + (b'{"a":' * 8000)[:40_000] + good[8:],
        lambda: pickle.dumps(Payload(trap)) + good,
        lambda: struct.pack("<Q", length) + pickle.dumps(Payload(trap)).ljust(length) + good[8 + length :],
        lambda: good[: 8 + length] + chance.randbytes(len(good) - 8 - length),
    ]
    return makers[number % len(makers)]()


def test_no_corrupt_file_gets_in(good, tmp_path):
    trap = tmp_path / "trap"
    seen = set()
    for number in range(400):
        blob = corrupt(number, good, trap)
        assert blob != good, number
        seen.add(refusal(tmp_path / f"{number}.safetensors", blob)[len(str(tmp_path)) + 1 :].split(maxsplit=1)[1])
    assert not trap.exists()
    assert len(seen) >= 4


def test_a_forged_file_with_a_right_digest_is_refused_or_used_and_nothing_else(good, tmp_path):
    used = 0
    for number in range(200):
        chance = random.Random(number)
        blob = with_header(good, lambda header, chance=chance: edited(header, chance))
        old = record_of(good)["digest"].encode()
        (tmp_path / "forged.safetensors").write_bytes(blob.replace(old, digest(blob.replace(old, b"0" * 64, 1)), 1))
        with suppress(ValueError):
            used += load(tmp_path / "forged.safetensors").name == "temperature"
    assert 0 < used < 100


@pytest.mark.parametrize("wild", [math.inf, -math.inf, math.nan, 1e300, -1e300])
@pytest.mark.parametrize("name", CALIBRATORS)
def test_wild_numbers_under_a_right_digest_are_refused_or_answer_finitely(name, wild, tmp_path):
    path = tmp_path / "cal.safetensors"
    fitted(name).save(path)
    blob = path.read_bytes()
    record, tensors = record_of(blob), tensors_of(blob)
    for tensor in [name for name, value in tensors.items() if value.numel() and value.is_floating_point()]:
        spoiled = {key: value.clone() for key, value in tensors.items()}
        spoiled[tensor].view(-1)[0] = wild
        path.write_bytes(sealed(record, spoiled))
        if not math.isfinite(wild) and tensor not in CALIBRATORS[name].infinite:
            assert "holds no calibrator that can be used: tensor" in refusal(path, path.read_bytes())
        with suppress(ValueError):
            assert bool(load(path)(*probe(name)).isfinite().all())


def test_no_single_bit_can_flip(good, tmp_path):
    for place in range(0, 8 * len(good), 7):
        blob = bytearray(good)
        blob[place // 8] ^= 1 << place % 8
        refusal(tmp_path / "flipped.safetensors", bytes(blob))


def test_a_header_that_promises_terabytes_is_not_believed(good, tmp_path):
    path = tmp_path / "large.safetensors"
    path.write_bytes(struct.pack("<Q", 2**40) + good[8:])
    os.truncate(path, 2**41)  # sparse: the file is as large as it says, and holds nothing
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"must be a whole \.safetensors file"):
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 1e6
    tracemalloc.stop()


@pytest.mark.parametrize(("name", "tensor"), [("feature_clipping", "weight"), ("procal", "reference")])
def test_a_width_of_features_beyond_reason_is_not_believed(name, tensor, tmp_path):
    fitted(name).save(tmp_path / "good.safetensors")
    blob = (tmp_path / "good.safetensors").read_bytes()
    told, state = record_of(blob), {**tensors_of(blob), tensor: torch.empty(0, 2**40)}
    told["tensors"][tensor] = [0, 2**40]
    for d in (0, 2**40):  # a file of an earlier version does not say d
        told["fit"]["d"] = d
        assert "features must be at most 1000000 columns" in refusal(tmp_path / "bad.safetensors", sealed(told, state))
    assert "features must be false with 0 of them" in refusal(
        tmp_path / "bad.safetensors",
        sealed({**record_of(good_of("identity", tmp_path)), "settings": {"features": True}}, {}),
    )


def good_of(name, folder):
    fitted(name).save(folder / f"{name}.safetensors")
    return (folder / f"{name}.safetensors").read_bytes()


def test_settings_that_only_the_repr_reads_are_checked_on_loading(tmp_path):
    blob = good_of("class_temperature", tmp_path)
    told = record_of(blob)
    settings = {name: value for name, value in told["settings"].items() if name != "shared"}
    assert "shared" in refusal(tmp_path / "bad.safetensors", sealed({**told, "settings": settings}, tensors_of(blob)))


class Shifted(Calibrator):
    """A calibrator of a user's own that reads features, written as CONTRIBUTING says."""

    slope: torch.Tensor

    @classmethod
    def fit(cls, logits, labels, features):
        data = FitData.read(logits, labels, features)
        slope = torch.linspace(-0.1, 0.1, data.features.shape[1])
        before = float(data.predictions.nll.mean())
        return cls.made(data, {"slope": slope}, objective=Objective("nothing", before, before))

    def map(self, logits, features):
        return logits * (features.to(logits.dtype) @ self.slope.to(logits.dtype)).exp()[:, None]


def test_a_users_method_that_reads_features_is_saved_and_exported(monkeypatch, tmp_path):
    facts = MappingProxyType({"keeps_argmax": True, "needs_features": True})
    monkeypatch.setitem(CALIBRATORS._load(), "shifted", Entry("calibrator", "shifted", Shifted, facts))
    cal = Shifted.fit(rows()["logits"], rows()["labels"], rows()["features"])
    cal.save(tmp_path / "cal.safetensors")
    seen = probe("feature_clipping")
    assert torch.equal(load(tmp_path / "cal.safetensors")(*seen), cal(*seen))
    torch.testing.assert_close(to_program(cal).module()(*seen), cal(*seen))
