"""The gradient written down for the focal family is that of its steps, everywhere that autograd can go."""

import inspect

import pytest
import torch
from torch.func import functional_call, grad, hessian, jvp, vmap

from calibrant.losses.focal_family import _step_by_step, powered
from calibrant.registry import LOSSES

POWERS = {
    "3": lambda nll: 3.0,
    "0.4": lambda nll: 0.4,
    "0": lambda nll: 0.0,
    "-2": lambda nll: -2.0,
    "by the row": lambda nll: torch.where(nll > 1, -1.3, torch.where(nll > 0.1, 0.0, 0.3)),
    "in another precision": lambda nll: torch.full_like(nll, 2.5, dtype=torch.float32),
    "huge": lambda nll: torch.full_like(nll, 1e4),
}


def rows(scale, dtype=torch.float64):
    g = torch.Generator().manual_seed(int(scale) + 5)
    return (scale * torch.randn(40, 5, dtype=torch.float64, generator=g)).to(dtype).requires_grad_(), torch.arange(
        40
    ) % 5


@pytest.mark.parametrize("scale", [0.0, 0.1, 1.0, 10.0, 30.0, 1e3, 1e4])
@pytest.mark.parametrize("name", POWERS)
def test_values_and_gradients_are_those_of_the_steps(name, scale):
    logits, labels = rows(scale)
    down = torch.linspace(-2, 3, 40, dtype=torch.float64)
    quick, slow = (f(logits, labels, POWERS[name]) for f in (powered, _step_by_step))
    torch.testing.assert_close(quick, slow, rtol=1e-10, atol=1e-12)
    found, steps = (torch.autograd.grad(values, logits, down)[0] for values in (quick, slow))
    assert found.isfinite().all()
    torch.testing.assert_close(found, steps, rtol=1e-8, atol=1e-11)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # said by torch's own forward mode
@pytest.mark.parametrize("name", POWERS)
def test_first_second_and_forward_derivatives(name):
    logits, labels = rows(1.0)
    few, classes = logits.detach()[:6].requires_grad_(), labels[:6]

    def loss(z):
        return powered(z, classes, POWERS[name])

    assert torch.autograd.gradcheck(loss, (few,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(loss, (few,))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # said by torch's own forward mode
def test_functional_transforms_work_too():
    logits, labels = rows(1.0)
    z, y = logits.detach()[:6], labels[:6]

    def one(row, label):
        return LOSSES["focal"](row[None], label[None])[0]

    each = vmap(grad(one))(z, y)
    torch.testing.assert_close(each, torch.autograd.grad(LOSSES["focal"](logits, labels).sum(), logits)[0][:6])
    curved = hessian(lambda q: LOSSES["flsd"](q, y).sum())(z)
    assert curved.shape == (6, 5, 6, 5)
    torch.testing.assert_close(curved, curved.permute(2, 3, 0, 1))
    loss = LOSSES["ada_focal"](bins=3).double()
    _, moved = jvp(lambda q: functional_call(loss, {}, (q, y)), (z,), (torch.ones_like(z),))
    torch.testing.assert_close(moved, torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)  # a shift of all logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_gradients_come_in_the_type_of_the_logits(dtype):
    logits, labels = rows(3.0, dtype)
    value = powered(logits, labels, POWERS["by the row"])
    assert value.dtype == torch.float32
    found = torch.autograd.grad(value.sum(), logits)[0]
    assert found.dtype == dtype
    wide = logits.detach().double().requires_grad_()
    exact = torch.autograd.grad(_step_by_step(wide, labels, POWERS["by the row"]).sum(), wide)[0]
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=1e-5 if dtype == torch.float32 else 2e-2)


def test_an_impossible_class_gets_no_gradient():
    logits = torch.tensor([[1.0, 0.0, -torch.inf], [0.0, 3.0, -torch.inf]], requires_grad=True)
    found = torch.autograd.grad(powered(logits, torch.tensor([0, 1]), POWERS["3"]).sum(), logits)[0]
    assert found.isfinite().all()
    assert found[:, 2].tolist() == [0, 0]


def test_a_gradient_may_be_asked_for_twice():
    logits, labels = rows(1.0)
    value = powered(logits, labels, POWERS["3"]).sum()
    first = torch.autograd.grad(value, logits, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(value, logits)[0])


@pytest.mark.parametrize("gamma", [0.0, 3.0, -2.0])
def test_an_impossible_label_has_the_gradient_of_cross_entropy(gamma):
    logits = torch.tensor([[1.0, 0.0, -torch.inf]], requires_grad=True)
    value = powered(logits, torch.tensor([2]), lambda _: gamma)
    assert value.tolist() == [torch.inf]
    found = torch.autograd.grad(value.sum(), logits)[0]
    assert torch.allclose(found, torch.tensor([[0.7310586, 0.2689414, -1.0]]))


def test_one_label_is_not_that_of_all_rows():
    with pytest.raises(ValueError, match=r"labels must be class numbers of shape \(3,\)"):
        inspect.unwrap(powered)(torch.eye(3), torch.tensor([0]), POWERS["3"])  # without the checks of shapes in tests


def test_a_gamma_may_learn():
    logits, labels = rows(1.0)
    gamma = torch.tensor(2.0, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z, g: LOSSES["focal"](z, labels, gamma=g), (logits, gamma.double()))
    values = LOSSES["focal"](logits, labels, gamma=gamma)
    torch.testing.assert_close(values, LOSSES["focal"](logits, labels, gamma=2.0))


def test_second_derivatives_are_of_the_powers_that_were():
    logits, labels = rows(1.0)
    loss = LOSSES["ada_focal"](bins=3)
    value = loss(logits, labels).sum()
    want = torch.autograd.grad(loss(logits, labels).sum(), logits)[0]
    loss.gammas.fill_(5.0)
    torch.testing.assert_close(torch.autograd.grad(value, logits, create_graph=True)[0], want)


def test_near_one_the_gradient_of_the_label_is_not_lost():
    """With p_y = 1 - 3e-7 what is missing has one digit in single precision."""
    exact = torch.tensor([[15.0, 0.0]], dtype=torch.float64, requires_grad=True)
    single = exact.detach().float().requires_grad_()
    found, want = (
        torch.autograd.grad(powered(z, torch.tensor([0]), lambda _: -2.0).sum(), z)[0] for z in (single, exact)
    )
    assert float(found[0, 0]) == pytest.approx(float(want[0, 0]), rel=0.2)
    assert float(found[0, 1]) == pytest.approx(float(want[0, 1]), rel=1e-5)
