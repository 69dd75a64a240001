"""How the slopes of the steep slope loss trade trusted errors for distrusted right answers."""

from collections.abc import Sequence

import numpy as np
import torch

from calibrant.metrics.ranking import tnr, tpr
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve
from calibrant.trust._machinery.heads import Kind
from calibrant.trust.steep_slope import SteepSlope, steep_slope_loss

ALPHAS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)


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
    """Fit a steep slope predictor for each ``alpha_minus`` on some rows and look at it on others.

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
