"""Recipes -> runs, one after the other or several at once on one GPU."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from calibrant.datasets.dataset import Dataset
from calibrant.datasets.finding import load
from calibrant.training import run
from calibrant.training.loop import OnEpoch, Training
from calibrant.training.placement import Placement, ranks
from calibrant.training.recipe import Recipe

WORTH_COMPILING = 20_000  # steps; compiling takes about a minute and saves a fifth of each


def train(
    recipe: Recipe,
    folder: str | Path,
    *,
    data: Dataset | str | Path | None = None,
    device: str | torch.device | Placement | None = None,
    graph: bool | None = None,
    compiled: bool | None = None,
    features: bool = False,
    on_epoch: OnEpoch | None = None,
) -> run.Run:
    """Train by a recipe and leave everything in a folder; go on where an earlier process stopped.

    ``data`` is a data set, or the folder with its files (or $CALIBRANT_DATA). On one GPU a whole step is replayed as a
    CUDA graph, and compiled if the run is long; ``graph`` and ``compiled`` decide otherwise. Under torchrun the ranks
    share each batch; ``device`` may be another `Placement`, such as that of Lightning Fabric. ``features`` also keeps
    what the head sees. ``on_epoch`` is told each epoch's numbers.

    A finished folder is read, not trained again. The random state of torch is left as found.

    Example:
        >>> import tempfile
        >>> recipe = Recipe("digits", "mlp", epochs=2, lr=0.1, loss="seca")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = train(recipe, folder, device="cpu")
        ...     done.test.understood.partition(",")[0], len(done.history)
        ('600 rows x 10 classes', 2)
    """
    options = {"device": device, "graph": graph, "compiled": compiled, "features": features}
    told = {} if on_epoch is None else {Path(folder): on_epoch}
    return together({Path(folder): recipe}, data=data, on_epoch=told, **options)[0]  # type: ignore[arg-type]


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

    On a GPU they take turns on streams of their own, which fills it where one small network cannot (more than eight at
    once need the environment's CUDA_DEVICE_MAX_CONNECTIONS=32); elsewhere they come one after the other. Each ends
    with the numbers that it would have alone, but for the rounding of a GPU, and but for dropout, which on a GPU draws
    from one source for all.
    """
    done: dict[Path, run.Run] = {}
    loaded: dict[str, Dataset] = {}
    with ranks(), left_as_found():
        place = device if isinstance(device, Placement) else Placement(device)
        waiting: list[tuple[Path, Training, AbstractContextManager[Any]]] = []
        for folder, recipe in recipes.items():
            if (found := _finished(folder, recipe)) is not None:
                done[folder] = found
                continue
            key = f"{recipe.dataset}{sorted(recipe.dataset_options.items())}"
            if not isinstance(data, Dataset) and key not in loaded:
                loaded[key] = load(recipe.dataset, None if data is None else Path(data), recipe.dataset_options)
            source = data if isinstance(data, Dataset) else loaded[key]
            stream = torch.cuda.Stream() if place.device.type == "cuda" else None
            lane: AbstractContextManager[Any] = nullcontext() if stream is None else torch.cuda.stream(stream)
            with lane:
                training = Training(
                    recipe,
                    source,
                    folder,
                    place,
                    graph=graph,
                    compiled=_worth(recipe, source, place) if compiled is None else compiled,
                    features=features,
                    on_epoch=(on_epoch or {}).get(folder),
                )
            folder.mkdir(parents=True, exist_ok=True)  # now that nothing speaks against the run
            waiting.append((folder, training, lane))
        for folder, training in _interleaved(waiting, at_once=place.device.type == "cuda"):
            done[folder] = training.finish()
    return [done[folder] for folder in recipes]


def _interleaved(
    waiting: list[tuple[Path, Training, AbstractContextManager[Any]]], *, at_once: bool
) -> Iterator[tuple[Path, Training]]:
    """Step through all, in turns or one by one; yield each, within its stream, when it is trained."""
    going = [(training.steps(), folder, training, lane) for folder, training, lane in waiting]
    while going:
        for each in list(going if at_once else going[:1]):
            steps, folder, training, lane = each
            with lane:
                if next(steps, "trained") == "trained":
                    going.remove(each)
                    yield folder, training


def _finished(folder: Path, recipe: Recipe) -> run.Run | None:
    if not (folder / run.FACTS).is_file():
        return None
    found = run.Run.read(folder)
    if not found.recipe.same(recipe):
        raise ValueError(f"{folder} holds a run of another recipe; name another folder, or remove it.")
    return found


def _worth(recipe: Recipe, data: Dataset, place: Placement) -> bool:
    steps = recipe.epochs * len(data.train) // recipe.batch
    return place.captures and place.device.type == "cuda" and place.world == 1 and steps >= WORTH_COMPILING


@contextmanager
def left_as_found() -> Iterator[None]:
    """Let torch choose its fastest convolutions, and put its settings and random state back at the end."""
    chosen = torch.backends.cudnn.benchmark
    with torch.random.fork_rng(range(torch.cuda.device_count())):
        torch.backends.cudnn.benchmark = True
        try:
            yield
        finally:
            torch.backends.cudnn.benchmark = chosen
