"""DeLong's comparison of two AUROCs on the same rows."""

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from calibrant.predictions.types import Vector


def paired_auroc(one: Vector, other: Vector, right: NDArray[np.bool_]) -> tuple[float, float, float]:
    r"""Return both AUROCs and the standard error of their difference, by DeLong's placements.

    The placement of a right row is the share of wrong rows below it (ties half), that of a wrong row the share of right
    rows above it. Each AUROC is the mean of either; the variance of the difference is

    .. math:: \frac{\mathrm{var}_+(v - v')}{n_+} + \frac{\mathrm{var}_-(w - w')}{n_-}

    Reference: DeLong, DeLong & Clarke-Pearson, Biometrics 1988.

    Example:
        >>> right = np.array([True, True, False, False])
        >>> paired_auroc(np.array([4.0, 3.0, 2.0, 1.0]), np.array([4.0, 1.0, 3.0, 2.0]), right)
        (1.0, 0.5, 0.5)
    """
    (up, down), (up_other, down_other) = _placements(one, right), _placements(other, right)
    spread = sum(np.var(gap, ddof=1) / len(gap) for gap in (up - up_other, down - down_other))
    return float(up.mean()), float(up_other.mean()), float(np.sqrt(spread))


def _placements(score: Vector, right: NDArray[np.bool_]) -> tuple[Vector, Vector]:
    among_all = rankdata(score)
    up = (among_all[right] - rankdata(score[right])) / (~right).sum()
    down = 1 - (among_all[~right] - rankdata(score[~right])) / right.sum()
    return up, down
