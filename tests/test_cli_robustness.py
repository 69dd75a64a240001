"""The command on hostile terms: odd terminals, readers that leave, evil names, targets that cannot be written, bugs."""

import os
import subprocess
import sys

import numpy as np
import pytest

from calibrant.cli import refusals

PROGRAM = [sys.executable, "-c", "from calibrant.cli import main; main()"]
ESCAPE = "\x1b[31m\x07evil\u202e"


def run(*arguments, cwd, **how):
    return subprocess.run([*PROGRAM, *map(str, arguments)], cwd=cwd, capture_output=True, check=False, **how)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robust")
    g = np.random.default_rng(0)
    logits = 3 * g.normal(size=(600, 3))
    p = np.exp(logits)
    labels = (np.cumsum(p / p.sum(1, keepdims=True), 1) < g.random((600, 1))).sum(1)
    names = np.array([ESCAPE, "b", "c"])
    np.savez(folder / "preds.npz", logits=logits, labels=labels)
    np.savez(folder / "evil.npz", logits=logits, labels=names[labels], classes=names, groups=names[labels])
    return folder


EVERY = [
    ("audit", "evil.npz"),
    ("calibrate", "evil.npz", "--method", "temperature", "--apply", "evil.npz"),
    ("certify", "evil.npz", "--max-error", "0.3", "--by-class"),
    ("trust", "evil.npz", "--apply", "evil.npz", "--method", "bce"),
    ("audit", f"{ESCAPE}.npz"),
    ("audit", "evil.npz", "--gate", f"{ESCAPE}<1"),
    ("methods", ESCAPE),
    ("train", "--recipe", ESCAPE),
]


@pytest.mark.parametrize("arguments", EVERY, ids=lambda a: a[0])
def test_no_control_character_of_a_name_reaches_the_terminal(arguments, folder):
    done = run(*arguments, cwd=folder, text=True)
    assert done.returncode in (0, 1, 2, 3)
    shown = done.stdout + done.stderr
    assert shown.strip()
    assert not set(shown) & {"\x1b", "\x07", "\u202e"}
    assert "Traceback" not in shown


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("arguments", [("audit", "evil.npz"), ("methods",), ("audit", "no.npz")], ids=lambda a: a[0])
def test_a_terminal_of_any_encoding_is_spoken_to(encoding, arguments, folder):
    done = run(*arguments, cwd=folder, env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"})
    assert done.returncode in (0, 2), done.stderr
    assert b"Traceback" not in done.stderr
    assert len(done.stdout + done.stderr) > 20


@pytest.mark.parametrize("arguments", [("audit", "preds.npz", "--report", "left.html"), ("methods",)])
def test_a_reader_that_leaves_early_changes_neither_files_nor_exit_code(arguments, folder):
    command = " ".join([f"'{part}'" for part in [*PROGRAM, *arguments]])
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
    if "--report" in arguments:
        assert (folder / "left.html").read_text().rstrip().endswith("</html>")


def test_a_closed_output_is_no_error(folder):
    command = " ".join([f"'{part}'" for part in [*PROGRAM, "audit", "preds.npz", "--report", "closed.html"]])
    done = subprocess.run(["bash", "-c", f"{command} >&-"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (folder / "closed.html").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "preds.npz", "--report", "none/page.html"),
        ("audit", "preds.npz", "--report", "folder.html"),
        ("calibrate", "preds.npz", "--save", "none/cal.safetensors"),
        ("calibrate", "preds.npz", "--apply", "preds.npz", "--out", "preds.npz"),
        ("certify", "preds.npz", "--max-error", "0.1", "--save", "none/policy.json"),
        ("trust", "preds.npz", "--apply", "preds.npz", "--report", "none/page.html"),
        ("methods", "show", "focal", "--out", "none/focal.svg"),
    ],
    ids=lambda a: " ".join(a[:1]),
)
def test_a_target_that_cannot_be_written_is_said_before_the_work(arguments, folder):
    (folder / "folder.html").mkdir(exist_ok=True)
    done = run(*arguments, cwd=folder, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("audit", "preds.npz", "--seed", "-5"), "seed must be at least 0; got -5."),
        (("calibrate", "preds.npz", "--seed", "-5"), "seed must be at least 0; got -5."),
        (("trust", "preds.npz", "--apply", "preds.npz", "--seed", "-5"), "seed must be at least 0; got -5."),
        (("audit", "preds.npz", "--level", "nan"), "level must be finite; got nan."),
        (("audit", "preds.npz", "--ignore-index", "9" * 30), "ignore_index must be at most"),
        (("certify", "preds.npz", "--max-error", "1e-12"), ""),
        (("certify", "preds.npz", "--max-error", "1e-300"), ""),
        (("certify", "preds.npz", "--max-error", "nan"), "max_error must be finite; got nan."),
        (("train", "--recipe", "outside.toml"), "name must be that of a folder"),
        (("train", "--recipe", "digits-mlp", "--set", "name=../.."), "name must be that of a folder"),
        (("train", "--recipe", "deep.toml"), "deep.toml must be TOML"),
        (("train", "--recipe", "binary.toml"), "binary.toml must be TOML"),
    ],
    ids=lambda part: " ".join(part)[:40] if isinstance(part, tuple) else "",
)
def test_odd_arguments_get_one_sentence(command, said, folder):
    (folder / "outside.toml").write_text('name = "../.."\ndataset = "digits"\nmodel = "mlp"\nepochs = 1\nlr = 0.1\n')
    (folder / "deep.toml").write_text("x = " + "[" * 100_000)
    (folder / "binary.toml").write_bytes(b"\xff\xfe\x00")
    done = run(*command, cwd=folder, text=True, timeout=100)
    assert done.returncode == (2 if said else 3), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    if said:
        assert len(done.stderr.splitlines()) == 1
    assert not list(folder.parent.glob("cross_entropy*"))


def test_a_bug_is_a_traceback_with_a_request_and_its_own_exit_code(folder):
    code = (
        "import sys, calibrant.cli as cli\n"
        "from calibrant.io import files\n"
        "files.read = lambda *a, **k: {}['a mistake of the package']\n"
        "sys.argv = ['calibrant', 'audit', 'preds.npz']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert done.stderr.rstrip().endswith(refusals.REQUEST)


def caught(work):
    try:
        work()
    except Exception as error:  # what is asked is which kind it was
        return error
    raise AssertionError("nothing was raised")


def test_an_error_of_ours_is_told_from_one_that_leaked():
    import calibrant as cb

    ours = caught(lambda: cb.Predictions(logits=np.zeros((2, 3)), labels=[0, 7]))
    named = caught(lambda: cb.registry.METRICS["breir"])
    assert refusals.refused(ours)
    assert refusals.refused(named)
    assert refusals.sentence(named).startswith("calibrant.metrics has no 'breir'")
    assert not refusals.refused(caught(lambda: {}["key"]))
    assert not refusals.refused(caught(lambda: np.zeros(2) @ np.zeros(3)))
    assert not refusals.refused(caught(lambda: int("x")))
    assert refusals.refused(caught(lambda: open("/no/such/file")))  # noqa: PTH123, SIM115
