"""A fault harness: commands are killed at random moments, disks are full or read-only, two writers share a file.

    .venv/bin/python tests/faults/faults.py --kills 200 --seed 1      # or `make faults`

After every fault each file is either what it was before or a whole new one, and a run of training that was killed goes
on to the same numbers as one that was not. Half of the kills come at a random moment, half while a file is being
written. Commands run in forked children, so that a kill does not cost the time of starting Python.
"""

import argparse
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from calibrant.cli import main as command
from calibrant.io.files import read
from calibrant.io.sealed import load
from calibrant.selection.policy import Policy
from calibrant.training import checkpoint
from calibrant.training.run import Run

TEMPORARY = ".calibrant-*.tmp"
TRAIN = ["train", "--recipe", "digits-mlp", "--epochs", "12", "--device", "cpu", "--out", "runs"]
COMMANDS = {
    "audit": ["audit", "rows.npz", "--report", "page.html"],
    "findings": ["audit", "rows.npz", "--report", "page.json"],
    "calibrate": "calibrate rows.npz --method temperature --apply other.npz --save cal.safetensors --out out.npz "
    "--report calibrated.html",
    "certify": ["certify", "rows.npz", "--max-error", "0.3", "--save", "policy.json"],
    "trust": "trust rows.npz --apply other.npz --method bce --save trust.safetensors --report trust.html",
    "figure": ["methods", "show", "focal", "--out", "focal.svg"],
}


def whole(path: Path) -> None:
    """Raise if a file that the package wrote is not whole."""
    readers: dict[str, Callable[[Path], object]] = {
        ".html": lambda p: ends(p, "</html>"),
        ".svg": lambda p: ends(p, "</svg>"),
        ".json": lambda p: Policy.load(p) if p.name == "policy.json" else json.loads(p.read_text()),
        ".npz": lambda p: read(p),
        ".safetensors": lambda p: checkpoint.read(p) if p.name.startswith("checkpoint") else load(p),
    }
    readers[path.suffix](path)


def ends(path: Path, tag: str) -> None:
    assert path.read_text().rstrip().endswith(tag), f"{path.name} is torn"


def rows(folder: Path) -> None:
    """Write the rows that the commands work on."""
    for name, seed in (("rows", 0), ("other", 1)):
        g = np.random.default_rng(seed)
        z = 3 * g.normal(size=(300, 4))
        p = np.exp(z / 2)
        y = (np.cumsum(p / p.sum(1, keepdims=True), 1) < g.random((300, 1))).sum(1)
        np.savez(folder / f"{name}.npz", logits=z, labels=y)


