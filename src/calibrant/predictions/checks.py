"""Input validation: every array is checked here, once, by its argument name; nothing is guessed from values.

Every refusal is one sentence: the argument, what it must be, what came, the likely remedy.
"""

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray
from torch import Tensor

from calibrant.predictions.types import widened

DUST = 1e-6  # a probability may leave [0, 1] by so much: rounding of the arithmetic that made it
HEAVIEST = 1e15  # a weight beyond which counts of rows are no longer exact in float64
ROUNDING = 1e-2  # and a row may miss 1 by so much: probabilities written with few digits


def tensor(value: Any, name: str) -> Tensor:
    """Take a torch tensor, a numpy array, or anything that speaks DLPack or ``__array__``; copy nothing if possible."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            raise TypeError(f"{name} must be a dense tensor with values; got {value.layout} on {value.device}.")
        if value.is_complex():
            raise TypeError(f"{name} must be real numbers; got {_dtype(value)}.")
        if value.is_floating_point() and value.dtype.itemsize == 1:  # float8 holds numbers, but has no arithmetic
            return value.detach().float()
        return _signed(value.cpu().numpy(), name) if value.dtype == torch.uint64 else value.detach()
    if np.ma.is_masked(value):
        raise ValueError(
            f"{name} must have no masked values; got {int(np.ma.getmaskarray(value).sum())}. Leave those rows out."
        )
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        try:
            found = torch.utils.dlpack.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            pass  # a type or device that DLPack cannot carry; the array route below says what is wrong
        else:
            return tensor(found, name)
    array = _of_numbers(as_array(value, name))
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers; got {_odd(array)}.{_named_labels_hint(name, array)}")
    if array.dtype == np.uint64:
        return _signed(array, name)
    if array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(array if array.flags.writeable and all(s >= 0 for s in array.strides) else array.copy())


def _signed(array: NDArray[Any], name: str) -> Tensor:
    """Return unsigned whole numbers as int64, if that holds them."""
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit in 64 signed bits; got {array.max()}.")
    return torch.from_numpy(array.astype(np.int64))


def as_array(value: Any, name: str) -> NDArray[Any]:
    """Return a numpy array of whatever came; rows of different lengths are refused."""
    try:
        return np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    except ValueError:
        raise ValueError(f"{name} must be rectangular; got rows of different lengths.") from None


def _of_numbers(array: NDArray[Any]) -> NDArray[Any]:
    """Return Python numbers, as columns of nullable and Arrow types come, as an array of numbers."""
    if array.dtype != object or not array.size or not all(isinstance(value, Real) for value in array.flat):
        return array
    return np.array(array.tolist())


def _odd(array: NDArray[Any]) -> str:
    """Say what an array holds in place of numbers; a missing value of pandas is named by its value."""
    odd = [value for value in array.flat if not isinstance(value, Real)] if array.dtype == object and array.ndim else []
    return f"{array.dtype}, such as {odd[0]!r:.40}" if odd else str(array.dtype)


def _named_labels_hint(name: str, array: NDArray[Any]) -> str:
    named = name == "labels" and array.dtype.kind in "UOS"
    return " Pass classes=[...], the name of each column in order." if named else ""


def scores(x: Tensor, name: str) -> Tensor:
    """Return (n, k) floating point scores; one column, (n,) or (n, 1), stays one: `parse` makes it two."""
    if x.ndim not in (1, 2):
        hint = " Move the class axis last and flatten the others." if x.ndim > 2 else ""
        raise ValueError(f"{name} must have shape (n, k), or (n,) for two classes; got {tuple(x.shape)}.{hint}")
    if x.shape[0] == 0:
        raise ValueError(f"{name} must have at least one row; got shape {tuple(x.shape)}.")
    if x.ndim == 2 and x.shape[1] == 0:
        raise ValueError(f"{name} must have at least one column; got shape {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {_dtype(x)}.")
    return x[:, None] if x.ndim == 1 else x


def finite(bad: Tensor, name: str) -> None:
    """Refuse rows that are not finite; ``bad`` marks them."""
    count = int(bad.sum())
    if count:
        rows = f"1 of {len(bad)} rows is" if count == 1 else f"{count} of {len(bad)} rows are"
        first = int(bad.nonzero()[0])
        raise ValueError(f"{name} must be finite; {rows} not (first: row {first}). Leave them out, and say how many.")


def not_probs(logits: Tensor) -> None:
    """Refuse logits that are probabilities: every value in [0, 1] and every row summing to 1."""

    def like_probs(x: Tensor) -> bool:
        x = x.double()
        return bool(((x >= 0) & (x <= 1)).all() and ((x.sum(1) - 1).abs() < 1e-3).all())

    if logits.shape[1] > 1 and like_probs(logits[:64]) and like_probs(logits):
        raise ValueError(
            "logits must be raw scores; every row lies in [0, 1] and sums to 1, so these are probabilities. "
            "Pass probs=..., or the model's raw outputs."
        )


def probs(x: Tensor) -> None:
    """Refuse what is not a distribution in each row; one column is a probability of class 1."""
    least, most = x.aminmax()
    if bool((least >= -DUST) & (most <= 1 + DUST)) and (x.shape[1] == 1 or bool((_off(x) <= ROUNDING).all())):
        return  # no NaN, which is not above or below anything
    finite(~x.isfinite().all(1).cpu(), "probs")
    outside = int(((x < -DUST) | (x > 1 + DUST)).sum())
    if outside:
        low, high = float(x.min()), float(x.max())
        hint = "Divide by 100 if these are percent." if low >= 0 and 2 < high <= 100 else "Pass logits=... instead?"
        raise ValueError(
            f"probs must lie in [0, 1]; {outside} of {x.numel()} values do not (min {low:.3g}, max {high:.3g}). {hint}"
        )
    total = x.sum(1, dtype=torch.float64)
    row = int((total - 1).abs().argmax())
    raise ValueError(
        f"probs must sum to 1 in each row; row {row} sums to {float(total[row]):.3g}, and rows sum to "
        f"{float(total.mean()):.3g} on average. For independent sigmoids audit each class by itself, "
        "Predictions(probs=probs[:, k], labels=labels == k); to rescale on purpose pass "
        "probs / probs.sum(1, keepdim=True)."
    )


def _off(probs: Tensor) -> Tensor:
    """Return by how much each row misses a sum of 1; float32 is exact enough for the limit, and much faster."""
    return (widened(probs).sum(1) - 1).abs()


def class_scores(x: Tensor, name: str) -> Tensor:
    """Return (n, k) finite logits, or probabilities, for a metric; one column, that of class 1, becomes two."""
    x = scores(x, name)
    one = x.shape[1] == 1
    if name == "probs":
        probs(x)
        return torch.cat([1 - x, x], 1).clamp(0, 1) if one else x
    if not all(bool(end.isfinite()) for end in x.aminmax()):
        finite(~x.isfinite().all(1).cpu(), name)
    not_probs(x)
    return torch.cat([torch.zeros_like(x), x], 1) if one else x


def class_numbers(labels: Tensor, n: int, k: int) -> Tensor:
    """Return (n,) class numbers in [0, k) as int64 on the CPU, for a metric."""
    if labels.shape != (n,):
        raise ValueError(f"labels must have shape ({n},), one a row; got {tuple(labels.shape)}.")
    whole = not labels.is_floating_point() or bool((labels.isfinite() & (labels == labels.round())).all())
    if labels.dtype == torch.bool or not whole:
        raise TypeError(f"labels must be class numbers; got {_dtype(labels)}.")
    low, high = (int(end) for end in labels.aminmax())
    if low < 0 or high >= k:
        outside = int(((labels < 0) | (labels >= k)).sum())
        raise ValueError(
            f"labels must lie in [0, {k}); got [{low}, {high}]: {outside} of {n} are no class. Leave those rows out, "
            "as Predictions does with ignore_index=..."
        )
    return labels.long().cpu()


def log_probs(x: Tensor) -> None:
    """Refuse log-probabilities that are NaN, positive, or do not sum to 1 in each row; -inf is probability zero."""
    finite((x.isnan() | (x == torch.inf)).any(1).cpu(), "log_probs")
    total = x.double().logsumexp(1)
    if bool((total > ROUNDING).any()) or (x.shape[1] > 1 and bool((total.abs() > ROUNDING).any())):
        raise ValueError(
            f"log_probs must be logarithms of probabilities; exp of a row sums to {float(total.exp().mean()):.3g} "
            "on average. Pass logits=... instead?"
        )


def confidence(x: Tensor, name: str = "confidence", *, bounded: bool = True) -> Tensor:
    """Return finite floating point scores, one a row; ``bounded`` ones lie in [0, 1]."""
    if x.ndim != 1 or len(x) == 0:
        raise ValueError(f"{name} must have shape (n,) with n >= 1; got {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {_dtype(x)}.")
    low, high = (float(end) for end in x.aminmax())
    if not (math.isfinite(low) and math.isfinite(high)):
        finite(~x.isfinite().cpu(), name)
    if not bounded or (low >= 0 and high <= 1):
        return x
    if low < -DUST or high > 1 + DUST:
        hint = "Divide by 100 if these are percent." if low >= 0 and 2 < high <= 100 else "Pass a probability."
        raise ValueError(f"{name} must lie in [0, 1]; got [{low:.3g}, {high:.3g}]. {hint}")
    return x.clamp(0, 1)


def correct(x: Tensor, n: int | None) -> Tensor:
    """Return whether each of n predictions was right, as bool; numbers 0 and 1 will do."""
    if x.ndim != 1 or len(x) != (len(x) if n is None else n) or len(x) == 0:
        raise ValueError(f"correct must have shape ({'n' if n is None else n},); got {tuple(x.shape)}.")
    if x.dtype == torch.bool:
        return x
    odd = x[(x != 0) & (x != 1)]
    if len(odd):
        raise ValueError(
            f"correct must be bool, or 0 and 1: whether the prediction was right; got {odd[0].item():g}. "
            "Pass labels=... with class scores if these are classes."
        )
    return x.bool()


def weights(w: Tensor, kept: Tensor) -> Tensor:
    """Return the float64 weights of the kept rows, counted as repetitions: a row of weight 2 is that row twice."""
    n = len(kept)
    if w.shape != (n,):
        raise ValueError(f"weights must have shape ({n},); got {tuple(w.shape)}.")
    w = w.double()
    finite(~w.isfinite(), "weights")
    if float(w.max()) > HEAVIEST:
        raise ValueError(
            f"weights must be at most {HEAVIEST:g}; got {float(w.max()):.3g}. Divide them all by a number."
        )
    w = w[kept]
    if bool((w < 0).any()) or not bool((w > 0).any()):
        raise ValueError(
            f"weights must not be negative and not all zero; got [{float(w.min()):.3g}, {float(w.max()):.3g}]."
        )
    rows, total = int((w > 0).sum()), float(w.sum())
    if total < 0.99 * rows:
        raise ValueError(
            f"weights count as repetitions, so they must sum to at least the number of rows that have any ({rows}); "
            f"got {total:.3g}. Multiply them by {rows} / weights.sum()."
        )
    return w


def places(rows: Tensor, n: int) -> Tensor:
    """Return numbers of rows, of at least one of n, from numbers or a mask; negative numbers count from the end."""
    if rows.ndim != 1 or rows.is_floating_point() or (rows.dtype == torch.bool and len(rows) != n):
        got = f"{_dtype(rows)} of shape {tuple(rows.shape)}"
        raise TypeError(f"rows must be whole numbers, or a mask of shape ({n},); got {got}.")
    place = rows.nonzero().squeeze(1) if rows.dtype == torch.bool else rows.long()
    if len(place) == 0:
        raise ValueError("rows must name at least one row; got none.")
    low, high = (int(end) for end in place.aminmax())
    if low < -n or high >= n:
        raise ValueError(f"rows must lie in [0, {n}); got [{low}, {high}].")
    return place.where(place >= 0, place + n)


def groups(values: Any, n: int) -> NDArray[Any]:
    """Return one group name a row, as text."""
    array = as_array(values, "groups")
    if array.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one name a row; got {array.shape}.")
    return np.array([v.decode() if isinstance(v, bytes) else str(v) for v in array.tolist()], dtype=object)


def _dtype(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def features(x: Tensor, n: int) -> Tensor:
    """Return (n, d) features."""
    if x.ndim != 2 or len(x) != n:
        raise ValueError(f"features must have shape ({n}, d); got {tuple(x.shape)}.")
    return x
