"""KDE-ECE: the canonical calibration error by kernel density estimation."""

import torch
from torch import Tensor

from calibrant.losses.functional import check_batch
from calibrant.predictions.types import Labels, Logits, Scalar, widened
from calibrant.registry import PENALTIES

BANDWIDTHS = (*(10 ** (-5 + 4 * i / 14) for i in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)


@PENALTIES.register()
def kde_ece(logits: Logits, labels: Labels, *, bandwidth: float | None = None, p: int = 1) -> Scalar:
    r"""KDE-ECE: the distance from the probabilities to the label frequencies near them, by a Dirichlet kernel.

    .. math:: \frac1n \sum_j \sum_k |r_{jk} - p_{jk}|^p, \qquad
              r_{jk} = \frac{\sum_{i \ne j} \kappa(p_j; p_i)\, 1[y_i = k]}{\sum_{i \ne j} \kappa(p_j; p_i)}, \qquad
              \kappa(\cdot\,; p_i) = \mathrm{Dir}(p_i / h + 1)

    Everything is differentiable in the probabilities but the bandwidth h: one of twenty (from 1e-5 to 1), the one
    under which the other rows make each row most likely, unless it is given. Probabilities are at least 1e-9 (in
    float64 1e-12), and sums are computed in log space. A batch of one row has the value 0. The kernel is normalised, so
    nothing but n - 1 divides (the original code divides by the bandwidth too); and the search begins at minus
    infinity, for a batch where every likelihood is below 1.

    It costs :math:`O(n^2 K)`. With a weight of 0.2 a small network for ten digits (SGD at a rate of 0.1, 150 steps) did
    not leave the uniform prediction that it began with; with 0.1 it learned as by cross-entropy alone. One released
    wrapper of it drops its gradient and so trains cross-entropy alone.

    Reference: Popordanoska, Sayer & Blaschko, NeurIPS 2022.

    Example:
        >>> kde_ece(torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), bandwidth=0.1)
        tensor(1.)
    """
    if bandwidth is not None and bandwidth <= 0:
        raise ValueError(f"bandwidth must be positive; got {bandwidth}.")
    if p not in (1, 2):
        raise ValueError(f"p must be 1 or 2; got {p}.")
    check_batch(logits, labels)
    n, k = logits.shape
    if n < 2:
        return widened(logits).softmax(1).sum() * 0
    with torch.autocast(logits.device.type, enabled=False):  # it would multiply matrices in half precision
        tiny = 1e-12 if logits.dtype == torch.float64 else 1e-9
        probs = widened(logits).softmax(1).clamp(tiny, 1 - tiny)
        logs = _log_kernel(probs, _most_likely(probs.detach()) if bandwidth is None else bandwidth)
        share = logs.softmax(1)  # of row i in what is near row j
        near = share @ (labels[:, None] == torch.arange(k, device=labels.device)).to(share.dtype)
    return (near - probs).abs().pow(p).sum(1).mean()


def _log_kernel(probs: Tensor, bandwidth: float | Tensor) -> Tensor:
    """Return log of the Dirichlet density at row j with the centre at row i, in row j and column i; -inf for itself."""
    alpha = probs / bandwidth
    constant = torch.lgamma(alpha.sum(1) + probs.shape[1]) - torch.lgamma(alpha + 1).sum(1)
    logs = probs.log() @ alpha.T + constant
    return logs.masked_fill(torch.eye(len(probs), dtype=torch.bool, device=probs.device), -torch.inf)


@torch.no_grad()
def _most_likely(probs: Tensor) -> Tensor:
    """Return the bandwidth of largest leave-one-out likelihood, the smallest of equal ones."""
    most, chosen = probs.new_full((), -torch.inf), probs.new_full((), BANDWIDTHS[0])
    for h in BANDWIDTHS:
        likely = _log_kernel(probs, h).logsumexp(1).sum()
        chosen = torch.where(likely > most, h, chosen)
        most = torch.maximum(likely, most)
    return chosen
