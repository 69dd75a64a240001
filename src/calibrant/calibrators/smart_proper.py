"""A proper variant of SMART: sample-wise temperatures that may not lose log loss or Brier score."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.calibrators._solvers import objectives
from calibrant.calibrators._solvers.network import Loss, Network, adam
from calibrant.calibrators._solvers.objectives import Scaled
from calibrant.calibrators._solvers.samplewise import LEAST, NetworkFit, Samplewise, look
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Array, Vector
from calibrant.registry import CALIBRATORS

INDICATORS = ["margin", "max_less_mean", "entropy"]
HIDDEN, RATE, STEPS, EVERY = 16, 0.01, 200, 10
WEIGHTS = (1.0, 0.0)  # of the calibration error beside the log loss
FEWEST = 50  # rows below which only one temperature is fitted


@CALIBRATORS.register(keeps_argmax=True, parameters="81")
class SmartProper(Samplewise):
    r"""SMART made proper: a temperature for each row that may not lose log loss or Brier score to a single one.

    .. math:: z \mapsto z / T(x), \quad
              T(x) = T_0\,(\mathrm{softplus}(w_2^\top \mathrm{relu}(W_1 \hat x + b_1) + b_2) + 0.1)

    with x the logit margin, the largest logit less the mean one, and the entropy of the row, each standardised, and
    :math:`T_0` the single temperature of least log loss. The network starts as the constant :math:`T_0` and takes Adam
    steps on log loss + ``weight`` x the soft-binned calibration error of `Smart`.

    How many steps, and whether the weight is 1 or 0, is decided by cross-fitting: every row gets the temperature that
    networks trained without it give it after 0, 10, ..., 200 steps. Of the stops whose log loss *and* Brier score beat
    those of the single temperature (the stop at 0 steps) by a standard error of the paired difference, the one of least
    log loss + calibration error is taken, and the network is trained that far on all rows. So the answer lies between
    temperature scaling and `Smart`, and with few rows, or where nothing is surely gained, it is temperature scaling.
    Below 50 rows nothing else is tried. A row outside the range of the fit gets the temperature of the range's end.

    The margin alone (`Smart`) sees how close the runner-up is; the other two see how many classes share the rest, which
    is where log loss is won. Not a published method: the map and the calibration error are SMART's, the rest is ours.

    Reference: Calibrant, on Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> truth = 3 * torch.randn(500, 5, generator=g)
        >>> labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
        >>> cal = SmartProper.fit(3 * truth, labels)
        >>> 2 < cal.temperature(3 * truth).median() < 4
        tensor(True)
    """

    @classmethod
    def fit(cls, logits: Any, labels: Any = None, *, folds: int = 5, seed: int = 0) -> "SmartProper":
        """Fit on held-out rows; ``seed`` draws the folds and the first weights."""
        if folds < 2:
            raise ValueError(f"folds must be at least 2; got {folds}.")
        rows = FitData.read(logits, labels)
        weight, steps = (0.0, 0) if rows.n < FEWEST else _cross_fitted(rows, folds, seed)
        setup = _setup(rows)
        found = _stops(setup, weight, seed, steps)[-1]
        notes = (
            () if steps else ("no other stop did better in cross-fitting, so this is one temperature for all rows.",)
        )
        return cls.made(
            rows,
            setup.state(found),
            {"indicators": INDICATORS, "weight": weight, "steps": steps, "folds": folds, "seed": seed},
            converged=not setup.notes,
            notes=(*setup.notes, *notes),
        )

    def level(self, out: Tensor) -> Tensor:
        """Return softplus + 0.1."""
        return softplus(out) + LEAST


def _setup(rows: FitData) -> NetworkFit:
    return NetworkFit(rows, INDICATORS, (HIDDEN,), own_unit=True)


def _stops(setup: NetworkFit, weight: float, seed: int, steps: int) -> list[Vector]:
    """Return the weights of the network after 0, EVERY, ..., ``steps`` steps."""
    begin = setup.start(seed)
    begin[-HIDDEN - 1 : -1] = 0.0  # a constant at first: temperature scaling
    loss = _loss(setup.scaled, weight)
    path = adam(setup.net, begin, setup.soft, loss, steps=steps, rate=RATE)
    return [weights.copy() for step, (_, weights) in enumerate(path) if step % EVERY == 0]


def _loss(scaled: Scaled, weight: float) -> Loss:
    def loss(beta: Vector) -> tuple[float, Vector]:
        value, slope = objectives.nll(beta, scaled)
        if not weight:
            return value, slope
        error, error_slope = objectives.charbonnier(beta, scaled)
        return value + weight * error, slope + weight * error_slope

    return loss


def _cross_fitted(rows: FitData, folds: int, seed: int) -> tuple[float, int]:
    """Return the weight and the number of steps."""
    fold = torch.from_numpy(np.random.default_rng(seed).permutation(rows.n) % folds)
    betas = np.empty((len(WEIGHTS), STEPS // EVERY + 1, rows.n))
    for out in (fold == f for f in range(folds)):
        setup = _setup(FitData(rows.predictions.take(~out)))
        others = look(rows.given[out.to(rows.given.device)].cpu().double(), INDICATORS)
        net = Network(others, (HIDDEN,), like=setup.net)
        for place, weight in enumerate(WEIGHTS):
            stops = _stops(setup, weight, seed, STEPS)
            betas[place][:, out.numpy()] = [setup.soft(net(weights))[0] for weights in stops]
    scaled = Scaled(rows, low=float(betas.min()), high=2 * float(betas.max()))
    return _chosen(betas, scaled)


def _chosen(betas: Array, scaled: Scaled) -> tuple[float, int]:
    """Return the weight and the steps of the best stop that is surely no worse than a single temperature."""
    single = _losses(betas[0, 0], scaled)
    best, least = (0.0, 0), float(single[0].mean()) + objectives.soft_ece(betas[0, 0], scaled)[0]
    for place, stop in np.ndindex(betas.shape[:2]):
        losses = _losses(betas[place, stop], scaled)
        gain = single - losses
        sure = gain.mean(1) >= gain.std(1) / np.sqrt(gain.shape[1])
        value = float(losses[0].mean()) + objectives.soft_ece(betas[place, stop], scaled)[0]
        if stop and bool(sure.all()) and value < least:
            best, least = (WEIGHTS[place], stop * EVERY), value
    return best


def _losses(beta: Vector, scaled: Scaled) -> Array:
    """Return log loss and Brier score of each row, (2, n)."""
    (phi, _), (twice, _) = scaled.log_sum(beta), scaled.log_sum(2 * beta)
    true = beta * scaled.true - phi
    return np.stack([-true, np.exp(twice - 2 * phi) - 2 * np.exp(true) + 1])
