"""ProCal: proximity-informed calibration."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from calibrant.calibrators.calibrator import Calibrator, Objective
from calibrant.metrics.bins import EDGE, mass_edges
from calibrant.predictions.facts import PROB_ZERO
from calibrant.predictions.fit_data import FitData, of_call, of_fit
from calibrant.predictions.types import float64
from calibrant.records import count
from calibrant.registry import CALIBRATORS

Proximity = Literal["code", "paper"]
Kind = Literal["density_ratio", "bin_mean_shift"]
SLICE = 1_000_000  # distances held at once
CLOSE_BINS, SURE_BINS = 5, 10  # of proximity, and of confidence within each
SUREST = -math.log(PROB_ZERO)  # log odds are kept within


@CALIBRATORS.register(keeps_argmax=False, needs_features=True, parameters="n(d + 2)")
class Procal(Calibrator):
    r"""ProCal: the chance of being right, given the confidence and the proximity to known rows.

    .. math:: c' = \frac{f_+(c, D)}{f_+(c, D) + f_-(c, D)\, n_-/n_+}, \qquad
        D = \frac1K \sum_{j \in \mathrm{NN}_K} e^{-\lVert \hat f - \hat f_j \rVert^2}

    D is taken over the K = 10 nearest of the rows fitted on, by features of length one (a fitted row is not its own
    neighbour). ``proximity="paper"`` is :math:`e^{-\text{mean distance}}`, as printed; the default is what the authors'
    code computes. The predicted class gets c', the others keep their proportions.

    ``kind="density_ratio"``: :math:`f_+, f_-` are Gaussian product-kernel densities of (c, D) over right and wrong
    rows, bandwidth :math:`1.06\,\sigma n^{-1/6}` a dimension (where :math:`\sigma = 0`, that of all rows). They are
    compared as logarithms, and a row beyond the c or D that were seen counts as on the border; far from all rows the
    authors' code finds 0/0 and answers 0. ``kind="bin_mean_shift"``: five equal-mass bins of D, in each ten bins
    :math:`(lo, hi]` of confidence; c' is the accuracy of its cell, the cell's mean confidence counting as one row more;
    an empty cell changes nothing.

    Where all rows are right, or all wrong, there is nothing to compare, and logits are left as they are. It keeps the
    features of every row fitted on, and compares a new row with all of them. Densities are poor where most confidences
    are almost 1: fit `Temperature` first, and this on what it returns. May change predictions: c' may be less than what
    is then left to another class.

    Reference: Xiong, Deng, Koh, Wu, Li, Xu & Hooi, "Proximity-informed calibration for deep neural networks",
    NeurIPS 2023.

    Example:
        >>> place = torch.linspace(0, 1, 50)  # a crowd that is right, and strangers that are wrong
        >>> features = torch.cat([torch.stack([1 + place, 1 - 0.1 * place], 1), torch.stack([-place, place - 0.5], 1)])
        >>> logits = torch.tensor([[2.0, 0.0]]).repeat(100, 1)  # of both it says 88 %
        >>> cal = Procal.fit(logits, torch.arange(100) // 50, features)
        >>> cal(logits[:2], torch.tensor([[1.5, 0.95], [-0.2, 0.5]])).softmax(1)[:, 0].round(decimals=2)
        tensor([0.9800, 0.0000])
    """

    feature_tensor = "reference"
    reference: Tensor
    right: Tensor
    wrong: Tensor
    bandwidth: Tensor
    edges: Tensor
    cells: Tensor

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        neighbours: int = 10,
        proximity: Proximity = "code",
        kind: Kind = "density_ratio",
    ) -> "Procal":
        """Fit on held-out rows and their features."""
        if neighbours < 1:
            raise ValueError(f"neighbours must be at least 1; got {neighbours}.")
        rows = FitData.read(logits, labels, features)
        unit, own = _unit(of_fit(rows)), _parted(rows.logits)[1]
        nearest = min(neighbours, max(rows.n - 1, 1))
        close = _among_themselves(unit, nearest, _PROXIMITY[proximity])
        state = {"reference": unit, **_densities(own, close, rows.correct), **_cells(own, close, rows.correct)}
        before = loss = float(rows.predictions.nll.mean())
        notes: tuple[str, ...] = ()
        if len(state["right"]) and len(state["wrong"]):
            odds = _sliced(lambda o, c: _ODDS[kind](state, o, c), SLICE // rows.n, own, close)
            # the others keep their proportions, so only the chance of being right changes
            sign = rows.correct.double() * 2 - 1
            loss -= float((logsigmoid(sign * odds) - logsigmoid(sign * own)).mean())
        else:
            notes = (f"All rows are {'right' if len(state['right']) else 'wrong'}, so logits are left as they are.",)
        settings = {"neighbours": nearest, "proximity": proximity, "kind": kind}
        # judged with no row its own neighbour; a row that comes back later is one, and its loss looks better than it is
        return cls.made(rows, state, settings, objective=Objective("log loss", before, loss), notes=notes)

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Replace the log odds of the predicted class; beside them the others keep theirs."""
        given = of_call(features, self.reference.shape[1], logits)
        if not len(self.right) or not len(self.wrong):
            return logits
        if torch.compiler.is_compiling():
            return self._some(logits, given)
        return _sliced(self._some, SLICE // len(self.reference), logits, given)

    def _some(self, logits: Tensor, features: Tensor) -> Tensor:
        state = {name: value.to(logits.dtype) for name, value in self.named_buffers()}
        z = (logits - logits.amax(1, keepdim=True)).clamp(min=-1e30)
        mine, own, others = _parted(z)
        unit = _unit(features)
        nearest = (unit @ state["reference"].T).topk(self.settings["neighbours"]).indices
        close = _PROXIMITY[self.settings["proximity"]](_squares(unit, state["reference"], nearest))
        return torch.where(mine, _ODDS[self.settings["kind"]](state, own, close)[:, None], others)

    def words(self) -> str:
        """Say what is compared with what."""
        n, d = self.reference.shape
        kind = str(self.settings["kind"]).replace("_", " ")
        return f"{kind} over {count(n)} rows x {d} features, {self.settings['neighbours']} neighbours"


def _parted(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the predicted class as a mask, its log odds, and the log proportions of the others."""
    mine = torch.arange(z.shape[1], device=z.device) == z.argmax(1, keepdim=True)
    others = z.masked_fill(mine, -torch.inf)
    total = others.logsumexp(1)
    return mine, z.amax(1) - total, (others - total[:, None]).masked_fill(mine, 0)


def _unit(features: Tensor) -> Tensor:
    """Features of length one; a row of zeros stays zero."""
    largest = features.abs().amax(1, keepdim=True)
    scaled = features / largest.where(largest > 0, 1)  # the square of a large number may be infinite
    return scaled / torch.linalg.vector_norm(scaled, dim=1, keepdim=True).clamp(min=1)


def _squares(unit: Tensor, reference: Tensor, nearest: Tensor) -> Tensor:
    return (unit[:, None] - reference[nearest]).square().sum(2)


def _among_themselves(unit: Tensor, neighbours: int, proximity: Callable[[Tensor], Tensor]) -> Tensor:
    """The proximity of each row to the others, itself left out; of one row alone, 0."""
    n, rough, parts = len(unit), unit.float(), []
    if n == 1:
        return torch.zeros(1, dtype=torch.float64)
    for rows in torch.arange(n).split(max(1, SLICE // n)):
        similarity = rough[rows] @ rough.T  # float32 finds them, float64 measures them
        similarity[torch.arange(len(rows)), rows] = -torch.inf
        parts.append(proximity(_squares(unit[rows], unit, similarity.topk(neighbours).indices)))
    return torch.cat(parts)


def _densities(own: Tensor, close: Tensor, correct: Tensor) -> dict[str, Tensor]:
    points = torch.stack([own.sigmoid(), close], 1)
    right, wrong = points[correct], points[~correct]
    overall = points.std(0, correction=0)
    overall = overall.where(overall > 1e-9, 1)
    widths = []
    for part in (right, wrong):
        spread = part.std(0, correction=0) if len(part) else overall
        widths.append(1.06 * spread.where(spread > 1e-9, overall) * max(len(part), 1) ** (-1 / 6))
    return {"right": right, "wrong": wrong, "bandwidth": torch.stack(widths)}


def _cells(own: Tensor, close: Tensor, correct: Tensor) -> dict[str, Tensor]:
    """The log odds of each (proximity, confidence) cell, and whether a row is in it."""
    edges = torch.from_numpy(mass_edges(float64(close), CLOSE_BINS))
    cell, size = _cell(edges, own, close), (len(edges) + 1) * SURE_BINS
    rows = torch.bincount(cell, minlength=size).double()
    sums = (torch.bincount(cell, value.double(), size) for value in (correct, own.sigmoid()))
    right, sure = sums
    chance = (right + sure / rows.clamp(min=1)) / (rows + 1)
    return {"edges": edges, "cells": torch.stack([chance.logit().clamp(-SUREST, SUREST), (rows > 0).double()])}


def _cell(edges: Tensor, own: Tensor, close: Tensor) -> Tensor:
    sure = ((own.sigmoid() * SURE_BINS - EDGE).ceil() - 1).clamp(0, SURE_BINS - 1).long()
    return (close[:, None] > edges).sum(1) * SURE_BINS + sure


def _density_ratio(state: Mapping[str, Tensor], own: Tensor, close: Tensor) -> Tensor:
    right, wrong = state["right"], state["wrong"]
    low, high = torch.minimum(right.amin(0), wrong.amin(0)), torch.maximum(right.amax(0), wrong.amax(0))
    point = torch.stack([own.sigmoid(), close], 1).clamp(low, high)
    logs = []
    for known, width in zip((right, wrong), state["bandwidth"].unbind(0), strict=True):
        a, b = point / width, known / width
        far = (a[:, :1] - b[:, 0]).square() + (a[:, 1:] - b[:, 1]).square()
        logs.append((far / -2).logsumexp(1) - width.log().sum())
    return (logs[0] - logs[1]).clamp(-SUREST, SUREST)  # the numbers of rows are in the sums


def _bin_mean_shift(state: Mapping[str, Tensor], own: Tensor, close: Tensor) -> Tensor:
    odds, filled = state["cells"][:, _cell(state["edges"], own, close)].unbind(0)
    return torch.where(filled > 0, odds, own)


def _sliced(work: Callable[[Tensor, Tensor], Tensor], size: int, a: Tensor, b: Tensor) -> Tensor:
    if size >= len(a):
        return work(a, b)
    return torch.cat([work(*part) for part in zip(a.split(max(1, size)), b.split(max(1, size)), strict=True)])


_PROXIMITY: dict[str, Callable[[Tensor], Tensor]] = {
    "code": lambda squares: (-squares).exp().mean(1),
    "paper": lambda squares: (-squares.sqrt().mean(1)).exp(),
}
_ODDS: dict[str, Callable[[Mapping[str, Tensor], Tensor, Tensor], Tensor]] = {
    "density_ratio": _density_ratio,
    "bin_mean_shift": _bin_mean_shift,
}
