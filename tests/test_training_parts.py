"""What the engine is made of: moves of images, schedules, recipes, the choice of an epoch, checkpoints."""

import inspect
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save

from calibrant.losses.presets import PRESETS
from calibrant.registry import DATASETS, MODELS
from calibrant.training import checkpoint, recipe
from calibrant.training.feed import Feed, cropped, normalised, order, random_moves
from calibrant.training.loop import kept
from calibrant.training.recipe import Recipe
from calibrant.training.setup import rates


def moved_slowly(image, down, right, flip):
    """Pad with zeros, cut, flip: one image (h, w, c), pixel by pixel."""
    h, w, c = image.shape
    pad = 16
    padded = np.zeros((h + 2 * pad, w + 2 * pad, c), image.dtype)
    padded[pad : pad + h, pad : pad + w] = image
    cut = padded[pad + down : pad + down + h, pad + right : pad + right + w]
    return cut[:, ::-1] if flip else cut


@pytest.mark.parametrize(("h", "w", "c"), [(8, 8, 1), (32, 32, 3), (6, 9, 2)])
def test_a_batch_is_moved_as_each_image_alone(h, w, c):
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (40, h, w, c), dtype=torch.uint8, generator=g)
    moves = random_moves(40, 4, g)
    found = cropped(pixels, moves)
    assert found.dtype == torch.uint8
    for image, move, ours in zip(pixels, moves, found, strict=True):
        np.testing.assert_array_equal(ours.numpy(), moved_slowly(image.numpy(), *move.tolist()))


def test_every_shift_and_both_flips_are_equally_likely():
    moves = random_moves(90_000, 4, torch.Generator().manual_seed(0))
    for column, values in ((0, range(-4, 5)), (1, range(-4, 5)), (2, range(2))):
        counts = torch.stack([(moves[:, column] == v).sum() for v in values]).double()
        assert counts.sum() == 90_000
        expected = 90_000 / len(values)
        assert float(((counts - expected) ** 2 / expected).sum()) < 30  # chi-square, at most 8 degrees: p < 0.0005
    joint = torch.corrcoef(moves.T.double())
    assert (joint - torch.eye(3)).abs().max() < 0.02


def test_images_are_standardised_and_laid_out_channels_last():
    pixels = torch.randint(0, 256, (5, 4, 4, 3), dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    found = normalised(pixels, mean, std)
    assert found.shape == (5, 3, 4, 4)
    assert found.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_allclose(found[2, 1, 3, 0], (pixels[2, 3, 0, 1].item() / 255 - 0.4) / 0.3, rtol=1e-6)


def test_the_order_of_an_epoch_is_a_shuffle_that_seed_and_epoch_decide():
    rows, moves = order(100, 96, seed=1, epoch=2, pad=4)
    again, _ = order(100, 96, seed=1, epoch=2, pad=4)
    assert torch.equal(rows, again)
    assert len(set(rows.tolist())) == 96
    assert moves.shape == (96, 3)
    assert order(100, 96, seed=1, epoch=2, pad=None)[1] is None
    for other in ({"seed": 2, "epoch": 2}, {"seed": 1, "epoch": 3}, {"seed": 2, "epoch": 1}):
        assert not torch.equal(rows, order(100, 96, pad=4, **other)[0])
    assert order(100, 96, seed=2**40, epoch=0, pad=4)[0].unique().numel() == 96


def base(**changes):
    return Recipe.of({"dataset": "digits", "model": "mlp", "epochs": 10, "lr": 0.5, **changes})


def all_rates(r, steps=20):
    return [rate for epoch in range(r.epochs) for rate in rates(r, epoch, steps)]


def test_schedules_have_their_closed_forms():
    t = np.arange(200)
    np.testing.assert_allclose(all_rates(base()), 0.5)
    steps = all_rates(base(schedule="multistep", milestones=[3, 7], factor=0.2))
    np.testing.assert_allclose(steps, np.where(t < 60, 0.5, np.where(t < 140, 0.1, 0.02)))
    np.testing.assert_allclose(all_rates(base(schedule="cosine")), 0.25 * (1 + np.cos(np.pi * t / 200)))
    np.testing.assert_allclose(all_rates(base(schedule="linear")), 0.5 * (1 - t / 200))


@pytest.mark.parametrize("shape", ["constant", "multistep", "cosine", "linear"])
def test_a_warm_up_rises_on_a_line_to_the_full_rate(shape):
    warm = all_rates(base(schedule=shape, warmup=0.1))
    np.testing.assert_allclose(warm[:20], 0.5 * np.arange(1, 21) / 20)
    assert warm[20] == 0.5
    assert max(warm) == 0.5
    if shape == "cosine":
        np.testing.assert_allclose(warm[20:], 0.25 * (1 + np.cos(np.pi * np.arange(180) / 180)))


def test_torch_schedulers_agree():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([weight], lr=0.5)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 200)
    for ours in all_rates(base(schedule="cosine")):
        assert math.isclose(ours, theirs.get_last_lr()[0], rel_tol=1e-9, abs_tol=1e-12)
        optimiser.step()
        theirs.step()


