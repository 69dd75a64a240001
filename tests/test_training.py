"""Runs: the same seed gives the same numbers, killed or not, on one rank or two; and what a run leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from training_recipes import RECIPES

from calibrant.registry import LOSSES
from calibrant.training.datasets.dataset import Dataset, Part, load
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run
from calibrant.training.train import together, train

HERE = Path(__file__).parent
SMALL = Recipe("digits", "mlp", 3, 0.1, batch=64, validation=200, calibration=100)


def losses(run):
    return [epoch["loss"] for epoch in run.facts["history"]]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(SMALL, tmp_path_factory.mktemp("plain"), device="cpu")


def test_a_run_learns(tmp_path):
    run = train(SMALL.changed({"epochs": 12}), tmp_path, device="cpu")
    assert run.test.correct.double().mean() > 0.93
    assert losses(run)[-1] < 0.1 * losses(run)[0]
    assert run.history["accuracy"][-1] > run.history["accuracy"][0]


def test_the_same_seed_gives_the_same_logits_and_another_seed_others(plain, tmp_path):
    assert torch.equal(train(SMALL, tmp_path / "again", device="cpu").test.logits, plain.test.logits)
    other = train(SMALL.changed({"seed": 1}), tmp_path / "other", device="cpu")
    assert not torch.equal(other.test.logits, plain.test.logits)
    assert torch.equal(other.test.labels, plain.test.labels)  # the split does not follow the seed


def test_a_run_leaves_logits_rows_history_recipe_and_versions(plain):
    data = load("digits")
    sizes = {"train": 897, "validation": 200, "calibration": 100, "test": 600}
    assert plain.facts["rows"] == sizes
    seen = {}
    for part in ("validation", "calibration", "test"):
        with np.load(plain.folder / f"{part}.npz") as arrays:
            assert set(arrays.files) == {"logits", "labels", "rows"}
            source = data.test if part == "test" else data.train
            assert torch.equal(torch.from_numpy(arrays["labels"]), source.labels[arrays["rows"]])
            seen[part] = set(arrays["rows"].tolist())
            assert len(seen[part]) == sizes[part]
    assert not seen["validation"] & seen["calibration"]
    facts = json.loads((plain.folder / "run.json").read_text())
    assert Recipe.from_data(facts["recipe"]) == SMALL
    assert "torch" in facts["versions"]
    assert facts["device"] == "cpu"
    assert [epoch["epoch"] for epoch in facts["history"]] == [1, 2, 3]
    assert set(facts["history"][0]) == {
        "epoch", "rate", "loss", "train_accuracy", "validation_loss", "accuracy", "nll", "ece", "seconds",
    }  # fmt: skip


def test_the_kept_model_gives_the_logits_that_were_left(plain):
    model = plain.model()
    data = load("digits")
    pixels = (data.test.inputs.float() / 255 - torch.tensor(data.mean)) / torch.tensor(data.std)
    with torch.no_grad():
        torch.testing.assert_close(model(pixels), plain.test.logits, rtol=1e-5, atol=1e-5)


def test_the_command_audits_what_a_run_left(plain):
    code = "from calibrant.cli import main; main()"
    command = [sys.executable, "-c", code, "audit", str(plain.folder / "test.npz"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["understood"].startswith("600 rows x 10 classes")


def test_a_finished_run_is_read_and_not_trained_again(plain):
    before = (plain.folder / "checkpoint.safetensors").stat().st_mtime_ns
    again = train(SMALL, plain.folder, device="cpu")
    assert (plain.folder / "checkpoint.safetensors").stat().st_mtime_ns == before
    assert again.facts == Run.read(plain.folder).facts
    with pytest.raises(ValueError, match="holds a run of another recipe"):
        train(SMALL.changed({"lr": 0.2}), plain.folder, device="cpu")


def test_features_are_what_the_head_sees(tmp_path):
    run = train(SMALL.changed({"epochs": 1}), tmp_path, device="cpu", features=True)
    head = run.model().head
    with torch.no_grad():
        torch.testing.assert_close(head(run.test.features.float()), run.test.logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_every_loss_trains_in_the_loop(loss, tmp_path):
    run = train(SMALL.changed({"loss": loss, "epochs": 2}), tmp_path, device="cpu")
    assert np.isfinite(losses(run)).all()
    assert run.test.correct.double().mean() > 0.5


def test_the_epoch_with_the_best_validation_accuracy_is_kept(tmp_path):
    recipe = SMALL.changed({"epochs": 8, "lr": 0.3, "select": "accuracy", "select_after": 1, "model": "lenet"})
    run = train(recipe, tmp_path, device="cpu")
    accuracy = run.history["accuracy"]
    assert run.facts["kept_epoch"] == 2 + int(accuracy[1:].argmax())
    assert float(run.validation.correct.double().mean()) == accuracy[run.facts["kept_epoch"] - 1]


def broken_off(recipe, folder, epoch, data=None):
    """Stop a run right after the checkpoint of an epoch."""

    class Stopped(Exception):
        pass

    def stop(found):
        if found["epoch"] == epoch:
            raise Stopped

    with pytest.raises(Stopped):
        train(recipe, folder, data=data, device="cpu", on_epoch=stop)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
@pytest.mark.parametrize("loss", ["ada_focal", "online_label_smoothing", "correctness_ranking"])
def test_a_run_that_goes_on_ends_as_one_left_alone(loss, optimiser, tmp_path):
    """A convolutional network with BatchNorm, whose weights lie channels last, and a loss with a memory."""
    data = load("digits")
    few = Dataset(
        "few", data.train.take(torch.arange(400)), data.test.take(torch.arange(50)), data.classes, (0.3,), (0.4,)
    )
    recipe = Recipe(
        "few", "vgg_small", 4, 0.01, loss=loss, optimiser=optimiser, batch=50, validation=100, augment="crop_flip",
        select="accuracy", weight_decay=1e-3,
    )  # fmt: skip
    alone = train(recipe, tmp_path / "alone", data=few, device="cpu")
    broken_off(recipe, tmp_path / "broken", 2, few)
    gone_on = train(recipe, tmp_path / "broken", data=few, device="cpu")
    assert torch.equal(alone.test.logits, gone_on.test.logits)
    assert losses(alone) == losses(gone_on)


KILLED = """
import signal, sys
sys.path.insert(0, sys.argv[2])
from calibrant.training.recipe import Recipe
from calibrant.training.train import train
recipe = Recipe("digits", "lenet", 14, 0.05, loss="ada_focal", batch=64, validation=200, augment="crop_flip",
                select="loss", select_after=3)
