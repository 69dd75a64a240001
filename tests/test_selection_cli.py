"""calibrant certify: one paragraph and a table, exit code 3 where nothing can be promised, and files in and out."""

import json

import numpy as np
import pytest

from calibrant.cli import main
from calibrant.selection.policy import Policy


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certify")
    for name, n, seed, noise in (("val", 1500, 0, 1.0), ("test", 900, 1, 1.0), ("worse", 900, 2, 0.3)):
        g = np.random.default_rng(seed)
        logits = 4 * g.normal(size=(n, 4))
        p = np.exp(noise * logits)
        labels = (np.cumsum(p / p.sum(1, keepdims=True), 1) < g.random((n, 1))).sum(1)
        np.savez(folder / f"{name}.npz", logits=logits, labels=labels)
    np.savez(folder / "unlabelled.npz", logits=logits)
    np.savez(folder / "weighted.npz", confidence=np.full(20, 0.5), correct=np.ones(20), weights=np.full(20, 2.0))
    np.savez(folder / "pairs.npz", confidence=np.linspace(0, 1, 40), correct=np.ones(40))
    return folder


@pytest.fixture
def run(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["calibrant", "certify", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        told = capsys.readouterr()
        return end.value.code or 0, told.out, told.err

    return call


def test_a_paragraph_and_a_table_are_printed_and_the_policy_is_written(run, folder):
    code, out, _ = run("val.npz", "--max-error", 0.05, "--save", "policy.json", "--apply", "test.npz")
    assert code == 0
    assert out.startswith("1 500 rows x 4 classes, logits, labels 0-3, accuracy")
    assert "Accept if confidence > 0." in out
    assert "the error of the accepted rows is at most 5 % with 95 % confidence" in out
    assert "The promise is held" in out
    assert out.rstrip().endswith("written: policy.json")
    policy = Policy.load(folder / "policy.json")
    assert policy.coverage > 0.3
    assert f"{100 * policy.coverage:.1f} %" in out


def test_json_holds_the_policy_and_the_records(run):
    code, out, _ = run("val.npz", "--max-error", 0.05, "--apply", "test.npz", "--score", "logit_margin", "--json")
    told = json.loads(out)
    assert code == 0
    assert Policy.from_json(json.dumps(told["policy"])).score == "logit_margin"
    assert [r["metric"] for r in told["applied"]["records"]] == ["coverage", "selective_error"]
    assert told["applied"]["held"] is True


def test_one_threshold_a_class_is_listed_with_the_total(run):
    code, out, _ = run("val.npz", "--max-error", 0.2, "--by-class", "--apply", "test.npz")
    assert code == 0
    assert "4 of 4 predicted classes have a threshold that keeps the error of their accepted rows at most 20 %" in out
    assert "for all classes at once" in out
    assert sum(line.strip().startswith(("0 ", "1 ", "2 ", "3 ", "all ")) for line in out.splitlines()) >= 5


def test_classes_without_a_threshold_say_what_the_most_frequent_of_them_lacks(run):
    code, out, _ = run("val.npz", "--max-error", 0.001, "--by-class")
    assert code == 3
    assert out.count("\n") == 3
    assert "0 of 4 predicted classes have a threshold" in out
    assert "accepted rows without an error are needed" in out


def test_where_nothing_can_be_promised_the_exit_code_is_3_and_the_rows_needed_are_named(run):
    code, out, _ = run("pairs.npz", "--max-error", 0.02)
    assert code == 3
    assert "at least 149 accepted rows without an error are needed" in out
    code, out, _ = run("pairs.npz", "--max-error", 0.02, "--json")
    assert code == 3
    assert json.loads(out)["feasible"] is False


def test_rows_that_break_the_promise_are_named_with_exit_code_1(run):
    code, out, _ = run("val.npz", "--max-error", 0.05, "--apply", "worse.npz")
    assert code == 1
    assert "The promise is broken" in out


def test_rows_without_labels_are_only_counted(run):
    code, out, _ = run("val.npz", "--max-error", 0.05, "--apply", "unlabelled.npz")
    assert code == 0
    assert "of these rows are accepted. No labels there: their error is unknown." in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("val.npz", "--max-error", 5), "max_error must lie in (0, 1); got 5. Did you mean 0.05?"),
        (
            ("val.npz", "--max-error", 0.05, "--score", "mps"),
            "calibrant.metrics.scores has no 'mps'. Did you mean 'msp'?",
        ),
        (("val.npz", "--max-error", 0.05, "--score", "tcp"), "score must be known without the label"),
        (("val.npz", "--max-error", 0.05, "--apply", "val.npz"), "are the rows the policy was certified on"),
        (("val.npz", "--max-error", 0.05, "--save", "policy.txt"), "policy.txt must end in .json"),
        (("weighted.npz", "--max-error", 0.05), "weights must be left out"),
        (("pairs.npz", "--max-error", 0.05, "--by-class"), "these predictions hold only confidence and correct"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run, arguments, said):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1
