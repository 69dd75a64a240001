"""The optimisation step, without host synchronisation: eager, compiled, or replayed as a CUDA graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.losses.criterion import Criterion
from calibrant.training import checkpoint
from calibrant.training.device import Placement
from calibrant.training.feed import Feed

OPTIONS: dict[str, Any] = {"combo_kernels": True}
RECOMPILED = 64  # recompilations allowed for different models and objectives; the default of torch is 8
WARM = 3  # warm-up steps before a capture: kernels are tuned, the optimiser creates its state


@dataclass(frozen=True, eq=False)
class Learner:
    """The model (bare, and wrapped for distributed training), the criterion and the optimiser."""

    model: nn.Module
    taking_part: nn.Module
    criterion: Criterion
    optimiser: torch.optim.Optimizer
    clip: float

    def tensors(self) -> dict[str, Tensor]:
        """Return everything that the next step depends on."""
        return checkpoint.gathered(self.model, self.optimiser, self.criterion)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore tensors returned by `tensors`."""
        checkpoint.restored(tensors, self.model, self.optimiser, self.criterion)


class Step:
    """The steps of an epoch. Row order, augmentation, learning rates and the step counter are tensors on the device.

    So a step takes no arguments and can be captured. Losses are summed on the device and read once per epoch.
    """

    def __init__(
        self, learner: Learner, feed: Feed, place: Placement, batch: int, *, graph: bool, compiled: bool
    ) -> None:
        self.learner, self.feed, self.placement = learner, feed, place
        self.batch, self.steps = batch, len(feed) // batch
        self.own = torch.arange(batch, device=place.device)[place.share(batch)]
        self.at = torch.zeros(1, dtype=torch.int64, device=place.device)
        self.totals = torch.zeros(2, dtype=torch.float64, device=place.device)  # loss, correct predictions
        length = self.steps * batch
        self.rows = torch.zeros(length, dtype=torch.int64, device=place.device)
        self.moves = torch.zeros(length, 3, dtype=torch.int64, device=place.device)
        self.rates = torch.zeros(self.steps, device=place.device)
        self.moving = False
        self.compiled = compiled
        self.replay: torch.cuda.CUDAGraph | None = None
        self.capture = graph

    def begin(self, rows: Tensor, moves: Tensor | None, rates: list[float]) -> None:
        """Load the order, augmentation and learning rates of an epoch."""
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
        """Run the next step, asynchronously on a GPU."""
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
            group["lr"].copy_(self.rates[self.at][0])  # a 0-dimensional index would synchronise with the host
        with self.placement.autocast():
            moves = self.moves if self.moving else None
            logits, labels, rows = run(learner.taking_part, self.feed, self.rows, moves, places)
        value, right = judge(learner.criterion, logits, labels, rows)
        learner.optimiser.zero_grad(set_to_none=True)
        summed = learner.criterion.reduction == "sum"
        # gradients are averaged over ranks, which for a sum over the batch divides by their number
        self.placement.backward(value * self.placement.world if summed else value)
        if learner.clip != float("inf"):
            self.placement.clip(learner.taking_part, learner.optimiser, learner.clip)
        learner.optimiser.step()
        with torch.no_grad():
            mean = value.detach() / len(rows) if summed else value.detach()
            self.totals += torch.stack([mean.double(), right])
            self.at += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        """Capture a step as a CUDA graph, and undo its warm-up steps."""
        before = checkpoint.copied(self.learner.tensors())
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
    """Return logits, labels and row indices of the given positions in the epoch's order."""
    rows = every[places]
    logits: Tensor = model(feed.ready(feed.fetch(rows), None if moves is None else moves[places]))
    return logits.float(), feed.labels[rows], rows


def objective(criterion: Criterion, logits: Tensor, labels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the objective and the number of correct predictions."""
    return criterion(logits, labels, rows), (logits.detach().argmax(1) == labels).sum().double()


def compiling() -> AbstractContextManager[Any]:
    """Raise torch's recompilation limit."""
    import torch._dynamo.config  # takes a second to import

    return torch._dynamo.config.patch(recompile_limit=RECOMPILED)


@cache
def compiled_step() -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return `forward` and `objective`, compiled once per process: the model is an argument, and so are its weights.

    Independent kernels, such as the casts of the weights, are combined into one launch.
    """
    return tuple(torch.compile(part, dynamic=False, options=OPTIONS) for part in (forward, objective))  # type: ignore[return-value]
