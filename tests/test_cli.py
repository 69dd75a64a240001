"""The command line: one sentence and exit code 2 for bad input, records on request, gates with their codes."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from calibrant.cli import main
from calibrant.io import files
from calibrant.io.sealed import load
from calibrant.registry import ALL, LOSSES

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
def test_a_gate_decides_the_exit_code(folder, rules, code, said, monkeypatch, capsys):
    flags = [part for rule in rules for part in ("--gate", rule)]
    done = in_process(monkeypatch, capsys, folder, "audit", "preds.npz", *flags)
    assert (done.returncode or 0) == code
    assert said in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["audit", "nan.npz"], "logits must be finite;"),
        (["audit", "shapes.npz"], "labels must have shape (400,) to match the scores; got (7,)."),
        (["audit", "from_one.npz"], "labels must lie in [0, 5); got [1, 5]. With labels - 1 the accuracy is"),
        (["audit", "missing.npz"], "missing.npz does not exist or is not a file."),
        (["audit", "truncated.npz"], "truncated.npz must be a whole .npz archive"),
        (["audit", "empty.csv"], "empty.csv must have a header and at least one row; it has a header only."),
        (["audit", "."], "must end in .npz, .csv or .parquet"),
        (["audit", "preds.npz", "--report", "page.pdf"], "page.pdf must end in .html or .json; got '.pdf'."),
        (
            ["audit", "preds.npz", "--report", "no/such/folder/page.html"],
            "must lie in a folder that exists; 'no/such/folder' does not.",
        ),
        (["audit", "preds.npz", "--level", "2"], "level must lie in (0, 1); got 2. Did you mean 0.02?"),
        (["methods", "nonsense"], "kind must be one of score, metric,"),
    ],
)
def test_bad_input_gets_one_sentence_and_exit_code_2(folder, arguments, said, monkeypatch, capsys):
    done = in_process(monkeypatch, capsys, folder, *arguments)
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


def arrays(path):
    """Read a file of arrays and close it: one left open is found by the collector in the middle of another test."""
    with np.load(path) as archive:
        return dict(archive)


def in_process(monkeypatch, capsys, folder, *arguments):
    """Run the command without a process of its own, which would spend its time importing."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["calibrant", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    told = capsys.readouterr()
    return subprocess.CompletedProcess(sys.argv, left.value.code, told.out, told.err)


@pytest.fixture
def methods(tmp_path, monkeypatch, capsys):
    """The command `methods`, in an empty folder."""

    def call(*arguments):
        return in_process(monkeypatch, capsys, tmp_path, "methods", *arguments)

    return call


def test_a_kind_of_method_is_listed_as_before_there_was_show(methods):
    entries = LOSSES.entries()
    width = max(len(entry.name) for entry in entries)
    rows = [f"loss        {entry.name:<{width}}  {entry.summary}" for entry in entries]
    assert methods("losses").stdout.splitlines() == rows
    assert methods("loss").stdout.splitlines() == rows
    assert methods().stdout.count("\n") == sum(map(len, ALL))


