"""The criterion: what it adds up, keeps, refuses, and how it behaves on several ranks."""

import copy
import math
import pickle
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from loss_oracles import sizes
from sklearn.datasets import load_digits

import calibrant as cb
from calibrant.losses.ada_focal import AdaFocal
from calibrant.losses.criterion import Criterion
from calibrant.losses.functional import check_batch
from calibrant.losses.penalties.mmce import mmce
from calibrant.losses.presets import PRESETS
from calibrant.registry import LOSSES, PENALTIES

Z = torch.tensor(
    [[2.0, 1.0, 0.1], [0.5, 2.5, 0.3], [1.2, 0.9, 1.0], [0.2, 0.1, 3.0], [1.5, 1.4, 0.2], [-0.5, 0.4, 0.9]],
    dtype=torch.float64,
)
Y = torch.tensor([0, 1, 2, 2, 1, 0])


def value(*args, **options):
    return float(Criterion(*args, **options)(Z, Y))


# Values


def test_it_is_the_mean_loss_plus_weighted_penalties():
    assert value() == pytest.approx(0.7969173746342092)
    assert value("cross_entropy", penalty="mmce", weight=2.0) == pytest.approx(1.4774589418519857, abs=1e-8)
    released = {"normalisation": "released"}
    assert value(penalty="mmce", weight=2.0, penalty_options=released) == pytest.approx(1.0237644385623415, abs=1e-8)
    assert value(penalty="dca") == pytest.approx(0.9214612634534205)
    assert value("focal", {"gamma": 1.0}, penalty="mdca") == pytest.approx(0.5606463804192217)
    assert value(penalty="kde_ece", weight=0.3, penalty_options={"bandwidth": 0.1}) == pytest.approx(1.066889835085151)


def test_several_penalties_have_a_weight_each():
    both = value(penalty={"dca": 1.0, partial(mmce, normalisation="released"): 2.0})
    assert both == pytest.approx(1.0237644385623415 + 0.1245438888192113, abs=1e-8)


def test_a_sum_is_as_many_means_as_there_are_rows():
    for options in ({}, {"penalty": "dca", "weight": 0.5}):
        assert value("seca", **options, reduction="sum") == pytest.approx(6 * value("seca", **options))


def test_a_function_of_your_own_may_be_the_loss():
    own = value(lambda logits, labels: F.cross_entropy(logits, labels, reduction="none") ** 2)
    assert own == pytest.approx(float((F.cross_entropy(Z, Y, reduction="none") ** 2).mean()))


def test_it_is_a_name_of_the_package_and_says_what_it_is():
    assert cb.Criterion is Criterion
    said = repr(Criterion("focal", {"gamma": 5.0}, penalty={"mmce": 2.0, "dca": 0.5}, reduction="sum"))
    assert said == "Criterion(focal(gamma=5.0) + 2 mmce + 0.5 dca, sum)"


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_loss_of_a_paper(name):
    criterion = Criterion.preset(name, k=3)
    paper, row, *_ = name.split("/")
    assert paper in {"au-paper", "adafocal-paper", "smart-paper", "seca-paper"}
    known = row.partition("-")[0]
    assert known in LOSSES or known in PENALTIES
    assert math.isfinite(float(criterion(Z, Y)))


# the published numbers once more, in the order of the papers' tables
GAMMAS = {
    "inverse_focal": "cifar10 2 3 1.5 2 cifar100 1 1.5 1 1 tiny_imagenet 1 1",
    "dual_focal": "cifar10 5 4.5 2.6 4 cifar100 5 6.1 3.9 4.5 tiny_imagenet 1 1",
    "kappa": "cifar10 .88 .75 .80 .75 cifar100 .75 .80 .80 .92 tiny_imagenet .40 .60",
    "nu": "cifar10 .1 .1 .1 .1 cifar100 .005 .005 .1 .01 tiny_imagenet .05 .05",
}
NETWORKS = {4: ("resnet50", "resnet110", "wrn_28_10", "preresnet56"), 2: ("vit_s", "swin_t")}


