"""The training loop: epochs, validation, checkpoints, model selection and the final evaluation."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import torch

from calibrant.metrics.evidence import measure
from calibrant.predictions.predictions import Predictions
from calibrant.records import plain, versions
from calibrant.training import checkpoint, run
from calibrant.training.datasets.dataset import Dataset
from calibrant.training.device import Placement
from calibrant.training.evaluation import logits_of, validation_loss
from calibrant.training.feed import Feed, order, seed_of
from calibrant.training.models.build import make
from calibrant.training.recipe import Recipe
from calibrant.training.setup import check_same, device_name, optimiser_of, parted, rates, shape_of
from calibrant.training.step import Learner, Step

SHOWN = {"accuracy": "accuracy", "nll": "nll", "ece": "top_label_ece"}
Epoch: TypeAlias = dict[str, int | float]  # its number, learning rate and metrics
OnEpoch = Callable[[Epoch], None]
REMEDY = "a smaller lr or a warm-up helps."
STRIDE = 8  # steps between switches of runs that share a GPU


class Diverged(ValueError):
    """Raised when the loss or the logits become NaN or infinite."""


class Training:
    """A run in progress. ``steps()`` trains and can be interleaved with other runs; ``finish()`` evaluates and saves.

    All randomness is derived from the recipe's seed and the epoch, and each epoch ends with a checkpoint: a process
    that is killed and restarted with the same folder gives the same result as an uninterrupted one, bit for bit on a
    CPU.
    """

    def __init__(
        self,
        recipe: Recipe,
        data: Dataset,
        folder: Path,
        place: Placement,
        *,
        graph: bool | None = None,
        compiled: bool = False,
        features: bool = False,
        on_epoch: OnEpoch | None = None,
    ) -> None:
        self.recipe, self.folder, self.place, self.features = recipe, folder, place, features
        self.on_epoch = on_epoch or (lambda epoch: None)
        self.parts, self.rows = parted(recipe, data)
        self.data = data.fingerprint
        mean, std = recipe.mean or data.mean, recipe.std or data.std
        self.feeds = {name: Feed(part, place.device, mean=mean, std=std) for name, part in self.parts.items()}
        self.shape = {"k": data.k, **shape_of(data), "seed": recipe.seed}
        model = place.normalising(make(recipe.model, **self.shape)).to(place.device)
        if self.feeds["train"].images:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        criterion = recipe.criterion(data.k, len(self.parts["train"])).to(place.device)
        if criterion.needs_validation and "validation" not in self.parts:
            raise ValueError(f"validation must be above 0: {recipe.loss} learns from a validation set; got 0.")
        optimiser = optimiser_of(recipe, model, place.device)
        taking_part, optimiser = place.prepare(model, optimiser)
        self.learner = Learner(model, taking_part, criterion, optimiser, recipe.clip)
        train = self.feeds["train"]
        if recipe.batch > len(train):
            raise ValueError(f"batch must be at most the {len(train)} training rows; got {recipe.batch}.")
        if recipe.batch % place.world:
            raise ValueError(f"batch must be a multiple of the {place.world} ranks that share it; got {recipe.batch}.")
        alone = place.captures and place.device.type == "cuda" and place.world == 1 and train.resident
        captured = alone if graph is None else graph
        if captured and not alone:
            raise ValueError("graph=True needs one GPU and inputs that fit on it.")
        self.step = Step(self.learner, train, place, recipe.batch, graph=captured, compiled=compiled)
        self.history: list[Epoch] = []
        self.best: dict[str, torch.Tensor] = {}
        self._resume()

    def steps(self) -> Iterator[None]:
        """Train to the last epoch; yields regularly, while the device is busy."""
        for epoch in range(len(self.history), self.recipe.epochs):
            start = time.monotonic()
            pad = None
            if self.recipe.augment == "crop_flip" and self.feeds["train"].images:
                pad = max(1, self.shape["side"] // 8)
            draws = order(
                len(self.feeds["train"]),
                self.step.steps * self.recipe.batch,
                seed=self.recipe.seed,
                epoch=epoch,
                pad=pad,
            )
            rate = rates(self.recipe, epoch, self.step.steps)
            # for dropout, which must differ between ranks; `train` restores the global state
            torch.manual_seed(seed_of(self.recipe.seed, epoch, self.place.rank))
            self.step.begin(*draws, rate)
            for number in range(self.step.steps):
                self.step()
                if number % STRIDE == STRIDE - 1:
                    yield
            yield
            self._end_epoch({"epoch": epoch + 1, "rate": rate[-1]}, start)
            yield

    def finish(self) -> run.Run:
        """Evaluate the selected model, write the results, and return the finished run."""
        model = self.learner.model
        if self.best:
            model.load_state_dict(self.best)
        for name in ("validation", "calibration", "test"):
            if name in self.feeds:
                logits, hidden = logits_of(model, self.feeds[name], self.place, features=self.features)
                if self.place.rank == 0:
                    arrays = {"logits": logits, "labels": self.parts[name].labels, "rows": self.rows[name]}
                    run.write_part(self.folder, name, {**arrays, "features": hidden})
        facts = {
            "recipe": self.recipe.as_data(),
            "shape": self.shape,
            "objective": repr(self.learner.criterion),
            "rows": {name: len(part) for name, part in self.parts.items()},
            "data": self.data,
            "features": self.features,
            "learned": None if (memory := self.learner.criterion.history) is None else plain(asdict(memory)),
            "kept_epoch": kept(self.recipe, self.history) + 1,
            "history": self.history,
            "device": device_name(self.place.device),
            "ranks": self.place.world,
            "versions": versions(),
        }
        if self.place.rank == 0:
            run.write_facts(self.folder, facts)
        self.place.wait()  # until rank 0 has written
        return run.Run.read(self.folder)

    def _end_epoch(self, epoch: Epoch, start: float) -> None:
        totals = self.step.totals.clone()
        if self.place.world > 1:
            torch.distributed.all_reduce(totals)
        loss, right = totals.tolist()
        scale = self.step.steps * self.place.world
        epoch |= {"loss": loss / scale, "train_accuracy": right / (self.step.steps * self.recipe.batch)}
        if not math.isfinite(loss):
            raise Diverged(f"{self.folder.name}: the loss is {loss} in epoch {epoch['epoch']}; {REMEDY}")
        if "validation" in self.feeds:
            epoch |= self._validated()
        else:
            self.learner.criterion.epoch_end()
        self.history.append(epoch | {"seconds": time.monotonic() - start})
        if self.recipe.select != "last" and kept(self.recipe, self.history) == len(self.history) - 1:
            self.best = checkpoint.copied(self.learner.model.state_dict())
        if self.place.rank == 0:
            tensors = self.learner.tensors() | {f"kept.{name}": value for name, value in self.best.items()}
            checkpoint.write(self.folder / run.CHECKPOINT, tensors, self._facts())
        self.on_epoch(self.history[-1])

    def _validated(self) -> Epoch:
        """Evaluate on the validation set, and update the criterion from it."""
        feed, criterion = self.feeds["validation"], self.learner.criterion
        logits, _ = logits_of(self.learner.model, feed, self.place)
        if not bool(logits.isfinite().all()):
            raise Diverged(f"{self.folder.name}: logits are not finite in epoch {len(self.history) + 1}; {REMEDY}")
        found: Epoch = {"validation_loss": validation_loss(criterion, logits, feed.labels, self.recipe.batch)}
        predictions = Predictions(logits=logits.cpu(), labels=feed.labels.cpu())
        found |= {name: measure(metric, predictions) for name, metric in SHOWN.items()}
        own = self.place.share(len(feed))  # the criterion gathers over ranks: each row must come once
        criterion.epoch_end((logits[own], feed.labels[own]))
        return found

    def _facts(self) -> dict[str, Any]:
        return {"recipe": self.recipe.as_data(), "data": self.data, "history": self.history}

    def _resume(self) -> None:
        path = self.folder / run.CHECKPOINT
        if not path.exists():
            return
        tensors, facts = checkpoint.read(path)
        check_same(self.folder, facts, self.recipe, self.data)
        self.history = facts["history"]
        self.best = {name: value.to(self.place.device) for name, value in checkpoint.part(tensors, "kept").items()}
        self.learner.restore(tensors)


def kept(recipe: Recipe, history: Sequence[Epoch]) -> int:
    """Return the index of the selected epoch in the history so far, or -1 if none qualifies yet.

    It is the best epoch after ``select_after``, the earliest of ties. Epochs before that do not count, however good.

    Example:
        >>> recipe = Recipe("digits", "mlp", 3, 0.1, select="accuracy", select_after=1)
        >>> kept(recipe, [{"accuracy": 0.9}, {"accuracy": 0.7}, {"accuracy": 0.8}])
        2
    """
    if recipe.select == "last":
        return len(history) - 1
    sign = 1 if recipe.select == "accuracy" else -1
    name = "accuracy" if recipe.select == "accuracy" else "validation_loss"
    places = range(recipe.select_after, len(history))
    return max(places, key=lambda place: (sign * history[place][name], -place), default=-1)
