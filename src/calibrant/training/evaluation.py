"""A model and rows -> logits, in eval mode, in order."""

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
    """Return logits (and features) of all rows on the device, computed in float32; ranks share the work.

    bfloat16, in which a GPU trains, has eight bits: it would tie confidences near 1.
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
    """Return the mean objective over batches as large as training's.

    Of an objective that tells training rows apart it is the cross-entropy.
    """
    if criterion.needs_rows:
        return float(F.cross_entropy(logits, labels))
    mode = criterion.training
    criterion.eval()
    total = sum(  # on the device: it is read once
        criterion(some, truth) * (len(some) if criterion.reduction == "mean" else 1)
        for some, truth in zip(logits.split(batch), labels.split(batch), strict=True)
    )
    criterion.train(mode)
    return float(total) / len(logits)
