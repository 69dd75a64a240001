"""Steep slope loss, and a sweep of its slopes."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.metrics.ranking import tnr, tpr
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve
from calibrant.registry import TRUST
from calibrant.trust._machinery.heads import Kind
from calibrant.trust.learned import Learned

MOST = 50  # the loss is bounded by e^50, about 5e21
ALPHAS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


def steep_slope_loss(z: Tensor, right: Tensor, *, alpha_plus: float = 1.0, alpha_minus: float = 3.0) -> Tensor:
    r"""Return the steep slope loss of each row.

    .. math:: o\,\bigl(e^{-\alpha_+ s(z)} - e^{-\alpha_+}\bigr)
              + (1 - o)\,\bigl(e^{\alpha_- s(z)} - e^{-\alpha_-}\bigr), \qquad s(z) = \frac{z}{1 + |z|}

    with o = 1 for a right answer. Bounded by :math:`e^{\alpha} - e^{-\alpha}`. Equation 8 of the paper prints both
    exponents with the opposite sign, which would teach a predictor to be wrong; its figure and its code have them as
    here. The slope falls like :math:`1/z^2`, so a row that is far on the wrong side learns slowly.

    Example:
        >>> steep_slope_loss(torch.zeros(1), torch.ones(1))
        tensor([0.6321])
    """
    if not (0 < alpha_plus <= MOST and 0 < alpha_minus <= MOST):
        raise ValueError(f"alpha_plus and alpha_minus must lie in (0, {MOST}]; got {alpha_plus} and {alpha_minus}.")
    s = F.softsign(z)
    down = (-alpha_plus * s).exp() - math.exp(-alpha_plus)
    up = (alpha_minus * s).exp() - math.exp(-alpha_minus)
    return right * down + (1 - right) * up


@TRUST.register(reads="rows")
class SteepSlope(Learned):
    r"""Steep slope predictor: scores of right answers are pushed above zero, those of wrong ones below, by two slopes.

    .. math:: \sigma(z), \qquad z = \arg\min \frac1n \sum_i \ell_{SS}(z_i, o_i)

    with the loss of `steep_slope_loss`. ``alpha_minus`` above ``alpha_plus`` makes a trusted error cost more than a
    distrusted right answer, which moves the threshold and not the ranking; the paper uses (1, 3) with a transformer,
    (2, 5) with a ResNet, (1, 1) on CIFAR-10 and (10, 6) on MNIST, as (plus, minus); its code takes them in the other
    order. ``head`` is ``"signed_distance"`` (its Eq. 7), ``"linear"`` or ConfidNet's ``"mlp"``.

    ``anchor=True``, the default, differs from the paper: the head starts as the classifier's own confidence and learns
    a residual on held-out rows, because heads from scratch rank below max-softmax. Its sigmoid is a score with a
    threshold at 1/2, not a probability of being right; `Bce` gives that.

    Reference: Luo, Wong, Kankanhalli & Zhao, "Learning to Predict Trustworthiness with Steep Slope Loss", NeurIPS 2021.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> trust = SteepSlope.fit(logits, labels)
        >>> trust(torch.tensor([[9.0, 0.0, 0.0, 0.0, 0.0], [1.0, 0.9, 0.0, 0.0, 0.0]])) > 0.5
        tensor([ True, False])
    """

    loss = staticmethod(steep_slope_loss)

    @classmethod
    def fit(
        cls,
        logits: Any,
        labels: Any = None,
        features: Any = None,
        *,
        alpha_plus: float = 1.0,
        alpha_minus: float = 3.0,
        head: Kind = "signed_distance",
        anchor: bool = True,
        seed: int = 0,
    ) -> "SteepSlope":
        """Fit on held-out rows; with ``anchor=False`` on features alone, from scratch."""
        loss = partial(steep_slope_loss, alpha_plus=alpha_plus, alpha_minus=alpha_minus)
        options = {"alpha_plus": alpha_plus, "alpha_minus": alpha_minus}
        return cls.learned(FitData.read(logits, labels, features), loss, options, head=head, anchor=anchor, seed=seed)


def alpha_sweep(
    fit: Predictions,
    judge: Predictions,
    *,
    alphas: Sequence[float] = ALPHAS,
    alpha_plus: float = 1.0,
    head: Kind = "signed_distance",
    anchor: bool = True,
    seed: int = 0,
) -> Curve:
    """Fit a steep slope predictor for each ``alpha_minus`` on some rows and evaluate it on others.

    The columns are ``alpha``, and of the rows to judge the mean ``loss``, ``tpr`` and ``tnr`` at 1/2. The paper chooses
    ``alpha_minus`` by such a sweep first, then ``alpha_plus``.

    Reference: Luo et al., NeurIPS 2021, figures 4b and 4c.

    Example:
        >>> g = torch.Generator().manual_seed(0)
        >>> logits = 3 * torch.randn(2000, 5, generator=g)
        >>> labels = torch.multinomial((logits / 2).softmax(1), 1, generator=g).squeeze(1)
        >>> rows = Predictions(logits=logits, labels=labels)
        >>> swept = alpha_sweep(rows.take(torch.arange(1000)), rows.take(torch.arange(1000, 2000)), alphas=(1.0, 3.0))
        >>> bool(swept["tnr"][0] < swept["tnr"][1]), bool(swept["tpr"][0] > swept["tpr"][1])
        (True, True)
    """
    if not alphas:
        raise ValueError("alphas must hold at least one number; got none.")
    features = fit.features if fit.has_features else None
    columns: dict[str, list[float]] = {"alpha": [], "loss": [], "tpr": [], "tnr": []}
    for alpha in alphas:
        trust = SteepSlope.fit(
            fit.logits,
            fit.labels,
            features,
            alpha_plus=alpha_plus,
            alpha_minus=float(alpha),
            head=head,
            anchor=anchor,
            seed=seed,
        )
        judged = trust.judge(judge)
        with torch.no_grad():
            z = trust.z(judge.logits, judge.features if trust.needs_features else None)
        loss = steep_slope_loss(z, judge.correct.double(), alpha_plus=alpha_plus, alpha_minus=float(alpha))
        columns["alpha"].append(float(alpha))
        columns["loss"].append(float(loss.mean()))
        columns["tpr"].append(tpr(judged.confidence, judged.correct))
        columns["tnr"].append(tnr(judged.confidence, judged.correct))
    settings = {"alpha_plus": alpha_plus, "head": head, "anchor": anchor}
    return Curve("alpha_sweep", {name: np.array(values) for name, values in columns.items()}, len(judge), settings)
