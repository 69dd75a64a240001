"""Names to methods: plain functions, facts beside them, and a helpful answer to a wrong name."""

import importlib
import subprocess
import sys
import types

import pytest

import calibrant
from calibrant import registry
from calibrant.registry import ALL, CALIBRATORS, METRICS, SCORES, TRUST, Registry


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


@pytest.mark.parametrize("methods", [CALIBRATORS, TRUST, METRICS], ids=lambda r: r.kind)
def test_a_folder_lists_its_methods_and_has_them_as_attributes(methods):
    folder = importlib.import_module(methods._home)
    assert dir(folder) == sorted(method.__name__ for method in methods.values())
    for name in dir(folder):
        assert getattr(folder, name) in methods.values()


def test_a_wrong_attribute_of_a_folder_is_answered_with_the_nearest():
    with pytest.raises(
        AttributeError, match=r"'calibrant.calibrators' has no attribute 'Smrt'\. Did you mean 'Smart'\?$"
    ):
        calibrant.calibrators.Smrt  # noqa: B018
    with pytest.raises(ImportError, match="nothing"):
        from calibrant.metrics import nothing  # noqa: F401
    for name in ("_hidden", "a.b", "temperature.x", ".", "../x", "", "a b"):
        assert not hasattr(calibrant.trust, name)
        assert not hasattr(calibrant.calibrators, name)


def test_a_module_of_a_folder_is_imported_without_the_others():
    code = (
        "import sys; from calibrant.calibrators import prior; print('calibrant.calibrators.dirichlet' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
