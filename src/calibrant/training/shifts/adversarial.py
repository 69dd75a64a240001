"""Adversarial attacks on a classifier: FGSM and PGD."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.losses.functional import true_nll
from calibrant.predictions.collect import evaluating

Objective: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Channels: TypeAlias = Sequence[float] | None


def fgsm(  # noqa: PLR0913  two of them are what is attacked, the others have defaults
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    low: float = 0.0,
    high: float = 1.0,
    mean: Channels = None,
    std: Channels = None,
    loss: Objective = true_nll,
    batch: int = 500,
) -> Tensor:
    r"""Fast gradient sign method: move every pixel by epsilon in the direction that increases the loss.

    .. math:: x' = x + \varepsilon\, \mathrm{sign}\, \nabla_x \ell(f(x), y), \quad \text{clipped to the pixels' range}

    Images (n, c, h, w) are floating point with pixels from ``low`` to ``high``; ``epsilon`` is in the same unit, e.g.
    8/255 for images in [0, 1]. Images are normalised by ``mean`` and ``std`` of the channels before the model. ``loss``
    takes logits and labels and returns a value per row, or their sum or mean; the labels may be the model's predictions
    to avoid label leaking. A pixel whose gradient is exactly 0 is unchanged, as where a saturated loss rounds to 0.

    The attack is white-box for the classifier, and does not know the trust predictor that is evaluated on the result.
    It produces misclassified inputs outside the training distribution, to see whether a trust predictor notices. It
    does not measure robustness, which takes adaptive attacks with several restarts.

    The model is run in eval mode, on the device of its first parameter, ``batch`` images at a time. Its modes,
    statistics and gradients, torch's random state and grad mode are restored, also after an error. The result has the
    device and dtype of the images, and no gradient.

    Reference: Goodfellow, Shlens & Szegedy, ICLR 2015.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
        >>> model[1].weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> fgsm(model, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), epsilon=0.25)
        tensor([[[[0.2500, 0.7500]]]])
    """
    ascent = Ascent(epsilon, epsilon, 1, low, high)
    return attacked(model, images, labels, loss, ascent, channels=(mean, std), batch=batch)


def pgd(  # noqa: PLR0913  two of them are what is attacked, the others have defaults
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    epsilon: float,
    step: float | None = None,
    steps: int = 10,
    start: Literal["random", "clean"] = "random",
    seed: int = 0,
    low: float = 0.0,
    high: float = 1.0,
    mean: Channels = None,
    std: Channels = None,
    loss: Objective = true_nll,
    batch: int = 500,
) -> Tensor:
    r"""Projected gradient descent: several small sign steps, each followed by a projection to within epsilon.

    .. math:: x_{t+1} = \Pi\bigl(x_t + \alpha\, \mathrm{sign}\, \nabla_x \ell(f(x_t), y)\bigr)

    :math:`\Pi` clips each pixel to within :math:`\varepsilon` of the image and to the pixels' range; :math:`\alpha` is
    ``step``, by default 2.5 epsilon / steps, so that any point of the ball can be reached. The start is uniform within
    epsilon, which depends on the seed and the row but not on torch's random state, or it is the clean image. The last
    iterate is returned. Everything else is as in `fgsm`: a stronger white-box attack, with one start, not an evaluation
    of robustness. Where the gradient is exactly 0, a random start is kept.

    Reference: Madry, Makelov, Schmidt, Tsipras & Vladu, ICLR 2018.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
        >>> model[1].weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> pgd(model, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), epsilon=0.25)
        tensor([[[[0.2500, 0.7500]]]])
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number of at least 1; got {steps!r}.")
    if start not in ("random", "clean"):
        raise ValueError(f"start must be 'random' or 'clean'; got {start!r}.")
    size = 2.5 * epsilon / steps if step is None else step
    generator = torch.Generator().manual_seed(seed) if start == "random" else None
    ascent = Ascent(epsilon, size, steps, low, high, generator)
    return attacked(model, images, labels, loss, ascent, channels=(mean, std), batch=batch)


@dataclass(frozen=True)
class Ascent:
    """Projected gradient ascent within epsilon of an image, from a random start if there is a generator."""

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

    def __call__(self, images: Tensor, gradient: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the last iterate, in the dtype of the images."""
        lower, upper = (images - self.epsilon).clamp(min=self.low), (images + self.epsilon).clamp(max=self.high)
        moved = images
        if self.generator is not None:
            noise = torch.rand(images.shape, generator=self.generator)  # on the CPU: the same on every device
            moved = (images + self.epsilon * (2 * noise - 1).to(images)).clamp(lower, upper)
        for _ in range(self.steps):
            moved = (moved + self.step * gradient(moved).sign()).clamp(lower, upper)
        return moved


def attacked(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    loss: Objective,
    ascent: Ascent,
    *,
    channels: tuple[Channels, Channels],
    batch: int,
) -> Tensor:
    """Maximise the classifier's loss over the images by projected gradient ascent, a batch at a time."""
    _check_images(images, ascent.low, ascent.high)
    _check_labels(labels, len(images))
    if batch < 1:
        raise ValueError(f"batch must be at least 1 image; got {batch}.")
    first = next(chain(model.parameters(), model.buffers()), images)
    with _differentiable(model, first.device):
        result = torch.empty_like(images)  # no gradient: it is a fresh leaf
        mean, std = _per_channel(channels, images[:0].to(first.device))
        for start in range(0, len(images), batch):
            part = slice(start, start + batch)
            # copies: inference tensors cannot take part in autograd
            pixels, truth = (x[part].detach().to(first.device, copy=True) for x in (images, labels))

            def gradient(moved: Tensor, truth: Tensor = truth) -> Tensor:
                moved = moved.detach().requires_grad_()
                logits = model((moved - mean) / std)
                _check_logits(logits, truth)
                (found,) = torch.autograd.grad(loss(logits, truth).sum(), moved, materialize_grads=True)
                if bool(found.isnan().any()):
                    raise ValueError("model must have a gradient at every pixel; some are NaN. Are its logits finite?")
                return found

            result[part] = ascent(pixels, gradient)
    return result


@contextmanager
def _differentiable(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Enable eval mode and gradients; restore every layer's mode, the random state and grad mode on exit."""
    with evaluating(model, device), torch.inference_mode(mode=False), torch.enable_grad():
        yield


def _per_channel(channels: tuple[Channels, Channels], images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and std, broadcastable over images; 0 and 1 if none are given."""
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
