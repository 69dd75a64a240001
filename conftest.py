"""Names for doctests, one thread a worker, simulations without shape checks, and a word on what was skipped."""

import os

import jaxtyping
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

SKIPPED = {
    "CALIBRANT_SHARED": "tests of larger real data skipped: set CALIBRANT_SHARED to their folder, see tests/data",
    "CALIBRANT_BROWSER": "browser tests skipped: install Chromium and chromedriver (on Debian `make browser`)",
}

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # two workers on two cores: more threads would only wait for each other

settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")  # nothing fails because the machine is busy


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    from calibrant.predictions.predictions import Predictions

    doctest_namespace.update(torch=torch, np=np, Predictions=Predictions)


@pytest.fixture(autouse=True)
def _unchecked_simulations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A simulation makes a million calls: shapes are not checked there, nor are functions inside functions wrapped."""
    if request.node.get_closest_marker("slow"):
        wrap = jaxtyping.jaxtyped
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        monkeypatch.setattr(
            jaxtyping, "jaxtyped", lambda **how: lambda f: f if "<locals>" in f.__qualname__ else wrap(**how)(f)
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many tests lacked data or a browser, and what would enable them."""
    reasons = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    for variable, words in SKIPPED.items():
        if count := sum(variable in reason for reason in reasons):
            terminalreporter.write_line(f"{count} {words}", yellow=True)
