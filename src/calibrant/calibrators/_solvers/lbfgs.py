"""Batched L-BFGS: many small problems minimised at once, one evaluation for all."""

from collections.abc import Callable

import torch
from torch import Tensor

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
MEMORY = 10  # pairs of steps and slopes kept
ENOUGH = 1e-4  # of the promised decrease, below which a step is shortened (Armijo)
SHORTER = 0.3


def minimise(evaluate: Evaluate, start: Tensor, *, steps: int = 100, close: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Minimise over each row of ``start``; return the rows and their values.

    ``evaluate`` takes (m, p) points, m of the problems or fewer of them in any order, and returns their m values and
    (m, p) slopes; it must not depend on which problem a row is. A row whose slope is below ``close`` everywhere, or
    along which no step goes down, rests.

    Example:
        >>> def bowls(x):  # (x - 3)^2, twice
        ...     return (x - 3).square().sum(1), 2 * (x - 3)
        >>> minimise(bowls, torch.tensor([[0.0], [10.0]]))[0]
        tensor([[3.],
                [3.]])
    """
    at = start.clone()
    value, slope = evaluate(at)
    past: list[tuple[Tensor, Tensor, Tensor]] = []
    for _ in range(steps):
        way = _direction(slope, past)
        active = (slope.abs().amax(1) > close).nonzero().squeeze(1)
        if len(active) == 0:
            break
        new, value, new_slope = _search(evaluate, (at, value, slope), way, active)
        moved, turned = new - at, new_slope - slope
        past = [*past[-(MEMORY - 1) :], (moved, turned, (moved * turned).sum(1))]
        if not bool((moved != 0).any()):
            break
        at, slope = new, new_slope
    return at, value


def _direction(slope: Tensor, past: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The two-loop recursion, a row each; a pair without curvature counts for nothing."""
    way, shares = -slope, []
    size = (1 / slope.abs().sum(1).clamp(min=1e-300)).clamp(max=1)
    for moved, turned, curve in reversed(past):
        useful = curve > 1e-12 * (moved.norm(dim=1) * turned.norm(dim=1)).clamp(min=1e-300)
        share = torch.where(useful, (moved * way).sum(1) / curve.where(useful, 1), 0)
        way = way - share[:, None] * turned
        shares.append((share, useful))
    if past:
        moved, turned, curve = past[-1]
        size = torch.where(shares[0][1], curve / turned.square().sum(1).clamp(min=1e-300), size)
    way = way * size[:, None]
    for (moved, turned, curve), (share, useful) in zip(past, reversed(shares), strict=True):
        back = torch.where(useful, (turned * way).sum(1) / curve.where(useful, 1), 0)
        way = way + ((share - back) * useful)[:, None] * moved
    uphill = (way * slope).sum(1) >= 0
    return torch.where(uphill[:, None], -slope * size[:, None], way)


def _search(
    evaluate: Evaluate, here: tuple[Tensor, Tensor, Tensor], way: Tensor, todo: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Shorten the step of each row until it goes down enough; a row that finds none stays."""
    at, value, slope = here
    down = (way * slope).sum(1)
    found, found_value, found_slope = at.clone(), value.clone(), slope.clone()
    step = torch.ones_like(value)
    for _ in range(25):
        trial = at[todo] + step[todo, None] * way[todo]
        new_value, new_slope = evaluate(trial)
        good = new_value <= value[todo] + ENOUGH * step[todo] * down[todo]
        place = todo[good]
        found[place], found_value[place], found_slope[place] = trial[good], new_value[good], new_slope[good]
        todo = todo[~good]
        if len(todo) == 0:
            break
        step[todo] *= SHORTER
    return found, found_value, found_slope
