"""One optimisation step after another, nothing of it on the host: eager, or replayed as one CUDA graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.losses.criterion import Criterion
from calibrant.training import state
from calibrant.training.device import Placement
from calibrant.training.feed import Feed

OPTIONS: dict[str, Any] = {"combo_kernels": True}
RECOMPILED = 64  # kinds of model and objective that one process may compile; torch gives up after 8
WARM = 3  # steps before a capture: libraries choose their kernels, the optimiser makes its state


@dataclass(frozen=True, eq=False)
class Learner:
    """What learns: the model (bare, and as it takes part in training), the criterion and the optimiser."""

    model: nn.Module
    taking_part: nn.Module
    criterion: Criterion
    optimiser: torch.optim.Optimizer
    clip: float

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that the next step depends on."""
        return state.gathered(self.model, self.optimiser, self.criterion)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go back to earlier tensors."""
        state.restored(tensors, self.model, self.optimiser, self.criterion)


class Step:
    """Steps through an epoch. Rows, moves, rates and the place in them lie on the device, so a step takes no arguments.

    Losses are summed on the device too, and read once, at the end of an epoch.
    """

    def __init__(
        self, learner: Learner, feed: Feed, place: Placement, batch: int, *, graph: bool, compiled: bool
    ) -> None:
        self.learner, self.feed, self.placement = learner, feed, place
        self.batch, self.steps = batch, len(feed) // batch
        self.own = torch.arange(batch, device=place.device)[place.share(batch)]
        self.at = torch.zeros(1, dtype=torch.int64, device=place.device)
        self.totals = torch.zeros(2, dtype=torch.float64, device=place.device)  # loss, right answers
        length = self.steps * batch
        self.rows = torch.zeros(length, dtype=torch.int64, device=place.device)
        self.moves = torch.zeros(length, 3, dtype=torch.int64, device=place.device)
        self.rates = torch.zeros(self.steps, device=place.device)
        self.moving = False
        self.compiled = compiled
        self.replay: torch.cuda.CUDAGraph | None = None
        self.capture = graph

    def begin(self, rows: Tensor, moves: Tensor | None, rates: list[float]) -> None:
        """Lay out an epoch."""
        self.learner.model.train()
        self.rows.copy_(rows)
        self.rates.copy_(torch.tensor(rates))
        self.moving = moves is not None
        if moves is not None:
            self.moves.copy_(moves)
        self.at.zero_()
        self.totals.zero_()
        if self.capture and self.replay is None:
            self.replay = self._captured()

    def __call__(self) -> None:
        """Take the next step; on a GPU this returns before it is taken."""
        if self.replay is None:
            with compiling() if self.compiled else nullcontext():
                self._body()
        else:
            self.replay.replay()

    def _body(self) -> None:
        learner = self.learner
        run, judge = compiled_step() if self.compiled else (forward, objective)
        places = self.at * self.batch + self.own
        for group in learner.optimiser.param_groups:
            group["lr"].copy_(self.rates[self.at][0])  # an index of no dimension would be read by the host
        with self.placement.autocast():
            moves = self.moves if self.moving else None
            logits, labels, rows = run(learner.taking_part, self.feed, self.rows, moves, places)
        value, right = judge(learner.criterion, logits, labels, rows)
        learner.optimiser.zero_grad(set_to_none=True)
        summed = learner.criterion.reduction == "sum"
        # ranks average their gradients, which of a sum over the batch leaves a part
        self.placement.backward(value * self.placement.world if summed else value)
        if learner.clip != float("inf"):
            self.placement.clip(learner.taking_part, learner.optimiser, learner.clip)
        learner.optimiser.step()
        with torch.no_grad():
            mean = value.detach() / len(rows) if summed else value.detach()
            self.totals += torch.stack([mean.double(), right])
            self.at += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Record a step, and undo the steps that it takes to do so."""
        before = state.copied(self.learner.tensors())
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self()
                self.at.zero_()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
            self._body()
        self.learner.restore(before)
        self.at.zero_()
        self.totals.zero_()
        return graph


def forward(
    model: nn.Module, feed: Feed, every: Tensor, moves: Tensor | None, places: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the logits of the rows at some places of the epoch's order, their labels, and the rows themselves."""
    rows = every[places]
    logits: Tensor = model(feed.ready(feed.fetch(rows), None if moves is None else moves[places]))
    return logits.float(), feed.labels[rows], rows


def objective(criterion: Criterion, logits: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the number to differentiate, and how many answers are right."""
    return criterion(logits, labels, rows), (logits.detach().argmax(1) == labels).sum().double()


def compiling() -> AbstractContextManager[Any]:
    """Let torch compile for more kinds of model and objective than it does otherwise."""
    import torch._dynamo.config  # takes a second, so not before it is needed

    return torch._dynamo.config.patch(recompile_limit=RECOMPILED)


@cache
def compiled_step() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return both, compiled once for all runs of a process: a model is an argument, and so its weights are too.

    Kernels that do not depend on each other, such as the casts of the weights, are launched as one.
    """
    return tuple(torch.compile(part, dynamic=False, options=OPTIONS) for part in (forward, objective))  # type: ignore[return-value]
