"""The Hugging Face trainer: a criterion is its loss and learns as in a plain loop, also across checkpoints."""

import gc
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertLMHeadModel,
    TrainingArguments,
    default_data_collator,
)

from calibrant.integrations.transformers import CalibratedTrainer
from calibrant.losses.criterion import Criterion


@pytest.fixture(autouse=True, scope="module")
def _less_garbage():
    """Every ``train`` collects garbage, which takes long with all that is imported."""
    gc.freeze()
    yield
    gc.unfreeze()


LOSSES = {"ada_focal": {"bins": 5}, "online_label_smoothing": {"k": 3}, "cross_entropy": {}}


def rows(n, seed):
    """Six tokens a row; the first of them says the class, mostly."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, 20, (n, 6), generator=generator)
    wrong = torch.rand(n, generator=generator) < 0.1
    labels = (ids[:, 0] + wrong) % 3
    return [{"input_ids": i, "labels": int(label)} for i, label in zip(ids, labels, strict=True)]


TRAIN, VALIDATION = rows(96, 0), rows(64, 1)


def config(**options):
    small = {"vocab_size": 20, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(**{**small, **still, "intermediate_size": 24, "max_position_embeddings": 8, **options})


def model(kind=BertForSequenceClassification, **options):
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        return kind(config(**options))


def arguments(folder, **options):
    plain = {"lr_scheduler_type": "constant", "max_grad_norm": 0.0, "train_sampling_strategy": "sequential"}
    quiet = {
        "report_to": [],
        "disable_tqdm": True,
        "logging_strategy": "no",
        "save_strategy": "no",
        "use_cpu": True,
        "per_device_eval_batch_size": 32,
    }
    sizes = {"optim": "adamw_torch", "num_train_epochs": 2, "per_device_train_batch_size": 16, "learning_rate": 0.01}
    return TrainingArguments(str(folder), **{**plain, **quiet, **sizes, **options})


def trainer(folder, loss="ada_focal", net=None, given=None, kind=CalibratedTrainer, **options):
    given = {"train_dataset": TRAIN, "eval_dataset": VALIDATION, **(given or {})}
    if "model_init" not in given:
        given["model"] = model() if net is None else net
    criterion = loss if isinstance(loss, Criterion) else Criterion(loss, LOSSES[loss])
    return kind(args=arguments(folder, **options), criterion=criterion, **given)


def trained(folder, loss="ada_focal", resume=None, **options):
    made = trainer(folder, loss, **options)
    made.train(resume_from_checkpoint=resume)
    return made


def batches(data, size):
    return DataLoader(data, size, collate_fn=default_data_collator)


@cache
def by_hand(loss="ada_focal", epochs=2):
    net, criterion = model(), Criterion(loss, LOSSES[loss])
    optimizer = torch.optim.AdamW(net.parameters(), 0.01, weight_decay=0.0)
    net.train()
    for _ in range(epochs):
        for batch in batches(TRAIN, 16):
            optimizer.zero_grad()
            criterion(net(batch["input_ids"]).logits, batch["labels"]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = torch.cat([net.eval()(batch["input_ids"]).logits for batch in batches(VALIDATION, 32)])
        net.train()
        criterion.epoch_end((logits, torch.tensor([row["labels"] for row in VALIDATION])))
    return SimpleNamespace(model=net, criterion=criterion)


def assert_same(one, other, **tolerance):
    for part in ("model", "criterion"):
        ours, wanted = getattr(one, part).state_dict(), getattr(other, part).state_dict()
        assert ours.keys() == wanted.keys()
        for name in wanted:
            torch.testing.assert_close(ours[name], wanted[name], **(tolerance or {"rtol": 0, "atol": 0}), msg=name)


def epochs_of(found):
    return found.criterion.history.n


def error_of(net):
    with torch.no_grad():
        found = [net.eval()(batch["input_ids"]).logits.argmax(1) != batch["labels"] for batch in batches(TRAIN, 32)]
    return float(torch.cat(found).double().mean())


@pytest.mark.parametrize("loss", LOSSES)
def test_training_is_that_of_a_plain_loop(loss, tmp_path):
    done = trained(tmp_path, loss, eval_strategy="epoch", eval_on_start=True)
    assert_same(done, by_hand(loss))
    assert error_of(done.model) < error_of(model()) - 0.2


def test_the_powers_move_once_an_epoch(tmp_path):
    done = trained(tmp_path)
    assert epochs_of(done) == 2
    assert (done.criterion.loss.gammas != 1).all()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_accumulated_parts_of_any_size_make_one_step(reduction, tmp_path):
    criterion = Criterion("cross_entropy", reduction=reduction)
    sizes = {"per_device_train_batch_size": 9, "gradient_accumulation_steps": 3}  # 96 rows: the last part has 6
    done = trained(tmp_path, criterion, optim="sgd", **sizes)
    optimizer_steps = trained(
        tmp_path, Criterion("cross_entropy", reduction=reduction), optim="sgd", per_device_train_batch_size=27
    )
    assert_same(done, optimizer_steps, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("average", "gpus", "items"), [(True, 1, 32), (False, 1, 32), (False, 2, torch.full((2, 1), 16))]
)
def test_the_rows_of_a_step_are_counted_alike_however_devices_share_them(average, gpus, items, tmp_path):
    made = trainer(tmp_path)
    made.args = SimpleNamespace(average_tokens_across_devices=average, n_gpu=gpus)
    assert float(made._rows_of_step(items)) == 32


class Watched(CalibratedTrainer):
    """Notes what the criterion's turn does to everything else."""

    def epoch_end(self):
        self.model.bert.pooler.eval()
        calls = []
        hook = self.model.register_forward_hook(lambda net, *_: calls.append((net.training, torch.is_grad_enabled())))
        modes, state = [m.training for m in self.model.modules()], torch.get_rng_state()
        super().epoch_end()
        hook.remove()
        assert [m.training for m in self.model.modules()] == modes
        assert torch.equal(torch.get_rng_state(), state)
        self.passes = [*getattr(self, "passes", []), calls]