@pytest.mark.parametrize("what", GAMMAS)
def test_what_a_paper_tunes_by_network_is_what_it_prints(what):
    for data, numbers in re.findall(r"([a-z_0-9]*[a-z][a-z_0-9]*)((?: [.\d]+)+)", GAMMAS[what]):
        values = [float(number) for number in numbers.split()]
        for network, printed in zip(NETWORKS[len(values)], values, strict=True):
            row, option = (what, "gamma") if what in LOSSES else ("au", what)
            assert PRESETS[f"au-paper/{row}/{data}-{network}"].options[option] == printed


def test_weights_of_penalties_are_what_the_papers_print():
    weights = {name: preset.weight for name, preset in PRESETS.items() if preset.penalty}
    assert weights == {
        "au-paper/kde_ece/cifar10": 0.3,
        "au-paper/kde_ece/cifar100": 0.5,
        "au-paper/kde_ece/tiny_imagenet": 0.3,
        "adafocal-paper/mmce": 2.0,
        "smart-paper/mmce": 2.0,
        "seca-paper/mmce": 4.0,
        "seca-paper/mmce/imagenet": 2.0,
        "seca-paper/dca": 1.0,
        "seca-paper/mdca": 1.0,
    }


def test_the_presets_are_what_the_papers_say():
    assert repr(Criterion.preset("seca-paper/mdca")) == "Criterion(focal(gamma=1.0) + 1 mdca, mean)"
    assert repr(Criterion.preset("seca-paper/mmce")).startswith(
        "Criterion(cross_entropy + 4 mmce(normalisation='released')"
    )
    smooth = Criterion.preset("seca-paper/label_smoothing")
    assert float(smooth(Z, Y)) == pytest.approx(0.8927507079675426)
    assert Criterion.preset("au-paper/au/cifar100-resnet50").loss.nu == 0.005
    assert Criterion.preset("au-paper/au/tiny_imagenet-vit_s").loss.kappa == 0.4
    assert repr(Criterion.preset("au-paper/dual_focal/cifar100-resnet110")) == "Criterion(dual_focal(gamma=6.1), mean)"
    with pytest.raises(ValueError, match="k must be the number of classes"):
        Criterion.preset("seca-paper/online_label_smoothing")
    with pytest.raises(ValueError, match="did you mean 'seca-paper/mdca'"):
        Criterion.preset("seca-paper/mdac")


# State


def trained(name, options=None):
    criterion = Criterion(name, options)
    criterion(Z.float(), Y)
    criterion.epoch_end((Z, Y))
    criterion(Z.float(), Y)
    return criterion


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ada_focal", {"bins": 3}),
        ("cal_focal", {"bins": 3}),
        ("online_label_smoothing", {"k": 3}),
        ("au", {"histogram": "epoch"}),
    ],
)
def test_what_a_loss_has_learned_is_in_its_state(name, options, tmp_path):
    first = trained(name, options)
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Criterion(name, options)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for one, other in ((first, second),):
        assert torch.equal(one(Z.float(), Y), other(Z.float(), Y))
        one.epoch_end((Z, Y))
        other.epoch_end((Z, Y))
        assert torch.equal(one(Z.float(), Y), other(Z.float(), Y))
    if name == "ada_focal":
        assert second.history["gamma"].tolist() == first.history["gamma"].tolist()
        assert len(second.history) == 6
    else:
        assert second.history is None


def test_ada_focal_learns_from_predictions_and_from_pairs_alike():
    criteria = [Criterion("ada_focal", {"bins": 3}) for _ in range(2)]
    criteria[0].epoch_end((Z, Y))
    criteria[1].epoch_end(cb.Predictions(logits=Z, labels=Y))
    assert torch.equal(criteria[0].loss.gammas, criteria[1].loss.gammas)
    assert criteria[0].needs_validation
    with pytest.raises(ValueError, match="validation must be given: AdaFocal"):
        criteria[0].epoch_end()


@pytest.mark.parametrize("name", ["cross_entropy", "seca", "aurc"])
def test_the_end_of_an_epoch_means_nothing_to_a_loss_without_state(name):
    criterion = Criterion(name)
    assert not criterion.needs_validation
    criterion.epoch_end()
    criterion.epoch_end((Z, Y))


