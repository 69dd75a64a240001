r"""Conformal prediction: sets of classes that hold the true one with a chosen probability.

A nonconformity score (`thr`, `aps`, `raps`) says how unlike a row each class is, one value a class, lower = more alike.
With :math:`p_{(1)} \ge p_{(2)} \ge \dots` the sorted probabilities of a row and r(y) the rank of class y (ties in the
order of columns). ``draws`` are numbers u in [0, 1], one a row; 1 for every row means no randomisation.

A draw is a hash of the seed and the row's probabilities, to the last bit: a row has the same set by itself as in any
batch, and the score is a fixed function of the row, as the guarantee asks. Equal rows have equal draws.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import betaincinv
from torch import Tensor

from calibrant.predictions import checks, scalars
from calibrant.predictions.fingerprints import mixed
from calibrant.predictions.types import PerSample, Probs
from calibrant.records import count, percent

Score = Callable[[Tensor, Tensor], Tensor]


def thr(probs: Probs, draws: PerSample) -> Probs:
    r"""Least ambiguous sets by a threshold on the probability: the smallest sets on average.

    .. math:: 1 - p_y

    Covers easy rows too often and hard ones too rarely. Ignores ``draws``.

    Reference: Sadinle, Lei & Wasserman, JASA 2019.

    Example:
        >>> thr(torch.tensor([[0.75, 0.25]]), torch.ones(1))
        tensor([[0.2500, 0.7500]])
    """
    return 1 - probs


def aps(probs: Probs, draws: PerSample) -> Probs:
    r"""Adaptive prediction sets: the probability of all classes that come before, and of a part u of the class itself.

    .. math:: \sum_{j < r(y)} p_{(j)} + u\, p_y

    Larger sets where the model is unsure, so that hard rows are covered too; large with many classes, see `raps`.

    Reference: Romano, Sesia & Candès, NeurIPS 2020.

    Example:
        >>> aps(torch.tensor([[0.25, 0.75]]), torch.ones(1))
        tensor([[1.0000, 0.7500]])
    """
    order = probs.argsort(dim=1, descending=True, stable=True)
    ranked = probs.gather(1, order)
    before = ranked.cumsum(1) - ranked
    return torch.empty_like(probs).scatter_(1, order, before + draws[:, None] * ranked)


def raps(probs: Probs, draws: PerSample, *, penalty: float = 0.01, free: int = 5) -> Probs:
    r"""Regularised adaptive prediction sets: `aps`, and a penalty for every rank beyond the first few.

    .. math:: \sum_{j < r(y)} p_{(j)} + u\, p_y + \lambda \max(0, r(y) - k_{\mathrm{free}})

    with :math:`\lambda` the ``penalty`` and :math:`k_{\mathrm{free}}` = ``free``. Cuts the long tail of unlikely
    classes. Choose both on other rows than those of the quantile.

    Reference: Angelopoulos, Bates, Malik & Jordan, ICLR 2021.

    Example:
        >>> raps(torch.tensor([[0.25, 0.75]]), torch.ones(1), penalty=0.5, free=1)
        tensor([[1.5000, 0.7500]])
    """
    return aps(probs, draws) + penalty * (ranks(probs) - free).clamp(min=0).to(probs.dtype)


def ranks(probs: Probs) -> Tensor:
    """Return the rank of each class in its row, from 1 for the most probable.

    Example:
        >>> ranks(torch.tensor([[0.2, 0.5, 0.3]]))
        tensor([[3, 1, 2]])
    """
    order = probs.argsort(dim=1, descending=True, stable=True)
    places = torch.arange(1, probs.shape[1] + 1, device=probs.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Rows -> sets of classes: those whose score is at most ``quantiles``, one for each class. Made by `conformal`.

    A quantile is infinite, and its class in every set, where there were too few rows; ``notes`` say so.
    """

    quantiles: Tensor  # (k,)
    score: Score
    alpha: float
    n: int
    rank: int
    by_class: bool
    seed: int | None
    notes: tuple[str, ...]

    def __call__(self, probs: Any, *, empty: bool = False) -> Tensor:
        """Return which classes are in the set of each row: bool of shape (n, k).

        A set that would be empty holds the most probable class instead, which can only add coverage; ``empty=True``
        leaves it empty.
        """
        p = _read(probs)
        if p.shape[1] != len(self.quantiles):
            raise ValueError(f"probs must have {len(self.quantiles)} columns, as in calibration; got {p.shape[1]}.")
        found = self.score(p, _draws(p, self.seed)) <= self.quantiles.to(p.device)
        if not empty:
            rows = ~found.any(1)
            found[rows, p[rows].argmax(1)] = True
        return found

    @property
    def spread(self) -> tuple[float, float]:
        r"""Where the coverage of new rows lies in 90 % of calibrations: quantiles of Beta(rank, n + 1 - rank).

        Over calibration draws coverage is so distributed for scores without ties (with ties it is at least so large).
        Meaningful for one quantile; by class, each class has its own spread.
        """
        if self.rank > self.n:
            return 1.0, 1.0
        low, high = (float(betaincinv(self.rank, self.n + 1 - self.rank, q)) for q in (0.05, 0.95))
        return low, high

    def __str__(self) -> str:
        low, high = (percent(bound, 1) for bound in self.spread)
        draws = f"these {count(self.n)} rows: {low} to {high} in 9 of 10 draws, more where empty sets are filled"
        per = ", in each class" if self.by_class else f" ({draws})"
        said = f"Sets hold the true class with probability at least {percent(1 - self.alpha, 1)}{per}."
        return "\n".join([said, *(f"note: {note}" for note in self.notes)])