def test_an_epoch_is_chosen_by_the_rule():
    history = [{"accuracy": a, "validation_loss": b} for a, b in ((0.9, 0.1), (0.5, 0.9), (0.7, 0.5), (0.7, 0.5))]
    assert kept(base(), history) == 3
    assert kept(base(select="accuracy"), history) == 0
    assert kept(base(select="accuracy", select_after=1), history) == 2  # the earlier of equals
    assert kept(base(select="loss", select_after=1), history) == 2  # what was good before it is forgotten
    assert kept(base(select="loss", select_after=2), history[:2]) == -1


@pytest.mark.parametrize("name", recipe.names())
def test_every_recipe_names_things_that_exist(name):
    found = Recipe.read(name)
    assert found.about
    assert len(found.reference) > 10
    facts = DATASETS.entry(found.dataset).facts
    known = inspect.signature(DATASETS[found.dataset]).parameters
    assert set(found.dataset_options) <= set(known)
    if not found.model.startswith("timm:"):
        assert MODELS.entry(found.model).facts["takes"] == facts["kind"]
    assert found.criterion(facts["k"], 1000).reduction == found.reduction
    assert not found.paper or any(preset.startswith(f"{found.paper}/") for preset in PRESETS)
    assert found.same(Recipe.from_data(found.as_data()))


# from the papers: epochs, batch, rate, weight decay, milestones, factor, validation, select, select_after
PROTOCOLS = {
    "seca-cifar10-resnet32": (160, 128, 0.1, 5e-4, (80, 120), 0.1, 0.1, "accuracy", 0),
    "seca-cifar100-resnet56": (200, 128, 0.1, 5e-4, (100, 150), 0.1, 0.1, "accuracy", 0),
    "au-cifar10-resnet50": (200, 128, 0.1, 5e-4, (60, 120, 160), 0.2, 5000, "loss", 40),
    "au-cifar100-resnet50": (250, 128, 0.1, 5e-4, (60, 120, 160), 0.2, 5000, "loss", 40),
    "adafocal-cifar10-resnet50": (350, 128, 0.1, 5e-4, (150, 250), 0.1, 5000, "last", 0),
    "adafocal-tiny_imagenet-resnet50": (100, 64, 0.1, 5e-4, (40, 60), 0.1, 0.5, "last", 0),
    "smart-cifar100-resnet50": (350, 128, 0.1, 5e-4, (150, 250), 0.1, 5000, "last", 0),
}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_recipe_is_its_papers_protocol(name):
    r = Recipe.read(name)
    found = (r.epochs, r.batch, r.lr, r.weight_decay, r.milestones, r.factor, r.validation, r.select, r.select_after)
    assert found == PROTOCOLS[name]
    assert (r.optimiser, r.momentum, r.schedule) == ("sgd", 0.9, "multistep")


def test_a_papers_objective_comes_with_its_options_and_own_options_replace_it():
    r = Recipe.read("seca-cifar10-resnet32", {"loss": "mdca"})
    assert repr(r.criterion(10, 100)) == "Criterion(focal(gamma=1.0) + 1 mdca, mean)"
    r = Recipe.read("au-cifar10-resnet50", {"loss": "inverse_focal", "model": "wrn_28_10"})
    assert "gamma=1.5" in repr(r.criterion(10, 100))
    r = Recipe.read("seca-cifar10-resnet32", {"loss": "focal", "loss_options": {"gamma": 7.0}})
    assert repr(r.criterion(10, 100)) == "Criterion(focal(gamma=7.0), mean)"
    with pytest.raises(ValueError, match="'seca-paper/mdca' has its own"):
        Recipe.read("seca-cifar10-resnet32", {"loss": "mdca", "weight": 5.0}).criterion(10, 100)
    assert repr(base(loss="mmce", weight=2).criterion(10, 100)) == "Criterion(cross_entropy + 2 mmce, mean)"
    assert repr(base(loss="online_label_smoothing").criterion(10, 100)).count("k=10") == 1


BAD = [
    ({"epochs": 0}, "epochs must be above 0; got 0."),
    ({"epochs": 1.5}, "epochs must be of type int; got 1.5."),
    ({"lr": "fast"}, "lr must be of type float; got 'fast'."),
    ({"nesterov": 1}, "nesterov must be of type bool; got 1."),
    ({"seed": True}, "seed must be of type int; got True."),
    ({"lr": math.nan}, "lr must be above 0; got nan."),
    ({"schedule": "step"}, "schedule must be constant or multistep or cosine or linear; got 'step'."),
    ({"warmup": 1.0}, "warmup must be below 1 and imbalance_factor 1 or more; got 1.0 and 1.0."),
    ({"validation": -1}, "validation must be 0 or more; got -1."),
    ({"select": "loss", "validation": 0}, "select='loss' needs a validation set"),
    ({"select": "loss", "select_after": 10}, "select='loss' needs a validation set and an epoch to choose from"),
    ({"factor": math.nan}, "factor must be above 0; got nan."),
    ({"milestones": [1.5]}, "milestones must be whole numbers; got [1.5]."),
    ({"mean": ["a"]}, "mean must be numbers; got ['a']."),
    ({"milestones": [-3]}, "milestones and std above 0; got 0.9, (-3,), ()."),
    ({"weight_decay": math.inf}, "weight_decay must be 0 or more; got inf."),
    ({"dataset_options": 3}, "dataset_options must be a table of options; got 3."),
    ({"paper": "nonsense"}, "paper must be one of adafocal-paper, au-paper, seca-paper, smart-paper; got 'nonsense'."),
    ({"epoch": 3}, "a recipe has no 'epoch'; did you mean 'epochs'?"),
]


