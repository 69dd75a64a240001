"""Registration of metrics: what a metric is given is checked before it is computed."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch

from calibrant.predictions import checks, scalars
from calibrant.predictions.predictions import Predictions
from calibrant.registry import METRICS

Metric = TypeVar("Metric", bound=Callable[..., float])
OPTIONAL = ("weights", "losses")
ANY_SCORE = ("ranking", "selective", "ood")  # families that only compare confidences with each other

_arrays_are_checked: ContextVar[bool] = ContextVar("arrays_are_checked", default=True)


@contextmanager
def unchecked() -> Iterator[None]:
    """Take the arrays of metrics as they are inside the block: for loops over rows that were checked before.

    They must then be tensors that `Predictions` would hold: finite, of equal length, ``correct`` bool, labels in range.
    Options are checked all the same.

    Example:
        >>> from calibrant.registry import METRICS
        >>> p = Predictions(confidence=[0.9, 0.8], correct=[True, False])
        >>> with unchecked():
        ...     METRICS["accuracy"](p.correct)
        0.5
    """
    token = _arrays_are_checked.set(False)
    try:
        yield
    finally:
        _arrays_are_checked.reset(token)


def metric(**facts: Any) -> Callable[[Metric], Metric]:
    """Register the decorated function as a metric, with its facts, behind a check of what it is given.

    Arrays of any kind become tensors. ``confidence`` must be finite, and lie in [0, 1] unless the metric only ranks by
    it; ``correct`` must be bool, or 0 and 1; rows of ``probs`` must sum to 1 and ``logits`` must be finite and no
    probabilities; ``labels`` must be class numbers; all must have the same number of rows. The cost is that of reading
    the arrays once. `unchecked` switches it off.
    """

    def keep(method: Metric) -> Metric:
        signature = inspect.signature(method)
        views = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        hints = {p.name: p.annotation for p in signature.parameters.values() if p.name not in views}

        @functools.wraps(method)
        def checked(*args: Any, **given: Any) -> float:
            given = scalars.arguments(method.__name__, signature, args, given)
            bound = dict(zip(views, args, strict=False)) | given
            arrays = {name: value for name, value in bound.items() if name in (*views, *OPTIONAL)}
            if _arrays_are_checked.get():
                _refuse_predictions(method.__name__, arrays)
                arrays = _rows(arrays, any_score=facts.get("family") in ANY_SCORE)
            options = {n: scalars.option(v, n, hints[n]) for n, v in bound.items() if n not in arrays}
            return method(**arrays, **options)

        return METRICS.register(**facts)(checked)  # type: ignore[return-value]

    return keep


def _refuse_predictions(name: str, arrays: Mapping[str, Any]) -> None:
    for view, value in arrays.items():
        if isinstance(value, Predictions):
            raise TypeError(
                f"{view} must be an array; got Predictions. Call calibrant.evidence.measure({name!r}, predictions)."
            )


def _rows(given: Mapping[str, Any], *, any_score: bool) -> dict[str, Any]:
    """Return the arrays as tensors, checked by their names, all of the same number of rows."""
    missing = next((name for name, value in given.items() if value is None and name not in OPTIONAL), None)
    if missing is not None:
        raise TypeError(f"{missing} must be an array; got None.")
    arrays = {name: checks.tensor(value, name) for name, value in given.items() if value is not None}
    k = 0
    for name in ("probs", "logits"):
        if name in arrays:
            arrays[name] = checks.class_scores(arrays[name], name)
            k = arrays[name].shape[1]
    for name in ("confidence", "ood_confidence", "losses"):
        if name in arrays:
            arrays[name] = checks.confidence(arrays[name], name, bounded=name == "confidence" and not any_score)
    first = next(iter(arrays.values()))
    n = len(first) if first.ndim else 0
    if "correct" in arrays:
        arrays["correct"] = checks.correct(arrays["correct"], None if len(arrays) == 1 else n)
    if "labels" in arrays:
        arrays["labels"] = checks.class_numbers(arrays["labels"], n, k)
    if "losses" in arrays and len(arrays["losses"]) != n:
        raise ValueError(f"losses must have shape ({n},), one a row; got {tuple(arrays['losses'].shape)}.")
    if "weights" in arrays:
        arrays["weights"] = checks.weights(arrays["weights"].cpu(), torch.ones(n, dtype=torch.bool))
    return {**given, **arrays}
