"""The command line: one sentence and exit code 2 for bad input, records on request, gates with their codes."""

import json
import subprocess
import sys

import numpy as np
import pytest

from calibrant.registry import ALL

PROGRAM = [sys.executable, "-c", "from calibrant.cli import main; main()"]


def run(*arguments, cwd=None):
    return subprocess.run([*PROGRAM, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    g = np.random.default_rng(0)
    logits = 3 * g.normal(size=(400, 5))
    p = np.exp(logits / 2)
    labels = (np.cumsum(p / p.sum(1, keepdims=True), 1) < g.random((400, 1))).sum(1)
    np.savez(folder / "preds.npz", logits=logits, labels=labels)
    np.savez(folder / "nan.npz", logits=np.where(logits > 8, np.nan, logits), labels=labels)
    np.savez(folder / "shapes.npz", logits=logits, labels=labels[:7])
    np.savez(folder / "from_one.npz", logits=logits, labels=labels + 1)
    whole = (folder / "preds.npz").read_bytes()
    (folder / "truncated.npz").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.csv").write_text("confidence,correct\n")
    return folder


def test_an_audit_prints_the_verdict_first_and_writes_the_page(folder):
    done = run("audit", "preds.npz", "--report", "page.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Over-confident: when it says ")
    assert "400 rows x 5 classes, logits, labels 0-4, accuracy" in done.stdout
    assert done.stdout.rstrip().endswith("written: page.html")
    assert (folder / "page.html").read_text().startswith("<!doctype html>")


def test_json_holds_the_records_and_nothing_else_on_stdout(folder):
    done = run("audit", "preds.npz", "--json", "--gate", "accuracy>0", cwd=folder)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert {"understood", "verdict", "notes", "advice", "records", "curves"} == set(found)
    assert {r["metric"] for r in found["records"]} >= {"nll", "brier", "ece_debiased", "aurc"}
    assert "gate: pass" in done.stderr


@pytest.mark.parametrize(
    ("rules", "code", "said"),
    [
        (["accuracy>0.1"], 0, "gate: pass"),
        (["ece_excess<0.0001"], 1, "gate: fail"),
        (["accuracy>0.1", "ece_excess<0.0001"], 1, "gate: fail"),
        (["accuracy>0.63"], 3, "gate: not enough data"),
        (["nonsense"], 2, "gate must look like"),
        (["nonsense<1"], 2, "gate must name a metric of the audit"),
    ],
)
def test_a_gate_decides_the_exit_code(folder, rules, code, said):
    done = run("audit", "preds.npz", *(part for rule in rules for part in ("--gate", rule)), cwd=folder)
    assert done.returncode == code
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "nan.npz"], "logits must be finite;"),
        (["audit", "shapes.npz"], "labels must have shape (400,) to match the scores; got (7,)."),
        (["audit", "from_one.npz"], "labels must lie in [0, 5); got [1, 5]. With labels - 1 the accuracy is"),
        (["audit", "missing.npz"], "missing.npz does not exist or is not a file."),
        (["audit", "truncated.npz"], "truncated.npz must be a whole .npz archive"),
        (["audit", "empty.csv"], "empty.csv must have a header and at least one row; it has 1 lines."),
        (["audit", "."], "must end in .npz, .csv or .parquet"),
        (["audit", "preds.npz", "--report", "page.pdf"], "path must end in .html or .json; got 'page.pdf'."),
        (
            ["audit", "preds.npz", "--report", "no/such/folder/page.html"],
            "path must lie in a folder that exists; 'no/such/folder' does not.",
        ),
        (["audit", "preds.npz", "--level", "2"], "level must lie in (0, 1); got 2.0."),
        (["methods", "nonsense"], "kind must be one of score, metric,"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(folder, arguments, said):
    done = run(*arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [["audit"], ["nonsense"], ["audit", "preds.npz", "--nonsense"]])
def test_wrong_usage_is_exit_code_2_without_traceback(folder, arguments):
    done = run(*arguments, cwd=folder)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_methods_lists_every_registered_method():
    rows = json.loads(run("methods", "--json").stdout)
    assert [set(row) for row in rows] == [{"kind", "name", "summary", "reference"}] * len(rows)
    assert [(row["kind"], row["name"]) for row in rows] == [(e.kind, e.name) for r in ALL for e in r.entries()]
    assert run("methods", "scores").stdout.count("\n") == 10
    assert "brier" in run("methods", "metrics").stdout