def test_it_moves_with_its_state():
    criterion = Criterion("ada_focal")
    assert criterion.double().loss.gammas.dtype == torch.float64
    assert criterion.to("meta").loss.gammas.device.type == "meta"
    whole = torch.nn.ModuleDict({"criterion": trained("ada_focal", {"bins": 3}), "model": torch.nn.Linear(2, 2)})
    before = whole["criterion"].loss.gammas.clone()
    whole.bfloat16()
    assert whole["model"].weight.dtype == torch.bfloat16
    assert torch.equal(whole["criterion"].loss.gammas, before)  # half precision would have rounded them


def test_a_rank_may_evaluate_alone_and_a_criterion_can_be_copied():
    for name in LOSSES:
        criterion = Criterion(name, sizes(name, k=3, n=9), penalty=partial(mmce, normalisation="released"), weight=2.0)
        rows = torch.arange(6)
        for again in (copy.deepcopy(criterion), pickle.loads(pickle.dumps(criterion))):
            assert float(again(Z, Y, rows)) == pytest.approx(float(copy.deepcopy(criterion)(Z, Y, rows)), rel=1e-12)


@pytest.mark.parametrize("kind", [torch.int32, torch.int16, torch.uint8])
@pytest.mark.parametrize("name", sorted(LOSSES))
def test_any_integers_are_labels(name, kind):
    options = sizes(name, k=3, n=9)
    rows = torch.arange(6)
    assert float(Criterion(name, options)(Z, Y.to(kind), rows)) == float(Criterion(name, options)(Z, Y, rows))


@pytest.mark.parametrize("name", sorted(set(LOSSES) - {"label_smoothing", "brier"} | set(PENALTIES) - {"kde_ece"}))
def test_an_impossible_class_costs_nothing(name):
    criterion = Criterion(name, sizes(name, k=4, n=9)) if name in LOSSES else Criterion(penalty=name)
    masked = torch.cat([Z, torch.full((6, 1), -torch.inf)], 1).requires_grad_()
    if name == "online_label_smoothing":  # its first soft labels are uniform: a class that cannot be has some
        criterion.loss.soft[:, 3] = 0
    value = criterion(masked, Y, torch.arange(6))
    value.backward()
    assert value.isfinite()
    assert masked.grad.isfinite().all()
    assert float(Criterion(debug=True)(masked.detach(), Y)) == pytest.approx(0.7969173746342092)


