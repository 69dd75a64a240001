"""A compiled criterion: the same value, gradient and memory as one that is not."""

import copy
import pickle
import re
import subprocess
import sys

import pytest
import torch

from calibrant.criterion import Criterion
from calibrant.registry import LOSSES, PENALTIES

ALL = [
    *((name, {}) for name in LOSSES if name not in ("online_label_smoothing", "correctness_ranking")),
    ("online_label_smoothing", {"k": 5}),
    ("correctness_ranking", {"n": 30}),
    ("au", {"histogram": "epoch"}),
]
# elsewhere: the checks of shapes cannot be compiled. More than eight of them in one process
SCRIPT = """
import copy, torch
from calibrant.criterion import Criterion
from calibrant.registry import PENALTIES
for name, options in {all!r} + [(penalty, None) for penalty in sorted(PENALTIES)]:
    plain = Criterion(penalty=name) if options is None else Criterion(name, options)
    quick = copy.deepcopy(plain)
    quick.compile(backend="aot_eager")
    rows = (torch.arange(12) * 2,) if plain.needs_rows else ()
    problems = []
    for step in range(3):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(12, 5, generator=g).double(), torch.randint(5, (12,), generator=g)
        x, z = x.clone().requires_grad_(), x.clone().requires_grad_()
        one, other = plain(x, y, *rows), quick(z, y, *rows)
        (3 * one).backward()
        (3 * other).backward()
        problems += [] if torch.allclose(one, other, atol=1e-12) else [f"value at {{step}}"]
        problems += [] if torch.allclose(x.grad, z.grad, atol=1e-9) else [f"gradient at {{step}}"]
        if step == 1:
            for criterion in (plain, quick):
                criterion.epoch_end((x.detach(), y)) if criterion.needs_validation else criterion.epoch_end()
        both = zip(plain.state_dict().items(), quick.state_dict().values())
        problems += [f"{{key}} at {{step}}" for (key, a), b in both if not torch.allclose(a, b, equal_nan=True)]
    print(name, options, "same" if not problems else problems)
quick = Criterion("aurc", penalty="mdca")
quick.compile(backend="aot_eager")
for n in range(2, 15):  # torch gives up after eight versions
    for mode in (True, False):
        x = torch.randn(n, 5, requires_grad=True)
        quick.train(mode)(x, torch.arange(n) % 5).backward()
print("any number of rows")
"""