@pytest.mark.parametrize(("changes", "sentence"), BAD)
def test_a_wrong_entry_is_named(changes, sentence):
    entries = {"dataset": "digits", "model": "mlp", "epochs": 10, "lr": 0.5, **changes}
    with pytest.raises(ValueError, match=r"\.$|\?$") as raised:
        Recipe.of(entries)
    assert sentence in str(raised.value)


def test_a_recipe_is_found_by_name_or_file_and_a_near_name_is_suggested(tmp_path):
    with pytest.raises(ValueError, match="did you mean 'seca-cifar10-resnet32'"):
        Recipe.read("seca-cifar10-resnet3")
    with pytest.raises(ValueError, match="a recipe must have model, epochs, lr"):
        Recipe.of({"dataset": "digits"})
    with pytest.raises(FileNotFoundError, match="does not exist"):
        Recipe.read(tmp_path / "none.toml")
    own = tmp_path / "own.toml"
    own.write_text('dataset = "digits"\nmodel = "mlp"\nepochs = 3\nlr = 0.1\n')
    assert Recipe.read(own, {"seed": 4}) == Recipe("digits", "mlp", 3, 0.1, name="own", seed=4)
    own.write_text("dataset = ")
    with pytest.raises(ValueError, match=r"own\.toml must be TOML"):
        Recipe.read(own)


def test_a_checkpoint_comes_back_as_it_was_and_other_files_are_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    wide = torch.randn(4, 3, 5, 5).to(memory_format=torch.channels_last)
    tensors = {
        "a": wide,
        "b": torch.tensor(7),
        "c": torch.zeros(0, 2),
        "d": torch.randn(3).double(),
        "e": torch.ones(1),
    }
    checkpoint.write(path, tensors, {"history": [1, 2]})
    found, facts = checkpoint.read(path)
    assert list(tensors) == sorted(found)
    assert facts["history"] == [1, 2]
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]
    whole = path.read_bytes()
    for damaged in (whole[:-9], whole[:20], b"", b"not ours"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="must be a checkpoint of calibrant"):
            checkpoint.read(path)


def test_a_flipped_bit_anywhere_in_a_checkpoint_is_noticed_and_older_ones_are_read(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.write(path, {"model.weight": torch.arange(40.0)}, {"epoch": 3})
    good = path.read_bytes()
    for place in range(0, 8 * len(good), 7):
        blob = bytearray(good)
        blob[place // 8] ^= 1 << place % 8
        path.write_bytes(bytes(blob))
        with pytest.raises(ValueError, match=r"checkpoint\.safetensors (must|was changed)"):
            checkpoint.read(path)
    path.write_bytes(save({"model.weight": torch.ones(2)}, {"calibrant": json.dumps({"version": 1, "epoch": 3})}))
    tensors, facts = checkpoint.read(path)
    assert facts["epoch"] == 3
    assert torch.equal(tensors["model.weight"], torch.ones(2))


def test_a_failed_write_leaves_the_old_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    checkpoint.write(path, {"a": torch.ones(3)}, {})

    def full(self, target):
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.write(path, {"a": torch.zeros(3)}, {})
    assert torch.equal(checkpoint.read(path)[0]["a"], torch.ones(3))
    assert [p.name for p in tmp_path.iterdir()] == ["c.safetensors"]


def test_inputs_that_are_decoded_when_asked_give_the_same_batches(tmp_path):
    from PIL import Image

    from calibrant.training.datasets.dataset import Images, Part

    pixels = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    files = [tmp_path / f"{i}.png" for i in range(6)]
    for file, image in zip(files, pixels, strict=True):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    labels = torch.arange(6)
    constants = {"mean": (0.5, 0.5, 0.5), "std": (0.2, 0.2, 0.2)}
    cpu = torch.device("cpu")
    lazy = Feed(Part(Images(tuple(files), 16, 16), labels), cpu, **constants)
    held = Feed(Part(pixels, labels), cpu, **constants)
    rows = torch.tensor([4, 0, 5])
    assert torch.equal(lazy.ready(lazy.fetch(rows)), held.ready(held.fetch(rows)))
    assert [len(batch) for batch in lazy.batches(4, torch.arange(6))] == [4, 2]