def test_a_loss_is_shown_with_a_small_table_of_its_shape(methods):
    done = methods("show", "focal", "--option", "gamma=1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "focal (loss)"
    assert lines[2] == "  formula    -(1 - p_y)^gamma log p_y"
    assert lines[3] == "  options    gamma = 3.0, detach_weight = False"
    assert "Shape of focal, gamma 1:" in lines
    header = next(i for i, line in enumerate(lines) if line.startswith("   p_y"))
    table = np.array([line.split() for line in lines[header + 1 : header + 9]], dtype=float)
    assert table[:, 0].tolist() == [0.01, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.99]
    p = table[:, 0]
    assert table[:, 1] == pytest.approx(-(1 - p) * np.log(p), rel=1e-3)
    assert table[:, 2] == pytest.approx(2 * (1 - p), rel=1e-3)
    assert table[:, 3] == pytest.approx(np.log(p) - (1 - p) / p, rel=1e-3)
    assert any(line.startswith("Of 10 classes the label has p_y") for line in lines)
    assert "focal (trust)" in lines  # another kind of method has that name too


def test_several_losses_are_drawn_together_and_described_without_the_table(methods, tmp_path):
    done = methods("show", "inverse_focal", "seca", "--option", "gamma=5", "--k", "3", "--out", "losses.svg")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.endswith("written: losses.svg\n")
    assert "gradient   (" not in done.stdout
    assert "above 3.59" in done.stdout
    drawn = (tmp_path / "losses.svg").read_text()
    for word in ("cross_entropy", "inverse_focal, gamma 5", "seca", "Of 3 classes"):
        assert word in drawn


def test_every_method_can_be_shown_in_words_and_as_json(methods):
    names = sorted({name for registry in ALL for name in registry})
    done = methods("show", *names)
    assert done.returncode == 0, done.stderr
    titles = {f"{entry.name} ({entry.kind})" for registry in ALL for entry in registry.entries()}
    assert titles <= set(done.stdout.splitlines())
    found = json.loads(methods("show", *names, "--json").stdout)
    assert {f"{row['name']} ({row['kind']})" for row in found} == titles
    for row in found:
        assert {"summary", "formula", "needs", "options", "facts", "reference"} <= set(row)
        assert ("shape" in row) == (row["kind"] == "loss")
    by = {(row["kind"], row["name"]): row for row in found}
    assert by["loss", "online_label_smoothing"]["needs"] == ["k"]
    assert by["calibrator", "temperature"]["options"] == {"rule": "nll"}
    assert by["metric", "nll"]["facts"]["better"] == "lower"
    assert len(by["loss", "brier"]["shape"]["columns"]["p"]) == 999


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show"], "show must be followed by the name of a method"),
        (["show", "focl"], "no method is named 'focl'. Did you mean 'focal'"),
        (["show", "zzzzzz"], "no method is named 'zzzzzz'."),
        (["losses", "focal"], "must come after show, as in: calibrant methods show focal."),
        (["losses", "--k", "3"], "must come after show, as in: calibrant methods show focal."),
        (["show", "temperature", "--out", "a.svg"], "must come with the name of a loss; got temperature."),
        (["show", "focal", "--out", "a.jpg"], "a.jpg must end in .svg or .png or .pdf; got '.jpg'."),
        (["show", "focal", "--out", "no/a.svg"], "no/a.svg must lie in a folder that exists; 'no' does not."),
        (["show", "focal", "--option", "gama=5"], "option must be among gamma, detach_weight for focal; got 'gama'."),
        (["show", "focal", "--option", "gamma=x"], "option gamma must be a number; got 'x'."),
        (["show", "focal", "--option", "gamma=-1"], "gamma must not be negative; got -1.0."),
        (["show", "focal", "--k", "0"], "k must be the number of classes, at least 2; got 0."),
    ],
)
def test_a_bad_request_to_methods_gets_one_sentence_and_exit_code_2(methods, arguments, said):
    done = methods(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def calibrate(halves, monkeypatch, capsys):
    """The command `calibrate`, in a folder of two halves."""

    def call(*arguments, cwd=halves):
        return in_process(monkeypatch, capsys, cwd, "calibrate", *arguments)

    return call


@pytest.fixture(scope="module")
def halves(folder):
    data = arrays(folder / "preds.npz")
    logits, labels = data["logits"], data["labels"]
    extra = {"groups": np.arange(400) % 7, "features": logits[:, :2], "classes": np.array(list("abcde"))}
    parts = {"val": slice(0, 200), "test": slice(200, 400)}
    for name, rows in parts.items():
        np.savez(folder / f"{name}.npz", logits=logits[rows], labels=labels[rows])
        cut = {key: value if key == "classes" else value[rows] for key, value in extra.items()}
        np.savez(folder / f"{name}_all.npz", logits=logits[rows], labels=np.array(list("abcde"))[labels[rows]], **cut)
    np.savez(folder / "unlabelled.npz", logits=logits[200:])
    np.savez(folder / "narrow.npz", logits=logits[200:, :3])
    np.savez(folder / "few.npz", logits=logits[:30], labels=labels[:30])
    np.savez(folder / "pairs.npz", confidence=np.full(60, 0.5), correct=np.arange(60) % 2 == 0)
    return folder


def test_auto_compares_and_says_why(calibrate):
    done = calibrate("val.npz")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("n = 200: ")
    assert "200 rows x 5 classes, logits, labels 0-4, accuracy" in done.stdout
    assert "  identity " in done.stdout
    assert done.stdout.count("\n* ") == 2  # the chosen row and the legend
    assert done.stderr == ""


def test_a_named_method_is_applied_saved_and_written(calibrate, halves):
    done = calibrate(
        *("val.npz", "--method", "temperature", "--apply", "test.npz"),
        *("--save", "cal.safetensors", "--out", "calibrated.npz"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("n = 200: temperature, as asked; helps: ")
    assert "applied to test.npz: 200 rows x 5 classes" in done.stdout
    assert done.stdout.count("* temperature ") == 2
    assert done.stdout.endswith("written: cal.safetensors\nwritten: calibrated.npz\n")
    cal = load(halves / "cal.safetensors")
    given, out = arrays(halves / "test.npz"), arrays(halves / "calibrated.npz")
    assert np.array_equal(out["logits"], given["logits"] / float(cal.temperature))
    assert np.array_equal(out["labels"], given["labels"])
    assert cal.temperature == pytest.approx(2.0, rel=0.25)


def test_what_came_with_the_rows_is_written_with_them(calibrate, halves):
    done = calibrate("val_all.npz", "--method", "temperature", "--apply", "test_all.npz", "--out", "o.npz")
    assert done.returncode == 0, done.stderr
    given, out = arrays(halves / "test_all.npz"), arrays(halves / "o.npz")
    assert set(out) == set(given)
    for name in ("labels", "classes", "features"):
        assert np.array_equal(out[name], given[name]), name
    assert out["groups"].tolist() == given["groups"].astype(str).tolist()
    assert files.read(halves / "o.npz").classes == tuple("abcde")


def test_one_column_is_written_as_one_column(calibrate, tmp_path):
    g = np.random.default_rng(0)
    np.savez(tmp_path / "one.npz", probs=g.random(80), labels=g.integers(0, 2, 80))
    done = calibrate("one.npz", "--method", "temperature", "--apply", "one.npz", "--out", "o.npz", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert arrays(tmp_path / "o.npz")["logits"].shape == (80,)
    assert files.read(tmp_path / "o.npz").k == 2


def test_rows_without_labels_are_calibrated_and_rows_that_were_fitted_on_get_a_warning(calibrate, halves):
    blind = calibrate("val.npz", "--method", "temperature", "--apply", "unlabelled.npz", "--out", "u.npz")
    assert blind.returncode == 0, blind.stderr
    assert "no labels there: how well it did is unknown" in blind.stdout
    assert list(arrays(halves / "u.npz")) == ["logits"]
    same = calibrate("val.npz", "--method", "temperature", "--apply", "val.npz")
    assert (
        "warning: these 200 rows are the rows the calibrator was fitted on; its numbers are optimistic." in same.stdout
    )
    assert "warning" not in blind.stdout


def test_groups_stay_in_one_fold_on_request_and_weights_are_said_to_be_unused(calibrate, halves):
    done = calibrate("val_all.npz", "--method", "temperature", "--by-group", "--json")
    assert {r["settings"]["folds"] for r in json.loads(done.stdout)["records"]} == {5}
    data = arrays(halves / "val.npz")
    np.savez(halves / "weighted.npz", logits=data["logits"], labels=data["labels"], weights=np.full(200, 2.0))
    done = calibrate("weighted.npz", "--method", "temperature")
    assert done.returncode == 0
    assert "weights are not used" in done.stderr


def test_json_of_calibrate_holds_both_comparisons_and_nothing_else_is_on_stdout(calibrate):
    done = calibrate(
        *("val.npz", "--method", "temperature", "--apply", "test.npz", "--out", "j.npz", "--json", "--seed", "3"),
    )
    found = json.loads(done.stdout)
    assert set(found) == {"method", "reason", "understood", "notes", "records", "applied"}
    assert found["method"] == "temperature"
    assert {r["method"] for r in found["records"]} == {"identity", "temperature"}
    assert {r["seed"] for r in found["records"]} == {3}
    assert {r["dataset"] for r in found["applied"]["records"]} == {"test.npz"}
    assert {r["metric"] for r in found["applied"]["records"]} >= {
        "nll",
        "nll_change",
        "brier",
        "ece_debiased",
        "accuracy",
    }
    assert done.stderr == "written: j.npz\n"


def test_the_page_of_calibrate_compares_before_and_after_and_draws_the_temperature_by_margin(calibrate, halves):
    done = calibrate("val.npz", "--method", "smart", "--apply", "test.npz", "--report", "page.html")
    assert done.stdout.endswith("written: page.html\n")
    page = (halves / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        "val.npz",
        "test.npz",
        "Temperature by logit margin",
        "Reliability by logit margin, after calibration",
    ]
    assert re.findall(r'<th scope="row">(.*?)</th>', page) == ["identity", "smart"] * 2
    assert 'aria-label="Temperature that smart gives a row against the logit margin of the row."' in page
    changes = re.findall(r"[+-]0\.\d+ ± 0\.\d+", done.stdout.partition("\n")[2])
    assert len(changes) == 2
    assert all(change in page for change in changes)


def test_the_page_of_calibrate_draws_no_margins_for_one_temperature_and_says_where_labels_are_missing(
    calibrate, halves
):
    calibrate("val.npz", "--method", "temperature", "--apply", "unlabelled.npz", "--report", "page.html")
    page = (halves / "page.html").read_text()
    assert "logit margin" not in page
    assert "No labels there: how well it did is unknown." in page


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "calibrant", "methods", "scores"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["val.npz", "--method", "temprature"], "has no 'temprature'. Did you mean 'temperature'"),
        (["val.npz", "--out", "o.npz"], "--out needs --apply: the rows to calibrate"),
        (["val.npz", "--apply", "test.npz", "--out", "o.csv"], "o.csv must end in .npz; got '.csv'."),
        (["val.npz", "--report", "page.pdf"], "page.pdf must end in .html; got '.pdf'."),
        (["val.npz", "--report", "no/such/page.html"], "must lie in a folder that exists; 'no/such' does not."),
        (["val.npz", "--save", "cal.pt"], "cal.pt must end in .safetensors; got '.pt'."),
        (["val.npz", "--save", "no/such/cal.safetensors"], "must lie in a folder that exists; 'no/such' does not."),
        (["val.npz", "--apply", "test.npz", "--out", "test.npz"], "test.npz must not be a file that is read"),
        (["val.npz", "--apply", "missing.npz"], "missing.npz does not exist or is not a file."),
        (
            ["val.npz", "--apply", "narrow.npz"],
            "the rows to calibrate must have 5 classes, as those fitted on have; got 3.",
        ),
        (["few.npz"], "logits must have at least 50 rows for a cross-fitted choice; got 30."),
        (["pairs.npz"], "logits are needed for this; these predictions hold only confidence and correct."),
        (["unlabelled.npz"], "unlabelled.npz must hold labels; it holds logits."),
        (["val.npz", "--by-group"], "groups are needed for --by-group; the file has none."),
        (["nan.npz"], "logits must be finite;"),
    ],
)
def test_a_bad_request_to_calibrate_gets_one_sentence_and_exit_code_2(calibrate, arguments, said):
    done = calibrate(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("calibrant: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_columns_in_another_order_are_refused_even_if_only_one_file_names_its_classes(calibrate, halves):
    with np.load(halves / "val.npz") as val:
        logits, labels = val["logits"][:60], val["labels"][:60]
    header = [f"logits_{i}" for i in range(logits.shape[1])]
    for name, columns in (("same", header), ("turned", header[::-1])):
        lines = [",".join([*columns, "labels"])]
        kept = logits if name == "same" else logits[:, ::-1]
        lines += [",".join([*map(str, row), str(label)]) for row, label in zip(kept, labels, strict=True)]
        (halves / f"{name}.csv").write_text("\n".join(lines))
    assert calibrate("val.npz", "--method", "temperature", "--apply", "same.csv").returncode == 0
    refused = calibrate("val.npz", "--method", "temperature", "--apply", "turned.csv")
    assert refused.returncode == 2
    assert "must have the classes of the rows fitted on, in the same order" in refused.stderr
    np.savez(halves / "named.npz", logits=logits, labels=labels, classes=[f"c{i}" for i in range(logits.shape[1])])
    warned = calibrate("val.npz", "--method", "temperature", "--apply", "named.npz")
    assert warned.returncode == 0
    assert "warning: only one of the two files names its classes" in warned.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("audit", "val.npz", "--report", "lost.html"),
        ("calibrate", "val.npz", "--method", "temperature", "--save", "lost.safetensors"),
        ("calibrate", "val.npz", "--method", "temperature", "--report", "lost.html"),
        ("certify", "val.npz", "--max-error", "0.5", "--save", "lost.json"),
        ("trust", "val.npz", "--apply", "test.npz", "--method", "bce", "--report", "lost.html"),
        ("methods", "show", "focal", "--out", "lost.svg"),
    ],
    ids=" ".join,
)
def test_a_full_disk_loses_neither_the_table_nor_an_older_file(arguments, halves, monkeypatch, capsys):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    target = halves / arguments[-1]
    target.write_text("older")
    monkeypatch.setattr(os, "fsync", full)
    done = in_process(monkeypatch, capsys, halves, *arguments)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert len(done.stdout) > 100
    assert target.read_text() == "older"
    assert not list(halves.glob(".*.tmp"))
