"""The problems with two outcomes, hit and miss, that a lift to k classes asks to be solved."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, get_args

import numpy as np
from torch import Tensor

from calibrant.calibrators._solvers.one_vs_rest import Lift, by_parts, log_odds, shifted, top_log_odds
from calibrant.predictions.fit_data import Rows
from calibrant.predictions.types import Array, Vector

SHARED = 1_000_000  # pairs of row and class, at most, from which a class without rows borrows its map
Solution = TypeVar("Solution")


@dataclass(frozen=True)
class Problems:
    """The log odds of something, and whether it was so: of class 1, of each class, of all, or of the predicted one."""

    rows: Rows
    lift: Lift

    @classmethod
    def of(cls, rows: Rows, lift: Lift | None, *, many: Lift) -> "Problems":
        """Choose the lift where none was asked for: that of class 1 for two classes, ``many`` for more."""
        if lift is not None and lift not in get_args(Lift):
            raise ValueError(f"lift must be one of {', '.join(get_args(Lift))}, or None to choose; got {lift!r}.")
        return cls(rows, lift or ("one_vs_rest" if rows.k == 2 else many))

    @property
    def each(self) -> bool:
        """Whether there is a problem for each class."""
        return self.lift == "one_vs_rest" and self.rows.k > 2

    @property
    def direct(self) -> bool:
        """Whether the solution is the probability that comes out; otherwise rows are renormalised."""
        return not self.each and self.lift != "pooled"

    @property
    def classes(self) -> int:
        """Among how many outcomes a hit is one."""
        return 2 if self.direct else self.rows.k

    @cached_property
    def absent(self) -> list[int]:
        """The classes that borrow their map."""
        return self.rows.absent if self.each else []

    def solved(self, solve: Callable[[Vector, Array], Solution]) -> list[Solution]:
        """Return the solution of the only problem, or one for each class in order."""
        found = [solve(odds, hits) for odds, hits in self]
        own = iter(found)
        return [found[-1] if one in self.absent else next(own) for one in range(self.rows.k if self.each else 1)]

    def __iter__(self) -> Iterator[tuple[Vector, Array]]:
        """Yield the log odds and hits of each problem; where a class is absent, last the one that it borrows."""
        labels = self.rows.labels.numpy()
        if self.lift in ("top_label", "tempered"):
            yield self._odds(lambda z: top_log_odds(z)[1]).ravel(), self.rows.correct.numpy()
        elif self.direct:
            yield self._odds(lambda z: z[:, 1] - z[:, 0]), labels == 1
        else:
            odds, hits = self._odds(log_odds), labels[:, None] == np.arange(self.rows.k)
            for one in range(self.rows.k) if self.each else ():
                if one not in self.absent:
                    yield odds[:, one].copy(), hits[:, one].copy()
            if self.absent or not self.each:
                some = slice(None, None, max(1, odds.size // SHARED) if self.each else None)
                yield odds[some].ravel(), hits[some].ravel()

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which classes borrow their map, or that there is only one."""
        if self.lift == "one_vs_rest" and not self.each and self.rows.absent:
            return (f"every row belongs to class {1 - self.rows.absent[0]}: the map knows nothing of the other.",)
        if not self.absent:
            return ()
        named = ", ".join(map(str, self.absent[:5])) + (", ..." if len(self.absent) > 5 else "")
        return (f"no row belongs to {len(self.absent)} of the classes ({named}): their map is that of all classes.",)

    def _odds(self, function: Callable[[Tensor], Tensor]) -> Vector:
        odds = by_parts(lambda part: function(shifted(part.detach().double().cpu())), self.rows.given)
        # sums of the same numbers in another order differ in the last digit; such rows must tie
        return odds.round(decimals=12).numpy()