def told(epoch):
    print(epoch["epoch"], flush=True)
    if epoch["epoch"] == 13 and "wait" in sys.argv:
        signal.pause()  # a slow killer must not come too late
train(recipe, sys.argv[1], device="cpu", on_epoch=told)
print("done", flush=True)
"""


def test_a_killed_run_started_again_ends_with_the_same_numbers(tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED]

    def finished(folder):
        subprocess.run([*command, str(folder), str(HERE)], env=environment, check=True, capture_output=True)
        return Run.read(folder)

    alone = finished(tmp_path / "alone")
    g = np.random.default_rng(0)
    for epoch in (2, 6, 11):  # killed in the midst of a later epoch, or of its checkpoint
        process = subprocess.Popen(
            [*command, str(tmp_path / "killed"), str(HERE), "wait"], env=environment, stdout=subprocess.PIPE, text=True
        )
        with process.stdout:
            while int(process.stdout.readline()) < epoch:
                pass
            time.sleep(float(g.uniform(0, 0.04)))
            process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    killed = finished(tmp_path / "killed")
    assert torch.equal(killed.test.logits, alone.test.logits)
    assert torch.equal(killed.validation.logits, alone.validation.logits)
    assert losses(killed) == losses(alone)
    assert killed.facts["kept_epoch"] == alone.facts["kept_epoch"]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    home = tmp_path_factory.mktemp("one")
    return dict(zip(RECIPES, together({home / n: r for n, r in RECIPES.items()}, device="cpu"), strict=True))


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(HERE / "training_rank.py")],
        [str(HERE / "fabric_rank.py")],
    ],
    ids=["torchrun", "fabric"],
)
def test_two_ranks_that_share_each_batch_learn_what_one_process_learns(command, alone, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    whole = [sys.executable, *command, str(tmp_path)]
    done = subprocess.run(whole, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, one in alone.items():
        two = Run.read(tmp_path / name)
        assert two.facts["ranks"] == 2
        for curve in ("loss", "train_accuracy", "validation_loss", "nll"):
            ours = [epoch[curve] for epoch in two.facts["history"]]
            np.testing.assert_allclose(ours, [epoch[curve] for epoch in one.facts["history"]], rtol=1e-5)
        torch.testing.assert_close(two.test.logits, one.test.logits, rtol=1e-4, atol=1e-4)


def test_rows_are_held_out_before_the_rest_is_made_uneven(tmp_path):
    run = train(SMALL.changed({"epochs": 1, "imbalance_factor": 10.0}), tmp_path, device="cpu")
    assert run.facts["rows"]["train"] < 500
    counts = run.validation.labels.bincount(minlength=10)
    assert counts.min() > 15


def test_the_validation_set_may_come_from_the_test_set(tmp_path):
    run = train(SMALL.changed({"epochs": 1, "validation": 0.5, "validation_from": "test"}), tmp_path, device="cpu")
    assert run.facts["rows"] == {"validation": 300, "test": 300, "calibration": 100, "train": 1097}


def test_text_is_trained_on_too(tmp_path):
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(400) % 4
    tokens = torch.where(
        torch.rand(400, 12, generator=g) < 0.5, labels[:, None] + 2, torch.randint(6, 30, (400, 12), generator=g)
    )
    words = tuple(f"w{i}" for i in range(30))
    data = Dataset(
        "words", Part(tokens[:300], labels[:300]), Part(tokens[300:], labels[300:]), tuple("abcd"), vocabulary=words
    )
    recipe = Recipe(
        "words", "text_cnn", 4, 1e-3, optimiser="adamw", schedule="linear", warmup=0.1, batch=32, validation=50
    )
    run = train(recipe, tmp_path, data=data, device="cpu")
    assert run.test.correct.double().mean() > 0.9


REFUSED = [
    ({"batch": 2000}, "batch must be at most the 897 training rows; got 2000."),
    ({"loss": "ada_focal", "validation": 0}, "ada_focal learns from a validation set"),
    ({"model": "bert_small"}, "name must be a model that takes images"),
    ({"lr": 1e30, "loss": "brier", "model": "lenet"}, "the loss is"),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED)
def test_a_run_that_cannot_be_is_refused_in_a_sentence(changes, sentence, tmp_path):
    with pytest.raises(ValueError, match=r"\.$|\.") as raised:
        train(SMALL.changed(changes), tmp_path, device="cpu")
    assert sentence in str(raised.value)


def test_a_gpu_that_is_not_there_and_rows_that_are_not_there_are_named(tmp_path):
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="device must be one that is there; got 'cuda'"):
            train(SMALL, tmp_path, device="cuda")
    with pytest.raises(ValueError, match="graph=True needs one GPU"):
        train(SMALL, tmp_path / "g", device="cpu", graph=True)
    data = load("digits")
    none = data.train.take(torch.arange(0))
    with pytest.raises(ValueError, match="dataset 'digits' has no rows to train on"):
        train(SMALL, tmp_path / "e", data=Dataset("digits", none, data.test, data.classes), device="cpu")
    with pytest.raises(ValueError, match="must leave rows to test on"):
        train(SMALL, tmp_path / "t", data=Dataset("digits", data.train, none, data.classes), device="cpu")
    with pytest.raises(ValueError, match=r"mean and std must have 1 numbers, one a channel; got \(\)"):
        train(SMALL, tmp_path / "m", data=Dataset("digits", data.train, data.test, data.classes), device="cpu")


def test_other_data_do_not_pass_for_those_of_a_run(plain, tmp_path):
    data = load("digits")
    other = Dataset(
        "digits", Part(data.train.inputs, data.train.labels.roll(1)), data.test, data.classes, data.mean, data.std
    )
    with pytest.raises(ValueError, match="holds a run of another data set"):
        train(SMALL, plain.folder, data=other, device="cpu")
    broken_off(SMALL, tmp_path, 1)
    with pytest.raises(ValueError, match="holds a run of another data set"):
        train(SMALL, tmp_path, data=other, device="cpu")
    with pytest.raises(ValueError, match="data must be the recipe's data set, 'mnist'; got 'digits'"):
        train(SMALL.changed({"dataset": "mnist"}), tmp_path / "new", data=data, device="cpu")


def test_a_run_that_diverges_does_not_end_the_others(tmp_path):
    wild = SMALL.changed({"lr": 1e30, "model": "lenet", "loss": "brier"})
    with pytest.raises(ValueError, match=r"^wild: .* a smaller lr or a warm-up helps\. The other 1 are done\.$"):
        together({tmp_path / "wild": wild, tmp_path / "tame": SMALL}, device="cpu")
    assert Run.read(tmp_path / "tame").facts["kept_epoch"] == 3


def test_features_that_are_asked_for_later_are_added(tmp_path):
    first = train(SMALL.changed({"epochs": 1}), tmp_path, device="cpu")
    second = train(SMALL.changed({"epochs": 1}), tmp_path, device="cpu", features=True)
    assert torch.equal(first.test.logits, second.test.logits)
    assert second.test.features.shape == (600, 128)


def test_a_folder_is_used_by_one_run_at_a_time(tmp_path):
    with pytest.raises(ValueError, match="two of them name the same one"):
        together({tmp_path / "a": SMALL, tmp_path / "b" / ".." / "a": SMALL.changed({"lr": 0.2})}, device="cpu")

    def meddle(epoch):
        with pytest.raises(ValueError, match="another is training in it"):
            train(SMALL, tmp_path / "a", device="cpu")
        meddled.append(epoch["epoch"])

    meddled = []
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".calibrant-12.tmp").write_bytes(b"half a checkpoint")
    train(SMALL, tmp_path / "a", device="cpu", on_epoch=meddle)
    assert meddled == [1, 2, 3]
    assert not list((tmp_path / "a").glob(".*.tmp"))


def test_what_is_damaged_is_named_with_a_remedy(tmp_path):
    run = train("digits-mlp", tmp_path, device="cpu")  # a recipe may be given by its name
    assert run.learned is None
    (tmp_path / "test.npz").write_bytes(b"PK not an archive")
    with pytest.raises(ValueError, match=r"test\.npz must be what the run wrote; it is missing or damaged"):
        Run.read(tmp_path).test  # noqa: B018
    with pytest.raises(ValueError, match="has no calibration set"):
        run.predictions("calibration")
    for text in ("", "{}", "[]", '{"recipe": 3}'):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ValueError, match=r"run\.json must be what a finished run wrote; it is damaged"):
            Run.read(tmp_path)


def test_what_a_loss_learned_is_left_too(tmp_path):
    run = train(SMALL.changed({"loss": "ada_focal"}), tmp_path, device="cpu")
    assert set(run.learned.columns) == {"epoch", "bin", "gamma", "error"}
    assert run.learned["epoch"].max() == 3


def test_the_random_state_and_the_settings_of_torch_are_left_as_found(tmp_path):
    torch.manual_seed(5)
    before, chosen = torch.random.get_rng_state(), torch.backends.cudnn.benchmark
    train(SMALL.changed({"epochs": 1}), tmp_path, device="cpu")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.backends.cudnn.benchmark == chosen


def test_several_recipes_leave_what_each_would_alone(plain, tmp_path):
    other = SMALL.changed({"loss": "seca"})
    first, second = together({tmp_path / "a": SMALL, tmp_path / "b": other}, device="cpu")
    assert torch.equal(first.test.logits, plain.test.logits)
    assert torch.equal(second.test.logits, train(other, tmp_path / "c", device="cpu").test.logits)
