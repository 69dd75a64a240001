"""Labels of any form -> column indices, with a check that they match the columns at all."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from calibrant.predictions import checks


def indices(labels: Tensor, n: int, k: int, ignored: int | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return (n,) integer labels and what was understood; one-hot rows and -1/1 are translated and said."""
    if labels.ndim == 2 and labels.shape == (n, k) and k > 1:
        return _one_hot(labels)
    if labels.shape != (n,):
        hint = " Did you mean labels.squeeze(1)?" if labels.shape == (n, 1) else ""
        raise ValueError(f"labels must have shape ({n},) to match the scores; got {tuple(labels.shape)}.{hint}")
    if labels.is_floating_point() and not bool(labels.isfinite().all() and (labels == labels.round()).all()):
        raise TypeError("labels must be integer class indices; got fractions or NaN.")
    labels = labels.long()
    signs = bool(((labels == -1) | (labels == 1)).all()) and bool((labels == -1).any())
    if k == 2 and signs and ignored != -1:
        return (labels == 1).long(), ("labels -1/1 read as 0/1",)
    return labels, ()


def _one_hot(labels: Tensor) -> tuple[Tensor, tuple[str, ...]]:
    if bool(((labels == 0) | (labels == 1)).all() and (labels.sum(1) == 1).all()):
        return labels.long().argmax(1), ("one-hot labels read as indices",)
    if bool(((labels == 0) | (labels == 1)).all()):
        several, none = (int(rows.sum()) for rows in (labels.sum(1) > 1, labels.sum(1) == 0))
        raise ValueError(
            f"labels must be class indices (n,) or one-hot rows; got {several} rows with several classes and {none} "
            "with none. Audit each class of several labels by itself: Predictions(logits=logits[:, k], "
            "labels=labels[:, k])."
        )
    raise ValueError(
        "labels must be class indices (n,) or one-hot rows; got rows that are not one-hot. Soft labels have no single "
        "right class, so calibration is not defined for them: pass the most likely class, or draw one."
    )


def in_range(labels: Tensor, scores: Tensor, k: int) -> None:
    """Refuse labels outside [0, k), naming the usual causes: counting from 1, or a fill value."""
    low, high = int(labels.min()), int(labels.max())
    outside = (labels < 0) | (labels >= k)
    if not bool(outside.any()):
        return
    predicted = scores.argmax(1).cpu()
    given, shifted = (float((predicted == y).double().mean()) for y in (labels, labels - 1))
    if high == k and low > 0 and (low == 1 or shifted > given):
        raise ValueError(
            f"labels must lie in [0, {k}); got [{low}, {high}]. With labels - 1 the accuracy is {shifted:.2f}, as "
            f"given {given:.2f}. Pass labels - 1, or classes=range(1, {k + 1})."
        )
    count, fill = int(outside.sum()), int(labels[outside][0])
    if len(labels[outside].unique()) > 1:
        raise ValueError(f"labels must lie in [0, {k}); got [{low}, {high}]: {count} of {len(labels)} are no class.")
    raise ValueError(
        f"labels must lie in [0, {k}); {count} of {len(labels)} equal {fill}, which is no class. "
        f"Pass Predictions(..., ignore_index={fill}), or --ignore-index {fill}, to leave them out."
    )


def columns_match(labels: Tensor, predicted: Tensor, k: int) -> str:
    """Return a sentence if the columns look permuted: accuracy below chance, and one relabelling repairs it.

    The relabelling is chosen on every other row and judged on the rest, so that it cannot win by fitting noise. An
    honest model can look like this too (under a targeted attack, say), so naming the classes makes it a note.
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
    if better < max(0.5, min(3 / k, 0.8), 3 * right):
        return ""
    moved = [f"column {r} is class {c}" for r, c in zip(rows, columns, strict=True) if r != c]
    shown = ", ".join(moved[:4]) + (", ..." if len(moved) > 4 else "")
    return (
        f"accuracy is {right:.2f}, below chance ({1 / k:.2f}), and {better:.2f} if the columns are relabelled "
        f"({shown}); the columns appear to be in another order than the labels."
    )


def named(labels: Any, classes: Sequence[Any], n: int) -> tuple[Tensor, tuple[str, ...]]:
    """Look labels up in ``classes``; whole numbers where no class is named by one are indices, and that is said.

    A name that is written as a whole number is that number: the class "1" is meant by the labels "1", 1 and 1.0.
    """
    values = checks.as_array(labels, "labels")
    wholes = [_whole(name) for name in classes]
    by_number = any(isinstance(name, (int, float)) for name in classes) or any(w is not None for w in wholes)
    if values.dtype.kind in "biuf" and not by_number:
        found, said = indices(torch.from_numpy(values), n, len(classes), None)
        return found, (*said, "labels read as indices of the named classes")
    if values.shape != (n,):
        raise ValueError(f"labels must have shape ({n},) to match the scores; got {values.shape}.")
    often = Counter(wholes)  # "1" and "1.0" side by side are told apart by their spelling only
    numbers: dict[int | None, int] = {w: i for i, w in enumerate(wholes) if w is not None and often[w] == 1}
    place = {name: i for i, name in enumerate(classes)}
    names = [v.decode() if isinstance(v, bytes) else v for v in values.tolist()]
    where = {v: place.get(v, numbers.get(_whole(v))) for v in set(names)}
    unknown = next((v for v in names if where[v] is None), None)
    if unknown is not None or None in names:
        raise ValueError(f"labels must be among classes; got {unknown!r}, which is not in {_some(classes)}.")
    return torch.tensor([where[v] for v in names]), ()


def _whole(value: Any) -> int | None:
    """Return the whole number that a label or a class name is or is written as, if there is one."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return int(number) if number.is_integer() else None


def check_order(fitted: Sequence[Any] | None, other: Sequence[Any] | None, k: int, name: str) -> str:
    """Refuse columns in another order than those fitted on; return a warning where that cannot be known.

    Columns without names are classes 0, 1, ... in order; names that are whole numbers can be compared with them.
    """
    here, there = (tuple(range(k)) if names is None else tuple(names) for names in (fitted, other))
    if here == there:
        return ""
    if None in (fitted, other) and None in (_whole(c) for c in (*here, *there)):
        return f"only one of the two files names its classes: the columns of {name} are taken to be in the same order."
    if list(map(_whole, here)) == list(map(_whole, there)) and None not in map(_whole, here):
        return ""
    raise ValueError(
        f"{name} must have the classes of the rows fitted on, in the same order; got {_some(there)} for {_some(here)}."
    )


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _some(values: Sequence[Any]) -> str:
    shown = ", ".join(repr(_plain(v)) for v in list(values)[:5])
    return f"[{shown}{', ...' if len(values) > 5 else ''}]"


def class_names(classes: Any, k: int) -> tuple[Any, ...]:
    """Return one distinct name a column."""
    if isinstance(classes, (str, bytes)) or not hasattr(classes, "__iter__"):
        raise TypeError(f"classes must be a list of names, one a column; got {classes!r}.")
    names = tuple(_plain(c) for c in (classes.tolist() if hasattr(classes, "tolist") else classes))
    if len(names) != k:
        raise ValueError(f"classes must name each of the {k} columns; got {len(names)} names.")
    twice = next((c for i, c in enumerate(names) if c in names[:i]), None)
    if twice is not None:
        raise ValueError(f"classes must be distinct; got {twice!r} twice.")
    return tuple(c if isinstance(c, (str, int, float)) else str(c) for c in names)
