"""SMART: a temperature for each row, predicted from its logit margin."""

import math
from typing import Any, Literal

import numpy as np
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.calibrators._solvers.network import train
from calibrant.calibrators._solvers.objectives import GOALS
from calibrant.calibrators._solvers.samplewise import LEAST, NetworkFit, Samplewise
from calibrant.calibrators.calibrator import Objective
from calibrant.predictions.fit_data import FitData
from calibrant.registry import CALIBRATORS

Indicator = Literal["margin", "entropy", "confidence", "all_logits", "max_logit", "max_less_mean"]
Goal = Literal["charbonnier", "soft_ece", "nll", "label_smoothing", "mse", "brier", "charbonnier_printed"]
HIDDEN = 16


@CALIBRATORS.register(keeps_argmax=True, parameters="49")
class Smart(Samplewise):
    r"""SMART: each row's temperature is read off its logit margin by a network of 49 parameters.

    .. math:: z \mapsto z / T(m), \quad T(m) = \mathrm{softplus}(w_2^\top \mathrm{relu}(w_1 \hat m + b_1) + b_2) + 0.1,
              \quad m = z_{(1)} - z_{(2)}

    trained on the soft-binned calibration error :math:`\sum_b \frac{n_b}{n} \sqrt{(C_b - A_b)^2 + \delta^2}`: every
    confidence is shared among 15 bins by a Gaussian kernel of width 0.05, :math:`C_b` and :math:`A_b` are the mean
    confidence and accuracy of a bin, :math:`\delta = 10^{-3}` (``objective="charbonnier"``). The paper's equation 6
    takes the distance row by row instead of bin by bin; that drives confidence to 0 or 1 and is kept as
    ``"charbonnier_printed"`` for study. The other objectives and the six indicators are those of its tables 3 and 4;
    ``"mse"`` is the squared error of the confidence, ``"label_smoothing"`` uses 0.05.

    Trained by ``steps`` full-batch Adam steps of 5e-3, as in the paper, from weights that start near the best single
    temperature; the weights of lowest loss are kept. A step costs the same for 10 classes and for 1 000. If the best
    single temperature is outside [0.2, 5], temperatures are measured in units of it, because the network could not
    reach it. A row outside the range of the fit gets the temperature of the range's end. Training amplifies rounding: a
    change of 1e-10 in the first weights moves single temperatures by some thousandths at the end, at the same loss.

    It buys calibration error at the price of log loss and Brier score, which it does not look at; `SmartProper` does.

    Reference: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025; soft bins: Karandikar et
    al., NeurIPS 2021.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> truth = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial(truth.softmax(1), 1, generator=g).squeeze(1)
        >>> cal = Smart.fit(3 * truth, labels)  # a model three times too sure
        >>> cal.fitted.after < 0.1 * cal.fitted.before
        True
    """

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        objective: Goal = "charbonnier",
        indicator: Indicator = "margin",
        steps: int = 2000,
        seed: int = 0,
    ) -> "Smart":
        """Fit on held-out rows; ``seed`` draws the first weights."""
        if steps < 1:
            raise ValueError(f"steps must be at least 1; got {steps}.")
        rows = FitData.read(logits, labels)
        setup = NetworkFit(rows, [indicator], (HIDDEN,))
        goal, scaled = GOALS[objective], setup.scaled
        found = train(setup.net, setup.start(seed), setup.soft, lambda beta: goal(beta, scaled), steps=steps)
        return cls.made(
            rows,
            setup.state(found.weights),
            {"indicators": [indicator], "objective": objective, "steps": steps, "seed": seed},
            objective=Objective(objective, goal(np.ones(rows.n), scaled)[0], found.loss),
            converged=not setup.notes,
            notes=setup.notes,
        )

    def level(self, out: Tensor) -> Tensor:
        """Return softplus + 0.1."""
        return softplus(out) + LEAST


def temperature_bounds(margin: float, confidence: float, k: int) -> tuple[float, float]:
    r"""Return the least and largest temperature at which a row with this margin can have this confidence.

    .. math:: \frac{m}{-\log(S / (K - 1))} \le T \le \frac{m}{-\log S}, \qquad S = 1 / \hat p - 1

    The upper bound is infinite for :math:`1/K < \hat p \le 1/2`; for two classes the bounds meet.

    Reference: Guo et al., "SMART: Sample Margin-Aware Recalibration of Temperature", 2025, appendix A.1.

    Example:
        >>> low, high = temperature_bounds(2.0, 0.8, 4)
        >>> round(low, 6), round(high, 6)
        (0.804859, 1.442695)
    """
    if k < 2:
        raise ValueError(f"k must be at least 2; got {k}.")
    if margin <= 0:
        raise ValueError(f"margin must be positive; got {margin}.")
    if not 1 / k < confidence < 1:
        raise ValueError(f"confidence must lie between 1 / k = {1 / k:.3g} and 1; got {confidence}.")
    odds = 1 / confidence - 1
    return margin / -math.log(odds / (k - 1)), margin / -math.log(odds) if confidence > 0.5 else math.inf
