"""Adaptive criteria in a Lightning trainer: a callback that calls ``epoch_end``.

Set the criterion as an attribute in the module's ``__init__``, and call it in ``training_step`` like any other loss::

    self.criterion = Criterion("ada_focal")
    ...
    trainer = Trainer(max_epochs=100, callbacks=[CalibrationCallback()])
    trainer.fit(module, train_loader, validation_loader)
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from calibrant.losses.criterion import Criterion
from calibrant.predictions.collect import collect


class CalibrationCallback(Callback):
    """Call ``Criterion.epoch_end`` once in every training epoch, with validation logits where the loss needs them.

    ``criterion`` is the name of the module's attribute that holds the `Criterion`, such as ``"head.criterion"`` for a
    nested one. As a submodule it is moved to the device and saved in checkpoints with the rest.

    After the last batch of an epoch the module's ``forward`` runs over the validation loader, in eval mode, without
    gradients, in the trainer's precision and for ``limit_val_batches``. Modes and random state are restored. This
    happens before Lightning validates and saves, so that a checkpoint contains the updated criterion. How often
    Lightning itself validates does not matter. A loss that needs no validation costs no pass. An interrupted epoch
    counts.

    ``split`` turns a batch into ``(inputs, labels)``, where inputs are a tensor, or a tuple or dict of arguments; it is
    not needed for a batch that is such a pair, or a dict with "labels". ``dataloader`` is the index of the validation
    loader, if there are several. In a distributed run each rank contributes its part, in which Lightning's sampler may
    repeat a few rows to make parts equal.

    It costs a second pass where Lightning validates too, because the logits of ``validation_step`` are not accessible.
    The value of an adaptive loss on the validation set is not comparable between epochs: monitor something else.
    """

    def __init__(
        self,
        criterion: str = "criterion",
        *,
        split: Callable[[Any], tuple[Any, Any]] | None = None,
        dataloader: int | None = None,
    ) -> None:
        self.criterion, self.split, self.dataloader = criterion, split, dataloader
        self._ended = -1  # the last epoch for which epoch_end was called

    @property
    def state_key(self) -> str:
        """The key of the state in a checkpoint: a module may have two criteria."""
        return self._generate_state_key(criterion=self.criterion)

    def state_dict(self) -> dict[str, Any]:
        """Return the last finished epoch: on resuming, Lightning may end an epoch again that was saved at its end."""
        return {"ended": self._ended}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the last finished epoch."""
        self._ended = state_dict["ended"]

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Find the criterion, and exclude its buffers from those that DDP broadcasts from rank 0 in every step."""
        if stage != "fit":
            return
        self._ended = -1
        found = self._found(pl_module)
        if any(True for _ in found.buffers()):
            names = [f"{self.criterion}.{name}" for name, _ in found.named_buffers()]
            names += getattr(pl_module, "_ddp_params_and_buffers_to_ignore", [])
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(pl_module, names)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Raise early, not after an epoch, if a validation set is needed and missing."""
        if self._found(pl_module).needs_validation:
            self._loader(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Update the criterion after the last batch, before anything is saved."""
        if trainer.is_last_batch:
            self._end(trainer, pl_module)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Update the criterion if the epoch was interrupted."""
        self._end(trainer, pl_module)

    def _end(self, trainer: Trainer, module: LightningModule) -> None:
        if self._ended == trainer.current_epoch:
            return
        found = self._found(module)
        found.epoch_end(self._validation(trainer, module) if found.needs_validation else None)
        self._ended = trainer.current_epoch

    def _found(self, module: LightningModule) -> Criterion:
        found = dict(module.named_modules()).get(self.criterion)
        if not isinstance(found, Criterion):
            what = f"a {type(found).__name__}" if found is not None else "no submodule"
            raise ValueError(
                f"criterion must name a Criterion in {type(module).__name__}; {self.criterion!r} is {what}. "
                "Set it in the module's __init__, so that it is moved and saved."
            )
        return found

    def _validation(self, trainer: Trainer, module: LightningModule) -> tuple[Tensor, Tensor]:
        with trainer.precision_plugin.val_step_context():
            found = collect(module, self._batches(trainer, module))
        return found.logits, found.labels

    def _batches(self, trainer: Trainer, module: LightningModule) -> Iterator[Any]:
        """Yield batches as ``validation_step`` would get them, split into inputs and labels."""
        loader, place = self._loader(trainer)
        most = trainer.num_val_batches[place]
        for batch in islice(loader, None if math.isinf(most) else int(most)):
            batch = trainer.precision_plugin.convert_input(batch)
            batch = module._on_before_batch_transfer(batch, dataloader_idx=place)
            batch = trainer.strategy.batch_to_device(batch, dataloader_idx=place)
            yield batch if self.split is None else self.split(batch)

    def _loader(self, trainer: Trainer) -> tuple[Any, int]:
        trainer.validating = True  # the state in which Lightning sets up this loader, which it may not have done yet
        trainer.fit_loop.epoch_loop.val_loop.setup_data()
        trainer.training = True
        if trainer.val_dataloaders is None or sum(trainer.num_val_batches) == 0:
            raise ValueError(
                "the criterion must have a validation set to learn from; the trainer has none. It takes a validation "
                "loader, a validation_step in the module, and limit_val_batches above 0."
            )
        loaders = CombinedLoader(trainer.val_dataloaders, "sequential").flattened
        place = 0 if self.dataloader is None and len(loaders) == 1 else self.dataloader
        if place is None or not 0 <= place < len(loaders):
            raise ValueError(
                f"dataloader must say which of {len(loaders)} validation loaders to use, from 0; got {self.dataloader}."
            )
        return loaders[place], place
