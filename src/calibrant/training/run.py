"""Finished runs: the files of a run folder, and reading them."""

import json
import os
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
from calibrant.io.entries import parsed
from calibrant.io.npz import read_arrays
from calibrant.predictions.predictions import Predictions
from calibrant.records import Curve
from calibrant.training import checkpoint
from calibrant.training.models.build import make
from calibrant.training.recipe import Recipe

CHECKPOINT, FACTS = "checkpoint.safetensors", "run.json"


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder, and the facts in its ``run.json``.

    The folder holds ``run.json`` (recipe, versions, device, history), ``checkpoint.safetensors``, and for each of
    ``validation``, ``calibration`` and ``test`` an .npz with logits, labels and ``rows``, their data set indices,
    which `calibrant audit` reads.
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
            found = cls(Path(folder), parsed(path.read_bytes()))
            if found.recipe.epochs == len(found.history):
                return found
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            pass
        raise ValueError(f"{path} must be what a finished run wrote; it is damaged. Remove it, and train again.")

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run."""
        return Recipe.from_data(self.facts["recipe"])

    @property
    def history(self) -> Curve:
        """One row per epoch: learning rate, loss and validation metrics."""
        epochs = self.facts["history"]
        columns = {name: np.array([epoch[name] for epoch in epochs]) for name in epochs[0]}
        return Curve("history", columns, len(epochs))

    @property
    def learned(self) -> Curve | None:
        """The history that an adaptive loss keeps of its epochs (AdaFocal: gamma and error of each bin), or None."""
        kept = self.facts.get("learned")
        if kept is None:
            return None
        return Curve(kept["name"], {name: np.array(column) for name, column in kept["columns"].items()}, kept["n"])

    @cached_property
    def test(self) -> Predictions:
        """Predictions of the selected model on the test set."""
        return self.predictions("test")

    @cached_property
    def validation(self) -> Predictions:
        """Predictions of the selected model on the validation set, which may have been used in training."""
        return self.predictions("validation")

    def predictions(self, part: str) -> Predictions:
        """Return the predictions of the selected model on "validation", "calibration" or "test"."""
        path = self.folder / f"{part}.npz"
        if part not in self.facts["rows"]:
            raise ValueError(f"part must be one that the recipe has; {self.folder} has no {part} set.")
        try:
            arrays, _ = read_arrays(path, ("logits", "labels", "features"))
            return Predictions(logits=arrays["logits"], labels=arrays["labels"], features=arrays.get("features"))
        except (OSError, ValueError, KeyError):
            remedy = f"Remove {FACTS} beside it, and train again."
            raise ValueError(f"{path} must be what the run wrote; it is missing or damaged. {remedy}") from None

    def model(self) -> nn.Module:
        """Return the selected model, on the CPU and in eval mode."""
        tensors, _ = checkpoint.read(self.folder / CHECKPOINT)
        found = make(self.recipe.model, **self.facts["shape"])
        found.load_state_dict(checkpoint.part(tensors, "kept") or checkpoint.part(tensors, "model"))
        return found.eval()


def write_part(folder: Path, part: str, arrays: dict[str, torch.Tensor | None]) -> None:
    """Write the arrays of one part."""
    there = {name: values.cpu().numpy() for name, values in arrays.items() if values is not None}
    write_arrays(there, folder / f"{part}.npz")


def write_facts(folder: Path, facts: dict[str, Any]) -> None:
    """Write the facts of a run; last, because this file marks the run as finished."""
    write_whole(json.dumps(facts, indent=1).encode(), folder / FACTS)


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock a folder against other training processes; the lock ends with the process, even if it is killed."""
    folder.mkdir(parents=True, exist_ok=True)
    if os.name != "posix":  # no flock elsewhere
        yield
        return
    import fcntl

    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(f"{folder} must be used by one run at a time; another is training in it.") from None
        yield
