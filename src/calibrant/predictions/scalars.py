"""Checks of scalar arguments: whole numbers, real numbers, shares and choices, each refused with one sentence."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import numpy as np

from calibrant.registry import nearest

Function = TypeVar("Function", bound=Callable[..., Any])

MOST_BINS = 1_000_000  # more would only take memory


def whole(value: Any, name: str, *, least: int | None = None, most: int | None = None) -> int:
    """Return a whole number within bounds, as an int.

    Example:
        >>> whole(15, "bins", least=1)
        15
        >>> whole(2.5, "bins", least=1)
        Traceback (most recent call last):
            ...
        TypeError: bins must be a whole number; got 2.5.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number; got {_shown(value)}.")
    number = int(value)
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}; got {_shown(number)}.")
    if most is not None and number > most:
        raise ValueError(f"{name} must be at most {most}; got {_shown(number)}.")
    return number


def seed(value: Any) -> int:
    """Return a seed: a whole number that every generator takes.

    Example:
        >>> seed(-5)
        Traceback (most recent call last):
            ...
        ValueError: seed must be at least 0; got -5.
    """
    return whole(value, "seed", least=0, most=2**63 - 1)


def bins(value: Any) -> int:
    """Return a number of bins: at least 1, and not so many that they would fill the memory.

    Example:
        >>> bins(10**30)
        Traceback (most recent call last):
            ...
        ValueError: bins must be at most 1000000; got a number of 31 digits.
    """
    return whole(value, "bins", least=1, most=MOST_BINS)


def real(value: Any, name: str, *, least: float = -math.inf, most: float = math.inf) -> float:
    """Return a finite number within bounds, as a float.

    Example:
        >>> real("x", "sigma")
        Traceback (most recent call last):
            ...
        TypeError: sigma must be a number; got 'x'.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number; got {_shown(value)}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite; got {_shown(value)}.")
    if not least <= number <= most:
        raise ValueError(f"{name} must lie in {_range(least, most)}; got {number:g}.")
    return number


def positive(value: Any, name: str) -> float:
    """Return a finite number above 0.

    Example:
        >>> positive(0, "sigma")
        Traceback (most recent call last):
            ...
        ValueError: sigma must be positive; got 0.
    """
    number = real(value, name)
    if number <= 0:
        raise ValueError(f"{name} must be positive; got {number:g}.")
    return number


def share(value: Any, name: str) -> float:
    """Return a number strictly between 0 and 1; a percentage is answered with what was probably meant.

    Example:
        >>> share(2, "max_error")
        Traceback (most recent call last):
            ...
        ValueError: max_error must lie in (0, 1); got 2. Did you mean 0.02?
    """
    number = real(value, name)
    if not 0 < number < 1:
        hint = f" Did you mean {number / 100:g}?" if 1 < number < 100 else ""
        raise ValueError(f"{name} must lie in (0, 1); got {number:g}.{hint}")
    return number


def flag(value: Any, name: str) -> bool:
    """Return True or False, if it is one of them.

    Example:
        >>> flag("no", "strict")
        Traceback (most recent call last):
            ...
        TypeError: strict must be True or False; got 'no'.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; got {_shown(value)}.")
    return bool(value)


def one_of(value: Any, name: str, allowed: Sequence[str]) -> str:
    """Return one of several words.

    Example:
        >>> one_of("widht", "scheme", ("width", "mass"))
        Traceback (most recent call last):
            ...
        ValueError: scheme must be 'width' or 'mass'; got 'widht'.
    """
    if not isinstance(value, str) or value not in allowed:
        words = [repr(word) for word in allowed]
        named = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
        raise ValueError(f"{name} must be {named}; got {_shown(value)}.")
    return value


def option(value: Any, name: str, hint: Any) -> Any:
    """Return an option, if it is of a kind that its annotation allows: numbers, True or False, words, None.

    A seed must not be negative, and a number of bins must lie in 1 to `MOST_BINS`. An option of any other kind is
    returned as it is.

    Example:
        >>> option("width", "scheme", Literal["width", "mass"]), option(3, "odir", float | Literal["cv"])
        ('width', 3.0)
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if Any in kinds or inspect.Parameter.empty in kinds:
        return value
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    scalar = (*READERS, str, type(None))
    others = [get_origin(kind) or kind for kind in kinds if kind not in scalar and get_origin(kind) is not Literal]
    if any(not isinstance(kind, type) or isinstance(value, kind) for kind in others):
        return value
    if (value is None and type(None) in kinds) or (isinstance(value, str) and (value in words or str in kinds)):
        return value
    if name in NAMED and int in kinds:
        return NAMED[name](value)
    read = next((read for kind, read in READERS.items() if kind in kinds), None)
    if read is None:
        return one_of(value, name, words) if words else value
    if words and isinstance(value, str):
        raise ValueError(f"{name} must be a number or {' or '.join(map(repr, words))}; got {_shown(value)}.")
    return read(value, name)


LARGEST = 2**31 - 1  # of a whole number among options, which are counts

NAMED: dict[str, Callable[[Any], int]] = {"seed": seed, "bins": bins}

READERS: dict[Any, Callable[[Any, str], Any]] = {
    int: lambda value, name: whole(value, name, least=-LARGEST, most=LARGEST),
    float: real,
    bool: flag,
}


def checked(function: Function, name: str) -> Function:
    """Return the function with a check of its keyword options by their annotations; ``name`` is for sentences.

    Example:
        >>> def fit(*, steps: int = 3) -> int: return steps
        >>> checked(fit, "smart")(stpes=5)
        Traceback (most recent call last):
            ...
        TypeError: smart has no option 'stpes'. Did you mean 'steps'?
    """
    signature = inspect.signature(function)
    hints = {p.name: p.annotation for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY}

    @functools.wraps(function)
    def with_check(*args: Any, **given: Any) -> Any:
        given = arguments(name, signature, args, given)
        return function(*args, **{n: option(v, n, hints[n]) if n in hints else v for n, v in given.items()})

    return with_check  # type: ignore[return-value]


def arguments(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the keyword arguments of a call, if all are known and none is missing."""
    unknown = next((each for each in given if each not in signature.parameters), None)
    if unknown is not None:
        near = nearest(unknown, signature.parameters)
        raise TypeError(f"{name} has no option {unknown!r}.{f' Did you mean {near}?' if near else ''}")
    try:
        signature.bind(*args, **given)
    except TypeError as error:
        needed = [p.name for p in signature.parameters.values() if p.default is p.empty and p.name != "cls"]
        raise TypeError(f"{name} must be given {' and '.join(needed)}, then options by name; {error}.") from None
    return dict(given)


def _range(least: float, most: float) -> str:
    left = "(-inf" if math.isinf(least) else f"[{least:g}"
    return f"{left}, inf)" if math.isinf(most) else f"{left}, {most:g}]"


def _shown(value: Any) -> str:
    """Write a value so that a sentence stays a sentence; a number may have a million digits, an array as many lines."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a repr of one's own may raise anything
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:60]}..."
