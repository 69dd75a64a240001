r"""Confidence scoring functions: predictions -> one value a row, higher = surer.

A score reads facts that the pass over the logits left behind, so each costs O(n). With :math:`z` the logits of a row,
:math:`p = \mathrm{softmax}(z)` and :math:`p_{(1)} \ge p_{(2)} \ge \dots` its sorted values.
"""

import math

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import PerSample
from calibrant.registry import SCORES


@SCORES.register(range=(0.0, 1.0))
def msp(predictions: Predictions) -> PerSample:
    r"""Maximum softmax probability (maximum class probability, MCP).

    .. math:: p_{(1)}

    Reference: Hendrycks & Gimpel, ICLR 2017.

    Example:
        >>> msp(Predictions(probs=[[0.7, 0.2, 0.1]]))
        tensor([0.7000], dtype=torch.float64)
    """
    return predictions.confidence


@SCORES.register(range=(0.0, 1.0))
def margin(predictions: Predictions) -> PerSample:
    r"""Softmax margin: the lead of the predicted class over the runner-up.

    .. math:: p_{(1)} - p_{(2)}

    Reference: Scheffer, Decomain & Wrobel, IDA 2001.

    Example:
        >>> margin(Predictions(probs=[[0.7, 0.2, 0.1]]))
        tensor([0.5000], dtype=torch.float64)
    """
    return predictions.facts.margin


@SCORES.register(range=(-math.inf, 0.0))
def negative_entropy(predictions: Predictions) -> PerSample:
    r"""Negative Shannon entropy of the probabilities, in nats.

    .. math:: \sum_k p_k \log p_k \in [-\log K, 0], \qquad 0 \log 0 = 0

    The reference's table of scores writes :math:`\sum z \log z`; logits can be negative, so
    that is a slip for :math:`p`.

    Reference: Shannon, Bell System Technical Journal 1948; Zhou et al., arXiv 2505.23463.

    Example:
        >>> negative_entropy(Predictions(probs=[[0.5, 0.5]]))
        tensor([-0.6931], dtype=torch.float64)
    """
    return -predictions.entropy


@SCORES.register(range=(0.0, 1.0))
def normalised_negative_entropy(predictions: Predictions) -> PerSample:
    r"""Negative entropy rescaled to [0, 1]: 0 for a uniform row, 1 for a certain one.

    .. math:: 1 + \frac{\sum_k p_k \log p_k}{\log K}

    Reference: Zhou et al., arXiv 2505.23463.

    Example:
        >>> normalised_negative_entropy(Predictions(probs=[[0.5, 0.5], [1.0, 0.0]]))
        tensor([0., 1.], dtype=torch.float64)
    """
    return (1 - predictions.entropy / math.log(predictions.k or 2)).clamp(0, 1)


@SCORES.register(range=(-math.inf, math.inf))
def max_logit(predictions: Predictions) -> PerSample:
    r"""Largest logit; from probabilities, the logarithm of the largest.

    .. math:: \max_k z_k

    Not invariant to a shift of the logits, which softmax does not see.

    Reference: Hendrycks et al., ICML 2022.

    Example:
        >>> max_logit(Predictions(logits=[[3.0, 1.0]]))
        tensor([3.], dtype=torch.float64)
    """
    return predictions.facts.max_logit


@SCORES.register(range=(-math.inf, math.inf))
def energy(predictions: Predictions) -> PerSample:
    r"""Negative free energy at temperature 1; from probabilities it is 0 for every row.

    .. math:: \log \sum_k e^{z_k}

    Not invariant to a shift of the logits, which softmax does not see.

    Reference: Liu et al., NeurIPS 2020.

    Example:
        >>> energy(Predictions(logits=[[0.0, 0.0]]))
        tensor([0.6931], dtype=torch.float64)
    """
    return predictions.facts.energy


@SCORES.register(range=(0.0, math.inf))
def logit_margin(predictions: Predictions) -> PerSample:
    r"""Lead of the largest logit over the second: the log odds of the two classes.

    .. math:: z_{(1)} - z_{(2)} = \log p_{(1)} - \log p_{(2)}

    Reference: Guo et al., "Sample Margin-Aware Recalibration of Temperature" (SMART), 2025.

    Example:
        >>> logit_margin(Predictions(logits=[[3.0, 1.0]]))
        tensor([2.], dtype=torch.float64)
    """
    return predictions.facts.logit_margin


@SCORES.register(range=(0.0, 1.0))
def l2_norm(predictions: Predictions) -> PerSample:
    r"""Euclidean norm of the probabilities.

    .. math:: \sqrt{\textstyle\sum_k p_k^2} \in [K^{-1/2}, 1]

    Reference: Zhou et al., arXiv 2505.23463.

    Example:
        >>> l2_norm(Predictions(probs=[[0.6, 0.4]]))
        tensor([0.7211], dtype=torch.float64)
    """
    return predictions.facts.square.sqrt()


@SCORES.register(range=(-1.0, 0.0))
def gini(predictions: Predictions) -> PerSample:
    r"""Negative Gini impurity of the probabilities.

    .. math:: -\bigl(1 - \textstyle\sum_k p_k^2\bigr)

    Reference: Gini, 1912; Zhou et al., arXiv 2505.23463.

    Example:
        >>> gini(Predictions(probs=[[0.6, 0.4]]))
        tensor([-0.4800], dtype=torch.float64)
    """
    return predictions.facts.square - 1


@SCORES.register(range=(0.0, 1.0))
def tcp(predictions: Predictions) -> PerSample:
    r"""True class probability: an oracle, since it needs the label.

    .. math:: p_y

    :math:`p_y > 1/2` implies a correct prediction and :math:`p_y < 1/K` a wrong one.

    Reference: Corbière et al., NeurIPS 2019.

    Example:
        >>> tcp(Predictions(probs=[[0.7, 0.2, 0.1]], labels=[1]))
        tensor([0.2000], dtype=torch.float64)
    """
    return (-predictions.nll).exp()
