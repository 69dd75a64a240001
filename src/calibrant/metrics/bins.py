"""Binning of confidences: edges, ties, and the conventions of other packages."""

from collections.abc import Callable
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from calibrant.predictions import scalars
from calibrant.predictions.types import Vector

Scheme = Literal["width", "mass"]
Convention = Literal["calibrant", "guo2017", "torchmetrics", "netcal", "torrvision", "au"]
Index = NDArray[np.intp]
EDGE = 1e-5  # in units of a bin: a value so little above an edge is on it, for float32 does not hold 0.1


def assign(
    values: Vector,
    *,
    bins: int,
    scheme: Scheme = "width",
    convention: Convention = "calibrant",
    weights: Vector | None = None,
) -> tuple[Index, int]:
    r"""Return the bin of each value and the number of bins; -1 marks a value that the convention drops.

    Ours, both schemes: bins are :math:`(lo, hi]`, and 0 is in the first. ``scheme="width"``: index
    :math:`\mathrm{clip}(\lceil cM - 10^{-5} \rceil - 1, 0, M - 1)`; the small number keeps 0.6, which float32 stores as
    0.60000002, on the edge where it belongs. ``scheme="mass"``: sort, cut into M groups whose sizes
    differ by at most one (the first ``n mod M`` are larger), put an edge at the mid-point between neighbours of
    different groups and merge equal edges: tied values always share a bin, so the order of rows cannot matter.

    Others, to reproduce their numbers: ``guo2017`` drops a confidence of exactly 0; ``torchmetrics`` (1.9.0) uses
    :math:`[lo, hi)` and gives a confidence of exactly 1 a hidden bin of its own; ``netcal`` uses :math:`[lo, hi)` with
    the last bin closed; ``torrvision`` (equal mass, also AdaFocal's) interpolates edges between sorted values and
    drops the smallest; ``au`` (equal mass, the released AU loss) takes sorted values as edges, :math:`[lo, hi)`.

    Example:
        >>> assign(np.array([0.0, 0.5, 0.51, 1.0]), bins=2)[0]
        array([0, 0, 1, 1])
    """
    bins = scalars.bins(bins)
    scalars.one_of(scheme, "scheme", get_args(Scheme))
    key = (scheme, convention)
    if key == ("mass", "calibrant"):
        return _equal_mass(values, bins, weights)
    if key not in _RULES:
        known = sorted({c for s, c in _RULES if s == scheme} | {"calibrant"})
        raise ValueError(f"convention must be one of {', '.join(known)} with scheme={scheme!r}; got {convention!r}.")
    if weights is not None and scheme == "mass":
        raise ValueError(f"weights must be left out with convention={convention!r}, which does not define them.")
    return _RULES[key](values, bins)


def mass_edges(values: Vector, bins: int, weights: Vector | None = None) -> Vector:
    """Return the inner edges of equal-mass bins, strictly increasing; there may be fewer than ``bins - 1``."""
    if weights is None:
        ordered = np.sort(values)
        share, larger = divmod(len(values), bins)
        cuts = np.arange(1, bins) * share + np.minimum(np.arange(1, bins), larger)
        cuts = cuts[(cuts > 0) & (cuts < len(values))]
        return np.unique((ordered[cuts - 1] + ordered[cuts]) / 2)
    order = np.argsort(values, kind="stable")
    kept = weights[order] > 0
    ordered, total = values[order][kept], np.cumsum(weights[order][kept])
    if len(ordered) == 0:
        return np.empty(0)
    places = np.arange(1, bins)
    if np.all(total == np.round(total)):  # repetitions: the same groups as if each row were written out
        share, larger = divmod(total[-1], bins)
        marks = places * share + np.minimum(places, larger)
    else:
        marks = places * total[-1] / bins
    marks = marks[(marks > 0) & (marks < total[-1])]
    before = np.searchsorted(total, marks, side="left")  # holds the last unit of the lower group
    after = np.minimum(np.searchsorted(total, marks, side="right"), len(ordered) - 1)
    return np.unique((ordered[before] + ordered[after]) / 2)


def _equal_mass(values: Vector, bins: int, weights: Vector | None) -> tuple[Index, int]:
    edges = mass_edges(values, bins, weights)
    return np.searchsorted(edges, values, side="left"), len(edges) + 1


def _equal_width(values: Vector, bins: int) -> tuple[Index, int]:
    return np.clip(np.ceil(values * bins - EDGE).astype(np.intp) - 1, 0, bins - 1), bins


def _guo2017(values: Vector, bins: int) -> tuple[Index, int]:
    edges = np.linspace(0, 1, bins + 1)
    return np.searchsorted(edges, values, side="left") - 1, bins  # lo < c <= hi; 0 falls before the first


def _torchmetrics(values: Vector, bins: int) -> tuple[Index, int]:
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).numpy()  # its last digits are not numpy's
    return np.searchsorted(edges, values, side="right") - 1, bins + 1


def _netcal(values: Vector, bins: int) -> tuple[Index, int]:
    edges = np.linspace(0, 1, bins + 1)
    return np.minimum(np.searchsorted(edges, values, side="right") - 1, bins - 1), bins


def _torrvision(values: Vector, bins: int) -> tuple[Index, int]:
    n = len(values)
    edges = np.interp(np.linspace(0, n, bins + 1), np.arange(n), np.sort(values))
    found = np.searchsorted(edges, values, side="left") - 1
    return np.where(values > edges[0], found, -1), bins


def _au(values: Vector, bins: int) -> tuple[Index, int]:
    edges = np.sort(values)[np.floor(np.linspace(0, len(values) - 1, bins + 1)).astype(np.intp)]
    return np.clip(np.searchsorted(edges, values, side="right") - 1, 0, bins - 1), bins


_RULES: dict[tuple[str, str], Callable[[Vector, int], tuple[Index, int]]] = {
    ("width", "calibrant"): _equal_width,
    ("width", "guo2017"): _guo2017,
    ("width", "torchmetrics"): _torchmetrics,
    ("width", "netcal"): _netcal,
    ("mass", "torrvision"): _torrvision,
    ("mass", "au"): _au,
}
