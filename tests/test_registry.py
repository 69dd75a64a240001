"""Names to methods: plain functions, facts beside them, and a helpful answer to a wrong name."""

import types

import pytest

from calibrant import registry
from calibrant.registry import ALL, METRICS, SCORES, Registry


def test_a_name_gives_the_plain_function():
    assert isinstance(METRICS["brier"], types.FunctionType)
    assert METRICS["brier"].__module__ == "calibrant.metrics.proper"
    assert METRICS.entry("brier").views == ("probs", "labels")


def test_a_wrong_name_is_answered_with_the_near_one():
    with pytest.raises(KeyError, match=r"calibrant\.metrics has no 'breir'\. Did you mean 'brier'"):
        METRICS["breir"]
    with pytest.raises(KeyError) as raised:
        SCORES["zzzzzz"]
    assert raised.value.args[0] == "calibrant.metrics.scores has no 'zzzzzz'."


def test_the_registries_are_mappings():
    names = ("SCORES", "METRICS", "LOSSES", "PENALTIES", "CALIBRATORS", "TRUST", "MODELS", "DATASETS", "CORRUPTIONS")
    assert [getattr(registry, name) for name in names] == list(ALL)
    for found in ALL:
        assert len(found) == len(list(found)) == len(found.entries())
        assert list(found) == sorted(found)


def test_every_method_has_a_summary_and_a_reference():
    for found in ALL:
        for entry in found.entries():
            assert entry.summary.endswith("."), entry.name
            assert len(entry.reference) > 10, entry.name
            assert "seed" not in entry.reference, entry.name


def test_every_metric_states_its_direction_range_and_family():
    for entry in METRICS.entries():
        assert entry.facts["better"] in {"lower", "higher", "zero", "one", "neither"}, entry.name
        low, high = entry.facts["range"]
        assert low < high, entry.name
        assert entry.facts["family"], entry.name


def test_class_names_become_snake_case_and_a_name_is_taken_once():
    found = Registry("loss", "calibrant.losses")

    @found.register(needs="nothing")
    class AdaFocal:
        """A class with state."""

    assert found["ada_focal"] is AdaFocal
    assert found.entry("ada_focal").facts == {"needs": "nothing"}
    with pytest.raises(ValueError, match="two methods are named 'ada_focal'"):
        found.register()(AdaFocal)
