"""A loss or penalty as it was asked for, by name and options or as a function -> what maps a batch to values."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from calibrant.registry import LOSSES, PENALTIES, Registry

Method = str | Callable[..., Tensor]


def made(registry: Registry, method: Method, options: Mapping[str, Any]) -> Any:
    """Return what maps a batch to values: a function with its options, or a module made with them."""
    if not isinstance(method, str):
        if options:
            raise ValueError(
                "options must come with the name of a method; bind those of a function by functools.partial."
            )
        if not callable(method):
            raise TypeError(f"a {registry.kind} must be a name or a function of logits and labels; got {method!r}.")
        return method
    if method in PENALTIES and method not in registry:
        raise ValueError(f"loss must be a loss; {method!r} is a penalty: Criterion(penalty={method!r}).")
    found = registry[method]
    parameters = {
        name: p for name, p in inspect.signature(found).parameters.items() if name not in ("logits", "labels")
    }
    for option in options:
        if option not in parameters:
            raise ValueError(f"options of {method!r} must be among {', '.join(parameters) or 'none'}; got {option!r}.")
    for name, parameter in parameters.items():
        if inspect.isclass(found) and parameter.default is parameter.empty and name not in options:
            raise ValueError(f"options of {method!r} must have {name!r}; got {dict(options)}.")
    try:
        if inspect.isclass(found):
            return found(**options)
        bound = partial(found, **options) if options else found
        bound(torch.zeros(2, 3), torch.tensor([0, 1]))  # a wrong value is said now, not in the first step
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"options of {method!r} must be numbers and words as in its signature; {error}.") from None
    return bound


def facts_of(method: Any) -> dict[str, Any]:
    """Return what is registered about a loss, or about the class that its own extends."""
    bare = getattr(method, "func", method)
    for entry in LOSSES.entries():
        if bare is entry.method or (inspect.isclass(entry.method) and isinstance(method, entry.method)):
            return dict(entry.facts)
    return {}


def said_of(method: Method, options: Mapping[str, Any]) -> str:
    """Return how a method was asked for, in words."""
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else name
