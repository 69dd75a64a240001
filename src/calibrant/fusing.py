"""A criterion -> one compiled function for value and gradient, instead of one forth and another back."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import grad_and_value

from calibrant.batch import check_shapes
from calibrant.distributed import spread


def fused(criterion: nn.Module, options: Mapping[str, Any]) -> Callable[..., Tensor]:
    """Return what `Criterion.compile` puts in the place of a call; ``options`` are those of `torch.compile`."""
    still = _at_rest(criterion)

    def both(logits: Tensor, labels: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        gradient, value = grad_and_value(still.forward)(logits, labels, *rows)
        if criterion.training:
            criterion.forward(logits, labels, *rows)  # for what a loss counts; nothing else of it is left
        return gradient, value

    both.__code__ = both.__code__.replace()  # torch gives up after eight versions of the same code
    quick = torch.compile(both, **{"fullgraph": True, "dynamic": False, **options})

    def call(logits: Any, labels: Any, rows: Tensor | None = None) -> Tensor:
        check_shapes(logits, labels)
        wanted = torch.is_grad_enabled() and logits.requires_grad
        wrong = len(logits) == 0 or (rows is None and criterion.needs_rows)  # said best where nothing is compiled
        if wrong or not wanted or torch.compiler.is_compiling() or spread():
            return criterion.forward(logits, labels, rows)
        with torch.no_grad():
            gradient, value = quick(logits.detach(), labels, *(() if rows is None else (rows,)))
        return _Known.apply(logits, value, gradient)  # type: ignore[no-untyped-call]

    return call


class _Known(torch.autograd.Function):
    """A value whose gradient is already there."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        """Keep the gradient for later."""
        ctx.save_for_backward(gradient)
        return value.view_as(value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Scale it."""
        return grad * ctx.saved_tensors[0], None, None


def _at_rest(criterion: nn.Module) -> nn.Module:
    """Return the criterion in eval mode, where nothing is counted, on the same tensors: a loss has the same value."""
    still = copy.copy(criterion)
    still._modules = {name: module and _at_rest(module) for name, module in criterion._modules.items()}
    still.training = False
    return still
