"""Images -> where a walk up a classifier's loss takes them, with everything else left as found."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import torch
from torch import Tensor, nn

from calibrant.predictions.collect import evaluating

Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Channels: TypeAlias = Sequence[float] | None


@dataclass(frozen=True)
class Walk:
    """How far, in which steps and between which pixels an image may go; from a drawn start, or from itself."""

    epsilon: float
    step: float
    steps: int
    low: float
    high: float
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ValueError(f"low must be below high, the range of the pixels; got {self.low} and {self.high}.")
        for name in ("epsilon", "step"):
            size = getattr(self, name)
            if not 0 <= size < math.inf:
                raise ValueError(f"{name} must be a distance between pixels, finite and not negative; got {size}.")

    def end(self, images: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        """Return where the walk up the slope ends, in the images' dtype."""
        least, most = (images - self.epsilon).clamp(min=self.low), (images + self.epsilon).clamp(max=self.high)
        here = images
        if self.generator is not None:
            noise = torch.rand(images.shape, generator=self.generator)  # on the CPU: the same on every device
            here = (images + self.epsilon * (2 * noise - 1).to(images)).clamp(least, most)
        for _ in range(self.steps):
            here = (here + self.step * slope(here).sign()).clamp(least, most)
        return here


def climbed(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Objective,
    walk: Walk,
    *,
    channels: tuple[Channels, Channels],
    batch: int,
) -> Tensor:
    """Walk each image up the classifier's loss, a batch at a time."""
    _check_images(images, walk.low, walk.high)
    _check_labels(labels, len(images))
    if batch < 1:
        raise ValueError(f"batch must be at least 1 image; got {batch}.")
    first = next(chain(model.parameters(), model.buffers()), images)
    with _as_found(model, first.device):
        result = torch.empty_like(images)  # no gradient: it is a fresh leaf
        mean, std = _per_channel(channels, images[:0].to(first.device))
        for start in range(0, len(images), batch):
            part = slice(start, start + batch)
            # copies: what was made in inference mode may not be kept for a gradient
            pixels, truth = (x[part].detach().to(first.device, copy=True) for x in (images, labels))

            def slope(here: Tensor, truth: Tensor = truth) -> Tensor:
                here = here.detach().requires_grad_()
                logits = model((here - mean) / std)
                _check_logits(logits, truth)
                (found,) = torch.autograd.grad(loss(logits, truth).sum(), here, materialize_grads=True)
                if bool(found.isnan().any()):
                    raise ValueError("model must have a gradient at every pixel; some are NaN. Are its logits finite?")
                return found

            result[part] = walk.end(pixels, slope)
    return result


@contextmanager
def _as_found(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Switch to eval mode and gradients on; leave every layer's mode, the random state and grad mode as they were."""
    with evaluating(model, device), torch.inference_mode(mode=False), torch.enable_grad():
        yield


def _per_channel(channels: tuple[Channels, Channels], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and std to broadcast over images; 0 and 1 where none are given."""
    if channels == (None, None):
        return images.new_zeros(()), images.new_ones(())
    mean, std = (images.new_tensor(tuple(values or ())) for values in channels)
    c = images.shape[1]
    if len(mean) != c or len(std) != c or not bool((std > 0).all() & mean.isfinite().all() & std.isfinite().all()):
        raise ValueError(f"mean and std must both be {c} numbers, one a channel, std above 0; got {channels}.")
    return mean[:, None, None], std[:, None, None]


def _check_images(images: Tensor, low: float, high: float) -> None:
    if not isinstance(images, Tensor) or not images.is_floating_point():
        kind = str(images.dtype).removeprefix("torch.") if isinstance(images, Tensor) else type(images).__name__
        raise TypeError(f"images must be a floating point tensor of pixels from {low:g} to {high:g}; got {kind}.")
    if images.ndim != 4 or images.numel() == 0:
        raise ValueError(f"images must have shape (n, c, h, w), none of them 0; got {tuple(images.shape)}.")
    least, most = (float(edge) for edge in images.detach().aminmax())
    if math.isnan(least) or math.isinf(least) or math.isinf(most):
        raise ValueError("images must be finite; some pixels are NaN or infinite.")
    if least < low or most > high:
        raise ValueError(
            f"images must lie in [{low:g}, {high:g}], from low to high; got [{least:.3g}, {most:.3g}]. "
            "Pass pixels that are not normalised yet, with mean and std."
        )


def _check_labels(labels: Tensor, n: int) -> None:
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        kind = str(labels.dtype).removeprefix("torch.") if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"labels must be a tensor of whole numbers; got {kind}.")
    if labels.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one an image; got {tuple(labels.shape)}.")


def _check_logits(logits: Tensor, labels: Tensor) -> None:
    if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(labels):
        got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"model must return logits of shape ({len(labels)}, k) for these images; got {got}.")
    if not logits.requires_grad:
        raise ValueError("model must let a gradient reach its images; it does not. Does it run without gradients?")
    low, high, k = int(labels.min()), int(labels.max()), logits.shape[1]
    if low < 0 or high >= k:
        raise ValueError(f"labels must lie in [0, {k}), the model's classes; got [{low}, {high}].")
