"""What a run leaves behind, and how it is read again."""

import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from calibrant.io.atomic import write_arrays, write_whole
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve
from calibrant.training import checkpoint, state
from calibrant.training.models.build import make
from calibrant.training.recipe import Recipe

CHECKPOINT, FACTS = "checkpoint.safetensors", "run.json"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder, its recipe, and what was known at the end.

    The folder holds ``run.json`` (recipe, versions, device, history), ``checkpoint.safetensors``, and for each of
    ``validation``, ``calibration`` and ``test`` an .npz with logits, labels and ``rows``, their places in the data set:
    what `calibrant audit` reads.
    """

    folder: Path
    facts: dict[str, Any]

    @classmethod
    def read(cls, folder: str | Path) -> "Run":
        """Read a finished run."""
        path = Path(folder) / FACTS
        if not path.is_file():
            raise FileNotFoundError(f"{folder} must hold a finished run; it has no {FACTS}.")
        try:
            found = cls(Path(folder), json.loads(path.read_text(encoding="utf-8")))
            if found.recipe.epochs == len(found.history):
                return found
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            pass
        raise ValueError(f"{path} must be what a finished run wrote; it is damaged. Remove it, and train again.")

    @property
    def recipe(self) -> Recipe:
        """The recipe."""
        return Recipe.from_data(self.facts["recipe"])

    @property
    def history(self) -> Curve:
        """A row an epoch: rate, loss, and how it did on the validation set."""
        epochs = self.facts["history"]
        columns = {name: np.array([epoch[name] for epoch in epochs]) for name in epochs[0]}
        return Curve("history", columns, len(epochs))

    @property
    def learned(self) -> Curve | None:
        """What the loss remembers of its epochs (AdaFocal: the power and error of each bin), if it does."""
        kept = self.facts.get("learned")
        if kept is None:
            return None
        return Curve(kept["name"], {name: np.array(column) for name, column in kept["columns"].items()}, kept["n"])

    @cached_property
    def test(self) -> Predictions:
        """What the kept model says about the test set."""
        return self.predictions("test")

    @cached_property
    def validation(self) -> Predictions:
        """What the kept model says about the validation set, which the run may have learned from."""
        return self.predictions("validation")

    def predictions(self, part: str) -> Predictions:
        """Return what the kept model says about a part: "validation", "calibration" or "test"."""
        path = self.folder / f"{part}.npz"
        if part not in self.facts["rows"]:
            raise ValueError(f"part must be one that the recipe has; {self.folder} has no {part} set.")
        try:
            with np.load(path, allow_pickle=False) as arrays:
                features = arrays["features"] if "features" in arrays.files else None
                return Predictions(logits=arrays["logits"], labels=arrays["labels"], features=features)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            remedy = f"Remove {FACTS} beside it, and train again."
            raise ValueError(f"{path} must be what the run wrote; it is missing or damaged. {remedy}") from None

    def model(self) -> nn.Module:
        """Return the model with the kept weights, on the CPU, in eval mode."""
        tensors, _ = checkpoint.read(self.folder / CHECKPOINT)
        found = make(self.recipe.model, **self.facts["shape"])
        found.load_state_dict(state.part(tensors, "kept") or state.part(tensors, "model"))
        return found.eval()


def write_part(folder: Path, part: str, arrays: dict[str, torch.Tensor | None]) -> None:
    """Write the arrays of one part."""
    there = {name: values.cpu().numpy() for name, values in arrays.items() if values is not None}
    write_arrays(there, folder / f"{part}.npz")


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write what is known of a run; last, for it says that the rest is there."""
    write_whole(json.dumps(facts, indent=1).encode(), folder / FACTS)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder; the hold ends with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":  # elsewhere there is no such lock
        yield
        return
    import fcntl

    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} must be used by one run at a time; another is training in it.") from None
        for rest in folder.glob(".*.tmp"):  # of a process that was killed while it wrote
            rest.unlink()
        yield