class Counting(torch.nn.Module):
    """A penalty with state."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, logits, labels):
        self.calls += 1
        return logits.sum() * 0


def test_a_penalty_with_state_moves_and_is_saved():
    criterion = Criterion(penalty=Counting())
    criterion(Z, Y)
    assert float(next(iter(criterion.state_dict().values()))) == 1
    assert next(criterion.double().buffers()).dtype == torch.float64


class Mine(AdaFocal):
    """A loss that extends another."""


def test_a_loss_that_extends_another_keeps_its_facts():
    criterion = Criterion(Mine(bins=3))
    assert criterion.needs_validation
    criterion.epoch_end((Z, Y))
    assert len(criterion.history) == 3


def test_a_history_of_other_bins_is_refused():
    with pytest.raises((ValueError, RuntimeError), match=r"bins|size mismatch"):
        Criterion("ada_focal", {"bins": 4}).load_state_dict(trained("ada_focal", {"bins": 5}).state_dict())


# Refusals


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: Criterion("focl"), "no 'focl'.*'focal'"),
        (
            lambda: Criterion("focal", {"gama": 3.0}),
            "options of 'focal' must be among gamma, detach_weight; got 'gama'",
        ),
        (lambda: Criterion("online_label_smoothing"), "must have 'k'"),
        (lambda: Criterion(penalty="mcme"), "no 'mcme'"),
        (lambda: Criterion(penalty_options={"p": 1}), "penalty_options must come with one penalty"),
        (lambda: Criterion(F.cross_entropy, {"reduction": "none"}), "options must come with the name"),
        (lambda: Criterion()(Z[0], Y[:1]), r"logits must be floats of shape \(n, k\)"),
        (lambda: Criterion()(torch.zeros(2, 3, 4), Y[:2]), "flatten the rest"),
        (lambda: Criterion()(Z, F.one_hot(Y)), "labels.argmax"),
        (lambda: Criterion()(Z, Y.double()), "labels must be class numbers"),
        (lambda: Criterion()(Z, Y[:3]), r"labels must be class numbers of shape \(6,\)"),
        (lambda: Criterion()(Z[:0], Y[:0]), "empty batch"),
        (lambda: Criterion("correctness_ranking", {"n": 9})(Z, Y), "rows must be the places"),
        (lambda: Criterion(debug=True)(Z, Y + 1), "labels must lie in 0 to 2; got 3"),
        (lambda: Criterion(debug=True)(Z, Y - 100), "Leave out ignored rows"),
        (lambda: Criterion(debug=True)(Z * torch.nan, Y), "row 0 is not"),
        (lambda: Criterion("mmce"), "'mmce' is a penalty"),
        (lambda: Criterion("focal", {"gamma": -1.0}), "gamma must not be negative"),
        (lambda: Criterion(weight=2.0), "weight must come with one penalty"),
        (lambda: Criterion(penalty={"dca": 1.0}, weight=2.0), "map each to its weight"),
        (lambda: check_batch(Z, Y[:, None]), r"labels must be class numbers of shape \(6,\)"),
        (lambda: Criterion("au", {"confidence": "energy", "histogram": "epoch"}), "confidence must lie in"),
    ],
)
def test_what_cannot_be_meant_gets_one_sentence(call, says):
    with pytest.raises((ValueError, KeyError, TypeError), match=says) as caught:
        call()
    assert len(str(caught.value)) < 300


def test_values_are_looked_at_in_debug_mode_only():
    Criterion()(Z * torch.nan, Y)  # says nothing, for looking would make a GPU wait
    assert float(Criterion(debug=True)(Z, Y)) == value()


# Training


def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x / 16).float(), torch.tensor(y)


def error_after(criterion, steps=300, seed=0, rate=0.3):
    """Train a small network on real digits and return its error on the rows it was trained on."""
    x, y = digits()
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimiser = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    g = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        rows = torch.randint(len(x), (128,), generator=g)
        optimiser.zero_grad()
        criterion(net(x[rows]), y[rows]).backward()
        optimiser.step()
    return float((net(x).argmax(1) != y).float().mean())


def test_au_trains_as_cross_entropy_does_and_as_printed_it_does_not():
    plain = error_after(Criterion())
    assert plain < 0.03
    assert error_after(Criterion("au")) < plain + 0.03
    assert error_after(Criterion("au", {"nu": 0.1})) < plain + 0.03
    assert error_after(Criterion("au", {"confidence": "msp", "nu": 0.1, "weight_gradient": 0.0})) < plain + 0.03
    printed = Criterion("au", {"confidence": "msp", "nu": 0.1, "weight_gradient": 1.0})
    assert error_after(printed) > plain + 0.2


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_every_loss_trains(name):
    criterion = Criterion(name, sizes(name, k=10, n=9))
    if not criterion.needs_rows:  # the gradient of such a loss is tested elsewhere
        assert error_after(criterion, steps=150) < 0.15


@pytest.mark.parametrize("name", sorted(PENALTIES))
def test_cross_entropy_trains_with_every_penalty(name):
    weight = {"kde_ece": 0.1, "confidence_penalty": 0.1, "dece": 0.1}.get(name, 1.0)
    assert error_after(Criterion(penalty=name, weight=weight), steps=150, rate=0.1) < 0.15


# Several ranks


def test_two_ranks_find_the_loss_and_gradient_of_one(tmp_path):
    script = Path(__file__).parent / "distributed_rank.py"
    command = [sys.executable, str(script)]
    ranks = [
        subprocess.Popen(
            [*command, str(r), str(tmp_path / "meet")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for r in range(2)
    ]
    said = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said[0][1][-3000:] + said[1][1][-3000:]
    found = re.findall(r"^(.+) \((\d+), \d+\): (\S+) (\S+)$", said[0][0], re.M)
    equal = {name for name, size, *_ in found if size == "12"}
    assert {f"loss {name}" for name in LOSSES} | {f"penalty {name}" for name in PENALTIES} <= equal
    joint = {"loss seca", "loss au", "loss aurc", "loss correctness_ranking", "loss seca, sum", "penalty mmce, sum"}
    for first in ("9", "24"):  # unequal parts, and a rank without rows
        assert {name for name, size, *_ in found if size == first} >= joint | {f"penalty {name}" for name in PENALTIES}
    for name, size, loss, gradient in found:
        assert float(loss) < 1e-6, (name, size)
        assert float(gradient) < 1e-6, (name, size)
