"""Parameterised temperature scaling (PTS)."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators._solvers.network import Network, adam
from calibrant.calibrators._solvers.objectives import Scaled, brier
from calibrant.calibrators._solvers.samplewise import MOST, NetworkFit, Samplewise, look
from calibrant.calibrators.calibrator import Objective
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.types import Vector
from calibrant.registry import CALIBRATORS

INPUTS, WIDTHS = ["largest_logits"], (5, 5)
LOWEST, LONGEST = 0.05, 500


@CALIBRATORS.register(keeps_argmax=True, parameters="91")
class ParameterisedTemperature(Samplewise):
    r"""Parameterised temperature scaling (PTS): each row's temperature from its ten largest logits.

    .. math:: z \mapsto z / T(z), \qquad T(z) = |\mathrm{MLP}(z_{(1)}, \dots, z_{(10)})|

    with two hidden layers of five relu units, the logits sorted descending and clipped to ±100 (all of them if there
    are fewer than ten), and T clamped to [0.05, 20] (the original's 1e-12 overflows). Minimises the squared error
    between probabilities and one-hot labels.

    Full-batch Adam steps of 5e-3 on standardised inputs replace the paper's 100 000 steps of 5e-5 on batches of 1 000.
    Their number is by default the one at which a network trained on four fifths of the rows is best on the last fifth
    (at most 500): without it the network overfits and loses to a single temperature on other rows.
    Temperatures are in units of the best single one where that is outside [0.2, 5]; a row outside the range of the fit
    gets the temperature of the range's end.

    Ten inputs make it less sure than a margin alone when rows are few.

    Reference: Tomani, Cremers & Buettner, ECCV 2022.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> truth = 3 * torch.randn(1000, 5, generator=g)
        >>> labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
        >>> cal = ParameterisedTemperature.fit(3 * truth, labels)
        >>> 2 < cal.temperature(3 * truth).median() < 4
        tensor(True)
    """

    @classmethod
    def fit(
        cls, logits: Any, labels: Any = None, *, steps: int | None = None, seed: int = 0
    ) -> "ParameterisedTemperature":
        """Fit on held-out rows; ``seed`` draws the first weights and the fifth that says when to stop."""
        if steps is not None and steps < 1:
            raise ValueError(f"steps must be at least 1; got {steps}.")
        rows = FitData.read(logits, labels)
        steps = steps or _stop(rows, seed)
        setup = NetworkFit(rows, INPUTS, WIDTHS)
        *_, (loss, weights) = _path(setup, steps, seed)
        return cls.made(
            rows,
            setup.state(weights),
            {"indicators": INPUTS, "steps": steps, "seed": seed},
            objective=Objective("Brier score", float(rows.predictions.brier.mean()), loss),
            converged=not setup.notes,
            notes=setup.notes,
        )

    def level(self, out: Tensor) -> Tensor:
        """Return the size of the output, clamped."""
        return out.abs().clamp(LOWEST, MOST)


def _path(setup: NetworkFit, steps: int, seed: int) -> Iterator[tuple[float, Vector]]:
    begin = setup.net.start(setup.one / setup.unit, seed)
    return adam(setup.net, begin, partial(_link, setup.unit), lambda beta: brier(beta, setup.scaled), steps=steps)


def _link(unit: float, out: Vector) -> tuple[Vector, Vector]:
    level = np.clip(np.abs(out), LOWEST, MOST)
    inside = (np.abs(out) > LOWEST) & (np.abs(out) < MOST)
    return 1 / (unit * level), np.where(inside, -np.sign(out) / (unit * level**2), 0.0)


def _stop(rows: FitData, seed: int) -> int:
    """Return the number of steps after which a network trained on some rows is best on others."""
    if rows.n < 10:
        return 1
    out = torch.from_numpy(np.random.default_rng(seed).permutation(rows.n) % 5 == 0)
    setup = NetworkFit(FitData(rows.predictions.take(~out)), INPUTS, WIDTHS)
    others = FitData(rows.predictions.take(out))
    scaled = Scaled(others, low=1 / (MOST * setup.unit), high=2 / (LOWEST * setup.unit))
    net = Network(look(others.given.cpu().double(), INPUTS), WIDTHS, like=setup.net)
    losses = [brier(_link(setup.unit, net(w))[0], scaled)[0] for _, w in _path(setup, LONGEST, seed)]
    return max(1, int(np.argmin(losses)))
