"""A calibrator outside of Calibrant: every method as an ONNX graph and as a torch program gives the same numbers."""

import copy
import importlib
import logging
import sys
import warnings
from dataclasses import replace

import onnx
import pytest
import torch
from fitted_calibrators import D, K, fitted, probe
from fitted_calibrators import rows as fitted_rows
from torch.nn.functional import logsigmoid

from calibrant.calibrators import export
from calibrant.calibrators.export import CLOSE, LOST, to_onnx, to_program, verify
from calibrant.calibrators.temperature import Temperature
from calibrant.registry import CALIBRATORS


def shape_of(value):
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.fixture(scope="module")
def unchanged():
    """The graph of identity, as bytes."""
    return export._model(fitted("identity"), None)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_method_gives_its_numbers_as_a_program_and_as_onnx_for_any_number_of_rows(name, tmp_path, monkeypatch):
    cal, path = fitted(name), tmp_path / "cal.onnx"
    program = to_program(cal)
    for n in (1, 2, 50):
        torch.testing.assert_close(program.module()(*probe(name, n=n)), cal(*probe(name, n=n)), rtol=1e-5, atol=1e-5)
    monkeypatch.setattr(export, "to_program", lambda calibrator: program)  # traced once is enough
    to_onnx(cal, path)
    model = onnx.load(path)
    assert [value.name for value in model.graph.input] == ["logits", "features"][: len(probe(name))]
    assert shape_of(model.graph.input[0]) == shape_of(model.graph.output[0]) == ["n", K]
    assert [value.name for value in model.graph.output] == ["calibrated"]
    told = {prop.key: prop.value for prop in model.metadata_props}
    assert told["method"] == name
    assert told["versions"].startswith("calibrant ")
    assert b"site-packages" not in path.read_bytes()
    assert b".py" not in path.read_bytes()
    for n in (1, 2, 50):
        rows = probe(name, n=n)
        assert verify(cal, path, *rows) <= CLOSE + LOST * float(export._lost(cal, rows).amax())
    assert [p.name for p in tmp_path.iterdir()] == ["cal.onnx"]


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if CALIBRATORS.entry(name).facts.get("needs_features")])
def test_the_number_of_features_is_known_even_where_the_fit_did_not_help(name):
    cal = copy.deepcopy(fitted(name))
    cal.fitted = replace(cal.fitted, identity=True)
    assert cal.probe(1)[1].shape[1] == D


def test_large_logits_and_infinite_terms_are_right_where_onnxruntime_is_not(tmp_path, monkeypatch):
    def odd(self, logits, features):
        others = logits.masked_fill(torch.arange(K) == 0, -torch.inf).logsumexp(1, keepdim=True)
        return logsigmoid(logits) + others

    cal = fitted("temperature")
    monkeypatch.setattr(Temperature, "map", odd)
    to_onnx(cal, tmp_path / "cal.onnx")
    assert verify(fitted("temperature"), tmp_path / "cal.onnx", 1000 * probe("temperature")[0]) <= CLOSE


def test_one_score_of_two_classes_is_exported_with_both_columns(tmp_path):
    logits = fitted_rows()["logits"]
    score, label = logits[:, 1] - logits[:, 0], (fitted_rows()["labels"] == 1).long()
    cal = Temperature.fit(score, label)
    cal.to_onnx(tmp_path / "cal.onnx")
    assert shape_of(onnx.load(tmp_path / "cal.onnx").graph.input[0]) == ["n", 2]
    both = torch.stack([torch.zeros_like(score), score], 1)
    assert verify(cal, tmp_path / "cal.onnx", both) <= CLOSE


def test_nothing_is_printed_and_everything_is_left_as_it_was(tmp_path, capfd):
    cal = fitted("temperature")
    levels = [logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")]
    filters, state = list(warnings.filters), torch.get_rng_state()
    cal.train()
    to_onnx(cal, tmp_path / "cal.onnx", opset=21)
    assert onnx.load(tmp_path / "cal.onnx").opset_import[0].version == 21
    assert capfd.readouterr() == ("", "")
    assert cal.training
    assert cal.temperature.dtype == torch.float64
    assert torch.equal(torch.get_rng_state(), state)
    assert [logging.getLogger(name).level for name in ("torch.onnx", "onnxscript")] == levels
    assert warnings.filters == filters


def test_operators_of_a_version_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(ValueError, match="opset must be one that the exporter can write; got 99"):
        to_onnx(fitted("temperature"), tmp_path / "never.onnx", opset=99)
    assert not list(tmp_path.iterdir())


def test_another_calibrator_is_told_from_the_file(unchanged, tmp_path):
    (tmp_path / "cal.onnx").write_bytes(unchanged)
    logits = probe("temperature")[0]
    wanted = fitted("temperature")(logits)
    off = verify(fitted("temperature"), tmp_path / "cal.onnx", logits)
    assert off == pytest.approx(float(((logits - wanted).abs() / wanted.abs().clamp(min=1)).max()), rel=1e-6)
    assert off > 0.1


def test_a_graph_that_differs_is_not_written(unchanged, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_model", lambda calibrator, opset: unchanged)
    with pytest.raises(ValueError, match=r"temperature was not written: its ONNX graph differs from the module by \d"):
        to_onnx(fitted("temperature"), tmp_path / "cal.onnx")
    assert not list(tmp_path.iterdir())


def test_a_method_that_the_exporter_does_not_understand_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(Temperature, "map", lambda self, logits, features: logits * float(logits.sum()))
    with pytest.raises(ValueError, match=r"^temperature cannot be exported by torch 2.*\.$"):
        to_onnx(fitted("temperature"), tmp_path / "cal.onnx")


@pytest.mark.parametrize("missing", ["onnx", "onnxscript"])
def test_a_missing_package_is_named_with_its_extra(missing, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ValueError, match=rf"ONNX needs the package {missing}; install calibrant\[onnx\]\."):
        to_onnx(fitted("temperature"), tmp_path / "cal.onnx")


def test_without_onnxruntime_the_graph_is_written_and_cannot_be_verified(unchanged, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_model", lambda calibrator, opset: unchanged)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name))
    to_onnx(fitted("identity"), tmp_path / "cal.onnx")
    with pytest.raises(ValueError, match=r"ONNX needs the package onnxruntime; install calibrant\[onnx\]\."):
        verify(fitted("identity"), tmp_path / "cal.onnx", probe("identity")[0])


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.onnx does not exist or is not a file\."):
        verify(fitted("identity"), tmp_path / "none.onnx", probe("identity")[0])
