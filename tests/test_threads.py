"""Work on one-thread workers: results, errors, and everything of the caller's that must stay as it was."""

import os
import random
import subprocess
import sys
import threading
from contextvars import ContextVar

import pandas as pd
import pytest
import torch

from calibrant.calibrators import calibrator
from calibrant.calibrators.calibrator import Calibrator
from calibrant.calibrators.temperature import Temperature
from calibrant.cli.refusals import refused
from calibrant.predictions import facts
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.threads import alone, spread
from calibrant.registry import CALIBRATORS

flag = ContextVar("flag", default="outside")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_parts_come_back_in_order_whatever_their_number():
    for number in (0, 1, 2, 7, 40):
        assert spread(lambda n: n * n, range(number)) == [n * n for n in range(number)]


@pytest.mark.usefixtures("two_threads")
def test_workers_use_one_thread_and_the_caller_keeps_its_own():
    assert set(spread(lambda _: torch.get_num_threads(), range(8))) == {1}
    assert alone(torch.get_num_threads) == 1
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_a_worker_that_spreads_work_does_it_itself():
    assert spread(lambda n: sum(spread(lambda m: m, range(n))), [3, 4, 5, 6]) == [3, 6, 10, 15]


@pytest.mark.usefixtures("two_threads")
def test_the_first_error_is_raised_when_all_have_ended():
    ended = []

    def work(n):
        if n in (1, 2):
            raise ValueError(f"part {n}")
        ended.append(n)

    with pytest.raises(ValueError, match="part 1"):
        spread(work, range(6))
    assert sorted(ended) == [0, 3, 4, 5]


@pytest.mark.usefixtures("two_threads")
def test_workers_see_the_callers_context_and_grad_mode():
    token = flag.set("inside")
    try:
        assert spread(lambda _: flag.get(), range(3)) == ["inside"] * 3
    finally:
        flag.reset(token)
    assert alone(torch.is_grad_enabled)
    with torch.no_grad():
        assert not alone(torch.is_grad_enabled)
    assert alone(torch.is_grad_enabled)


@pytest.mark.usefixtures("two_threads")
def test_threads_that_build_predictions_at_once_leave_thread_counts_as_they_were():
    z = torch.randn(3 * facts.CHUNK // 10, 10, generator=torch.Generator().manual_seed(0))
    seen, expected = [], facts.from_logits(z, None).confidence

    def build():
        before = torch.get_num_threads()
        found = Predictions(logits=z)
        seen.append((before, torch.get_num_threads(), torch.equal(found.confidence, expected)))

    builders = [threading.Thread(target=build) for _ in range(4)]
    for each in builders:
        each.start()
    for each in builders:
        each.join()
    assert seen == [(2, 2, True)] * 4
    assert torch.get_num_threads() == 2
    later = []
    new = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    new.start()
    new.join()
    assert later == [2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_workers_of_its_own():
    code = (
        "import os, torch\n"
        "from calibrant.predictions.threads import spread\n"
        "torch.set_num_threads(2)\n"
        "assert spread(abs, [-1, 2]) == [1, 2]\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os._exit(0 if spread(abs, [-1, 2]) == [1, 2] else 3)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "0"


def test_a_fit_when_the_interpreter_ends_still_works():
    code = (
        "import atexit, torch\n"
        "from calibrant.predictions.threads import alone\n"
        "torch.set_num_threads(2)\n"
        "atexit.register(lambda: print(alone(lambda: 7)))\n"
        "alone(lambda: 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("7", "")


def test_random_numbers_are_the_same_after_work_is_spread():
    random.seed(0)
    torch.manual_seed(0)
    expected = random.random(), torch.rand(1)
    random.seed(0)
    torch.manual_seed(0)
    spread(abs, [-1, 2, -3])
    assert (random.random(), torch.rand(1)) == expected


class Asked(Calibrator):
    """Says how many threads its fit may use."""

    @classmethod
    def fit(cls, logits, labels=None, *, fail=False):
        if fail:
            raise ValueError("as asked")
        return torch.get_num_threads()

    def map(self, logits, features):
        return logits


@pytest.mark.usefixtures("two_threads")
def test_fits_of_few_rows_run_on_one_thread_and_those_of_many_on_all(monkeypatch):
    monkeypatch.setattr(calibrator, "FEW", 200)
    z = torch.randn(20, 10)
    few = [z, z.numpy(), pd.DataFrame(z.numpy()), Predictions(logits=z, labels=torch.zeros(20).long())]
    wide = Predictions(logits=z[:9], labels=torch.zeros(9).long(), features=torch.zeros(9, 100))
    assert Asked.fit(wide) == 2
    assert [Asked.fit(rows) for rows in few] == [1] * 4
    assert Asked.fit(logits=z, labels=None) == 1
    assert Asked.fit(labels=torch.zeros(20), logits=z[:18]) == 1
    assert Asked.fit(z, torch.zeros(20, 512)) == 2  # other arguments, features say, count as well
    assert Asked.fit([[0.0] * 10]) == 2  # a list is not counted
    many = torch.randn(21, 10)
    assert [Asked.fit(rows) for rows in (many, many.numpy(), Predictions(logits=many))] == [2] * 3
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="as asked") as raised:
        Asked.fit(z, fail=True)
    assert refused(raised.value) is False  # raised by this test, not by the package
    with pytest.raises(ValueError, match="labels") as raised:
        Temperature.fit(z, torch.full((20,), 77))
    assert refused(raised.value)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["temperature", "vector", "smart", "dirichlet"])
@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)])
def test_a_fit_is_the_same_inside_any_mode_of_the_caller(name, around):
    z = 3 * torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    y = z.argmax(1).where(torch.arange(100) % 3 > 0, torch.arange(100) % 4)
    expected = dict(CALIBRATORS[name].fit(z, y).named_buffers())
    with around():
        found = dict(CALIBRATORS[name].fit(z * 1, y).named_buffers())
    assert {key: value.tolist() for key, value in found.items()} == {k: v.tolist() for k, v in expected.items()}
