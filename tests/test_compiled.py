"""A compiled criterion: the same value, gradient and memory as one that is not."""

import copy
import importlib
import pickle
import re
import subprocess
import sys

import pytest
import torch
from loss_oracles import sizes
from torch.func import grad_and_value
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

from calibrant.losses.compiled import _with_cse, eliminate_common_subexpressions
from calibrant.losses.criterion import Criterion
from calibrant.losses.functional import true_nll
from calibrant.registry import LOSSES, PENALTIES

ALL = [*((name, sizes(name, k=5, n=30)) for name in LOSSES), ("au", {"histogram": "epoch"})]
# elsewhere: the checks of shapes cannot be compiled. More than eight of them in one process
SCRIPT = """
import copy, torch
from calibrant.losses.criterion import Criterion
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
for name, options in (("au", {{"histogram": "epoch"}}), ("correctness_ranking", {{"n": 30}})):
    # torch.compile alone read what such a loss counts when the batch was in it
    torch._dynamo.reset()
    plain, rows = Criterion(name, options).double(), (torch.arange(12),) if name == "correctness_ranking" else ()
    other = torch.compile(copy.deepcopy(plain), backend="aot_eager")
    slopes = []
    for step in range(2):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(12, 5, generator=g).double(), torch.randint(5, (12,), generator=g)
        for criterion in (plain, other):
            z = x.clone().requires_grad_()
            slopes += torch.autograd.grad(criterion(z, y, *rows), z)
    print(name, torch.allclose(slopes[0], slopes[1]) and torch.allclose(slopes[2], slopes[3]))
    torch._dynamo.reset()
    try:
        torch.compile(plain, backend="aot_eager", fullgraph=True)(z, y, *rows)
    except torch._dynamo.exc.Unsupported as error:
        print("use criterion.compile()" in str(error))
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
    expected += ["au True", "True", "correctness_ranking True", "True"]
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


@pytest.mark.parametrize(("name", "options"), [*ALL, *((name, None) for name in sorted(PENALTIES))])
def test_extremes_are_the_same(name, options, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    plain = Criterion(penalty=name) if options is None else Criterion(name, options)
    quick = copy.deepcopy(plain)
    quick.compile()
    rows = (torch.arange(6),) if plain.needs_rows else ()
    far = [[1e4, -1e4, 0, 0, 1], [-1e4] * 5, [0] * 5, [40, 0, 0, 0, 0], [-1e4, 1e4, 1e4, 0, 0], [3, 2, 1, 0, -1]]
    labels = torch.tensor([1, 0, 2, 0, 2, 4])
    x, z = (torch.tensor(far, dtype=torch.float32, requires_grad=True) for _ in range(2))
    one, other = plain(x, labels, *rows), quick(z, labels, *rows)
    one.backward()
    other.backward()
    assert z.grad.isfinite().all()
    assert torch.allclose(one, other, rtol=1e-6)
    assert torch.allclose(x.grad, z.grad, atol=1e-6)


def test_an_impossible_class_costs_nothing_and_cannot_be_the_label_for_free():
    logits = torch.tensor([[2.0, -torch.inf, 0.0], [2.0, -torch.inf, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 1])
    _, value = grad_and_value(lambda z: true_nll(z, labels).sum())(logits)
    assert value == torch.inf
    slope, value = grad_and_value(lambda z: true_nll(z, labels)[0])(logits)
    assert torch.allclose(value, true_nll(logits, labels)[0], rtol=1e-15)
    assert torch.allclose(slope[0], logits[0].softmax(0) - torch.tensor([1.0, 0, 0]).double(), atol=1e-15)


def test_what_stands_twice_is_computed_once():
    logits, labels = batch()
    criterion = Criterion(penalty="dca")
    graph = make_fx(grad_and_value(lambda z: criterion.valued(criterion.loss, z, labels)))(logits.detach())
    largest = [torch.ops.aten.amax.default] * 2
    assert [node.target for node in graph.graph.nodes if node.target in largest] == largest
    want = graph(logits.detach())
    eliminate_common_subexpressions(graph.graph)
    graph.recompile()
    assert [node.target for node in graph.graph.nodes if node.target in largest] == largest[:1]
    assert all(torch.equal(one, other) for one, other in zip(graph(logits.detach()), want, strict=True))


def test_what_is_drawn_twice_is_drawn_twice_and_what_is_changed_is_changed():
    def function(x):
        x.add_(1)
        x.add_(1)
        return torch.rand_like(x) - torch.rand_like(x), x.sin() - x.sin()

    graph = make_fx(function)(torch.zeros(3))
    eliminate_common_subexpressions(graph.graph)
    graph.recompile()
    changed = torch.zeros(3)
    drawn, none = graph(changed)
    assert drawn.abs().min() > 0
    assert none.abs().max() == 0
    assert changed.tolist() == [2, 2, 2]
    assert sum(node.target is torch.ops.aten.sin.default for node in graph.graph.nodes) == 1


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {"options": {}}),
        ({"mode": "default", "dynamic": False}, {"dynamic": False, "options": {}}),
        ({"mode": "reduce-overhead"}, {"options": {"triton.cudagraphs": True}}),
        ({"options": {"epilogue_fusion": False}}, {"options": {"epilogue_fusion": False}}),
        ({"backend": "eager", "fullgraph": False}, {"backend": "eager", "fullgraph": False}),
        ({"mode": "reduce-overhead", "options": {"a": 1}}, {"mode": "reduce-overhead", "options": {"a": 1}}),
    ],
)
def test_options_of_torch_are_kept(options, kept):
    found = _with_cse(options)
    added = found.get("options", {}).pop("joint_custom_pre_pass", None)
    assert found == {"fullgraph": True, **kept}
    assert callable(added) == (kept.get("backend", "inductor") == "inductor" and "mode" not in kept)


def test_a_torch_without_the_private_names_compiles_without_the_pass(monkeypatch):
    inductor = importlib.import_module("torch._inductor")
    plain = {"fullgraph": True, "mode": "reduce-overhead"}
    with monkeypatch.context() as patch:
        patch.setattr(inductor, "list_options", lambda: [])
        assert _with_cse({"mode": "reduce-overhead"}) == plain
    monkeypatch.setitem(sys.modules, "torch._inductor.custom_graph_pass", None)
    monkeypatch.delattr(inductor, "custom_graph_pass", raising=False)
    assert _with_cse({"mode": "reduce-overhead"}) == plain


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
    criterion.loss.scale = torch.nn.Parameter(torch.tensor(3.0))
    criterion(logits, labels).backward()
    assert torch.allclose(criterion.loss.scale.grad, scale.grad)
    criterion.loss.scale.requires_grad_(False)
    assert not criterion(logits.detach(), labels).requires_grad


def test_what_a_penalty_learns_by_gradient_is_learned(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    logits, labels = batch()

    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.ParameterList([torch.tensor(2.0)])

        def forward(self, logits, labels):
            return self.scale[0] * logits.square().mean() + 0 * labels.sum()

    penalty = Scaled()
    criterion = Criterion(penalty=penalty)
    criterion.compile()
    criterion(logits, labels).backward()
    assert torch.allclose(penalty.scale[0].grad, logits.square().mean())


def test_what_is_compiled_sees_neither_a_parameter_nor_half_precision(monkeypatch):
    seen = []

    def spied(function, **_):
        def call(logits, *rest):
            seen.append((type(logits), logits.dtype))
            return function(logits, *rest)

        return call

    monkeypatch.setattr(torch, "compile", spied)
    criterion = Criterion("au")
    criterion.compile()
    logits, labels = batch()
    for given in (logits, torch.nn.Parameter(logits.detach()), logits.detach().bfloat16().requires_grad_()):
        criterion(given, labels).backward()
    assert seen == [(torch.Tensor, torch.float32)] * 3  # of a parameter torch compiles every size


def test_a_loss_that_cannot_be_copied_is_compiled(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)

    class Single(torch.nn.Module):
        def __reduce_ex__(self, _):
            raise TypeError

        def forward(self, logits, labels):
            return torch.nn.functional.cross_entropy(logits, labels, reduction="none")

    criterion = Criterion(Single())
    criterion.compile()
    logits, labels = batch()
    assert torch.allclose(criterion(logits, labels), torch.nn.functional.cross_entropy(logits, labels))


def test_where_saved_tensors_are_watched_nothing_is_compiled(quick):
    logits, labels = batch()
    (want,) = torch.autograd.grad(copy.deepcopy(quick)(logits, labels), logits)
    value = checkpoint(lambda z: quick.eval()(z * 1, labels), logits, use_reentrant=False)
    (found,) = torch.autograd.grad(value, logits)
    assert torch.allclose(found, want)


def test_another_loss_put_in_its_place_is_the_one_that_counts(quick):
    logits, labels = batch()
    quick(logits, labels)
    hard = Criterion("online_label_smoothing", {"k": 3, "alpha": 1.0})
    quick.loss = hard.loss
    assert torch.allclose(quick(logits, labels), torch.nn.functional.cross_entropy(logits, labels))
    assert int(hard.loss.counts.sum()) > 0


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
