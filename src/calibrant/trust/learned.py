r"""Learned trust predictors: a head fitted on held-out rows, whose size is chosen by cross-fitted AUROC.

A head sees the log odds of max-softmax, the classifier's other scores and its features (`_machinery.heads`). An
anchored head starts as max-softmax and departs from its ranking only where rows left out show a better one.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.calibrators.cross_fit import stratified_folds
from calibrant.metrics.delong import paired_auroc
from calibrant.metrics.scores import SORTED, log_odds, own_scores
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.predictions.types import Vector
from calibrant.trust._machinery.heads import Kind, Net, learnable, prepared, started, z_of
from calibrant.trust.predictor import TrustFit, TrustPredictor

Made = TypeVar("Made", bound="Learned")
Loss = Callable[[Tensor, Tensor], Tensor]  # z, target -> a loss a row

FOLDS = 5
RIDGES = (1.0, 0.1, 0.01)  # on the weights of standardised columns, of the mean loss
BARE_RIDGE = 1e-4  # without an anchor
SURE = 1.64  # standard errors by which a head must rank better than max-softmax to be preferred
FIRST_RIDGE = 1e-6  # on the scale of the first anchor
FEW = 20  # right or wrong rows below which only the anchor is fitted
EPOCHS, BATCH, STEPS, DECAY = 30, 128, 100, 1e-2  # of the mlp; an epoch of many rows has STEPS larger batches
WIDEST = 15.0  # largest standard deviation of log odds: beyond it sigmoids would tie at 0 and 1, so they are rescaled
FLAT = 1e-6  # a spread of confidences below which they count as equal


class Learned(TrustPredictor):
    r"""Confidence :math:`\sigma(z)` of a head on the classifier's own scores and its features.

    Fit it on held-out rows: on the rows that the classifier was trained on almost every answer is right. A subclass
    names its ``loss``, a function of (z, target), and writes a ``fit`` of its own only if that loss has options.
    ``scale_ridge`` holds the scale of the anchor at 1; a loss that favours an infinite scale needs more.
    """

    loss: Callable[..., Tensor]
    scale_ridge: ClassVar[float] = 1e-3

    @classmethod
    def fit(
        cls: "type[Made]",
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        head: Kind = "linear",
        anchor: bool = True,
        seed: int = 0,
    ) -> Made:
        """Fit on held-out rows; with ``anchor=False`` on features alone, from scratch."""
        return cls.learned(FitData.read(logits, labels, features), cls.loss, {}, head=head, anchor=anchor, seed=seed)

    @classmethod
    def learned(
        cls: "type[Made]",
        rows: FitData,
        loss: Loss,
        options: Mapping[str, Any],
        *,
        head: Kind,
        anchor: bool,
        seed: int,
    ) -> Made:
        """Fit a head by a loss of (z, target) with its ``options`` filled in, which are kept as settings.

        The target is 1 for right rows and 0 for wrong ones, or the true class probability where the predictor estimates
        it. Features are used if the rows have them; without an anchor they are required.
        """
        loss(torch.zeros(2), torch.tensor([0.0, 1.0]))  # a wrong option fails before the work
        wrong = int((~rows.correct).sum())
        if not 0 < wrong < rows.n:
            said = "right" if wrong == 0 else "wrong"
            raise ValueError(
                f"labels must leave some answers right and some wrong; all {rows.n} are {said}, and nothing can be "
                "learned from that. Fit on rows that the classifier was not trained on."
            )
        with torch.inference_mode(mode=False), torch.autocast("cpu", enabled=False):
            odds, columns, own = _seen(rows, anchor=anchor)
            unit = min(1.0, WIDEST / max(float(odds.std(correction=0)), 1e-300))
            odds = odds * unit
            target = (-rows.facts.nll).exp() if cls.estimates_truth else rows.correct.double()
            # ConfidNet's network is trained where the features are, in float32; the rest in float64 on the CPU
            place = rows.predictions.features.device if rows.predictions.has_features and head == "mlp" else "cpu"
            kind = torch.float32 if head == "mlp" else torch.float64
            odds, columns, target = (x.to(place, kind, copy=True) for x in (odds, columns, target))
            task = Task(odds, columns, target, rows.correct.to(place), loss, head, cls.scale_ridge, seed)
            found = fit_anchored(task, own) if anchor else fit_from_scratch(task)
            notes = (*found.notes, *_flat(task, found))
        with_features = not anchor or found.chosen.width > own
        settings = {**options, "head": head, "anchor": anchor, "seed": seed, "unit": unit}
        settings |= {"features": with_features, "sees": found.chosen.says, "width": found.chosen.width}
        fit = TrustFit(
            rows.n,
            rows.k,
            wrong,
            (rows.predictions.fingerprint,),
            time.perf_counter() - rows.began,
            found.auroc,
            found.spread,
            notes,
            d=found.chosen.width - own if with_features else 0,
        )
        return cls({name: value.cpu() for name, value in found.net.items()}, settings, fit)

    def feature_width(self) -> int:
        """Return how many features the head sees beside the classifier's own scores."""
        if not self.needs_features:
            return 0
        width, own = self.settings["width"], min(SORTED, self.fitted.k) + 2 if self.settings["anchor"] else 0
        if width != self.get_buffer("mean").numel():  # a file may claim anything
            raise ValueError(f"width must be that of its tensors; got {width!r:.100}")
        return width - own

    def z(self, logits: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the output of the head for each row of (n, k) logits, trusted above 0."""
        net, wide = dict(self.named_buffers()), logits.double()  # features may have an offset that float32 cannot hold
        odds = self.settings["unit"] * log_odds(wide)
        columns = own_scores(wide) if self.settings["anchor"] else wide[:, :0]
        if self.needs_features:
            columns = torch.cat([columns, of_call(features, self.feature_width(), wide)], 1)
        u = prepared(columns[:, : self.settings["width"]], net).to(net["shift"].dtype)
        return z_of(odds, u, net, self.settings["head"])

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Return the confidence of each row."""
        return self.z(logits, features).double().sigmoid()

    def words(self) -> str:
        """Say what the head sees and how it ranks."""
        base, own = self.fitted.auroc
        told = f"{self.settings['head'].replace('_', ' ')} head on {self.settings['sees']}"
        if own == own:  # NaN: not measured
            told += f"; AUROC on unseen rows {own:.4f}, max-softmax {base:.4f}"
        return told


def _seen(rows: FitData, *, anchor: bool) -> tuple[Tensor, Tensor, int]:
    """Return the log odds, the columns that a head may see, and how many of them are the classifier's own scores."""
    logits = rows.logits
    columns = own_scores(logits) if anchor else logits[:, :0]
    own = columns.shape[1]
    if rows.predictions.has_features:
        columns = torch.cat([columns, of_fit(rows)], 1)
    elif not anchor:
        raise ValueError("features must be given with anchor=False: such a head sees nothing else.")
    return log_odds(logits), columns, own


@dataclass(frozen=True)
class Task:
    """What a head is fitted on (log odds, columns, targets, whether each answer was right), and how."""

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
    """A head that may be chosen: how many of the columns it sees, and the ridge that holds it at the anchor."""

    says: str
    width: int
    ridge: float


@dataclass(frozen=True)
class FittedHead:
    """A head, the candidate it came from, and its cross-fitted AUROC beside that of max-softmax."""

    net: Net
    chosen: Candidate
    auroc: tuple[float, float] = (math.nan, math.nan)
    spread: float = math.nan
    notes: tuple[str, ...] = ()


def fit_anchored(task: Task, own: int) -> FittedHead:
    """Fit a head that starts as max-softmax and departs from its ranking only for a better one.

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
        return FittedHead(fit_head(task.narrowed(0), plain), plain, notes=(note,))
    odds, right = task.odds.double().cpu().numpy(), task.right.cpu().numpy()
    unseen = _unseen(task, _candidates(task, own))
    compared = {candidate: paired_auroc(z, odds, right) for candidate, z in unseen.items()}
    best = max(compared, key=lambda candidate: compared[candidate][0])
    own_auroc, base, spread = compared[best]
    if own_auroc - base > SURE * spread:
        net = fit_head(task.narrowed(best.width), best)
        return FittedHead(net, best, (base, own_auroc), spread)
    note = (
        f"nothing ranks unseen rows better than max-softmax (AUROC {base:.4f}, with {best.says} {own_auroc:.4f} "
        f"+- {spread:.4f}), so its ranking is kept: what is learned is where to put the threshold."
    )
    return FittedHead(fit_head(task.narrowed(0), plain), plain, (base, base), spread, (note,))


def _first(task: Task, plain: Candidate) -> tuple[float, float]:
    """Scale the log odds by logistic regression: far from its optimum a bounded loss has no gradient."""
    right, loss = task.right.to(task.odds.dtype), partial(F.binary_cross_entropy_with_logits, reduction="none")
    ask = replace(task.narrowed(0), kind="linear", loss=loss, target=right, scale_ridge=FIRST_RIDGE)
    spread, mean = float(task.odds.std(correction=0)), float(task.odds.mean())
    if spread <= 1e-6 * abs(mean):  # nothing to scale
        return 0.0, 0.0
    unit = -math.log(spread)
    net = fit_head(replace(ask, begin=(unit, -mean / spread)), plain)
    scale, shift = max(float(net["log_scale"]), unit - 12), float(net["shift"])
    if task.kind != "signed_distance":
        return scale, shift
    most = float(task.odds.abs().max())
    return 0.0, min(max(shift / math.exp(scale), -most), most)


def fit_from_scratch(task: Task) -> FittedHead:
    """Fit a head on the columns alone, as the papers do; it does not see max-softmax."""
    chosen = Candidate("features alone", task.columns.shape[1], BARE_RIDGE)
    return FittedHead(fit_head(task, chosen, anchor=False), chosen)


def _candidates(task: Task, own: int) -> list[Candidate]:
    every = task.columns.shape[1]
    names = {own: "its other scores"} | ({every: "its other scores and features"} if every > own else {})
    ridges = (DECAY,) if task.kind == "mlp" else RIDGES
    return [Candidate(says, width, ridge) for width, says in names.items() for ridge in ridges]


def _unseen(task: Task, candidates: Sequence[Candidate]) -> dict[Candidate, Vector]:
    """Return the cross-fitted z of each row, for each candidate."""
    folds = _folds(task.right, task.seed)
    found = {candidate: np.empty(len(task.right)) for candidate in candidates}
    for fold in range(FOLDS):
        out = folds == fold
        rest, left = task.take(~out), task.take(out)
        net: Net = {}
        for candidate in candidates:
            net = fit_head(rest.narrowed(candidate.width), candidate, begin=net)
            u = prepared(left.columns[:, : candidate.width], net)
            found[candidate][out.cpu().numpy()] = z_of(left.odds, u, net, task.kind).double().cpu().numpy()
    return found


def _folds(right: Tensor, seed: int) -> Tensor:
    """Spread the right rows and the wrong rows evenly over the folds, in a seeded order."""
    g, sides = torch.Generator().manual_seed(seed), (right.cpu(), ~right.cpu())
    places = [side.nonzero().squeeze(1) for side in sides]
    mixed = torch.cat([rows[torch.randperm(len(rows), generator=g)] for rows in places])
    folds = stratified_folds(sides[1].numpy(), FOLDS, mixed.numpy(), restart=True)
    return torch.from_numpy(folds).to(right.device)


def fit_head(task: Task, chosen: Candidate, *, anchor: bool = True, begin: Net | None = None) -> Net:
    """Fit one head: L-BFGS on all rows at once, or minibatches of Adam for the network.

    L-BFGS starts from ``begin``, a head of the same rows, if it sees as many columns.
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
    """Train by minibatches with a cosine learning rate: ConfidNet's network has half a million weights."""
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


def _flat(task: Task, found: FittedHead) -> tuple[str, ...]:
    """Note confidences that hardly differ over the rows of the fit, as where a bounded loss has no gradient."""
    u = prepared(task.columns[:, : found.chosen.width], found.net)
    sure = z_of(task.odds, u, found.net, task.kind).double().sigmoid().sort().values
    n = len(sure)
    if float(sure[n - 1 - n // 20] - sure[n // 20]) > FLAT:
        return ()
    return (f"nine in ten confidences lie within {FLAT:g} of each other: nothing was learned that could be used.",)
