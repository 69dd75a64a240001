"""Labels as they come -> indices of columns, and whether they match the columns at all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def indices(labels: Tensor, n: int, k: int) -> tuple[Tensor, tuple[str, ...]]:
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
        return (labels == 1).long(), ("labels -1/1 read as 0/1",)
    return labels, ()


def _one_hot(labels: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    if bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()):
        return labels.long().argmax(1), ("one-hot labels read as indices",)
    raise ValueError(
        "labels must be class indices (n,) or one-hot rows; got rows that are not one-hot. Soft labels have no single "
        "right class, so calibration is not defined for them: pass the most likely class, or draw one."
    )


def in_range(labels: Tensor, scores: Tensor, k: int) -> None:
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
        predicted = scores.argmax(1).cpu()
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


def named(labels: Any, classes: Sequence[Any], n: int) -> Tensor:
    """Look labels up in ``classes``; unknown names are refused by name."""
    place = {name: i for i, name in enumerate(classes)}
    values = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if values.shape != (n,):
        raise ValueError(f"labels must have shape ({n},) to match the scores; got {values.shape}.")
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
