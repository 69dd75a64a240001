"""Rows and a loss -> a head: how much it may look at is decided on rows that it has not seen."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.metrics.delong import paired_auroc
from calibrant.predictions.types import Vector
from calibrant.trust._machinery.heads import Kind, Net, learnable, prepared, started, z_of

Loss = Callable[[Tensor, Tensor], Tensor]  # z, target -> a loss a row

FOLDS = 5
RIDGES = (1.0, 0.1, 0.01)  # on the weights of standardised columns, of the mean loss
BARE_RIDGE = 1e-4  # without an anchor
SURE = 1.64  # standard errors by which a head must rank better than max-softmax to be preferred
FIRST_RIDGE = 1e-6  # on the scale of the first anchor
FEW = 20  # right or wrong rows below which nothing but the anchor is fitted
EPOCHS, BATCH, STEPS, DECAY = 30, 128, 100, 1e-2  # of the mlp; an epoch of many rows has STEPS larger batches


@dataclass(frozen=True)
class Task:
    """What a head learns from (log odds, columns, targets, whether each answer was right), and how."""

    odds: Tensor
    columns: Tensor
    target: Tensor
    right: Tensor
    loss: Loss
    kind: Kind
    scale_ridge: float  # on the logarithm of the anchor's scale, about where it begins
    seed: int
    begin: tuple[float, float] = (0.0, 0.0)  # logarithm of the anchor's scale, and shift

    def take(self, rows: Tensor) -> "Task":
        """Return some of the rows."""
        parts = {name: getattr(self, name)[rows] for name in ("odds", "columns", "target", "right")}
        return replace(self, **parts)

    def narrowed(self, width: int) -> "Task":
        """Return the task with its first columns only."""
        return replace(self, columns=self.columns[:, :width])


@dataclass(frozen=True)
class Candidate:
    """A head that may be chosen: how many of the columns it sees, and how strongly it is held at the anchor."""

    says: str
    width: int
    ridge: float


@dataclass(frozen=True)
class Learnt:
    """The head, what it sees, and what rows that it had not seen say of it."""

    net: Net
    chosen: Candidate
    auroc: tuple[float, float] = (math.nan, math.nan)
    spread: float = math.nan
    notes: tuple[str, ...] = ()


def anchored(task: Task, own: int) -> Learnt:
    """Learn a head that begins as max-softmax and leaves its ranking only for a better one.

    The first ``own`` columns are the classifier's own scores, the rest features. Candidates are the scaled and shifted
    log odds, which rank as max-softmax does; those with the own scores; those with the features too; each held at the
    anchor by a ridge. Their AUROCs on folds left out are compared, and the best is taken if it exceeds max-softmax by
    1.64 standard errors; else the log odds are.
    """
    plain = Candidate("the log odds of max-softmax, scaled and shifted", 0, 0.0)
    task = replace(task, begin=_first(task, plain))
    wrong = int((~task.right).sum())
    if min(wrong, len(task.right) - wrong) < FEW:
        note = f"fewer than {FEW} rows are wrong (or right), so nothing but the scale of max-softmax was fitted."
        return Learnt(trained(task.narrowed(0), plain), plain, notes=(note,))
    odds, right = task.odds.double().cpu().numpy(), task.right.cpu().numpy()
    unseen = _unseen(task, _candidates(task, own))
    compared = {candidate: paired_auroc(z, odds, right) for candidate, z in unseen.items()}
    best = max(compared, key=lambda candidate: compared[candidate][0])
    own_auroc, base, spread = compared[best]
    if own_auroc - base > SURE * spread:
        net = trained(task.narrowed(best.width), best)
        return Learnt(net, best, (base, own_auroc), spread)
    note = (
        f"nothing ranks unseen rows better than max-softmax (AUROC {base:.4f}, with {best.says} {own_auroc:.4f} "
        f"+- {spread:.4f}), so its ranking is kept: what is learned is where to put the threshold."
    )
    return Learnt(trained(task.narrowed(0), plain), plain, (base, base), spread, (note,))


def _first(task: Task, plain: Candidate) -> tuple[float, float]:
    """Bring the log odds to scale by logistic regression: from afar, a loss that is bounded sees no slope."""
    right, loss = task.right.to(task.odds.dtype), partial(F.binary_cross_entropy_with_logits, reduction="none")
    ask = replace(task.narrowed(0), kind="linear", loss=loss, target=right, scale_ridge=FIRST_RIDGE)
    spread, mean = float(task.odds.std(correction=0)), float(task.odds.mean())
    if spread <= 1e-6 * abs(mean):  # nothing to scale
        return 0.0, 0.0
    unit = -math.log(spread)
    net = trained(replace(ask, begin=(unit, -mean / spread)), plain)
    scale, shift = max(float(net["log_scale"]), unit - 12), float(net["shift"])
    if task.kind != "signed_distance":
        return scale, shift
    most = float(task.odds.abs().max())
    return 0.0, min(max(shift / math.exp(scale), -most), most)


def bare(task: Task) -> Learnt:
    """Learn a head from scratch on the columns alone, as the papers do; it knows nothing of max-softmax."""
    chosen = Candidate("features alone", task.columns.shape[1], BARE_RIDGE)
    return Learnt(trained(task, chosen, anchor=False), chosen)


def _candidates(task: Task, own: int) -> list[Candidate]:
    every = task.columns.shape[1]
    names = {own: "its other scores"} | ({every: "its other scores and features"} if every > own else {})
    ridges = (DECAY,) if task.kind == "mlp" else RIDGES
    return [Candidate(says, width, ridge) for width, says in names.items() for ridge in ridges]


def _unseen(task: Task, candidates: Sequence[Candidate]) -> dict[Candidate, Vector]:
    """Return z of each row by a head that was fitted without it, for each candidate."""
    folds = _folds(task.right, task.seed)
    found = {candidate: np.empty(len(task.right)) for candidate in candidates}
    for fold in range(FOLDS):
        out = folds == fold
        rest, left = task.take(~out), task.take(out)
        net: Net = {}
        for candidate in candidates:
            net = trained(rest.narrowed(candidate.width), candidate, begin=net)
            u = prepared(left.columns[:, : candidate.width], net)
            found[candidate][out.cpu().numpy()] = z_of(left.odds, u, net, task.kind).double().cpu().numpy()
    return found


def _folds(right: Tensor, seed: int) -> Tensor:
    """Deal right rows and wrong rows out to the folds in turn, in a seeded order."""
    g = torch.Generator().manual_seed(seed)
    folds = torch.empty(len(right), dtype=torch.int64)
    for side in (right.cpu(), ~right.cpu()):
        places = side.nonzero().squeeze(1)
        folds[places[torch.randperm(len(places), generator=g)]] = torch.arange(len(places)) % FOLDS
    return folds.to(right.device)


def trained(task: Task, chosen: Candidate, *, anchor: bool = True, begin: Net | None = None) -> Net:
    """Fit one head: L-BFGS on all rows at once, or minibatches of Adam for the network.

    ``begin`` is a head of the same rows from which L-BFGS may start, if it sees as many columns.
    """
    net = started(task.columns, task.kind, anchor=anchor, seed=task.seed)
    if anchor:
        net |= {name: net[name] + value for name, value in zip(("log_scale", "shift"), task.begin, strict=True)}
    u = prepared(task.columns, net)
    by_adam = task.kind == "mlp" and chosen.width > 0
    first = net if by_adam or not begin or begin["mean"].shape != net["mean"].shape else begin
    moving = {name: value.clone().requires_grad_() for name, value in learnable(first, task.kind).items()}
    with torch.enable_grad():
        (_adam if by_adam else _lbfgs)(task, u, net | moving, chosen.ridge)
    return net | {name: value.detach() for name, value in moving.items()}


def _lbfgs(task: Task, u: Tensor, net: Net, ridge: float) -> None:
    moving = learnable(net, task.kind)
    optimiser = torch.optim.LBFGS(
        list(moving.values()), max_iter=60, tolerance_grad=1e-6, tolerance_change=1e-8, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        value = task.loss(z_of(task.odds, u, net, task.kind), task.target).mean()
        if "w1" in moving:
            value = value + ridge / 2 * moving["w1"].square().sum()
        if "log_scale" in moving:
            value = value + task.scale_ridge / 2 * (moving["log_scale"] - task.begin[0]).square()
        value.backward()
        return value

    optimiser.step(closure)


def _adam(task: Task, u: Tensor, net: Net, decay: float) -> None:
    """Minibatches by a cosine rate: ConfidNet's network has half a million weights."""
    moving, rate = learnable(net, task.kind), 1e-3 if "log_scale" in net else 1e-4
    weights = [value for name, value in moving.items() if name.startswith("w")]
    others = [value for name, value in moving.items() if not name.startswith("w")]
    groups = [{"params": weights, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=rate)
    batch = max(BATCH, len(u) // STEPS)
    steps = max(1, len(u) // batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, EPOCHS * steps)
    g = torch.Generator().manual_seed(task.seed)
    for _ in range(EPOCHS):
        order = torch.randperm(len(u), generator=g).to(u.device)
        for rows in order.split(batch)[:steps]:
            optimiser.zero_grad()
            task.loss(z_of(task.odds[rows], u[rows], net, task.kind), task.target[rows]).mean().backward()
            optimiser.step()
            schedule.step()
