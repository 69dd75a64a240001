"""A name -> the data set, from the folder in which the files are."""

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from calibrant.registry import DATASETS, nearest
from calibrant.training.datasets.dataset import Dataset

VARIABLE = "CALIBRANT_DATA"


def load(name: str, data: str | Path | None = None, options: Mapping[str, Any] | None = None) -> Dataset:
    """Read a data set by its name; its files are in ``data``, or in the folder that $CALIBRANT_DATA names.

    Nothing is fetched: a missing file is an error that says which archive holds it. ``options`` are those of the
    set's own function, such as ``{"severity": 3}``.

    Example:
        >>> load("digits").k
        10
    """
    read = DATASETS.entry(name).method
    parameters = inspect.signature(read).parameters
    known = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    chosen = dict(options or {})
    wrong = next((option for option in chosen if option not in known), None)
    if wrong is not None:
        near = nearest(wrong, known)
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(f"options of {name} must be among {', '.join(known) or 'none'}; got {wrong!r}.{hint}")
    place = data if data is not None else os.environ.get(VARIABLE)
    if parameters["folder"].default is None:
        return read(**chosen)
    if not place:
        raise ValueError(f"data must name the folder with the files of {name}; pass it, or set ${VARIABLE}.")
    if not Path(place).is_dir():
        raise FileNotFoundError(f"data must be a folder that exists, with the files of {name}; got {str(place)!r}.")
    return read(Path(place), **chosen)
