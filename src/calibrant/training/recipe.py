"""Training recipes: every setting that determines the result of a run, read from TOML."""

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

from calibrant.losses.criterion import Criterion
from calibrant.losses.presets import PRESETS
from calibrant.registry import LOSSES, PENALTIES, nearest

Size: TypeAlias = int | float
# field type -> the types accepted for it, and the conversion
WRITTEN: dict[Any, tuple[tuple[type, ...], Callable[[Any], Any]]] = {
    int: ((int,), int),
    float: ((int, float), float),
    Size: ((int, float), lambda value: value),
    str: ((str,), str),
    bool: ((bool,), bool),
    tuple[int, ...]: ((list, tuple), tuple),
    tuple[float, ...]: ((list, tuple), tuple),
    Mapping[str, Any]: ((dict,), dict),
}
HOME = resources.files("calibrant.training") / "recipes"


@dataclass(frozen=True)
class Recipe:
    """A data set, a model, an objective and the hyperparameters of training; a TOML file has the same names.

    ``paper`` and ``row`` select an objective of `losses.presets`: with the paper "seca-paper" the loss "mdca" has that
    paper's options, unless ``loss_options`` or a penalty are given; a loss that is not in the paper has the package's
    defaults. ``validation`` and ``calibration`` are numbers or fractions of rows, held out from the training set (or
    the validation set from the test set, as some protocols do). With an ``imbalance_factor`` IF, class c of k keeps
    IF^(-c / (k - 1)) times the rows of the largest class, rounded down, of the remaining training set. ``select`` is
    the epoch whose weights are kept: the last, or the first with the best accuracy or the lowest loss on the validation
    set, among those after ``select_after``. ``mean`` and ``std`` of the channels replace the data set's own. ``warmup``
    is a fraction of all steps.

    The last incomplete batch of an epoch is dropped; the rows are reshuffled every epoch.

    Example:
        >>> recipe = Recipe.read("seca-cifar10-resnet32")
        >>> recipe.model, recipe.epochs, recipe.criterion(k=10, n=45_000)
        ('resnet32', 160, Criterion(cross_entropy, mean))
    """

    dataset: str
    model: str
    epochs: int
    lr: float
    name: str = ""
    about: str = ""
    reference: str = ""
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "cross_entropy"
    loss_options: Mapping[str, Any] = field(default_factory=dict)
    penalty: str = ""
    weight: float = 1.0
    penalty_options: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    row: str = ""
    reduction: Literal["mean", "sum"] = "mean"
    clip: float = math.inf
    optimiser: Literal["sgd", "adamw"] = "sgd"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    batch: int = 128
    schedule: Literal["constant", "multistep", "cosine", "linear"] = "constant"
    milestones: tuple[int, ...] = ()
    factor: float = 0.1
    warmup: float = 0.0
    augment: Literal["none", "crop_flip"] = "none"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    validation: Size = 0.1
    validation_from: Literal["train", "test"] = "train"
    calibration: Size = 0
    imbalance_factor: float = 1.0
    select: Literal["last", "accuracy", "loss"] = "last"
    select_after: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for own in fields(self):
            object.__setattr__(self, own.name, _typed(own, getattr(self, own.name)))
        if not re.fullmatch(r"[\w.+ -]*", self.name) or set(self.name) == {"."}:
            raise ValueError(f"name must be that of a folder: letters, digits, and . _ + - ; got {self.name!r:.60}.")
        for name in ("epochs", "batch", "lr", "clip", "factor"):
            if not getattr(self, name) > 0 or (math.isinf(getattr(self, name)) and name != "clip"):
                raise ValueError(f"{name} must be above 0; got {getattr(self, name)}.")
        for name in ("weight_decay", "momentum", "validation", "calibration", "select_after", "warmup", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more; got {getattr(self, name)}.")
        if self.momentum >= 1 or min((*self.milestones, *self.std), default=1) <= 0:
            got = f"{self.momentum}, {self.milestones}, {self.std}"
            raise ValueError(f"momentum must be below 1, milestones and std above 0; got {got}.")
        if self.paper and not any(preset.startswith(f"{self.paper}/") for preset in PRESETS):
            papers = sorted({preset.partition("/")[0] for preset in PRESETS})
            raise ValueError(f"paper must be one of {', '.join(papers)}; got {self.paper!r}.")
        if self.warmup >= 1 or self.imbalance_factor < 1:
            raise ValueError(
                f"warmup must be below 1 and imbalance_factor 1 or more; got {self.warmup} and {self.imbalance_factor}."
            )
        if self.select != "last" and not (self.validation and self.select_after < self.epochs):
            raise ValueError(
                f"select={self.select!r} needs a validation set and an epoch to choose from; got validation "
                f"{self.validation} and select_after {self.select_after} of {self.epochs} epochs."
            )

    @classmethod
    def read(cls, source: str | Path, changes: Mapping[str, Any] | None = None) -> "Recipe":
        """Read a recipe by its name, or from a TOML file, with some entries changed."""
        path = Path(source)
        if path.suffix == ".toml":
            if not path.is_file():
                raise FileNotFoundError(f"{path} does not exist or is not a file.")
            blob, name = path.read_bytes(), path.stem
        else:
            name = str(source)
            if name not in names():
                near = nearest(name, names())
                hint = f"did you mean {near}?" if near else f"there are {', '.join(names())}."
                raise ValueError(f"recipe must be a name or a .toml file; got {name!r}; {hint}")
            blob = (HOME / f"{name}.toml").read_bytes()
        try:
            found = tomllib.loads(blob.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path.name} must be TOML; {error}.") from None
        return cls.of({"name": name} | found | dict(changes or {}))

    @classmethod
    def of(cls, entries: Mapping[str, Any]) -> "Recipe":
        """Create a recipe from named entries; an unknown or missing name is a ValueError."""
        known = {own.name for own in fields(cls)}
        for entry in entries:
            if entry not in known:
                near = nearest(entry, known)
                raise ValueError(f"a recipe has no {entry!r};{f' did you mean {near}?' if near else ' see Recipe.'}")
        if missing := [name for name in ("dataset", "model", "epochs", "lr") if name not in entries]:
            raise ValueError(f"a recipe must have {', '.join(missing)}; give them, or the name of a recipe.")
        return cls(**{own.name: _typed(own, entries[own.name]) for own in fields(cls) if own.name in entries})

    def changed(self, changes: Mapping[str, Any]) -> "Recipe":
        """Return a copy with some entries changed."""
        return Recipe.of({own.name: getattr(self, own.name) for own in fields(self)} | dict(changes))

    def criterion(self, k: int, n: int) -> Criterion:
        """Return the objective for ``k`` classes and ``n`` training rows."""
        preset = self.preset()
        if preset is not None:
            if self.penalty_options or self.weight != 1:
                raise ValueError(f"weight and penalty_options must come with a penalty; {preset!r} has its own.")
            return Criterion.preset(preset, k=k, reduction=self.reduction)
        loss, penalty = self.loss, self.penalty or None
        if loss in PENALTIES and loss not in LOSSES and penalty is None:
            loss, penalty = "cross_entropy", loss
        given = {"online_label_smoothing": {"k": k}, "correctness_ranking": {"n": n}}.get(loss, {})
        return Criterion(
            loss,
            given | dict(self.loss_options),
            penalty=penalty,
            weight=float(self.weight),
            penalty_options=dict(self.penalty_options),
            reduction=self.reduction,
        )

    def preset(self) -> str | None:
        """Return the name of the paper's preset, if it has one for this loss and no options override it."""
        if self.loss_options or self.penalty:
            return None
        places = (f"/{self.row}", f"/{self.dataset}-{self.model}", f"/{self.dataset}", "")
        return next((name for end in places if (name := f"{self.paper}/{self.loss}{end}") in PRESETS), None)

    def as_data(self) -> dict[str, Any]:
        """Return the recipe as JSON-serialisable data."""
        return asdict(self) | {"clip": None if math.isinf(self.clip) else self.clip}

    @classmethod
    def from_data(cls, entries: Mapping[str, Any]) -> "Recipe":
        """Inverse of `as_data`."""
        return cls.of({name: math.inf if value is None else value for name, value in entries.items()})

    def same(self, other: "Recipe") -> bool:
        """Return whether both describe the same run, whatever their name and description."""
        bare = {"name": "", "about": "", "reference": ""}
        return replace(self, **bare) == replace(other, **bare)  # type: ignore[arg-type]


def names() -> list[str]:
    """Return the names of the recipes that ship with the package."""
    return sorted(path.name.removesuffix(".toml") for path in HOME.iterdir() if path.name.endswith(".toml"))


def _typed(own: "Field[Any]", value: Any) -> Any:
    """Convert an entry to the type of its field, or raise; TOML and JSON have lists for tuples and ints for floats."""
    if get_origin(own.type) is Literal:
        if value not in get_args(own.type):
            raise ValueError(f"{own.name} must be {' or '.join(get_args(own.type))}; got {value!r}.")
        return value
    if own.type not in WRITTEN:
        return value
    kinds, made = WRITTEN[own.type]
    if not isinstance(value, kinds) or (isinstance(value, bool) and own.type is not bool):
        raise ValueError(f"{own.name} must be {_said(own.type)}; got {value!r}.")
    items = value if isinstance(value, (list, tuple)) else ()
    if not all(isinstance(item, WRITTEN[get_args(own.type)[0]][0]) for item in items):
        raise ValueError(f"{own.name} must be {_said(own.type)}; got {value!r}.")
    return made(value)


def _said(kind: Any) -> str:
    names = {Size: "a number", Mapping[str, Any]: "a table of options", tuple[int, ...]: "whole numbers"}
    names |= {tuple[float, ...]: "numbers"}
    return names.get(kind, f"of type {getattr(kind, '__name__', kind)}")
