r"""Differentiable functions of a batch of logits that losses and penalties share.

Half precision is cast up to float32 and autocast is left: in bfloat16 a probability of 0.999 is already 1. Everything
is computed from :math:`\log\mathrm{softmax}`, so that logits of :math:`\pm 10^4` have finite values and gradients.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.predictions.types import Confidence, Correct, Labels, Logits, PerSample, widened

_in_functorch: Callable[[], bool] = getattr(torch._C, "_are_functorch_transforms_active", lambda: False)
IGNORE_NONE = -(2**62)  # ignore_index: torch would otherwise ignore the label -100


def true_nll(logits: Logits, labels: Labels) -> PerSample:
    r"""Return :math:`-\log p_y` of each row.

    Example:
        >>> true_nll(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        tensor([0.4170])
    """
    wide = widened(logits)
    if not transformed():
        return F.cross_entropy(wide, labels.long(), reduction="none", ignore_index=IGNORE_NONE)
    # the gradient of log_softmax would sum over the classes a gradient that is 0 for all but one
    rest = wide - wide.detach().amax(1, keepdim=True)
    return rest.exp().sum(1, keepdim=True).log().squeeze(1) - picked(rest, labels)


def missing(nll: PerSample) -> PerSample:
    r"""Return :math:`1 - p_y`, exact near 0 and never 0: where :math:`p_y` rounds to 1, the smallest positive number.

    Example:
        >>> missing(torch.tensor([0.6931, 0.0]))
        tensor([4.9998e-01, 1.1755e-38])
    """
    return (-torch.expm1(-nll)).clamp(min=torch.finfo(nll.dtype).tiny)


def picked(values: Logits, columns: Labels) -> PerSample:
    """Return one value of each row. Compiled, its gradient is fused; that of `gather` is a separate scatter.

    Example:
        >>> picked(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([1]))
        tensor([1.])
    """
    return -F.nll_loss(values, columns.long(), reduction="none", ignore_index=IGNORE_NONE)


def top(logits: Logits, labels: Labels) -> tuple[Confidence, Correct]:
    """Return the largest probability of each row, with its gradient, and whether it is that of the label.

    The first of equal logits is predicted.

    Example:
        >>> top(torch.tensor([[2.0, 1.0, 0.1]]), torch.tensor([0]))
        (tensor([0.6590]), tensor([True]))
    """
    check_batch(logits, labels)
    predicted = logits.detach().argmax(1)
    return (-true_nll(logits, predicted)).exp(), predicted == labels


def surest(logp: Logits, labels: Labels) -> tuple[Confidence, Correct]:
    """Return the same as `top`, from log probabilities."""
    predicted = logp.detach().argmax(1)
    return picked(logp, predicted).exp(), predicted == labels


def bounded(logp: Logits) -> Logits:
    """Return log probabilities bounded from below: 0 times -inf would be NaN."""
    return logp.clamp(min=-1e30)


def transformed() -> bool:
    """Return whether `torch.compile` or `torch.func` is tracing: a hand-written gradient would be in its way.

    Autograd asks the same private question; a torch without it raises its own error inside of `torch.func`.
    """
    return torch.compiler.is_compiling() or _in_functorch()


def count(counts: Tensor, values: Tensor, rows: Labels | None = None) -> None:
    """Add to a buffer that the loss also reads: to all of it, or to some rows.

    `torch.compile` would read the buffer again for the gradient, after this batch was added, and return a wrong one
    (torch 2.13). The graph is therefore broken here: with ``fullgraph=True`` torch raises, and `Criterion.compile`
    works.
    """
    if torch.compiler.is_compiling() and torch.is_grad_enabled():
        torch._dynamo.graph_break(msg="this loss counts: use criterion.compile(), whose gradient is right")
    with torch.no_grad():
        values = values.to(counts.dtype)
        counts.add_(values) if rows is None else counts.index_add_(0, rows, values)


def check_batch(logits: Any, labels: Any) -> None:
    """Check types and shapes, and on a CPU that labels are classes; on a GPU that would wait for the device."""
    for name, values in (("logits", logits), ("labels", labels)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a tensor; got {type(values).__name__}. torch.as_tensor makes one.")
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(
            f"logits must be floats of shape (n, k); got {logits.dtype} of shape {tuple(logits.shape)}. "
            "For pixels or tokens, bring the classes last and flatten the rest."
        )
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(
            f"labels must be class numbers of shape ({len(logits)},); got {labels.dtype} of shape "
            f"{tuple(labels.shape)}. For one-hot rows pass labels.argmax(1)."
        )
    if labels.device.type == "cpu" and len(labels) and not transformed():
        check_labels(labels, logits.shape[1])


def check_labels(labels: Tensor, k: int) -> None:
    """Check that every label is a class."""
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= k:
        wrong = labels[(labels < 0) | (labels >= k)]
        raise ValueError(
            f"labels must lie in 0 to {k - 1}; got {int(wrong[0])}. Leave out ignored rows before the loss."
        )


def check_values(logits: Tensor, labels: Tensor) -> None:
    """Check every label and logit; a logit of -inf is an impossible class."""
    check_labels(labels, logits.shape[1])
    wild = (logits.isnan() | logits.isposinf()).any(1)
    if bool(wild.any()):
        raise ValueError(f"logits must be finite; row {int(wild.nonzero()[0])} is not. The step before has diverged.")
