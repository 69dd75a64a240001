"""MMCE, the maximum mean calibration error."""

from typing import Literal

import torch

from calibrant.losses.functional import top
from calibrant.predictions.types import Labels, Logits, Scalar
from calibrant.registry import PENALTIES

WIDTH = 0.4  # of the Laplacian kernel


@PENALTIES.register()
def mmce(
    logits: Logits,
    labels: Labels,
    *,
    weighted: bool = True,
    normalisation: Literal["paper", "released"] = "paper",
) -> Scalar:
    r"""MMCE: the calibration error of the confidences in the mean embedding of a Laplacian kernel.

    .. math:: \sqrt{\textstyle\sum_{ij} w_i w_j (a_i - r_i)(a_j - r_j)\, e^{-|r_i - r_j| / 0.4}}, \qquad
              w_i = 1 / \text{the number of rows with the same } a_i

    with r the confidence and a the correctness, which carries no gradient. Right and wrong rows have the same total
    weight; without one of the two the value is 0. ``weighted=False`` gives :math:`w_i = 1/n`, whatever the
    normalisation. Released code divides the three sums (right with right, wrong with wrong, right with wrong) by the
    numbers of their pairs, plus 1e-5, a second time (``normalisation="released"``): published weights such as 2 and 4
    were tuned with that. 1e-10 is added below the root.

    It costs :math:`O(n^2)`, and a batch is a small sample to measure calibration on.

    Reference: Kumar, Sarawagi & Jain, ICML 2018.

    Example:
        >>> mmce(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.7616)
    """
    if normalisation not in ("paper", "released"):
        raise ValueError(f"normalisation must be paper or released; got {normalisation!r}.")
    confidence, correct = top(logits, labels)
    right = correct.to(confidence.dtype)
    kernel = (-(confidence[:, None] - confidence).abs() / WIDTH).exp()
    if not weighted:
        gap = (right - confidence) / len(right)
        return _root((gap[:, None] * gap * kernel).sum())
    count = torch.where(correct, right.sum(), (1 - right).sum())
    gap = (right - confidence) / count
    pairs = gap[:, None] * gap * kernel
    if normalisation == "released":
        pairs = pairs / (count[:, None] * count + 1e-5)
    both = (correct.any() & ~correct.all()).to(pairs.dtype)
    return both * _root(both * pairs.sum())


def _root(square: Scalar) -> Scalar:
    return (square.clamp(min=0) + 1e-10).sqrt()
