"""Registries: names -> methods, discovered by importing every module of a folder."""

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """One registered method and its metadata."""

    kind: str
    name: str
    method: Callable[..., Any]
    facts: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return _doc(self.method).partition("\n\n")[0].replace("\n", " ")

    @property
    def reference(self) -> str:
        """The paragraph of the docstring that begins with ``Reference:``."""
        found = re.search(r"^Reference:\s*(.+?)(?:\n\s*\n|\Z)", _doc(self.method), re.S | re.M)
        return " ".join(found[1].split()) if found else ""

    @property
    def views(self) -> tuple[str, ...]:
        """The positional parameters: the views of Predictions that the method reads."""
        parameters = inspect.signature(self.method).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD)

    @property
    def defaults(self) -> dict[str, Any]:
        """The keyword options and their defaults, without those whose default is None or our own convention."""
        parameters = inspect.signature(self.method).parameters.values()
        said = (p for p in parameters if p.kind is p.KEYWORD_ONLY and p.default not in (None, "calibrant"))
        return {p.name: p.default for p in said}


class Registry(Mapping[str, Any]):
    """All methods of one kind, found by importing one module or every module of one folder.

    ``METRICS["brier"]`` is the plain function; ``METRICS.entry("brier")`` also has its facts and summary.
    """

    def __init__(self, kind: str, home: str) -> None:
        self.kind = kind
        self._home = home
        self._entries: dict[str, Entry] = {}
        self._loaded = False

    def register(self, **facts: Any) -> Callable[[Method], Method]:
        """Register the decorated method under the snake_case of its own name; return it unchanged."""

        def keep(method: Method) -> Method:
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", method.__name__).lower()
            if name in self._entries:
                raise ValueError(f"{self._home}: two methods are named {name!r}.")
            self._entries[name] = Entry(self.kind, name, method, MappingProxyType(facts))
            return method

        return keep

    def entry(self, name: str) -> Entry:
        """Return the method with its facts; a wrong name is answered with the nearest right ones."""
        entries = self._load()
        if name not in entries:
            near = nearest(name, entries)
            hint = f" Did you mean {near}?" if near else ""
            raise KeyError(f"{self._home} has no {name!r}.{hint}")
        return entries[name]

    def name_of(self, method: object) -> str:
        """Return the name under which a method is registered."""
        return next(name for name, entry in self._entries.items() if entry.method is method)

    def facts_of(self, method: object) -> Mapping[str, Any]:
        """Return the facts of a method that is registered already."""
        return self._entries[self.name_of(method)].facts

    def entries(self) -> list[Entry]:
        """Return every entry in the order of names."""
        return [self._load()[name] for name in self]

    def attribute(self, name: str) -> Any:
        """Return the method of that name as its folder's `__getattr__` does: ``calibrators.Smart``.

        A folder whose methods have the names of its modules cannot have them as attributes too.
        """
        hint = ""
        open_name = name.isidentifier() and not name.startswith("_")
        if open_name and find_spec(f"{self._home}.{name}") is None:  # modules are for Python to import
            methods = {entry.method.__name__: entry.method for entry in self.entries()}
            if name in methods:
                return methods[name]
            near = nearest(name, methods)
            hint = f". Did you mean {near}?" if near else ""
        raise AttributeError(f"module {self._home!r} has no attribute {name!r}{hint}")

    def attributes(self) -> list[str]:
        """Return the names of the methods, as its folder's `__dir__` does."""
        return sorted(entry.method.__name__ for entry in self.entries())

    def _load(self) -> dict[str, Entry]:
        if not self._loaded:
            home = importlib.import_module(self._home)
            for module in sorted(m.name for m in pkgutil.iter_modules(getattr(home, "__path__", []))):
                importlib.import_module(f"{self._home}.{module}")
            self._loaded = True
        return self._entries

    def __getitem__(self, name: str) -> Any:
        return self.entry(name).method

    def __contains__(self, name: object) -> bool:
        return name in self._load()

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._load()))

    def __len__(self) -> int:
        return len(self._load())


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the known names that a wrong one may have meant, ready for a sentence; nothing if there are none.

    Example:
        >>> nearest("focl", ["focal", "seca"])
        "'focal'"
    """
    return " or ".join(map(repr, difflib.get_close_matches(name, list(known), n=3)))


def _doc(method: Callable[..., Any]) -> str:
    return inspect.getdoc(method) or ""


SCORES = Registry("score", "calibrant.metrics.scores")
METRICS = Registry("metric", "calibrant.metrics")
LOSSES = Registry("loss", "calibrant.losses")
PENALTIES = Registry("penalty", "calibrant.losses.penalties")
CALIBRATORS = Registry("calibrator", "calibrant.calibrators")
TRUST = Registry("trust", "calibrant.trust")
MODELS = Registry("model", "calibrant.training.models")
DATASETS = Registry("dataset", "calibrant.training.datasets")
CORRUPTIONS = Registry("corruption", "calibrant.training.corruptions")

ALL = (SCORES, METRICS, LOSSES, PENALTIES, CALIBRATORS, TRUST, MODELS, DATASETS, CORRUPTIONS)
