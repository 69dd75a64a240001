"""A classifier and its images -> images that differ by at most epsilon a pixel and on which its loss is higher."""

from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.losses.functional import true_nll
from calibrant.training.shifts.climbing import Channels, Objective, Walk, climbed


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
    r"""Fast gradient sign method: move every pixel by epsilon, the way in which the classifier's loss rises.

    .. math:: x' = x + \varepsilon\, \mathrm{sign}\, \nabla_x \ell(f(x), y), \quad \text{clipped to the pixels' range}

    Images (n, c, h, w) are floating point, of pixels from ``low`` to ``high``, and so is ``epsilon``: 8/255 for images
    from 0 to 1. ``mean`` and ``std`` of the channels normalise inside, before the model. ``loss`` takes logits and
    labels, and gives a value a row or their sum or mean; the labels may be predictions, if the truth is not to be told.
    A pixel whose gradient is exactly 0 stays as it is: a classifier so sure that its loss rounds to 0 is not moved.

    The attack knows the classifier (white box) and nothing of what judges it. It makes inputs on which a classifier is
    wrong for a reason it was not trained on, to see whether a trust predictor notices. It does not measure robustness:
    for that, attacks are adapted to the defence, restarted and many.

    The model is in eval mode meanwhile, on the device of its first parameter, ``batch`` images at a time. Its modes,
    statistics and gradients, torch's random state and grad mode are left as found, also after an error. The result has
    the images' device and dtype, and no gradient.

    Reference: Goodfellow, Shlens & Szegedy, ICLR 2015.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
        >>> model[1].weight.data = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> fgsm(model, torch.full((1, 1, 1, 2), 0.5), torch.tensor([0]), epsilon=0.25)
        tensor([[[[0.2500, 0.7500]]]])
    """
    return climbed(model, images, labels, loss, Walk(epsilon, epsilon, 1, low, high), channels=(mean, std), batch=batch)


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
    r"""Projected gradient descent: several small sign steps, each followed by the way back to within epsilon.

    .. math:: x_{t+1} = \Pi\bigl(x_t + \alpha\, \mathrm{sign}\, \nabla_x \ell(f(x_t), y)\bigr)

    :math:`\Pi` clips each pixel to within :math:`\varepsilon` of the image and to the pixels' range; :math:`\alpha` is
    ``step``, by default 2.5 epsilon / steps, so that every pixel can be crossed. The start is uniform within epsilon,
    drawn from the seed and the row, not from torch's random state; or the clean image. The last iterate is returned.
    What else is said of `fgsm`, the first step from the clean image, holds here: a stronger attack on the classifier
    alone, one start, not an evaluation of robustness. Where the gradient is exactly 0, a random start stays.

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
    walk = Walk(epsilon, size, steps, low, high, torch.Generator().manual_seed(seed) if start == "random" else None)
    return climbed(model, images, labels, loss, walk, channels=(mean, std), batch=batch)
