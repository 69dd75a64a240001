"""The door. Inputs are judged here, once, by name; nothing past it guesses.

Every refusal is one sentence: the argument, what it must be, what came, the likely remedy.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.dlpack
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def tensor(value: Any, name: str) -> Tensor:
    """Take a torch tensor, a numpy array, or anything that speaks DLPack or ``__array__``; copy nothing if possible."""
    if isinstance(value, Tensor):
        return value.detach()
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
        try:
            return torch.utils.dlpack.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            pass  # a type or device that DLPack cannot carry; the array route below says what is wrong
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers; got {array.dtype}.{_named_labels_hint(name, array)}")
    if array.dtype == np.uint64 or array.dtype.newbyteorder("=") != array.dtype:
        array = array.astype(array.dtype.newbyteorder("=") if array.dtype != np.uint64 else np.int64)
    return torch.from_numpy(array if array.flags.writeable and all(s >= 0 for s in array.strides) else array.copy())


def _named_labels_hint(name: str, array: NDArray[Any]) -> str:
    named = name == "labels" and array.dtype.kind in "UOS"
    return " Pass classes=[...], the name of each column in order." if named else ""


def scores(x: Tensor, name: str) -> Tensor:
    """Return (n, k) floating point scores; one column, (n,) or (n, 1), is left for `binary` to widen."""
    if x.ndim not in (1, 2):
        hint = " Move the class axis last and flatten the others." if x.ndim > 2 else ""
        raise ValueError(f"{name} must have shape (n, k), or (n,) for two classes; got {tuple(x.shape)}.{hint}")
    if x.shape[0] == 0:
        raise ValueError(f"{name} must have at least one row; got shape {tuple(x.shape)}.")
    if x.ndim == 2 and x.shape[1] == 0:
        raise ValueError(f"{name} must have at least one column; got shape {tuple(x.shape)}.")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {str(x.dtype).removeprefix('torch.')}.")
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
    finite(~x.isfinite().all(1).cpu(), "probs")
    outside = int(((x < 0) | (x > 1 + 1e-6)).sum())
    if outside:
        low, high = float(x.min()), float(x.max())
        hint = "Divide by 100 if these are percent." if low >= 0 and 1 < high <= 100 else "Pass logits=... instead?"
        raise ValueError(
            f"probs must lie in [0, 1]; {outside} of {x.numel()} values do not (min {low:.3g}, max {high:.3g}). {hint}"
        )
    if x.shape[1] > 1:
        total = x.sum(1, dtype=torch.float64)
        if bool(((total - 1).abs() > _row_tolerance(x)).any()):
            raise ValueError(
                f"probs must sum to 1 in each row; rows sum to {float(total.mean()):.2f} on average. For independent "
                "sigmoids audit each class by itself, Predictions(probs=probs[:, k], labels=labels == k); to rescale "
                "on purpose pass probs / probs.sum(1, keepdim=True)."
            )


def log_probs(x: Tensor) -> None:
    """Refuse log-probabilities that are NaN, positive, or do not sum to 1 in each row; -inf is probability zero."""
    finite((x.isnan() | (x == torch.inf)).any(1).cpu(), "log_probs")
    total = x.double().logsumexp(1)
    if x.shape[1] > 1 and bool((total.abs() > _row_tolerance(x)).any()):
        raise ValueError(
            f"log_probs must be logarithms of probabilities; exp of a row sums to {float(total.exp().mean()):.3g} "
            "on average. Pass logits=... instead?"
        )


def _row_tolerance(x: Tensor) -> float:
    return 1e-3 if x.dtype in (torch.float32, torch.float64) else 2e-2


def reduced(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Check a (confidence, correct) pair; correct may be bool, or numbers 0 and 1."""
    if confidence.ndim != 1 or len(confidence) == 0:
        raise ValueError(f"confidence must have shape (n,) with n >= 1; got {tuple(confidence.shape)}.")
    if not confidence.is_floating_point():
        raise TypeError(f"confidence must be floating point; got {str(confidence.dtype).removeprefix('torch.')}.")
    if correct.shape != confidence.shape:
        raise ValueError(f"correct must have shape {tuple(confidence.shape)}; got {tuple(correct.shape)}.")
    finite(~confidence.isfinite(), "confidence")
    low, high = float(confidence.min()), float(confidence.max())
    if low < 0 or high > 1:
        hint = "Divide by 100 if these are percent." if low >= 0 and high <= 100 else "Pass a probability."
        raise ValueError(f"confidence must lie in [0, 1]; got [{low:.3g}, {high:.3g}]. {hint}")
    if not bool(((correct == 0) | (correct == 1)).all()):
        raise ValueError(
            "correct must be bool, or 0 and 1: whether the prediction was right. Pass labels=... if these are classes."
        )
    return confidence.double(), correct.bool()


