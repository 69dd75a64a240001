"""Ranking metrics: how well confidence separates correct rows (positive) from wrong ones.

Where all rows are right, or all wrong, ranking is undefined and the answer is NaN.
"""

import numpy as np
import torch

from calibrant.metrics.blocks import Blocks, tied_blocks
from calibrant.metrics.inputs import metric
from calibrant.metrics.proper import mean
from calibrant.predictions.types import Confidence, Correct, OtherConfidence, Vector, Weights


@metric(better="higher", range=(0.0, 1.0), family="ranking")
def failure_auroc(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Probability that a right prediction is more confident than a wrong one (AUROC of correctness).

    .. math:: \Pr(c_+ > c_-) + \tfrac12 \Pr(c_+ = c_-)

    Blind to calibration: any increasing map of the confidence leaves it unchanged.

    Reference: Hendrycks & Gimpel, ICLR 2017; Corbière et al., NeurIPS 2019.

    Example:
        >>> failure_auroc(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
        0.5
    """
    return _auroc(tied_blocks(confidence, correct, weights=weights))


def _auroc(blocks: Blocks) -> float:
    wrong, right = blocks.loss, blocks.count - blocks.loss
    if wrong.sum() <= 0 or right.sum() <= 0:
        return float("nan")
    below = wrong.sum() - np.cumsum(wrong) + wrong / 2
    return float((right * below).sum() / (right.sum() * wrong.sum()))


@metric(better="higher", range=(0.0, 1.0), family="ranking")
def aupr_success(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Average precision of finding the correct rows by high confidence.

    .. math:: \sum_t (R_t - R_{t-1})\, P_t

    over distinct thresholds from high to low, as a step function: no interpolation. Its level depends on the accuracy.

    Reference: Hendrycks & Gimpel, ICLR 2017; Corbière et al., NeurIPS 2019.

    Example:
        >>> round(aupr_success(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True])), 6)
        0.833333
    """
    blocks = tied_blocks(confidence, correct, weights=weights)
    return _average_precision(blocks.count - blocks.loss, blocks.count)


@metric(better="higher", range=(0.0, 1.0), family="ranking")
def aupr_error(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Average precision of finding the wrong rows by low confidence.

    .. math:: \sum_t (R_t - R_{t-1})\, P_t \quad\text{for errors ranked by } -c

    The ImageNet tables of the steep slope paper rank errors by :math:`+c`, which is why a better predictor looks
    worse there; this is the right sign.

    Reference: Corbière et al., NeurIPS 2019; Luo et al., NeurIPS 2021 (see the sign above).

    Example:
        >>> aupr_error(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
        0.5
    """
    blocks = tied_blocks(confidence, correct, weights=weights)
    return _average_precision(blocks.loss[::-1], blocks.count[::-1])


def _average_precision(hits: Vector, count: Vector) -> float:
    if hits.sum() <= 0 or hits.sum() >= count.sum():
        return float("nan")
    return float((hits * np.cumsum(hits) / np.cumsum(count)).sum() / hits.sum())


@metric(better="lower", range=(0.0, 1.0), family="ranking")
def fpr_at_95_tpr(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Share of errors accepted at the highest threshold that accepts 95 % of the correct rows.

    .. math:: \frac{\#\{c_i \ge t,\ a_i = 0\}}{\#\{a_i = 0\}}, \qquad
              t = \max\Bigl\{t : \frac{\#\{c_i \ge t,\ a_i = 1\}}{\#\{a_i = 1\}} \ge 0.95\Bigr\}

    Reference: Liang, Li & Srikant, ICLR 2018; Corbière et al., NeurIPS 2019.

    Example:
        >>> fpr_at_95_tpr(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([True, False, True]))
        1.0
    """
    blocks = tied_blocks(confidence, correct, weights=weights)
    wrong, right = np.cumsum(blocks.loss), np.cumsum(blocks.count - blocks.loss)
    if wrong[-1] <= 0 or right[-1] <= 0:
        return float("nan")
    return float(wrong[np.argmax(right >= 0.95 * right[-1] - 1e-9)] / wrong[-1])


@metric(better="higher", range=(0.0, 1.0), family="ranking")
def tpr(confidence: Confidence, correct: Correct, *, threshold: float = 0.5, weights: Weights | None = None) -> float:
    r"""Share of the correct rows that are trusted: confidence above the threshold.

    .. math:: \Pr(c > t \mid a = 1)

    Strict, as in the released code of the reference. NaN where no row is correct.

    Reference: Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> tpr(torch.tensor([0.9, 0.4, 0.7]), torch.tensor([True, True, False]))
        0.5
    """
    kept = correct.cpu()
    rows = (confidence.double().cpu() > threshold)[kept]
    return mean(rows, None if weights is None else weights[kept]) if len(rows) else float("nan")


@metric(better="higher", range=(0.0, 1.0), family="ranking")
def tnr(confidence: Confidence, correct: Correct, *, threshold: float = 0.5, weights: Weights | None = None) -> float:
    r"""Share of the wrong rows that are distrusted: confidence below the threshold.

    .. math:: \Pr(c < t \mid a = 0)

    Strict. Use ``threshold = 1 / K`` for a true-class probability: below it a prediction is surely wrong. NaN where no
    row is wrong.

    Reference: Luo et al., NeurIPS 2021 (steep slope loss).

    Example:
        >>> tnr(torch.tensor([0.9, 0.4, 0.7]), torch.tensor([True, False, False]))
        0.5
    """
    kept = ~correct.cpu()
    rows = (confidence.double().cpu() < threshold)[kept]
    return mean(rows, None if weights is None else weights[kept]) if len(rows) else float("nan")


@metric(better="higher", range=(0.0, 1.0), family="ood")
def ood_auroc(confidence: Confidence, ood_confidence: OtherConfidence) -> float:
    r"""Probability that an in-distribution row is more confident than an out-of-distribution one.

    .. math:: \Pr(s_{in} > s_{out}) + \tfrac12 \Pr(s_{in} = s_{out})

    Any score serves as confidence; for an uncertainty such as entropy pass its negative. After temperature scaling
    compute the score from the scaled logits.

    Reference: Hendrycks & Gimpel, ICLR 2017.

    Example:
        >>> ood_auroc(-torch.tensor([0.2, 0.5, 0.3, 0.9]), -torch.tensor([0.8, 1.0, 0.4]))
        0.75
    """
    scores = torch.cat([confidence.double().cpu(), ood_confidence.double().cpu()])
    return _auroc(tied_blocks(scores, torch.arange(len(scores)) < len(confidence)))
