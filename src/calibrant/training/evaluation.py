"""A model and rows -> logits, in eval mode, in order."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.criterion import Criterion
from calibrant.distributed import joined
from calibrant.training.feed import Feed
from calibrant.training.placement import Placement

BATCH = 1000


@torch.no_grad()
def logits_of(
    model: nn.Module, feed: Feed, place: Placement, *, features: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Return logits (and features) of all rows on the device, computed in float32; ranks share the work.

    bfloat16, in which a GPU trains, has eight bits: it would tie confidences near 1.
    """
    if not len(feed):
        raise ValueError("rows must be there to evaluate; got none.")
    share = -(-len(feed) // place.world)
    rows = torch.arange(place.rank * share, min(len(feed), (place.rank + 1) * share), device=place.device)
    modes = [(layer, layer.training) for layer in model.modules()]
    model.eval()
    found: list[tuple[Tensor, Tensor]] = []
    try:
        for inputs in feed.batches(BATCH, rows):
            hidden = model.features(inputs)  # type: ignore[operator]
            found.append((model.head(hidden), hidden))  # type: ignore[operator]
    finally:
        for layer, mode in modes:
            layer.training = mode
    logits, hidden = (torch.cat(parts).float() for parts in zip(*found, strict=True))
    return joined(logits), joined(hidden) if features else None


@torch.no_grad()
def validation_loss(criterion: Criterion, logits: Tensor, labels: Tensor, batch: int) -> float:
    """Return the mean objective over batches as large as training's.

    Of an objective that tells training rows apart it is the cross-entropy.
    """
    if criterion.needs_rows:
        return float(F.cross_entropy(logits, labels))
    mode, total = criterion.training, 0.0
    criterion.eval()
    for some, truth in zip(logits.split(batch), labels.split(batch), strict=True):
        total += float(criterion(some, truth)) * (len(some) if criterion.reduction == "mean" else 1)
    criterion.train(mode)
    return total / len(logits)
