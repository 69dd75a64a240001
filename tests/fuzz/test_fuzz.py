"""Two thousand cases of the fuzzer, the same each time; `make fuzz` runs others, for as long as one likes."""

import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).with_name("fuzz.py")


def test_two_thousand_cases_leak_nothing_and_answer_nothing_wrong():
    # in a process of its own: the type checks of the tests would answer before the package does
    done = subprocess.run(
        [sys.executable, str(FUZZ), "--cases", "2000", "--seed", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2000 cases of seed 0" in done.stdout


def test_the_fuzzer_finds_a_leak_and_a_wrong_number():
    code = (
        f"import sys; sys.path.insert(0, {str(FUZZ.parent)!r})\n"
        "import fuzz, numpy as np\n"
        "from calibrant.registry import METRICS\n"
        "from calibrant.predictions import checks\n"
        "from pathlib import Path\n"
        "import metric_oracles\n"
        "real = metric_oracles.accuracy\n"
        "metric_oracles.accuracy = lambda correct: real(correct) + 1e-3\n"
        "checks.weights = lambda w, kept: w + 'a leak'\n"
        "ends = [fuzz.one('metrics', 0, i, Path('.')) for i in range(400)]\n"
        "for start in ('wrong: accuracy', 'leaked: TypeError'): print(any(end.startswith(start) for end in ends))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
