"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR)."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from calibrant.calibrators._solvers.affine import ITERATIONS, Affine, Regression, Ridge, applied, remarks
from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.calibrator import Calibrator, log_loss
from calibrant.predictions.facts import PROB_ZERO
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS

Strength = float | Sequence[float] | Literal["cv"]
Pair = tuple[float, float]
Tried = tuple[float, float, float]
DECADES = 6  # how many powers of ten are tried at most
WORK = 1.5e8  # n K^2, times the folds held out: where it would be more, fewer are
ROUGH = 1e-4  # the slope at which a fit that is only compared with others ends


@CALIBRATORS.register(keeps_argmax=False, parameters="K^2 + K")
class Dirichlet(Calibrator):
    r"""Dirichlet calibration with off-diagonal and intercept regularisation (ODIR).

    .. math:: z \mapsto W \log p + b, \quad p = \mathrm{softmax}(z), \qquad \min_{W, b}\; \overline{-\log p'_{y}}
       + \frac{\lambda}{K(K - 1)} \sum_{j \ne k} W_{jk}^2 + \frac{\mu}{K} \sum_k b_k^2

    with p' the calibrated probabilities, :math:`\lambda` = ``odir``, :math:`\mu` = ``bias``, and p no less than 1e-12.
    Follows if the probabilities given each class are Dirichlet distributed. The diagonal is free. A number added to all
    logits of a row has no effect; their scale has, since p is clipped at 1e-12. The objective is convex; L-BFGS starts
    at temperature scaling, W = I/T and b = 0, and a class without rows stays there.

    Each strength is a number, several to choose from, or ``"cv"``. The choice is by log loss on held-out ``folds``
    (drawn with ``seed``), over all pairs of the numbers given. If both are ``"cv"``, they are one number, since on real
    logits only ``odir`` mattered. It is sought among six powers of ten, from some hundred times :math:`(K(K - 1))^2/n`
    downwards, each fit starting from the last, until two in a row are no better. Published grids, such as 0.0025 to 10,
    are far too weak for more than some ten classes. An iteration takes O(n K^2), so on large problems only some folds
    are held out and the fit ends earlier: three of 5000 rows x 100 classes (about 15 seconds on one core), one and 100
    iterations of 5000 x 1000 (some minutes).

    With few rows a class its free diagonal alone loses to temperature scaling: see `StructuredMatrix`.

    Reference: Kull, Perello-Nieto, Kängsepp, Silva Filho, Song & Flach, NeurIPS 2019.

    Example:
        >>> logits = 2 * torch.eye(3).repeat(40, 1)
        >>> labels = torch.tensor([0, 2, 1] * 30 + [0, 1, 2] * 10)  # classes 1 and 2 are mostly swapped
        >>> cal = Dirichlet.fit(logits, labels, odir=0.01, bias=0.01)
        >>> cal(logits).argmax(1)[:3]
        tensor([0, 2, 1])
    """

    weight: Tensor
    bias: Tensor

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        odir: Strength = "cv",
        bias: Strength = "cv",
        folds: int = 5,
        seed: int = 0,
    ) -> "Dirichlet":
        """Fit on held-out rows."""
        if folds < 2:
            raise ValueError(f"folds must be at least 2; got {folds}.")
        rows = FitData.read(logits, labels)
        shared = least_log_loss(rows)
        data = _Data(log_p(rows.logits), shared.beta, rows.labels)
        pairs, downhill = _pairs(odir, bias, rows.n, rows.k)
        held = _held_out(rows.n, rows.k, folds, seed)
        tried, start = _tried(data, pairs, held, downhill=downhill) if len(pairs) > 1 and held else ([], None)
        best = min(tried, key=lambda each: each[2])[:2] if tried else pairs[0]
        iterations = max(ITERATIONS // 5, min(ITERATIONS, int(200 * WORK / (rows.n * rows.k**2))))
        found = data.problem(*best).solved(start=start, iterations=iterations, flat=1e-5)
        weight = found.weight + shared.beta * torch.eye(rows.k, dtype=torch.float64)
        choice = {"tried": [list(each) for each in tried], "folds": len(held), "seed": seed}
        return cls.made(
            rows,
            {"weight": weight, "bias": found.bias},
            {"odir": best[0], "bias": best[1], **choice},
            converged=found.converged and not shared.bound,
            notes=remarks(rows, shared, converged=found.converged, iterations=iterations),
        )

    def map(self, logits: Tensor, features: Tensor | None) -> Tensor:
        """Apply the affine map to log p."""
        return applied(log_p(logits), self.weight, self.bias)

    def words(self) -> str:
        """Say the strengths, and how they came about."""
        tried = len(self.settings["tried"])
        chosen = f", the best of {tried} on {self.settings['folds']} held-out folds" if tried else ""
        return f"odir = {self.settings['odir']:.3g}, bias = {self.settings['bias']:.3g}{chosen}"


def log_p(logits: Tensor) -> Tensor:
    """Return the log of the softmax, no less than log 1e-12."""
    shifted = logits - logits.amax(1, keepdim=True)
    return shifted.log_softmax(1).clamp(min=math.log(PROB_ZERO))


@dataclass(frozen=True)
class _Data:
    x: Tensor
    beta: float
    labels: Tensor

    def take(self, rows: Tensor) -> "_Data":
        return _Data(self.x[rows], self.beta, self.labels[rows])

    def problem(self, odir: float, bias: float) -> Regression:
        k = self.x.shape[1]
        ridge = Ridge(other=odir / (k * (k - 1)), bias=bias / k)
        return Regression(self.x, self.x * self.beta, self.labels, full=True, ridge=ridge)

    def loss(self, found: Affine) -> float:
        return log_loss(self.x * self.beta + found(self.x), self.labels)


def _pairs(odir: Strength, bias: Strength, n: int, k: int) -> tuple[list[Pair], bool]:
    """Return the pairs to try, strongest first, and whether to stop where the held-out loss has begun to rise."""
    top = math.ceil(math.log10((k * (k - 1)) ** 2 / n)) + 2
    decades = [10.0 ** (top - i) for i in range(DECADES)]
    if isinstance(odir, str) and odir == bias == "cv":
        return [(each, each) for each in decades], True
    pairs = list(itertools.product(_choices("odir", odir, decades), _choices("bias", bias, decades)))
    return pairs, len(pairs) == DECADES and (isinstance(odir, str) or isinstance(bias, str))


def _choices(name: str, given: Strength, decades: list[float]) -> list[float]:
    if isinstance(given, str) and given == "cv":
        return decades
    numbers = [given] if isinstance(given, int | float) else list(given)
    if not numbers or not all(isinstance(each, int | float) and 0 <= each < math.inf for each in numbers):
        raise ValueError(f"{name} must be a number of at least 0, several, or 'cv'; got {given!r}.")
    return sorted(map(float, numbers), reverse=True)


def _held_out(n: int, k: int, folds: int, seed: int) -> list[Tensor]:
    """Return masks of the rows to hold out, one a fold; none of a single row."""
    if n < 2:
        return []
    folds = min(folds, n)
    fold = torch.randperm(n, generator=torch.Generator().manual_seed(seed)) % folds
    return [fold == i for i in range(max(1, min(folds, int(WORK / (n * k * k)))))]


def _tried(data: _Data, pairs: list[Pair], held: list[Tensor], *, downhill: bool) -> tuple[list[Tried], Affine | None]:
    """Return each pair with its held-out log loss, and a fit of the best; every fit starts where the last one ended."""
    known: list[Affine | None] = [None] * len(held)
    start: Affine | None = None
    tried: list[Tried] = []
    for odir, bias in pairs:
        losses = []
        for i, mask in enumerate(held):
            problem = data.take(~mask).problem(odir, bias)
            found = known[i] = problem.solved(start=known[i], iterations=ITERATIONS // 5, flat=ROUGH)
            losses.append(data.take(mask).loss(found) * float(mask.sum()))
        tried.append((odir, bias, sum(losses) / float(sum(mask.sum() for mask in held))))
        start = known[0] if tried[-1][2] == min(each[2] for each in tried) else start
        if downhill and min(each[2] for each in tried) < min(each[2] for each in tried[-2:]):
            break
    return tried, start
