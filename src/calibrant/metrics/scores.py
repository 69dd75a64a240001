r"""Confidence scores: one value a row, higher = more confident.

A registered score is a function of `Predictions` and reads facts that one pass over the logits left behind, so each
costs O(n). `FROM_LOGITS` holds the same scores as differentiable functions of logits, for losses and trust predictors.
With :math:`z` the logits of a row, :math:`p = \mathrm{softmax}(z)` and :math:`p_{(1)} \ge p_{(2)} \ge \dots` its sorted
values.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Logits, PerSample, widened
from calibrant.registry import SCORES

SORTED = 10  # of the largest log-probabilities that `own_scores` keeps


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


def entropy(logits: Logits) -> PerSample:
    r"""Return :math:`-\sum_k p_k \log p_k` of each row, in nats; an impossible class (a logit of -inf) counts as 0.

    Example:
        >>> entropy(torch.tensor([[0.0, 0.0]]))
        tensor([0.6931])
    """
    return entropy_of(widened(logits).log_softmax(1))


def entropy_of(logp: Logits) -> PerSample:
    """Return the same as `entropy`, of log probabilities that are already there."""
    return -(logp.exp() * logp.clamp(min=-1e4)).sum(1)  # 0 log 0 = 0; 0 times -inf would be NaN


def _lead(values: Tensor) -> Tensor:
    two = values.topk(2, dim=1).values
    return two[:, 0] - two[:, 1]


def _square(logits: Tensor) -> Tensor:
    return logits.softmax(1).square().sum(1)


FROM_LOGITS: dict[str, Callable[[Tensor], Tensor]] = {
    "msp": lambda logits: logits.softmax(1).amax(1),
    "margin": lambda logits: _lead(logits.softmax(1)),
    "normalised_negative_entropy": lambda logits: 1 - entropy(logits) / math.log(logits.shape[1]),
    "l2_norm": lambda logits: _square(logits).sqrt(),
    "negative_entropy": lambda logits: -entropy(logits),
    "gini": lambda logits: _square(logits) - 1,
    "max_logit": lambda logits: logits.amax(1),
    "energy": lambda logits: logits.logsumexp(1),
    "logit_margin": _lead,
}


def log_odds(logits: Tensor) -> Tensor:
    r"""Return the log odds of the predicted class, :math:`\log p_{(1)} - \log(1 - p_{(1)})`, of each row.

    The logarithm of the rest is summed over the other classes, so a confidence that rounds to 1 still has its rank.

    Example:
        >>> log_odds(torch.tensor([[2.0, 0.0], [1e4, 0.0]]))
        tensor([2.0000e+00, 1.0000e+04])
    """
    z = widened(logits)
    top, place = z.max(1, keepdim=True)
    others = z.scatter(1, place, -torch.inf)
    return top.squeeze(1) - others.logsumexp(1)


def own_scores(logits: Tensor) -> Tensor:
    r"""Return (n, m) scores beside the log odds: negative entropy, logit margin, the largest log-probabilities sorted.

    Example:
        >>> own_scores(torch.zeros(1, 3))
        tensor([[-1.0986,  0.0000, -1.0986, -1.0986, -1.0986]])
    """
    logp = widened(logits).log_softmax(1)
    best = logp.topk(min(SORTED, logp.shape[1]), dim=1).values
    return torch.cat([-entropy_of(logp)[:, None], best[:, :1] - best[:, 1:2], best.clamp(min=-1e4)], 1)
