"""Logistic regression on one or two features, by damped Newton steps."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from calibrant.predictions.types import Array, Vector

STEPS = 100
CLOSE = 1e-10  # the gain in nats a row at which the search ends; what a further Newton step gains is about its square


def platt_targets(hits: Array) -> Vector:
    r"""Return Platt's targets: :math:`\frac{n_+ + 1}{n_+ + 2}` for a hit, :math:`\frac{1}{n_- + 2}` for a miss.

    Example:
        >>> platt_targets(np.array([True, True, True, False, False, False]))
        array([0.8, 0.8, 0.8, 0.2, 0.2, 0.2])
    """
    many = int(hits.sum())
    return np.where(hits, (many + 1) / (many + 2), 1 / (len(hits) - many + 2))


def logistic(features: list[Vector], targets: Vector) -> Vector:
    """Return the slope of each feature, and last the intercept, of least log loss.

    Targets strictly between 0 and 1 make it finite, also where a feature separates hits from misses. A feature that
    does not vary has slope 0.
    """
    raw, t = torch.from_numpy(np.reshape(features, (len(features), len(targets)))), torch.from_numpy(targets)
    centre = raw.mean(1)
    spread = (raw - centre[:, None]).square().mean(1).sqrt()
    spread = torch.where(spread > 1e-12 * centre.abs(), spread, torch.inf)
    x = torch.cat([(raw - centre[:, None]) / spread[:, None], torch.ones(1, len(t), dtype=torch.float64)])
    at = torch.zeros(len(x), dtype=torch.float64)
    at[-1] = t.mean().logit()
    odds = at @ x
    loss = _log_loss(odds, t)
    for _ in range(STEPS):
        p = odds.sigmoid()
        curve = (x * (p * (1 - p))) @ x.T
        # the diagonal only bounds steps along which the loss is flat; the point where they end is the same
        way = torch.linalg.solve(curve + 1e-12 * (1 + curve.trace()) * torch.eye(len(x)), x @ (t - p))
        size, before = 1.0, loss
        tried = odds + way @ x
        while (loss := _log_loss(tried, t)) > before and size > 1e-9:
            size /= 2
            tried = odds + size * (way @ x)
        at, odds = at + size * way, tried
        if before - loss <= CLOSE:
            break
    slopes = at[:-1] / spread
    return torch.cat([slopes, (at[-1] - slopes @ centre)[None]]).numpy()


def log_loss(log_odds: Vector, targets: Vector) -> float:
    """Return the mean log loss of log odds against targets in [0, 1]."""
    return _log_loss(torch.from_numpy(log_odds), torch.from_numpy(targets))


def _log_loss(log_odds: Tensor, targets: Tensor) -> float:
    return float((softplus(log_odds) - targets * log_odds).mean())
