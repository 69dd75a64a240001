"""The Lightning callback: a criterion learns as in a plain loop, once an epoch, also across checkpoints."""

from copy import deepcopy

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from calibrant.integrations.lightning import CalibrationCallback
from calibrant.losses.criterion import Criterion

pytestmark = pytest.mark.filterwarnings(
    "ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning",  # Lightning's loaders, with a new torch
    "ignore:The '(train|val)_dataloader' does not have many workers",
    "ignore:Found 1 module.s. in eval mode at the start of training",  # the one that is to stay in it
)

DIGITS = load_digits()
X = torch.tensor(DIGITS.data / 16, dtype=torch.float32)
Y = torch.tensor(DIGITS.target)
TRAIN, VALIDATION = TensorDataset(X[:640], Y[:640]), TensorDataset(X[640:960], Y[640:960])
LOSSES = {"ada_focal": {"bins": 5}, "online_label_smoothing": {"k": 10}, "cross_entropy": {}}


class Net(pl.LightningModule):
    """A network whose batch statistics and modes an extra pass could spoil."""

    def __init__(self, loss="ada_focal"):
        super().__init__()
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        self.frozen = nn.BatchNorm1d(64).eval()
        self.criterion = Criterion(loss, LOSSES[loss])
        self.calls = []  # (mode, gradients wanted) of each forward

    def forward(self, x):
        self.calls.append((self.training, torch.is_grad_enabled()))
        return self.body(self.frozen(x))

    def training_step(self, batch, _):
        return self.criterion(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.criterion(self(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 0.01)


def train_loader():
    return DataLoader(TRAIN, 64)


def validation_loader():
    return DataLoader(VALIDATION, 64)


def trainer(*callbacks, epochs=2, **options):
    quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary"), False)
    options = {"enable_checkpointing": any(isinstance(c, ModelCheckpoint) for c in callbacks), **quiet, **options}
    return pl.Trainer(accelerator="cpu", max_epochs=epochs, callbacks=list(callbacks), **options)


def fitted(net, *callbacks, path=None, **options):
    trainer(*(callbacks or [CalibrationCallback()]), **options).fit(
        net, train_loader(), validation_loader(), ckpt_path=path
    )
    return net


def by_hand(loss="ada_focal", epochs=2, validation_rows=320):
    net = Net(loss)
    optimizer = net.configure_optimizers()
    for _ in range(epochs):
        for x, y in train_loader():
            optimizer.zero_grad()
            net.criterion(net(x), y).backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():
            parts = [net(x) for x, _ in validation_loader()]
        net.train()
        net.frozen.eval()
        net.criterion.epoch_end((torch.cat(parts)[:validation_rows], VALIDATION.tensors[1][:validation_rows]))
    return net


def assert_same(net, other):
    ours, wanted = net.state_dict(), other.state_dict()
    assert ours.keys() == wanted.keys()
    for name in wanted:
        assert torch.equal(ours[name], wanted[name]), name


def epochs_of(net):
    return net.criterion.history.n


def error_of(net):
    net.eval()
    return float((net(VALIDATION.tensors[0]).argmax(1) != VALIDATION.tensors[1]).double().mean())


@pytest.mark.parametrize("loss", LOSSES)
def test_training_is_that_of_a_plain_loop(loss):
    net, before = Net(loss), error_of(Net(loss))
    fitted(net)
    assert_same(net, by_hand(loss))
    assert error_of(net) < before - 0.5


def test_the_powers_move_once_an_epoch():
    net = fitted(Net())
    assert epochs_of(net) == 2
    assert (net.criterion.loss.gammas != 1).all()


@pytest.mark.parametrize(
    "options", [{"check_val_every_n_epoch": 2, "num_sanity_val_steps": 0}, {"val_check_interval": 3}]
)
def test_when_lightning_validates_does_not_matter(options):
    assert_same(fitted(Net(), **options), by_hand())


def test_only_as_many_validation_batches_are_used_as_lightning_may_use():
    assert_same(fitted(Net(), limit_val_batches=2), by_hand(validation_rows=128))


def test_the_last_batch_is_found_where_the_length_is_unknown():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(train_loader())

    net = Net()
    loader = DataLoader(Stream(), batch_size=None)
    trainer(CalibrationCallback()).fit(net, loader, validation_loader())
    assert_same(net, by_hand())


def test_an_epoch_that_is_broken_off_ends_once():
    class Impatient(Net):
        def on_train_batch_start(self, batch, batch_idx):
            return -1 if batch_idx == 5 else None

    assert epochs_of(fitted(Impatient())) == 2


def test_the_pass_is_without_gradient_and_leaves_modes_and_random_state():
    class Watched(CalibrationCallback):
        def _end(self, trainer, module):
            modes, state = [m.training for m in module.modules()], torch.get_rng_state()
            before = deepcopy(module.state_dict())
            module.calls.clear()
            super()._end(trainer, module)
            calls.extend(module.calls)
            assert [m.training for m in module.modules()] == modes
            assert torch.equal(torch.get_rng_state(), state)
            moved = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
            learned = {"criterion.loss.gammas", "criterion.loss.inner"}
            assert {name for name in moved if "extra" not in name} <= learned

    calls = []
    net = Net()
    fitted(net, Watched())
    assert calls == [(False, False)] * 10  # five batches in each of two epochs
    assert net.training
    assert not net.frozen.training


@pytest.mark.parametrize("loss", ["online_label_smoothing", "cross_entropy"])
def test_a_loss_that_needs_no_validation_costs_no_pass(loss):
    net = fitted(Net(loss), limit_val_batches=0)
    assert net.calls == [(True, True)] * 20
    if loss == "online_label_smoothing":
        assert_same(net, by_hand(loss))


SAVING = {
    "after validation": {"save_on_train_epoch_end": False},
    "after the epoch": {"save_on_train_epoch_end": True},
    "after a step": {"every_n_train_steps": 10},
}


@pytest.mark.filterwarnings("ignore:Be aware that when using `ckpt_path`, callbacks used to create")  # ModelCheckpoint
@pytest.mark.parametrize("when", SAVING)
@pytest.mark.parametrize("loss", ["ada_focal", "online_label_smoothing"])
def test_what_was_learned_is_in_a_checkpoint_and_training_goes_on_from_it(when, loss, tmp_path):
    saving = ModelCheckpoint(tmp_path, **SAVING[when])
    fitted(Net(loss), CalibrationCallback(), saving, epochs=1)
    wanted = by_hand(loss, epochs=1)
    loaded = Net.load_from_checkpoint(saving.best_model_path, loss=loss, weights_only=True)
    assert_same(loaded, wanted)
    resumed = fitted(Net(loss), path=saving.best_model_path)
    if loss == "ada_focal":
        assert (epochs_of(loaded), epochs_of(resumed)) == (1, 2)
    assert_same(resumed, by_hand(loss))


def test_a_callback_can_serve_again():
    callback = CalibrationCallback()
    for _ in range(2):
        assert epochs_of(fitted(Net(), callback, epochs=1)) == 1


def test_batches_may_have_any_form():
    class Triples(Net):
        def training_step(self, batch, i):
            return super().training_step((batch["x"], batch["y"]), i)

        validation_step = training_step

    net = Triples()
    loaders = [DataLoader([{"x": x, "y": y} for x, y in rows], 64) for rows in (TRAIN, VALIDATION)]
    callback = CalibrationCallback(split=lambda batch: (batch["x"], batch["y"]))
    trainer(callback).fit(net, *loaders)
    assert_same(net, by_hand())


class Two(Net):
    def validation_step(self, batch, i, dataloader_idx=0):
        pass


def test_one_of_several_validation_sets_is_chosen():
    net = Two()
    loaders = {"other": DataLoader(TRAIN, 64), "this": validation_loader()}
    trainer(CalibrationCallback(dataloader=1)).fit(net, train_loader(), loaders)
    assert_same(net, by_hand())


def test_the_criterion_may_lie_deeper_and_there_may_be_two():
    class Deep(Net):
        def __init__(self):
            super().__init__()
            self.head = nn.Module()
            self.head.criterion = Criterion("ada_focal", {"bins": 3})

    net = fitted(Deep(), CalibrationCallback(), CalibrationCallback("head.criterion"))
    assert (epochs_of(net), net.head.criterion.history.n) == (2, 2)


def test_ranks_do_not_overwrite_what_each_has_counted(tmp_path):
    net = fitted(Net("online_label_smoothing"), epochs=1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        copied = {buffer.data_ptr() for buffer in DistributedDataParallel(net).modules_buffers}
    finally:
        torch.distributed.destroy_process_group()
    assert net.frozen.running_mean.data_ptr() in copied
    assert not copied & {buffer.data_ptr() for buffer in net.criterion.buffers()}


class Bare(pl.LightningModule):
    training_step = Net.training_step
    configure_optimizers = Net.configure_optimizers

    def __init__(self, criterion):
        super().__init__()
        self.body, self.criterion = nn.Linear(64, 10), criterion

    def forward(self, x):
        return self.body(x)


def test_wrong_use_is_said_in_a_sentence():
    with pytest.raises(ValueError, match=r"must name a Criterion in Net; 'loss' is no submodule\. Set it in"):
        fitted(Net(), CalibrationCallback("loss"))
    with pytest.raises(ValueError, match=r"must name a Criterion in Bare; 'criterion' is a CrossEntropyLoss"):
        trainer(CalibrationCallback()).fit(Bare(nn.CrossEntropyLoss()), train_loader())
    with pytest.raises(ValueError, match=r"must have a validation set to learn from; the trainer has none\. It takes"):
        trainer(CalibrationCallback()).fit(Bare(Criterion("ada_focal")), train_loader())
    with pytest.raises(ValueError, match=r"limit_val_batches above 0"):
        fitted(Net(), limit_val_batches=0)
    with pytest.raises(ValueError, match=r"must say which of 2 validation loaders to use, from 0; got None"):
        trainer(CalibrationCallback()).fit(Two(), train_loader(), [validation_loader()] * 2)
