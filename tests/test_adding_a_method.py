"""Adding a method takes one source file and one test row with its oracle; a method without a row fails the suite."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TESTS = ("test_losses.py", "test_loss_shapes.py", "test_metrics.py", "test_calibrators.py")
ORACLES = ("loss_oracles.py", "metric_oracles.py")

LOSS = '''"""Half of the cross-entropy."""

from calibrant.losses.functional import check_batch, true_nll
from calibrant.predictions.types import Labels, Logits, PerSample
from calibrant.registry import LOSSES


@LOSSES.register()
def dummy_loss(logits: Logits, labels: Labels) -> PerSample:
    r"""Dummy loss: half of the cross-entropy.

    .. math:: -\\tfrac12 \\log p_y

    Reference: none.

    Example:
        >>> dummy_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([0]))
        tensor([0.3466])
    """
    check_batch(logits, labels)
    return true_nll(logits, labels) / 2
'''

METRIC = '''"""The error rate."""

from calibrant.metrics.inputs import metric
from calibrant.metrics.proper import mean
from calibrant.predictions.types import Correct, Weights


@metric(better="lower", range=(0.0, 1.0), family="accuracy")
def dummy_metric(correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Dummy metric: share of rows whose predicted class is not the true one.

    .. math:: \\frac1n \\sum_i (1 - a_i)

    Reference: none.

    Example:
        >>> dummy_metric(torch.tensor([True, False]))
        0.5
    """
    return mean(~correct, weights)
'''

CALIBRATOR = '''"""Logits times one number."""

from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS


@CALIBRATORS.register(keeps_argmax=True, parameters="1")
class DummyCalibrator(Calibrator):
    r"""Dummy calibrator: logits times one number.

    .. math:: z \\mapsto \\beta z

    Reference: none.

    Example:
        >>> DummyCalibrator.fit(torch.tensor([[2.0, 0.0], [0.0, 1.0]] * 5), torch.tensor([0, 0] * 5)).n_parameters
        1
    """

    beta: Tensor

    @classmethod
    def fit(cls, logits: Any, labels: Any) -> "DummyCalibrator":
        """Fit on held-out rows."""
        data = FitData.read(logits, labels)
        return cls.made(data, {"beta": torch.tensor(least_log_loss(data).beta)})

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Multiply."""
        return logits * self.beta.to(logits.dtype)
'''

SOURCES = {
    "losses/dummy_loss.py": LOSS,
    "metrics/dummy_metric.py": METRIC,
    "calibrators/dummy_calibrator.py": CALIBRATOR,
}
ROWS = {  # test file -> the line above the row, and the row
    "test_losses.py": ("LOSS_ROWS = [\n", '    Row("dummy_loss"),\n'),
    "test_metrics.py": ("\nROWS = [\n", '    Row("dummy_metric"),\n'),
    "test_calibrators.py": ("\nROWS = [\n", '    Row("dummy_calibrator"),\n'),
}
ORACLES_OF = {
    "loss_oracles.py": "\n\ndef dummy_loss(z, y):\n    return cross_entropy(z, y) / 2\n",
    "metric_oracles.py": "\n\ndef dummy_metric(correct):\n    return mean(1 - float(a) for a in correct)\n",
}


def copied(folder, *, rows):
    """Copy what the table tests need, and add the three methods; with ``rows`` their rows and oracles too."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "tests").mkdir()
    for name in ("pyproject.toml", "conftest.py", *(f"tests/{name}" for name in (*TESTS, *ORACLES))):
        shutil.copy(ROOT / name, folder / name)
    for path, text in SOURCES.items():
        (folder / "src/calibrant" / path).write_text(text)
    for name, (above, row) in ROWS.items() if rows else ():
        text = (folder / "tests" / name).read_text()
        assert text.count(above) == 1, name
        (folder / "tests" / name).write_text(text.replace(above, above + row))
    for name, text in ORACLES_OF.items() if rows else ():
        with (folder / "tests" / name).open("a") as file:
            file.write(text)
    return folder


def started(folder, *arguments):
    """Start pytest on the copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What pytest prints for the copy with rows, and for the one without; both run at once."""
    tests = [f"tests/{name}" for name in TESTS]
    complete = copied(tmp_path_factory.mktemp("complete"), rows=True)
    modules = [f"src/calibrant/{path}" for path in SOURCES]
    bare = copied(tmp_path_factory.mktemp("bare"), rows=False)
    processes = [
        started(complete, *tests, *modules, "-k", "dummy or has_a_row", "-rA"),
        started(bare, *tests, "-k", "has_a_row"),
    ]
    return [process.communicate()[0] for process in processes]


@pytest.mark.parametrize("kind", ["loss", "metric", "calibrator"])
def test_one_source_file_and_one_row_are_enough(outputs, kind):
    with_rows, _ = outputs
    passed = re.findall(rf"^PASSED tests/(test_\w+)\.py::\S*dummy_{kind}", with_rows, re.M)
    assert len(passed) >= 10, with_rows[-3000:]
    assert ("test_loss_shapes" in passed) == (kind == "loss")
    assert re.search(rf"^PASSED src/calibrant/\w+/dummy_{kind}\.py::", with_rows, re.M)  # its example


def test_nothing_fails_with_the_rows(outputs):
    with_rows, _ = outputs
    assert re.search(r"^\d+ passed, \d+ deselected in", with_rows, re.M), with_rows[-3000:]


@pytest.mark.parametrize("kind", ["loss", "metric", "calibrator"])
def test_a_method_without_a_row_fails_the_suite_and_is_named(outputs, kind):
    _, without = outputs
    assert re.search(rf"^FAILED tests/\S+::test_every_{kind}\w*_has_a_row\b.*", without, re.M), without[-3000:]
    assert f"'dummy_{kind}'" in without
