"""The command line on random arguments: an exit code that is documented, one sentence for bad input, whole files."""

import contextlib
import io
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
from hostile import labels, logits, numpy_of, probs

from calibrant.cli import main

ODD = ("", "-1", "nan", "inf", "0", "1e-12", "1e400", "x", "../x", "\x1b[2J", "9" * 40, "ü", "--json", "1,5", "None")
FILES = ("rows.npz", "other.npz", "pairs.npz", "probs.csv", "nothing.npz", "text.csv", ".", "rows.txt")


def case(chance: random.Random, folder: Path) -> None:
    """Run one command in this process."""
    for left in folder.iterdir():
        if left.is_file():
            left.unlink()
    rows(chance, folder)
    arguments = command(chance)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, out, err = run(arguments, folder)
    told = f"{arguments} ended with {code}"
    assert code in (0, 1, 2, 3), f"{told}: {err[-300:]}"
    assert "Traceback" not in err, told
    assert "\x1b" not in out + err, f"{told}: a control character"
    if code == 2:
        assert err.strip(), f"{told} without a word"
        assert out == "" or "written" not in out, f"{told} after writing"
        sentences = [line for line in err.splitlines() if line.startswith("calibrant: ")]
        assert len(sentences) <= 1, f"{told}: {err}"
    if code in (0, 1, 3) and "--json" in arguments and arguments[0] != "train":
        json.loads(out)
    for path in folder.iterdir():
        assert not path.name.startswith(".calibrant-"), f"{told}: left {path.name}"
        if path.name in before and path.name not in arguments:
            assert path.read_bytes() == before[path.name], f"{told}: changed {path.name}"


def run(arguments: list[str], folder: Path) -> tuple[int, str, str]:
    out, err, here = io.StringIO(), io.StringIO(), Path.cwd()
    old = sys.argv
    sys.argv = ["calibrant", *arguments]
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
        return code, out.getvalue(), err.getvalue()
    finally:
        sys.argv = old
        os.chdir(here)
    return 0, out.getvalue(), err.getvalue()


def rows(chance: random.Random, folder: Path) -> None:
    """Small files of rows to work on."""
    for name in ("rows", "other"):
        n, k = chance.choice([1, 8, 60, 60]), chance.choice([2, 3])
        z = np.clip(logits(chance, n, k), -1e6, 1e6)
        groups = np.array([chance.choice("ab") for _ in range(n)])
        np.savez(folder / f"{name}.npz", logits=z, labels=labels(chance, z), groups=groups, features=z)
    g = numpy_of(chance)
    sure = g.random(40)
    np.savez(folder / "pairs.npz", confidence=sure, correct=g.random(40) < sure)
    p = probs(chance, 20, 3)
    lines = [",".join([*map(repr, row), str(y)]) for row, y in zip(p.tolist(), labels(chance, p).tolist(), strict=True)]
    (folder / "probs.csv").write_text("\n".join(["probs_0,probs_1,probs_2,labels", *lines]))
    (folder / "text.csv").write_text(chance.choice(["", "hello", "a,b\n1,2\n", "confidence,correct\n0.5,2\n"]))


def command(chance: random.Random) -> list[str]:
    def file() -> str:
        return chance.choice(FILES) if chance.random() < 0.3 else chance.choice(["rows.npz", "other.npz"])

    def value(*good: str) -> str:
        return chance.choice(ODD) if chance.random() < 0.15 else chance.choice(good)

    options = {
        "audit": [
            ["--json"],
            ["--report", value("page.html", "page.json")],
            ["--gate", value("accuracy>0.1", "brier<1")],
            ["--level", value("0.5", "0.9")],
            ["--seed", value("0", "3")],
            ["--ignore-index", value("-100", "0")],
        ],
        "calibrate": [
            ["--method", value("temperature", "vector", "identity", "platt")],
            ["--apply", file()],
            ["--json"],
            ["--save", value("c.safetensors")],
            ["--out", value("o.npz")],
            ["--report", value("c.html")],
            ["--by-group"],
            ["--seed", value("1")],
        ],
        "certify": [
            ["--max-error", value("0.1", "0.5")],
            ["--delta", value("0.1")],
            ["--score", value("msp", "energy", "tcp")],
            ["--by-class"],
            ["--save", value("p.json")],
            ["--apply", file()],
            ["--json"],
            ["--start", value("0.5")],
        ],
        "trust": [
            ["--apply", file()],
            ["--method", value("bce", "mcp", "trust_score")],
            ["--json"],
            ["--save", value("t.safetensors")],
            ["--out", value("t.npz")],
            ["--report", value("t.html")],
        ],
        "methods": [
            [value("losses", "metrics", "show")],
            [value("focal", "brier")],
            ["--json"],
            ["--k", value("5")],
            ["--out", value("m.svg")],
            ["--option", value("gamma=2")],
        ],
        "train": [
            ["--list"],
            ["--recipe", value("digits-mlp")],
            ["--epochs", value("-1")],
            ["--set", value("lr=x", "name=..")],
            ["--loss", value("nonsense")],
            ["--data", value("no")],
        ],
    }
    name = chance.choice(["audit", "calibrate", "calibrate", "certify", "certify", "trust", "methods", "train"])
    rate = 0.45 if name != "train" else 0.6
    chosen = [part for option in options[name] if chance.random() < rate for part in option]
    if name == "calibrate" and "--method" not in chosen:
        chosen += ["--method", "temperature"]
    if name == "certify" and "--max-error" not in chosen and chance.random() < 0.9:
        chosen += ["--max-error", "0.3"]
    if name == "train":  # what would really train is left to the tests of training
        chosen += ["--epochs", "0"] if "--list" not in chosen else []
        return [name, *chosen]
    return [name, *([file()] if name != "methods" else []), *chosen]
