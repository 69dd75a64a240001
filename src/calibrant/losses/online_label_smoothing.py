"""Online label smoothing."""

import torch
from torch import Tensor, nn

from calibrant.losses.distributed import add_up
from calibrant.losses.functional import bounded, check_batch, picked
from calibrant.predictions.types import Labels, Logits, PerSample, widened
from calibrant.registry import LOSSES


@LOSSES.register(counts=True)
class OnlineLabelSmoothing(nn.Module):
    r"""Online label smoothing: half of the target is the mean prediction for the class in the last epoch.

    .. math:: -\alpha \log p_y - (1 - \alpha) \sum_k S_{yk} \log p_k

    Row y of S is the mean of :math:`p` over the rows of class y that were predicted right in the epoch before, and
    uniform where there was none; it begins uniform (one released script begins with zeros). Probabilities are summed up
    in train mode, without gradient; ``epoch_end`` makes them the next S, summed over the ranks of a distributed run
    unless ``across_ranks`` is False.

    It needs ``k`` in advance and :math:`2 K^2` numbers of memory.

    Reference: Zhang et al., IEEE Transactions on Image Processing 2021.

    Example:
        >>> loss = OnlineLabelSmoothing(3)
        >>> loss(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.9004])
        >>> loss.epoch_end()
        >>> loss.soft[0]
        tensor([0.6590, 0.2424, 0.0986])
    """

    soft: Tensor
    sums: Tensor
    counts: Tensor

    def __init__(self, k: int, *, alpha: float = 0.5, across_ranks: bool = True) -> None:
        super().__init__()
        if k < 2:
            raise ValueError(f"k must be the number of classes, at least 2; got {k}.")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must lie in [0, 1]; got {alpha}.")
        self.alpha, self.across_ranks = alpha, across_ranks
        self.register_buffer("soft", torch.full((k, k), 1 / k, dtype=torch.float32))
        self.register_buffer("sums", torch.zeros(k, k, dtype=torch.float32))
        self.register_buffer("counts", torch.zeros(k, dtype=torch.float32))

    def forward(self, logits: Logits, labels: Labels) -> PerSample:
        """Return the loss of each row, and in train mode add up the correct ones."""
        check_batch(logits, labels)
        if logits.shape[1] != len(self.counts):
            raise ValueError(f"logits must have k = {len(self.counts)} columns; got {logits.shape[1]}.")
        logp = widened(logits).log_softmax(1)
        if self.training:
            with torch.no_grad():
                right = (logp.argmax(1) == labels).to(self.counts.dtype)
                self.sums.index_add_(0, labels, right[:, None] * logp.exp().to(self.sums.dtype))
                self.counts.index_add_(0, labels, right)
        target = (1 - self.alpha) * self.soft.to(logp.dtype)[labels]
        return -self.alpha * picked(logp, labels) - (target * bounded(logp)).sum(1)

    @torch.no_grad()
    def epoch_end(self) -> None:
        """Make the means of this epoch the soft labels of the next, and reset the sums."""
        if self.across_ranks:
            add_up(self.sums)
            add_up(self.counts)
        k = len(self.counts)
        seen = self.counts[:, None] > 0
        self.soft.copy_(torch.where(seen, self.sums / self.counts[:, None].clamp(min=1), 1 / k))
        self.sums.zero_()
        self.counts.zero_()