def forked(arguments: list[str], folder: Path, *, limit: int | None = None, said: Path | None = None) -> int:
    """Start a command in a child process, in a folder; return its pid.

    ``limit`` is the largest size of a file in bytes; what the command says is silenced, or goes to the file ``said``.
    """
    child = os.fork()
    if child:
        return child
    os.chdir(folder)
    os.setsid()
    if limit is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    sys.argv = ["calibrant", *arguments]
    out, told = io.StringIO(), None if said is None else os.open(said, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    code = 0
    try:
        with redirect_stdout(out), redirect_stderr(out):
            command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
    finally:
        if told is not None:
            text = out.getvalue().encode()
            os.write(told, text[:500] + text[-400:])  # this file cannot grow either
        os._exit(code)


def killed(arguments: list[str], folder: Path, chance: random.Random, seconds: float) -> str:
    """Kill a command at a random moment, or as soon as it writes; say which: "writing", "working" or "over"."""
    child, began = forked(arguments, folder), time.monotonic()
    wait_for_writing, moment = chance.random() < 0.5, chance.uniform(0, seconds)
    seen = False
    while True:
        if os.waitpid(child, os.WNOHANG)[0]:
            return "over"
        seen = wait_for_writing and any(folder.rglob(TEMPORARY))
        if seen or time.monotonic() - began > (3 * seconds if wait_for_writing else moment):
            break
        time.sleep(0 if wait_for_writing else 0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "writing" if seen or any(folder.rglob(TEMPORARY)) else "working"


def kills(number: int, chance: random.Random) -> dict[str, int]:
    """Kill commands that replace files which are already there; check every file after every kill."""
    told = {"writing": 0, "working": 0, "over": 0}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        rows(folder)
        lines = {name: line.split() if isinstance(line, str) else line for name, line in COMMANDS.items()}
        seconds = {}
        for name, line in lines.items():
            began = time.monotonic()
            assert os.waitstatus_to_exitcode(os.waitpid(forked(line, folder), 0)[1]) in (0, 1, 3), name
            seconds[name] = time.monotonic() - began
        while told["writing"] + told["working"] < number:
            name = chance.choice(sorted(lines))
            before = {p.name: p.read_bytes() for p in folder.iterdir() if not p.match(TEMPORARY)}
            told[killed(lines[name], folder, chance, seconds[name])] += 1
            after = {p.name for p in folder.iterdir() if not p.match(TEMPORARY)}
            assert after >= set(before), f"{name}: {set(before) - after} lost"
            for path in (folder / each for each in after):
                whole(path)
            assert (folder / "rows.npz").read_bytes() == before["rows.npz"]
        for line in lines.values():
            os.waitpid(forked(line, folder), 0)
        assert not list(folder.glob(TEMPORARY)), "a temporary file stayed"
    return told


def training(number: int, chance: random.Random) -> dict[str, int]:
    """Kill training again and again, each time going on; at the end it is as if nothing had happened."""
    told = {"writing": 0, "working": 0, "over": 0}
    with tempfile.TemporaryDirectory() as place:
        one, other = Path(place, "one"), Path(place, "other")
        one.mkdir()
        other.mkdir()
        began = time.monotonic()
        assert os.waitpid(forked(TRAIN, one), 0)[1] == 0
        seconds = time.monotonic() - began
        run = Path("runs", "digits-mlp", "cross_entropy-0")
        while told["writing"] + told["working"] < number:
            shutil.rmtree(other / "runs", ignore_errors=True)
            for _ in range(20):
                how = killed(TRAIN, other, chance, seconds / 3)
                told[how] += 1
                for path in (other / run).glob("*.*"):
                    if path.suffix in (".npz", ".safetensors", ".json"):
                        whole(path)
                if how == "over":
                    break
            assert os.waitpid(forked(TRAIN, other), 0)[1] == 0
            first, second = Run.read(one / run), Run.read(other / run)
            assert torch.equal(first.test.logits, second.test.logits), "a resumed run ended elsewhere"
            for epoch, again in zip(first.facts["history"], second.facts["history"], strict=True):
                assert {**epoch, "seconds": 0} == {**again, "seconds": 0}, "a resumed run has another history"
            assert not list((other / run).glob(TEMPORARY)), "a temporary file stayed"
    return told


OUTPUTS = ("page.html", "page.json", "cal.safetensors", "out.npz", "policy.json", "trust.html", "focal.svg")


def full_disk() -> str:
    """Run every command where no file can grow; the old files stay, and the result is printed all the same."""
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as elsewhere:
        folder, said = Path(place), Path(elsewhere, "said")
        rows(folder)
        for name in OUTPUTS:
            (folder / name).write_bytes(b"old")
        for name, line in COMMANDS.items():
            child = forked(line.split() if isinstance(line, str) else line, folder, limit=1000, said=said)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2, f"{name} on a full disk"
            assert "could not be written: File too large." in said.read_text(), f"{name} does not say why"
            assert len(said.read_text()) > 300, f"{name} lost its result"
        unchanged(folder)
        mounted = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", place]
        if os.geteuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
            return "files limited to 1 000 bytes"
        try:
            rows(folder)
            for name in OUTPUTS:
                (folder / name).write_bytes(b"old")
            fill(folder / "filler")
            for name, line in COMMANDS.items():
                child = forked(line.split() if isinstance(line, str) else line, folder)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2, f"{name} on a full disk"
            unchanged(folder)
        finally:
            subprocess.run(["umount", "-l", place], check=True)
    return "files limited to 1 000 bytes, and a full tmpfs"


def fill(path: Path) -> None:
    """Write until the disk is full."""
    filler = os.open(path, os.O_CREAT | os.O_WRONLY)
    for size in (4096, 512, 1):
        try:
            while True:
                os.write(filler, bytes(size))
        except OSError:
            pass
    os.close(filler)


def unchanged(folder: Path) -> None:
    for name in OUTPUTS:
        assert (folder / name).read_bytes() == b"old", f"{name} was lost on a full disk"
    assert not list(folder.glob(TEMPORARY)), "a temporary file stayed"


def read_only() -> str:
    """Run every command in a folder that cannot be written to: one sentence before the work."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "rows")
        folder.mkdir()
        rows(folder)
        mounted = os.geteuid() == 0
        if mounted:
            made = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode
            made = made or subprocess.run(["mount", "-o", "remount,ro,bind", folder], check=False).returncode
            if made:
                return "not possible here"
        else:
            folder.chmod(0o500)
        try:
            for name, line in COMMANDS.items():
                arguments = line.split() if isinstance(line, str) else line
                code = os.waitstatus_to_exitcode(os.waitpid(forked(arguments, folder), 0)[1])
                assert code == 2, f"{name} in a read-only folder ended with {code}"
        finally:
            if mounted:
                subprocess.run(["umount", "-l", folder], check=True)
            else:
                folder.chmod(0o700)
    return "mounted read-only" if mounted else "without permission to write"


def two_writers(turns: int) -> int:
    """Let two processes write the same page, and read it all the while; return how often it was read whole."""
    with tempfile.TemporaryDirectory() as place:
        folder, reads = Path(place), 0
        rows(folder)
        for _ in range(turns):
            children = [forked(COMMANDS["audit"], folder) for _ in range(2)]
            while children:
                if (folder / "page.html").exists():
                    whole(folder / "page.html")
                    reads += 1
                children = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
    return reads


def main() -> None:
    """Run all faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    chance, began = random.Random(given.seed), time.monotonic()
    torch.set_num_threads(1)
    told = [kills(given.kills * 3 // 4, chance), training(given.kills // 4, chance)]
    both = {how: told[0][how] + told[1][how] for how in told[0]}
    stopped = both["writing"] + both["working"]
    print(f"{stopped} kills, {both['writing']} of them while a file was being written: nothing torn, nothing lost")
    print(f"full disk ({full_disk()}): old files unchanged")
    print(f"read-only folder ({read_only()}): refused before the work")
    print(f"two writers: read {two_writers(3)} times, always whole")
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
