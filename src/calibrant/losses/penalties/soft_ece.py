"""SB-ECE, expected calibration error with soft bins."""

import math

import torch

from calibrant.losses.functional import top
from calibrant.predictions.types import Labels, Logits, Scalar
from calibrant.registry import PENALTIES


@PENALTIES.register()
def soft_ece(
    logits: Logits,
    labels: Labels,
    *,
    bins: int = 15,
    temperature: float = 0.01,
    p: int = 2,
    label_binned: bool = False,
) -> Scalar:
    r"""SB-ECE: expected calibration error with every confidence shared among bins by its distance.

    .. math:: \Bigl(\sum_b \frac{n_b}{n} |A_b - C_b|^p\Bigr)^{1/p}, \qquad
              u_{ib} = \mathrm{softmax}_b\bigl(-(r_i - x_b)^2 / T\bigr)

    with r the confidence, :math:`x_b` the centres of ``bins`` equal bins of [0, 1], :math:`n_b = \sum_i u_{ib}` and
    :math:`A_b, C_b` the means of correctness and confidence under u. Gradient flows through the confidence in bins and
    means; correctness carries none. A kernel of standard deviation :math:`\sigma` is :math:`T = 2\sigma^2`. 1e-12 is
    added below the root, and a bin's mass is at least 1e-30 (the authors' code: 1e-5, which moves the eighth digit).
    ``label_binned`` compares each confidence with the accuracy of its bins instead,
    :math:`\frac1n \sum_{ib} u_{ib} (A_b - r_i)^2`, with centres between 1/K and 1.

    It needs large batches: on one row every confidence but 0 and 1 is penalised.

    Reference: Karandikar et al., NeurIPS 2021.

    Example:
        >>> soft_ece(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]))
        tensor(0.3808)
    """
    if bins < 1 or temperature <= 0 or p not in (1, 2):
        raise ValueError(
            f"bins must be at least 1, temperature positive and p 1 or 2; got {bins}, {temperature} and {p}."
        )
    confidence, correct = top(logits, labels)
    low = 1 / logits.shape[1] if label_binned else 0.0
    place = (torch.arange(bins, device=confidence.device, dtype=confidence.dtype) + 0.5) / bins
    # divided before it is squared: of a softmax of x / T torch.compile makes two
    share = (-((confidence[:, None] - (low + (1 - low) * place)) / math.sqrt(temperature)).square()).softmax(1)
    right = correct.to(confidence.dtype)
    mass = share.sum(0).clamp(min=1e-30)
    if label_binned:
        accuracy = (share * right[:, None]).sum(0) / mass
        return (share * (accuracy - confidence[:, None]).square()).sum() / len(confidence)
    gap = (share * (right - confidence)[:, None]).sum(0)  # times the mass of the bin
    if p == 1:
        return gap.abs().sum() / len(confidence)
    return ((gap.square() / mass).sum() / len(confidence) + 1e-12).sqrt()
