"""Evaluation during training: logits of a data set, and the validation loss."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.losses.criterion import Criterion
from calibrant.losses.distributed import joined
from calibrant.predictions.collect import evaluating
from calibrant.training.device import Placement
from calibrant.training.feed import Feed

BATCH = 1000


@torch.no_grad()
def logits_of(
    model: nn.Module, feed: Feed, place: Placement, *, features: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return logits (and features) of all rows, in order, in eval mode and float32; ranks share the work.

    The bfloat16 of training on a GPU has eight bits of precision: confidences near 1 would be tied.
    """
    if not len(feed):
        raise ValueError("rows must be there to evaluate; got none.")
    rows = torch.arange(len(feed), device=place.device)[place.share(len(feed))]
    found: list[tuple[Tensor, Tensor]] = []
    with evaluating(model, place.device):
        for inputs in feed.batches(BATCH, rows):
            hidden = model.features(inputs)  # type: ignore[operator]
            found.append((model.head(hidden), hidden))  # type: ignore[operator]
    logits, hidden = (torch.cat(parts).float() for parts in zip(*found, strict=True))
    return joined(logits), joined(hidden) if features else None


@torch.no_grad()
def validation_loss(criterion: Criterion, logits: Tensor, labels: Tensor, batch: int) -> float:
    """Return the mean objective over batches of the training batch size.

    For an objective that needs the indices of training rows it is the cross-entropy.
    """
    if criterion.needs_rows:
        return float(F.cross_entropy(logits, labels))
    mode = criterion.training
    criterion.eval()
    total = sum(  # on the device: one synchronisation at the end
        criterion(some, truth) * (len(some) if criterion.reduction == "mean" else 1)
        for some, truth in zip(logits.split(batch), labels.split(batch), strict=True)
    )
    criterion.train(mode)
    return float(total) / len(logits)