def test_every_loss_and_penalty_has_the_same_value_gradient_and_memory():
    done = subprocess.run([sys.executable, "-c", SCRIPT.format(all=ALL)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    expected = [f"{name} {options} same" for name, options in ALL]
    expected += [f"{name} None same" for name in sorted(PENALTIES)]
    assert done.stdout.splitlines() == [*expected, "any number of rows"]


def batch(k=3):
    g = torch.Generator().manual_seed(0)
    return torch.randn(6, k, generator=g, requires_grad=True), torch.randint(k, (6,), generator=g)


@pytest.fixture
def quick(monkeypatch):
    """A criterion whose compiled function is run as it stands: shapes are checked, and nothing is compiled."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    criterion = Criterion("online_label_smoothing", {"k": 3})
    criterion.compile()
    return criterion


def test_a_gradient_may_be_scaled_but_not_differentiated(quick):
    logits, labels = batch()
    plain = copy.deepcopy(quick)
    (want,) = torch.autograd.grad(plain(logits, labels), logits)
    (found,) = torch.autograd.grad(-2 * quick(logits, labels), logits)
    assert torch.allclose(found, -2 * want)
    with pytest.raises(RuntimeError, match="can be differentiated once"):
        torch.autograd.grad(quick(logits, labels), logits, create_graph=True)


def test_a_loss_scaled_for_half_precision_neither_overflows_nor_vanishes(quick):
    half, labels = torch.tensor([[9.0, 0.0, 0.0]] * 512).half().requires_grad_(), torch.zeros(512, dtype=torch.int64)
    (found,) = torch.autograd.grad(2.0**18 * quick(half, labels), half)
    assert found.dtype == torch.float16
    assert found.isfinite().all()
    (exact,) = torch.autograd.grad(
        2.0**18 * copy.deepcopy(quick)(wide := half.detach().float().requires_grad_(), labels), wide
    )
    assert torch.allclose(found.float(), exact, rtol=1e-2)


def test_numbers_changed_after_it_was_compiled_count(quick):
    logits, labels = batch()
    quick.epoch_end()
    before = quick(logits, labels).detach()
    quick.loss.alpha, quick.reduction = 1.0, "sum"
    plain = 6 * torch.nn.functional.cross_entropy(logits, labels)
    assert torch.allclose(quick(logits, labels), plain)
    assert not torch.allclose(before, plain)


def test_what_a_loss_learns_by_gradient_is_learned(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    logits, labels = batch()
    scale = torch.nn.Parameter(torch.tensor(2.0))

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = scale

        def forward(self, logits, labels):
            return self.scale * torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    criterion = Criterion(Scaled())
    criterion.compile()
    criterion(logits, labels).backward()
    assert torch.allclose(scale.grad, torch.nn.functional.cross_entropy(logits, labels))


def test_it_counts_once_a_step_and_only_in_train_mode(quick):
    logits, labels = batch()
    right = int((logits.argmax(1) == labels).sum())
    quick(logits, labels)
    assert int(quick.loss.counts.sum()) == right > 0
    quick.eval()(logits, labels).backward()
    with torch.no_grad():
        quick(logits, labels)
    assert int(quick.loss.counts.sum()) == right


def test_it_moves_is_loaded_and_learns_after_it_was_compiled(quick):
    logits, labels = batch()
    before = quick(logits, labels).detach()
    quick.epoch_end()
    plain = Criterion("online_label_smoothing", {"k": 3})
    plain.load_state_dict(quick.state_dict())
    learned = quick(logits, labels).detach()
    assert torch.allclose(learned, plain(logits, labels))
    assert not torch.allclose(learned, before)
    quick.load_state_dict(Criterion("online_label_smoothing", {"k": 3}).state_dict())
    assert torch.allclose(quick(logits, labels), before)
    found = quick.double()(logits.double(), labels)
    assert found.dtype == torch.float64
    assert torch.allclose(found, before.double())


def test_a_copy_is_not_compiled_and_owns_its_memory(quick):
    logits, labels = batch()
    for other in (copy.deepcopy(quick), pickle.loads(pickle.dumps(quick))):
        (slope,) = torch.autograd.grad(other(logits, labels), logits, create_graph=True)
        assert slope.requires_grad  # that of a compiled one has no gradient of its own
        assert int(other.loss.counts.sum()) > 0
    assert int(quick.loss.counts.sum()) == 0


def test_it_works_without_a_gradient_and_with_a_network_before_it(quick):
    layer = torch.nn.Linear(4, 3)
    inputs, labels = torch.randn(6, 4, generator=torch.Generator().manual_seed(1)), batch()[1]
    quick(layer(inputs), labels).backward()
    found = layer.weight.grad.clone()
    layer.zero_grad()
    plain = Criterion("online_label_smoothing", {"k": 3})
    plain(layer(inputs), labels).backward()
    assert torch.allclose(found, layer.weight.grad)
    assert not quick(layer(inputs).detach(), labels).requires_grad


def test_bad_input_is_said_as_before(quick):
    logits, labels = batch()
    for call, says in (
        (lambda: quick(logits[0], labels), "logits must be floats of shape (n, k)"),
        (lambda: quick(logits, labels[:3]), "labels must be class numbers of shape (6,)"),
        (lambda: quick(logits[:0], labels[:0]), "logits must have at least one row"),
        (lambda: quick([1.0], labels), "logits must be a tensor; got list"),
        (lambda: Criterion(debug=True).compile(), "debug must be False"),
    ):
        with pytest.raises((TypeError, ValueError), match=re.escape(says)):
            call()
    ranked = Criterion("correctness_ranking", {"n": 6})
    ranked.compile()
    with pytest.raises(ValueError, match="rows must be the places of the batch in the training set"):
        ranked(logits, labels)
