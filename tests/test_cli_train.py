"""calibrant train: recipes by name, losses times seeds, and one sentence for what cannot be."""

import json
import sys

import pytest

from calibrant.cli import main
from calibrant.training import recipe
from calibrant.training.run import Run


@pytest.fixture
def train(monkeypatch, capsys, tmp_path):
    """Run the command in this process; return its exit code and what it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CALIBRANT_DATA", raising=False)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["calibrant", "train", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def test_every_recipe_is_listed_with_what_it_is_about(train):
    code, out, _ = train("--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == recipe.names()
    assert all(len(line.split()) > 3 for line in out.splitlines())


def test_losses_times_seeds_are_runs_in_folders_of_their_own(train, tmp_path):
    flags = ["--recipe", "digits-mlp", "--epochs", 2, "--loss", "focal", "--loss", "seca", "--seed", 1, "--seed", 2]
    code, out, err = train(*flags, "--set", "momentum=0.5", "--set", "schedule=linear", "--device", "cpu")
    assert code == 0
    names = ["focal-1", "focal-2", "seca-1", "seca-2"]
    assert sorted(p.name for p in (tmp_path / "runs" / "digits-mlp").iterdir()) == names
    for name in names:
        run = Run.read(tmp_path / "runs" / "digits-mlp" / name)
        assert (run.recipe.momentum, run.recipe.schedule, run.recipe.epochs) == (0.5, "linear", 2)
        assert f"{run.recipe.loss}-{run.recipe.seed}" == name
        assert f"{run.test.correct.double().mean():.4f}" in out
    assert err.count("validation accuracy") == 8  # two epochs of four runs, where there is no terminal


def test_a_loss_that_is_no_row_of_the_paper_is_noted(train, tmp_path):
    (tmp_path / "p.toml").write_text(
        'dataset = "digits"\nmodel = "mlp"\nepochs = 1\nlr = 0.1\npaper = "adafocal-paper"\n'
    )
    code, _, err = train("--recipe", "p.toml", "--loss", "focal", "--loss", "flsd", "--device", "cpu")
    assert code == 0
    assert err.count("note: focal is no row of adafocal-paper") == err.count("note:") == 1


def test_records_come_as_json_and_a_recipe_may_be_a_file_or_only_flags(train, tmp_path):
    (tmp_path / "mine.toml").write_text('dataset = "digits"\nmodel = "mlp"\nepochs = 1\nlr = 0.1\n')
    code, out, _ = train("--recipe", "mine.toml", "--json", "--out", "here", "--device", "cpu")
    assert code == 0
    records = {r["metric"]: r for r in json.loads(out)}
    assert set(records) == {"accuracy", "nll", "brier", "top_label_ece"}
    assert records["accuracy"]["method"] == "cross_entropy"
    assert (tmp_path / "here" / "mine" / "cross_entropy-0" / "test.npz").is_file()
    code, out, _ = train("--dataset", "digits", "--model", "mlp", "--epochs", 1, "--lr", 0.1, "--device", "cpu")
    assert code == 0
    assert "digits-mlp/cross_entropy-0" in out


REFUSED = [
    ((), "a recipe must have dataset, model, epochs, lr; give them, or the name of a recipe."),
    (("--recipe", "digits"), "recipe must be a name or a .toml file; got 'digits'; did you mean 'digits-mlp'?"),
    (("--recipe", "digits-mlp", "--loss", "focl"), "calibrant.losses has no 'focl'. Did you mean 'focal' or"),
    (("--recipe", "digits-mlp", "--model", "mlq"), "calibrant.training.models has no 'mlq'."),
    (
        ("--recipe", "digits-mlp", "--dataset", "digit"),
        "calibrant.training.datasets has no 'digit'. Did you mean 'digits'",
    ),
    (("--recipe", "digits-mlp", "--set", "clip"), "--set must be NAME=VALUE, as in clip=2.0; got 'clip'."),
    (("--recipe", "digits-mlp", "--set", "clop=1"), "a recipe has no 'clop'; did you mean 'clip'?"),
    (("--recipe", "digits-mlp", "--set", "lr=fast"), "lr must be of type float; got 'fast'."),
    (("--recipe", "seca-cifar10-resnet32"), "data must name the folder with the files of cifar10"),
    (("--recipe", "seca-cifar10-resnet32", "--data", "none"), "data must be a folder that exists"),
    (("--recipe", "seca-cifar10-resnet32", "--data", "."), "cifar-10-binary.tar.gz"),
    (("--recipe", "digits-mlp", "--model", "timm:resnet18"), "timm"),
    (("--recipe", "digits-mlp", "--set", "dataset_options=3"), "dataset_options must be a table of options; got 3."),
    (("--recipe", "digits-mlp", "--set", "mean=[0.1, 0.2]"), "mean and std must have 1 numbers, one a channel"),
    (("--recipe", "digits-mlp", "--device", "moon"), "device must be cpu or cuda; got 'moon'."),
]


@pytest.mark.parametrize(("flags", "sentence"), REFUSED, ids=lambda v: " ".join(v)[:40] if isinstance(v, tuple) else "")
def test_a_wrong_flag_is_answered_in_one_sentence_with_exit_code_2(train, flags, sentence, tmp_path):
    code, out, err = train(*flags)
    assert code == 2
    assert out == ""
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs").exists()  # nothing is left of what could not be