def test_the_pass_is_without_gradient_and_leaves_modes_and_random_state(tmp_path):
    net = model(hidden_dropout_prob=0.5)
    done = trained(tmp_path, net=net, kind=Watched)
    assert done.passes == [[(False, False)] * 2] * 2


@pytest.mark.parametrize("loss", ["online_label_smoothing", "cross_entropy"])
def test_a_loss_that_needs_no_validation_costs_no_pass(loss, tmp_path):
    done = trained(tmp_path, loss, kind=Watched, given={"eval_dataset": None})
    assert done.passes == [[], []]
    done.save_model()
    assert (tmp_path / "criterion.safetensors").exists() == (loss == "online_label_smoothing")


SAVING = {
    "after the epoch": {"save_strategy": "epoch"},
    "after its last step": {"save_strategy": "steps", "save_steps": 6},
    "within the epoch": {"save_strategy": "steps", "save_steps": 4},
}


@pytest.mark.parametrize(
    ("loss", "when"), [*(("ada_focal", when) for when in SAVING), ("online_label_smoothing", "within the epoch")]
)
def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(loss, when, tmp_path):
    wanted = by_hand(loss)
    assert_same(trained(tmp_path, loss, **SAVING[when]), wanted)
    steps = 4 if when == "within the epoch" else 6
    saved = load_file(tmp_path / f"checkpoint-{steps}" / "criterion.safetensors")
    if steps == 6:
        for name, value in by_hand(loss, epochs=1).criterion.state_dict().items():
            assert torch.equal(saved[name], value)
    assert_same(trained(tmp_path, loss, resume=str(tmp_path / f"checkpoint-{steps}"), **SAVING[when]), wanted)


def test_the_last_checkpoint_is_found(tmp_path):
    trained(tmp_path, num_train_epochs=1, save_strategy="epoch")
    assert_same(trained(tmp_path, resume=True), by_hand())


