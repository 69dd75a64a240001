"""Two dozen faults; `make faults` makes two hundred."""

import subprocess
import sys
from pathlib import Path


def test_no_fault_tears_or_loses_a_file():
    harness = Path(__file__).with_name("faults.py")
    done = subprocess.run(
        [sys.executable, str(harness), "--kills", "24", "--seed", "0"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    for said in ("nothing torn, nothing lost", "old files unchanged", "refused before the work", "always whole"):
        assert said in done.stdout
