"""The shape of a loss: value, weight and gradient as functions of the label's probability."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.predictions.types import Logits, PerSample, float64
from calibrant.records import Curve
from calibrant.registry import LOSSES

POINTS = 999  # of the grid i / 1000


def shape(name: str, options: Mapping[str, Any] | None = None, k: int = 10) -> Curve:
    r"""Return what a loss makes of :math:`p_y`: columns p, loss, weight, normalised_weight, gradient.

    .. math:: w(p_y) = \frac{\ell(p_y)}{-\log p_y}, \qquad \text{gradient} = \frac{d\,\ell}{d\,p_y}

    on the grid 0.001, 0.002, ..., 0.999. In each row the label has :math:`p_y` and the other ``k - 1`` classes share
    the rest evenly: the label's logit moves and theirs are 0. The gradient is by autograd along that line. The
    normalised weight has mean 1 over the grid. Columns cross_entropy and cross_entropy_gradient are for comparison.

    A loss that reads its batch is given the whole grid as one batch of one class, so that :math:`p_y` is uniform there;
    its gradient is that of the batch's sum, as in training. A loss with state is shown in its initial state;
    ``options`` may also give the values of its buffers, one for all or all of them (``gammas`` of AdaFocal,
    ``accuracy`` of CalFocal). The settings say what was done ("rows", "batch") and what the loss warned of ("notes").

    In training :math:`p_y` is not uniform: the weight of a loss that ranks its batch looks different there. A loss that
    is not 0 at :math:`p_y = 1` (softened labels) has a weight without bound, and a mean of it that depends on the grid.

    Reference: Zhou et al., arXiv 2505.23463, figure 1 and appendix C; Ghosh, Schaaf & Gormley, NeurIPS 2022, figure 3.

    Example:
        >>> curve = shape("focal", {"gamma": 1.0})
        >>> half = curve["p"].tolist().index(0.5)
        >>> [round(float(curve[column][half]), 3) for column in ("loss", "weight", "normalised_weight", "gradient")]
        [0.347, 0.5, 1.0, -1.693]
    """
    if k < 2:
        raise ValueError(f"k must be the number of classes, at least 2; got {k}.")
    given = dict(options or {})
    loss, batch = _made(name, given, k)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        p, value, gradient = _along(loss, k)
    _, reference, reference_gradient = _along(LOSSES["cross_entropy"], k)
    weight = value / reference
    tensors = {
        "p": p,
        "loss": value,
        "weight": weight,
        "normalised_weight": weight / weight.mean(),
        "gradient": gradient,
        "cross_entropy": reference,
        "cross_entropy_gradient": reference_gradient,
    }
    columns = {column: float64(numbers) for column, numbers in tensors.items()}
    if not all(np.isfinite(numbers).all() for numbers in columns.values()):
        raise ValueError(f"options of {name!r} must give finite values for p_y in (0, 1); got {given}.")
    settings = {
        "loss": name,
        "options": {**known(name), **given},
        "given": tuple(given),
        "k": k,
        "rows": f"Of {k} classes the label has p_y and the others share the rest evenly; the gradient is by p_y.",
        "batch": batch,
        "notes": (*(str(warning.message) for warning in told), *_notes(name, weight)),
    }
    return Curve("loss_shape", columns, POINTS, settings)


def _notes(name: str, weight: PerSample) -> list[str]:
    """Return notes on columns that could mislead."""
    if name != "cross_entropy" and torch.allclose(weight, torch.ones_like(weight)):
        return [f"{name} is cross-entropy here."]
    if bool(weight[-1] > 20 * weight.median()):  # aurc, the steepest that is bounded, has 11
        return [f"The weight of {name} grows without bound towards p_y = 1, and its mean too: read loss and gradient."]
    return []


def _along(loss: Callable[..., Tensor], k: int) -> tuple[PerSample, PerSample, PerSample]:
    """Return the grid, the loss there and its gradient."""
    with torch.enable_grad():
        p = (torch.arange(1, POINTS + 1, dtype=torch.float64) / (POINTS + 1)).requires_grad_()
        value = loss(_logits(p, k), torch.zeros(POINTS, dtype=torch.long))
        (gradient,) = torch.autograd.grad(value.sum(), p)
    return p.detach(), value.detach(), gradient


def _logits(p: PerSample, k: int) -> Logits:
    moving = (p * (k - 1)).log() - (-p).log1p()
    return torch.cat([moving[:, None], torch.zeros(len(p), k - 1, dtype=p.dtype)], 1)


def _made(name: str, given: Mapping[str, Any], k: int) -> tuple[Callable[..., Tensor], str]:
    """Return the loss as a function of a batch, and a sentence on batch and state."""
    found, facts, state = LOSSES[name], LOSSES.entry(name).facts, state_of(name)
    for option in given:
        if option not in (*known(name), *state):
            raise ValueError(f"options of {name!r} must be among {_listed(name)}; got {option!r}.")
    said = []
    if facts.get("joint"):
        said.append(f"The batch is the {POINTS} rows of the grid, all of one class; the gradient is that of its sum.")
    own = {option: value for option, value in given.items() if option not in state}
    kept = {option: value for option, value in given.items() if option in state}
    if not inspect.isclass(found):
        return partial(found, **own), " ".join(said)
    loss: nn.Module = LOSSES[name](**_sizes(found, k), **own).eval()
    for option, value in kept.items():
        _set(loss, option, value)
    said.append(f"What it keeps between batches is as it begins{', but for ' if kept else ''}{', '.join(kept)}.")
    rows = (torch.arange(POINTS),) if facts.get("needs_rows") else ()
    return (lambda logits, labels: loss(logits, labels, *rows)), " ".join(said)


def _sizes(found: Callable[..., Any], k: int) -> dict[str, int]:
    """Return the sizes that a loss requires: the number of classes, or of training rows."""
    parameters = inspect.signature(found).parameters
    return {option: size for option, size in (("k", k), ("n", POINTS)) if option in parameters}


def _set(loss: nn.Module, option: str, value: float | Sequence[Any]) -> None:
    kept = loss.get_buffer(option)
    try:
        kept.copy_(torch.as_tensor(value, dtype=kept.dtype).expand_as(kept))
    except (RuntimeError, TypeError, ValueError):
        size = " x ".join(map(str, kept.shape))
        raise ValueError(f"{option} must be one number, or {size} of them; got {value!r}.") from None


def known(name: str) -> dict[str, Any]:
    """Return the options of a loss with their defaults; the sizes k and n follow from the grid.

    Example:
        >>> known("focal")
        {'gamma': 3.0, 'detach_weight': False}
    """
    parameters = inspect.signature(LOSSES[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def state_of(name: str) -> tuple[str, ...]:
    """Return the names of the buffers that a loss keeps between batches.

    Example:
        >>> state_of("ada_focal")
        ('inner', 'gammas')
    """
    if not inspect.isclass(found := LOSSES[name]):
        return ()
    loss: nn.Module = LOSSES[name](**_sizes(found, 2))
    return tuple(buffer for buffer, _ in loss.named_buffers())


def _listed(name: str) -> str:
    state = state_of(name)
    return (", ".join(known(name)) or "none") + (f" (or, of its state, {', '.join(state)})" if state else "")


def read_options(names: Sequence[str], texts: Sequence[str]) -> list[dict[str, Any]]:
    """Read options as typed, each for every named loss that knows it, by the type of its default.

    The values of a buffer are numbers with commas between.

    Example:
        >>> read_options(["focal", "seca"], ["gamma=5"])
        [{'gamma': 5.0}, {}]
    """
    found: list[dict[str, Any]] = [{} for _ in names]
    for text in texts:
        option, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"option must look like gamma=5; got {text!r}.")
        owners = [i for i, name in enumerate(names) if option in (*known(name), *state_of(name))]
        if not owners:
            each = "; ".join(f"{_listed(name)} for {name}" for name in names)
            raise ValueError(f"option must be among {each}; got {option!r}.")
        for i in owners:
            if option in found[i]:
                raise ValueError(f"option {option} must be given once; got it twice.")
            found[i][option] = _read(option, value, known(names[i]).get(option))
    return found


def _read(option: str, text: str, default: object) -> Any:
    read, what = READERS[type(default)]
    try:
        return read(text)
    except (ValueError, KeyError):
        raise ValueError(f"option {option} must be {what}; got {text!r}.") from None


def _numbers(text: str) -> list[float] | float:
    numbers = [float(word) for word in text.split(",")]
    return numbers[0] if len(numbers) == 1 else numbers


READERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: ({"true": True, "false": False}.__getitem__, "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
    type(None): (_numbers, "a number, or numbers with commas between"),  # a buffer has no default
}
