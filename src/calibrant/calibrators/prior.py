"""Prior correction: logits for class shares other than those of training."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from calibrant.predictions import checks
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Vector, float64, widened


def adjust_prior(
    logits: Any,
    *,
    train_prior: Any = None,
    deploy_prior: Any = None,
    from_weights: Any = None,
    sampling_rate: Any = None,
) -> Tensor:
    r"""Return logits for the class shares of use, from a model trained on others; exact if its probabilities were.

    .. math:: z_k \mapsto z_k + \log\frac{\pi^\text{deploy}_k}{\pi^\text{train}_k}, \qquad
        z_k \mapsto z_k - \log w_k, \qquad z_k \mapsto z_k - \log s_k

    One change a call, the one that is named; for two, call twice. ``train_prior`` and ``deploy_prior``: the shares of
    the classes where the model learned and where it is used. ``from_weights``: the class weights :math:`w_k` of the
    training loss, whose minimiser is :math:`q_k \propto w_k p_k`. ``sampling_rate``: the share :math:`s_k` of each
    class's rows that were kept (or, above 1, how often each was repeated), which learns :math:`q_k \propto s_k p_k`.
    The last two give back the shares of the data before weighting and resampling. Each is a sequence of k positive
    numbers; weights and rates may be ``{class: number}``, other classes having 1 (``scale_pos_weight=9`` is ``{1:
    9}``). Weights "balanced" by class frequency act as a uniform ``train_prior``, the frequencies being the
    ``deploy_prior``.

    It follows from Bayes' rule and asks that the rows of a class are the same in both places. Made-up rows are not, so
    it does **not** repair SMOTE or other synthetic oversampling; calibrate on real held-out rows instead.

    Logits of shape (n,) or (n, 1) are the score of class 1 of two and come back so; half precision becomes float32.

    Reference: Saerens, Latinne & Decaestecker, Neural Computation 2002; Elkan, IJCAI 2001 (weights); Dal Pozzolo,
    Caelen, Johnson & Bontempi, IEEE SSCI 2015 (undersampling).

    Example:
        >>> even = torch.zeros(1, 2)  # "50 %", after keeping one negative in nine
        >>> adjust_prior(even, sampling_rate={0: 1 / 9}).softmax(1)
        tensor([[0.9000, 0.1000]])
        >>> adjust_prior(even, train_prior=[0.5, 0.5], deploy_prior=[0.9, 0.1]).softmax(1)
        tensor([[0.9000, 0.1000]])
    """
    ways = {"train_prior": train_prior, "from_weights": from_weights, "sampling_rate": sampling_rate}
    named = [name for name, value in ways.items() if value is not None]
    if len(named) != 1 or (train_prior is None) != (deploy_prior is None):
        got = [*named, *(["deploy_prior"] if deploy_prior is not None else [])]
        raise ValueError(
            "exactly one change must be named: train_prior with deploy_prior, or from_weights, or sampling_rate; "
            f"got {' and '.join(got) or 'none'}. For two changes call twice."
        )
    given = checks.tensor(logits, "logits")
    z = widened(Predictions(logits=given).logits)
    k = z.shape[1]
    if train_prior is not None:
        shift = np.log(shares(deploy_prior, "deploy_prior", k)) - np.log(shares(train_prior, "train_prior", k))
    else:
        shift = -np.log(_positive(ways[named[0]], named[0], k))
    out = z + torch.from_numpy(shift).to(z)
    return out if out.shape == given.shape else (out[:, 1] - out[:, 0]).reshape(given.shape)


def shares(values: Any, name: str, k: int) -> Vector:
    """Return a prior over k classes: positive numbers that sum to 1."""
    found = _positive(values, name, k)
    if abs(found.sum() - 1) > 1e-6:
        raise ValueError(f"{name} must sum to 1; it sums to {found.sum():.6g}. Divide counts by their total.")
    return found / found.sum()


def _positive(values: Any, name: str, k: int) -> Vector:
    if isinstance(values, Mapping):
        odd = next((key for key in values if not isinstance(key, (int, np.integer)) or not 0 <= key < k), None)
        if odd is not None:
            raise ValueError(f"{name} must have classes 0 to {k - 1} as keys; got {odd!r}.")
        values = [values.get(i, 1.0) for i in range(k)]
    numbers = float64(checks.tensor(values, name))
    if numbers.shape != (k,):
        raise ValueError(f"{name} must hold {k} numbers, one a class; got shape {numbers.shape}.")
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError(f"{name} must be positive; got {numbers.min():.3g}. For a class that cannot occur pass 1e-12.")
    return numbers
