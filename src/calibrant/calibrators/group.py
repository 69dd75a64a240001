"""Group calibration: a temperature for each group of rows, grouped by features."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from calibrant.calibrators._solvers.lbfgs import minimise
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator
from calibrant.predictions.facts import CHUNK
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.registry import CALIBRATORS

START = 1.5  # the temperatures of the groups at first, in units of the common one
DECAY = 0.1  # of the mean square of the grouping weights
REACH, SPACING = 3.0, 0.125  # log temperatures are sought within ±3 of the common one, tabulated this finely
FEW = 10  # rows below which a group has no temperature of its own


@CALIBRATORS.register(keeps_argmax=True, parameters="UG(d + 1)")
class Group(Calibrator):
    r"""Group calibration: several partitions of the rows by their features, a temperature for each group, averaged.

    .. math:: p = \frac1U \sum_{u=1}^{U} \mathrm{softmax}(z / T_{u, g_u(f)}), \qquad g_u(f) = \arg\max_g (W_u f)_g

    Each partition is a linear map W (no bias) found together with temperatures :math:`\tau` from a random start by
    L-BFGS on the mean of :math:`-\log \sum_g \mathrm{softmax}(W f)_g\, \mathrm{softmax}(z / \tau_g)_y` plus
    :math:`0.1\,\overline{W^2}`. Then each row belongs to one group, and the temperature of a group is that of least log
    loss on rows that the partition was *not* found on: a share ``split`` of the rows finds the groups, the others
    their temperatures. ``split=None`` uses all rows for both, as some implementations do; with many features the groups
    then overfit, and few rows are a reason for a split, not against it.

    ``features`` are those of the penultimate layer, one row each; without them the logits less their mean serve. A
    calibrator that was fitted on features must be called with them, and its ``needs_features`` is true; one that was
    fitted without ignores them. Features are divided by their root mean square before the fit, so that the penalty does
    not depend on their unit. Temperatures start at 1.5 times the common one, not at 1.5, so that the unit of the logits
    does not matter either. A group of fewer than ten rows, or without a best temperature (all its rows are right, say),
    gets the common temperature.

    The partitions overlap, so the groups cannot be read as subpopulations; on few rows it adds noise to `Temperature`.

    Reference: Yang, Zhan & Gan, "Beyond probability partitions: calibrating neural networks with semantic aware
    grouping", NeurIPS 2023.

    Example:
        >>> side = torch.arange(4000) % 2  # says 90 % everywhere; right 9 times of 10 on one side, 6 on the other
        >>> labels = (torch.arange(4000) // 2 % 10 >= torch.where(side == 0, 9, 6)).long()
        >>> logits = torch.tensor([[2.2, 0.0]]).repeat(4000, 1)
        >>> cal = Group.fit(logits, labels, torch.stack([1.0 - side, 1.0 * side], 1))
        >>> cal(logits[:2], torch.eye(2)).softmax(1)[:, 0].round(decimals=1)
        tensor([0.9000, 0.6000])
    """

    feature_tensor = "weight"
    weight: Tensor
    beta: Tensor

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        partitions: int = 20,
        groups: int = 2,
        split: float | None = 0.5,
        seed: int = 0,
    ) -> "Group":
        """Fit on held-out rows."""
        for name, value in (("partitions", partitions), ("groups", groups)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}.")
        if split is not None and not 0 < split < 1:
            raise ValueError(f"split must be a share between 0 and 1, or None for no split; got {split}.")
        rows = FitData.read(logits, labels, features)
        inputs = rows.logits - rows.logits.mean(1, keepdim=True) if features is None else of_fit(rows)
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(rows.n, generator=generator)
        cut = 0 if split is None else max(1, round(rows.n * split))
        common = least_log_loss(rows)
        finding, fitting = (order[:cut], order[cut:]) if cut else (order, order)
        start = torch.rand(partitions, groups, inputs.shape[1], generator=generator, dtype=torch.float64) * 2 - 1
        weight = _partitions(rows, finding, inputs, common.beta, start)
        beta, lost = _temperatures(rows, fitting, inputs, weight, common.beta)
        notes = [f"The common T is at the bound {1 / common.beta:.3g}: {common.bound}."] if common.bound else []
        if lost and not common.bound:
            notes.append(
                f"{lost} of {beta.numel()} groups share the common T: too few rows, or no best T of their own."
            )
        settings = {"features": features is not None, "split": split, "seed": seed, "common": 1 / common.beta}
        return cls.made(rows, {"weight": weight, "beta": beta}, settings, notes=tuple(notes))

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Average the softmaxes of all partitions, as logarithms."""
        z = (logits - logits.amax(1, keepdim=True)).clamp(min=-1e30)
        own = z - z.mean(1, keepdim=True)
        f = of_call(features, self.weight.shape[2], logits) if self.needs_features else own
        betas = torch.stack([b[(f @ w.T).argmax(1)] for w, b in zip(*self._numbers(logits), strict=True)], 1)
        # beside the flattest of them no softmax vanishes: the ratio is 1 for the flattest itself, and at most k
        flattest = (z * betas.amin(1, keepdim=True)).log_softmax(1)
        ratios = [((z * b[:, None]).log_softmax(1) - flattest).exp() for b in betas.unbind(1)]
        return flattest + (sum(ratios[1:], ratios[0]) / len(ratios)).log()

    def _numbers(self, like: Tensor) -> tuple[Tensor, Tensor]:
        return self.weight.to(like.dtype), self.beta.to(like.dtype)

    def words(self) -> str:
        """Say how far the temperatures of the groups are apart."""
        partitions, groups = self.beta.shape
        low, high = 1 / float(self.beta.max()), 1 / float(self.beta.min())
        common = self.settings["common"]
        return f"{partitions} partitions x {groups} groups, T from {low:.4g} to {high:.4g} (in common {common:.4g})"


@dataclass(frozen=True)
class _Mixture:
    """The objective of every partition at once; a point is (weights, log temperature of each group), a row."""

    features: Tensor  # (n, d)
    true: Tensor  # (points, n): log probability of the true class on a grid of log beta
    rise: Tensor  # its derivative, times the spacing
    groups: int

    def __call__(self, points: Tensor) -> tuple[Tensor, Tensor]:
        (n, d), m, g = self.features.shape, len(points), self.groups
        weight, bent = points[:, : g * d], points[:, g * d :].tanh()
        true, rise = self._at(REACH * bent)
        share = (weight.reshape(m * g, d) @ self.features.T).reshape(m, g, n).log_softmax(1)
        joint = share + true
        value = DECAY * weight.square().mean(1) - joint.logsumexp(1).mean(1)
        mine = joint.softmax(1)
        by_weight = ((share.exp() - mine) / n).reshape(m * g, n) @ self.features
        by_weight = by_weight.reshape(m, g * d) + 2 * DECAY / (g * d) * weight
        return value, torch.cat([by_weight, -(mine * rise).mean(2) * REACH * (1 - bent.square())], 1)

    def _at(self, log_beta: Tensor) -> tuple[Tensor, Tensor]:
        """Interpolate by cubic Hermite polynomials: the value and its derivative in log beta."""
        place = ((log_beta + REACH) / SPACING).clamp(0, len(self.true) - 1.001)
        low = place.long()
        t = (place - low)[..., None]
        (a, b), (c, e) = ((column[low], column[low + 1]) for column in (self.true, self.rise))
        up, bend = b - a, c + e
        value = a + t * (c + t * (3 * up - bend - c + t * (bend - 2 * up)))
        return value, (c + t * (2 * (3 * up - bend - c) + t * 3 * (bend - 2 * up))) / SPACING


def _partitions(rows: FitData, finding: Tensor, inputs: Tensor, beta: float, start: Tensor) -> Tensor:
    """Return the (partitions, groups, d) weights that the rows ``finding`` are grouped by."""
    features = inputs[finding]
    unit = float(features.square().mean().sqrt()) or 1.0
    count, groups, d = start.shape
    mixture = _Mixture(features / unit, *_table(rows, finding, beta), groups)
    # W starts as a linear layer of torch does; log beta = REACH tanh(.)
    temperatures = torch.full((count, groups), -torch.tensor(START).log().div(REACH).atanh().item()).double()
    points, _ = minimise(mixture, torch.cat([start.reshape(count, -1) / d**0.5, temperatures], 1))
    return points[:, : groups * d].reshape(start.shape) / unit


def _table(rows: FitData, chosen: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Log probability of the true class, and its rise over one spacing, on the grid of log beta; (points, n) each."""
    grid = beta * torch.arange(-REACH, REACH + SPACING / 2, SPACING, dtype=torch.float64).exp()
    parts = []
    for part in chosen.split(max(1, CHUNK // rows.k)):
        z, columns = rows.logits[part], []
        truth = z.gather(1, rows.labels[part, None]).squeeze(1)
        for b in grid:
            weights = (z * b).exp()
            total = weights.sum(1)
            columns.append(torch.stack([b * truth - total.log(), b * SPACING * (truth - (weights * z).sum(1) / total)]))
        parts.append(torch.stack(columns, 1))
    true, rise = torch.cat(parts, 2)
    return true, rise


def _temperatures(rows: FitData, fitting: Tensor, inputs: Tensor, weight: Tensor, common: float) -> tuple[Tensor, int]:
    """Return 1/T of each group, and how many groups had to take the common one."""
    beta = torch.full(weight.shape[:2], common, dtype=torch.float64)
    lost = 0
    for u, w in enumerate(weight):
        mine = (inputs[fitting] @ w.T).argmax(1)
        for g in range(len(w)):
            part = fitting[mine == g]
            found = least_log_loss(FitData(rows.predictions.take(part))) if len(part) >= FEW else None
            own = found is not None and not found.bound
            lost += not own
            beta[u, g] = found.beta if found is not None and own else common
    return beta, lost