def test_every_run_with_a_new_model_has_a_new_criterion(tmp_path):
    made = trainer(tmp_path, given={"model_init": lambda: model()})
    made.train()
    made.train()
    assert_same(made, by_hand())


@pytest.mark.parametrize(("steps", "epochs"), [(6, 1), (9, 1), (12, 2)])
def test_an_epoch_that_is_broken_off_does_not_count(steps, epochs, tmp_path):
    assert epochs_of(trained(tmp_path, max_steps=steps)) == epochs


def test_an_epoch_of_unknown_length_ends_where_the_data_end(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(TRAIN)

    assert epochs_of(trained(tmp_path, given={"train_dataset": Stream()}, max_steps=15)) == 2


def tokens(n):
    labels = torch.stack([row["input_ids"] % 3 for row in TRAIN[:n]])
    labels[:, -2:] = -100
    return [{"input_ids": row["input_ids"], "labels": label} for row, label in zip(TRAIN, labels, strict=False)]


def test_tokens_are_rows_but_for_those_without_a_label(tmp_path):
    net, data = model(BertForTokenClassification), tokens(48)
    made = trainer(tmp_path, "cross_entropy", net=net)
    batch = next(iter(batches(data, 48)))
    wanted = F.cross_entropy(net(batch["input_ids"]).logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(made.compute_loss(net, batch), wanted)
    made = trained(tmp_path, net=net, given={"train_dataset": data, "eval_dataset": data}, num_train_epochs=1)
    kept = batch["labels"] != -100
    criterion = Criterion("ada_focal", LOSSES["ada_focal"])
    criterion.epoch_end((net.eval()(batch["input_ids"]).logits[kept].detach(), batch["labels"][kept]))
    torch.testing.assert_close(made.criterion.loss.gammas, criterion.loss.gammas)


def test_predictions_are_logits_whatever_form_the_model_returns(tmp_path):
    class Tuple(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, input_ids, labels=None):
            return (self.inner(input_ids).logits,)

    one, other = (trainer(tmp_path, net=net).predict(VALIDATION) for net in (model(), Tuple()))
    assert one.predictions.shape == (64, 3)
    assert (one.predictions == other.predictions).all()
    assert one.metrics["test_loss"] == other.metrics["test_loss"]


def test_wrong_use_is_said_in_a_sentence(tmp_path):
    with pytest.raises(
        ValueError, match=r"eval_dataset must be the one set that Criterion\(.*\) learns from; got none"
    ):
        trained(tmp_path, given={"eval_dataset": None})
    with pytest.raises(ValueError, match=r"eval_dataset must be the one set .*; got a dict of several"):
        trained(tmp_path, given={"eval_dataset": {"a": TRAIN, "b": VALIDATION}})
    with pytest.raises(ValueError, match=r"criterion must be the only loss; got compute_loss_func or label_smoothing"):
        trainer(tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(
        ValueError, match=r"model must classify rows, or tokens .*; BertLMHeadModel gives logits \(16, 6, 20"
    ):
        trained(tmp_path, net=model(BertLMHeadModel, is_decoder=True), given={"train_dataset": tokens(16)})
    with pytest.raises(ValueError, match=r"a batch must have 'labels'; got 'input_ids'\."):
        trained(tmp_path, given={"train_dataset": [{"input_ids": row["input_ids"]} for row in TRAIN]})
    with pytest.raises(ValueError, match=r"labels must be class numbers of shape \(16,\); got torch.float32"):
        trained(tmp_path, given={"train_dataset": [{**row, "labels": float(row["labels"])} for row in TRAIN]})
    trained(tmp_path, "cross_entropy", save_strategy="epoch", num_train_epochs=1)
    with pytest.raises(FileNotFoundError, match=r"must hold criterion.safetensors; .*checkpoint-6 was saved without"):
        trained(tmp_path, resume=True)
    trained(tmp_path / "other", "online_label_smoothing", save_strategy="epoch", num_train_epochs=1)
    with pytest.raises(
        ValueError, match=r"must hold the state of Criterion\(ada_focal\(bins=5\), mean\); it is that of"
    ):
        trained(tmp_path / "other", resume=True)
