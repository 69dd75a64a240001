"""Train one or several recipes, in sequence or concurrently on one GPU."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch

from calibrant.training import run
from calibrant.training.datasets.dataset import Dataset, load
from calibrant.training.device import Placement, join_ranks
from calibrant.training.loop import Diverged, OnEpoch, Training
from calibrant.training.recipe import Recipe
from calibrant.training.setup import check_same

WORTH_COMPILING = 20_000  # steps; compiling takes about a minute and saves a fifth of each


def train(
    recipe: Recipe | str,
    folder: str | Path,
    *,
    data: Dataset | str | Path | None = None,
    device: str | torch.device | Placement | None = None,
    graph: bool | None = None,
    compiled: bool | None = None,
    features: bool = False,
    on_epoch: OnEpoch | None = None,
) -> run.Run:
    """Train by a recipe, or its name, and save everything in a folder; an interrupted run is resumed.

    ``data`` is a data set, or the folder with its files (or $CALIBRANT_DATA). On one GPU a whole step is replayed as a
    CUDA graph, and compiled if the run is long; ``graph`` and ``compiled`` override this. Under torchrun the ranks
    share each batch; ``device`` may be another `Placement`, such as that of Lightning Fabric. ``features`` also saves
    the features that the head reads. ``on_epoch`` is called with the metrics of each epoch.

    A finished run is read, not trained again. The global random state of torch is restored.

    Example:
        >>> import tempfile
        >>> recipe = Recipe("digits", "mlp", epochs=2, lr=0.1, loss="seca")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = train(recipe, folder, device="cpu")
        ...     done.test.understood.partition(",")[0], len(done.history)
        ('600 rows x 10 classes', 2)
    """
    known = recipe if isinstance(recipe, Recipe) else Recipe.read(recipe)
    told = {} if on_epoch is None else {Path(folder): on_epoch}
    return together(
        {Path(folder): known},
        data=data,
        device=device,
        graph=graph,
        compiled=compiled,
        features=features,
        on_epoch=told,
    )[0]


def together(
    recipes: Mapping[Path, Recipe],
    *,
    data: Dataset | str | Path | None = None,
    device: str | torch.device | Placement | None = None,
    graph: bool | None = None,
    compiled: bool | None = None,
    features: bool = False,
    on_epoch: Mapping[Path, OnEpoch] | None = None,
) -> list[run.Run]:
    """Train several recipes, each in its folder, and return the runs in that order.

    On a GPU they are interleaved on separate streams, to use it fully where one small network cannot (more than eight
    runs need CUDA_DEVICE_MAX_CONNECTIONS=32 in the environment); elsewhere they run in sequence. Each gives the same
    result as on its own, except for rounding on a GPU, and for dropout, which on a GPU has one random state for all
    runs. A run that diverges is reported at the end, when the others are done.
    """
    places = {Path(folder).resolve() for folder in recipes}
    if len(places) < len(recipes):
        raise ValueError("recipes must have a folder each; two of them name the same one.")
    join_ranks()
    place = device if isinstance(device, Placement) else Placement(device)
    sources = _Sources(data)
    done: dict[Path, run.Run] = {}
    failed: list[str] = []
    at_once = place.device.type == "cuda"
    with left_as_found(), torch.cuda.device(place.device) if at_once else nullcontext():
        lanes: list[_Lane] = []
        for folder, recipe in recipes.items():
            if (found := _finished(folder, recipe, data, features=features)) is not None:
                done[folder] = found
                continue
            source = sources.of(recipe)
            recipe.criterion(source.k, len(source.train))  # a wrong objective is an error before any run begins
            begin = partial(
                Training,
                recipe,
                source,
                folder,
                place,
                graph=graph,
                compiled=_worth(recipe, source, place) if compiled is None else compiled,
                features=features,
                on_epoch=(on_epoch or {}).get(folder),
            )
            lanes.append(_Lane(folder, begin, place))
        going = list(lanes)
        while going:
            for lane in list(going if at_once else going[:1]):
                try:
                    lane.advance()
                except Diverged as error:
                    failed.append(str(error))
                if lane.over:
                    going.remove(lane)
        done |= {lane.folder: lane.finished for lane in lanes if lane.finished is not None}
    if failed:
        others = f" The other {len(done)} are done." if done else ""
        raise Diverged(" ".join(failed) + others)
    return [done[folder] for folder in recipes]


class _Lane:
    """One of several interleaved runs: its folder, and on a GPU its own stream."""

    def __init__(self, folder: Path, begin: Callable[[], Training], place: Placement) -> None:
        self.folder, self.begin, self.place = folder, begin, place
        self.stream = torch.cuda.Stream() if place.device.type == "cuda" else None
        self.turns = self._turns()
        self.finished: run.Run | None = None
        self.over = False

    def advance(self) -> None:
        """Run to the next point where another run can continue."""
        self.over = True  # in case this raises
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            self.over = next(self.turns, self) is self

    def _turns(self) -> Iterator[None]:
        training = self.begin()
        # lock only after the arguments are checked; rank 0 writes for all
        with run.held(self.folder) if self.place.rank == 0 else nullcontext():
            yield from training.steps()
            self.finished = training.finish()


class _Sources:
    """Data sets by recipe, each read once."""

    def __init__(self, data: Dataset | str | Path | None) -> None:
        self.data, self.read = data, dict[str, Dataset]()

    def of(self, recipe: Recipe) -> Dataset:
        """Return the data set of a recipe."""
        if isinstance(self.data, Dataset):
            return self.data
        key = f"{recipe.dataset}{sorted(recipe.dataset_options.items())}"
        if key not in self.read:
            self.read[key] = load(recipe.dataset, self.data, recipe.dataset_options)
        return self.read[key]


def _finished(folder: Path, recipe: Recipe, data: Dataset | str | Path | None, *, features: bool) -> run.Run | None:
    """Return the finished run in a folder, unless it lacks the features asked for now."""
    if not (folder / run.FACTS).is_file():
        return None
    found = run.Run.read(folder)
    check_same(folder, found.facts, recipe, data.fingerprint if isinstance(data, Dataset) else None)
    return found if found.facts["features"] or not features else None


def _worth(recipe: Recipe, data: Dataset, place: Placement) -> bool:
    steps = recipe.epochs * len(data.train) // recipe.batch
    return place.captures and place.device.type == "cuda" and place.world == 1 and steps >= WORTH_COMPILING


@contextmanager
def left_as_found() -> Iterator[None]:
    """Enable cuDNN autotuning, and restore its setting and the random state at the end."""
    chosen = torch.backends.cudnn.benchmark
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = chosen