def conformal(
    probs: Any,
    labels: Any,
    *,
    alpha: float = 0.1,
    score: Score = thr,
    by_class: bool = False,
    seed: int | None = 0,
) -> ConformalSets:
    r"""Find how strange a class may be so that sets miss the true class with probability at most ``alpha``.

    .. math:: \hat q = s_{(\lceil (n + 1)(1 - \alpha) \rceil)}, \qquad
              \Pr[y \in \{c : s(x, c) \le \hat q\}] \ge 1 - \alpha

    with :math:`s_{(i)}` the i-th smallest score of the true classes of the n calibration rows, infinite beyond n. The
    probability is over calibration rows and a new row, all exchangeable; see ``spread`` for one set of calibration
    rows. ``score`` is `thr`, `aps`, `raps`, or any function like them. ``by_class``
    takes a quantile for each true class from its own rows, so that every class is covered alike. ``seed`` randomises
    `aps` and `raps`, which makes coverage exact where rows differ; equal rows stay tied, and are covered more often.
    With ``seed=None`` sets are far larger where the model is sure: for a ResNet-56 on CIFAR-100 (5 000 rows, alpha 0.1,
    five splits) `aps` covers 0.992 with 31.2 classes a set, randomised 0.909 with 4.2; `raps` 0.935 with 5.1,
    randomised 0.904 with 3.0.

    Sets say what cannot be ruled out, not what to do: with two classes, or to act on single answers, see `certify`.

    Reference: Vovk, Gammerman & Shafer, 2005; Papadopoulos et al., ECML 2002 (split conformal); Vovk, ACML 2012 (by
    class).

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.6, 0.4]]).repeat(10, 1)
        >>> sets = conformal(probs, torch.zeros(20, dtype=torch.int64), alpha=0.1)
        >>> sets(torch.tensor([[0.7, 0.3], [0.5, 0.5]]))
        tensor([[ True, False],
                [ True, False]])
    """
    scalars.share(alpha, "alpha")
    if seed is not None:
        scalars.seed(seed)
    p = _read(probs)
    n, k = p.shape
    y = checks.tensor(labels, "labels").to(p.device)
    if y.shape != (n,) or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(f"labels must be ({n},) indices of classes; got {tuple(y.shape)} of {y.dtype}.")
    y = y.long()
    if bool((y < 0).any()) or bool((y >= k).any()):
        raise ValueError(f"labels must lie in [0, {k}); got [{int(y.min())}, {int(y.max())}].")
    own = score(p, _draws(p, seed)).gather(1, y[:, None]).squeeze(1)
    parts = [own[y == c] for c in range(k)] if by_class else [own]
    found = torch.stack([_quantile(part, alpha) for part in parts]).expand(k).clone()
    notes = tuple(_note(len(part), alpha, c if by_class else None) for c, part in enumerate(parts))
    return ConformalSets(found, score, alpha, n, rank(n, alpha), by_class, seed, tuple(note for note in notes if note))


def rank(n: int, alpha: float) -> int:
    """Return which of n sorted scores is the quantile: beyond n where there are too few rows for alpha.

    Example:
        >>> rank(19, 0.05), rank(18, 0.05)
        (19, 19)
    """
    return math.ceil((n + 1) * (1 - alpha) - 1e-9)


def _quantile(scores: Tensor, alpha: float) -> Tensor:
    place = rank(len(scores), alpha)
    return scores.sort().values[place - 1] if place <= len(scores) else scores.new_tensor(math.inf)


def _note(n: int, alpha: float, label: int | None) -> str:
    if rank(n, alpha) <= n:
        return ""
    which = "the sets hold every class" if label is None else f"class {label} is in every set"
    needed = math.ceil((1 - alpha) / alpha - 1e-9)
    return f"{n} rows are too few for {percent(1 - alpha, 1)}, so {which}; at least {needed} rows are needed."


def _read(probs: Any) -> Probs:
    p = checks.scores(checks.tensor(probs, "probs"), "probs")
    if p.shape[1] < 2:
        raise ValueError(f"probs must have a column for each class; got shape {tuple(p.shape)}.")
    checks.probs(p)
    return p.double()


def _draws(probs: Tensor, seed: int | None) -> Tensor:
    if seed is None:
        return torch.ones(len(probs), dtype=probs.dtype, device=probs.device)
    rows = mixed(np.full(len(probs), seed, np.uint64))
    for column in np.ascontiguousarray(probs.cpu().numpy().T) + 0.0:  # there are two zeros
        rows = mixed(rows ^ column.view(np.uint64))
    return torch.from_numpy((rows >> np.uint64(11)) * 2.0**-53).to(probs)  # 53 bits, as many as a float64 has