def indices(labels: Tensor, n: int, k: int) -> tuple[Tensor, str]:
    """Return (n,) integer labels and what was understood; one-hot rows and -1/1 are translated and said."""
    if labels.ndim == 2 and labels.shape == (n, k) and k > 1:
        return _one_hot(labels)
    if labels.shape != (n,):
        hint = " Did you mean labels.squeeze(1)?" if labels.shape == (n, 1) else ""
        raise ValueError(f"labels must have shape ({n},) to match the scores; got {tuple(labels.shape)}.{hint}")
    if labels.is_floating_point():
        if not bool(labels.isfinite().all() and (labels == labels.round()).all()):
            raise TypeError("labels must be integer class indices; got fractions or NaN.")
        labels = labels.long()
    labels = labels.long()
    if k == 2 and bool(((labels == -1) | (labels == 1)).all()) and bool((labels == -1).any()):
        return (labels == 1).long(), "labels -1/1 read as 0/1"
    return labels, ""


def _one_hot(labels: Tensor) -> tuple[Tensor, str]:
    if bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()):
        return labels.long().argmax(1), "one-hot labels read as indices"
    raise ValueError(
        "labels must be class indices (n,) or one-hot rows; got rows that are not one-hot. Soft labels have no single "
        "right class, so calibration is not defined for them: pass the most likely class, or draw one."
    )


def in_range(labels: Tensor, predicted: Tensor, k: int) -> None:
    """Refuse labels outside [0, k), naming the usual causes: a fill value, or counting from 1."""
    low, high = int(labels.min()), int(labels.max())
    outside = (labels < 0) | (labels >= k)
    if not bool(outside.any()):
        return
    values = labels[outside].unique()
    if len(values) == 1 and not (low == 1 and high == k):
        count, fill = int(outside.sum()), int(values[0])
        raise ValueError(
            f"labels must lie in [0, {k}); {count} of {len(labels)} equal {fill}, which is no class. "
            f"Pass ignore_index={fill} to leave them out."
        )
    message = f"labels must lie in [0, {k}); got [{low}, {high}]."
    if low == 1 and high == k:
        shifted, given = (
            float((predicted == labels - 1).double().mean()),
            float((predicted == labels).double().mean()),
        )
        message += (
            f" With labels - 1 the accuracy is {shifted:.2f}, as given {given:.2f}."
            f" Pass labels - 1, or classes=range(1, {k + 1})."
        )
    raise ValueError(message)


def columns_match(labels: Tensor, predicted: Tensor, k: int) -> str:
    """Return a sentence if the columns look permuted: accuracy below chance, and one relabelling repairs it.

    The relabelling is chosen on every other row and judged on the rest, so that it cannot win by fitting noise.
    """
    right = float((predicted == labels).double().mean())
    n = len(labels)
    if right > 1 / k or k > 2000 or n < 40:
        return ""
    table = np.zeros((k, k))
    np.add.at(table, (predicted[::2].numpy(), labels[::2].numpy()), 1.0)
    rows, columns = linear_sum_assignment(table, maximize=True)
    held_out, relabelled = labels[1::2], torch.from_numpy(columns)[predicted[1::2]]
    better = float((relabelled == held_out).double().mean())
    if better < max(0.5, 3 / k, 3 * right):
        return ""
    shown = ", ".join(f"column {r} is class {c}" for r, c in zip(rows[:4], columns[:4], strict=True) if r != c)
    return (
        f"accuracy is {right:.2f}, below chance ({1 / k:.2f}), and {better:.2f} if the columns are relabelled "
        f"({shown or 'a permutation'}, ...); the columns appear to be in another order than the labels."
    )


def named(labels: Any, classes: Sequence[Any]) -> Tensor:
    """Look labels up in ``classes``; unknown names are refused by name."""
    place = {name: i for i, name in enumerate(classes)}
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if values.ndim != 1:
        raise ValueError(f"labels must have shape (n,) when classes are named; got {values.shape}.")
    found, inverse = np.unique(values, return_inverse=True)
    known = [_plain(v) for v in found]
    unknown = [v for v in known if v not in place]
    if unknown:
        raise ValueError(f"labels must be among classes; got {unknown[0]!r}, which is not in {_some(classes)}.")
    return torch.from_numpy(np.array([place[v] for v in known], dtype=np.int64)[inverse])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _some(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(_plain(v)) for v in list(values)[:5])
    return f"[{shown}{', ...' if len(values) > 5 else ''}]"


def class_names(classes: Sequence[Any], k: int) -> tuple[Any, ...]:
    """Return one distinct name a column."""
    names = tuple(_plain(c) for c in (classes.tolist() if hasattr(classes, "tolist") else classes))
    if len(names) != k:
        raise ValueError(f"classes must name each of the {k} columns; got {len(names)} names.")
    if len(set(names)) != k:
        raise ValueError(f"classes must be distinct; got {_some([c for c in names if names.count(c) > 1])} twice.")
    return names


def weights(w: Tensor, n: int) -> Tensor:
    """Return (n,) float64 weights, counted as repetitions: a row of weight 2 is that row twice."""
    if w.shape != (n,):
        raise ValueError(f"weights must have shape ({n},); got {tuple(w.shape)}.")
    w = w.double()
    if not bool(w.isfinite().all()) or bool((w < 0).any()) or not math.isfinite(float(w.sum())) or float(w.sum()) <= 0:
        raise ValueError("weights must be finite, not negative and not all zero.")
    return w


def groups(values: Any, n: int) -> tuple[str, ...]:
    """Return one group name a row, as text."""
    array = np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    if array.shape != (n,):
        raise ValueError(f"groups must have shape ({n},), one name a row; got {array.shape}.")
    return tuple(str(v) for v in array.tolist())
