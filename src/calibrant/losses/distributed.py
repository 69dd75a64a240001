"""Gathering a batch over the ranks of a distributed run."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def spread() -> bool:
    """Return whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def joined(values: Tensor) -> Tensor:
    """Return the rows of all ranks, in the order of ranks; ranks may have different numbers of rows.

    Rows of other ranks carry no gradient, and that of own rows is multiplied by the number of ranks. Distributed
    training averages gradients over ranks, so a mean over the joined batch, computed on every rank, has the gradient
    that one process with the joined batch would have.
    """
    if not spread():
        return values
    world, rank = dist.get_world_size(), dist.get_rank()
    sizes = [torch.zeros(1, dtype=torch.int64, device=values.device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([len(values)], device=values.device))
    lengths = [int(size) for size in sizes]
    padded = values.new_zeros(max(lengths), *values.shape[1:])
    padded[: len(values)] = values.detach()
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded)
    rows = [part[:length] for part, length in zip(parts, lengths, strict=True)]
    if values.is_floating_point():
        rows[rank] = _Times.apply(values, world)  # type: ignore[no-untyped-call]
    return torch.cat(rows)


class _Times(torch.autograd.Function):
    """The identity, with its gradient multiplied."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, times: int) -> Tensor:
        ctx.times = times
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, by_values: Tensor) -> tuple[Tensor, None]:
        return by_values * ctx.times, None


def add_up(values: Tensor) -> None:
    """Sum a tensor over all ranks, in place."""
    if spread():
        dist.all_reduce(values)
