"""A Hugging Face ``Trainer`` with any criterion as its loss.

It takes the arguments of ``Trainer``, and a criterion::

    trainer = CalibratedTrainer(
        model, args, train_dataset=train, eval_dataset=validation, criterion=Criterion("ada_focal")
    )
    trainer.train()
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

from calibrant.losses.criterion import Criterion
from calibrant.predictions.collect import collect

IGNORED = -100  # the label of ignored tokens
TOKENS = ("ForTokenClassification", "ForMaskedLM")  # others shift labels by a token, or put the class dimension first
FILE = "criterion.safetensors"


class CalibratedTrainer(Trainer):
    """A ``Trainer`` whose loss is a `Criterion`, which is updated after every epoch from ``eval_dataset`` if needed.

    The criterion gets ``outputs.logits`` and ``labels``, in training and in evaluation; labels are not passed to the
    model, so that it does not compute its own loss. Each token is a row, except those labelled -100. With gradient
    accumulation a step minimises the mean over all its rows, whatever their number in each micro-batch.

    After the last step of an epoch, before anything is evaluated or saved, the model runs over ``eval_dataset`` in eval
    mode without gradients if the criterion needs it; modes and random state are restored. In a distributed run each
    rank contributes its part, in which a few rows may be repeated to make parts equal. An epoch cut short by
    ``max_steps`` does not count.

    The criterion's state is saved as ``criterion.safetensors`` in each checkpoint, and restored when training resumes.
    With ``model_init``, each run also starts with a fresh criterion.

    Combine it with another trainer as ``class Mine(CalibratedTrainer, OtherTrainer)``.

    With an adaptive loss, ``eval_loss`` is not comparable between epochs: select the best model by another metric.
    """

    def __init__(self, *args: Any, criterion: Criterion, **kwargs: Any) -> None:
        if not isinstance(criterion, Criterion):
            raise TypeError(f"criterion must be a Criterion; got {criterion!r}. Criterion('ada_focal') makes one.")
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None or self.args.label_smoothing_factor:
            raise ValueError(
                "criterion must be the only loss; got compute_loss_func or label_smoothing_factor besides. "
                "Criterion('label_smoothing') smooths labels."
            )
        self.criterion = criterion
        self.model_accepts_loss_kwargs = True  # so that compute_loss gets the number of rows of a whole step
        self._first = deepcopy(criterion.state_dict())
        self.add_callback(_EpochEnd(self))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,  # noqa: FBT001, FBT002 (the signature of Trainer)
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the criterion's loss of a batch; in training, scaled to its fraction of the step."""
        given, labels = _parted(inputs)
        outputs = model(**given)
        logits, labels = self._rows(_logits(outputs), labels)
        loss = self.criterion.to(logits.device).train(model.training)(logits, labels)
        if model.training and num_items_in_batch is not None and self.criterion.reduction == "mean":
            loss = loss * len(labels) / self._rows_of_step(num_items_in_batch)
        if not isinstance(outputs, Mapping):
            outputs = (loss, *outputs)  # where Trainer expects the loss
        return (loss, outputs) if return_outputs else loss

    def _rows(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return one row per labelled token; without a token dimension, the arguments unchanged."""
        if logits.dim() < 3:
            return logits, labels
        if labels.shape != logits.shape[:-1] or getattr(self.model, "loss_type", TOKENS[0]) not in TOKENS:
            raise ValueError(
                "model must classify rows, or tokens that each have a label in their own place; "
                f"{type(self.model).__name__} gives logits {tuple(logits.shape)} for labels {tuple(labels.shape)}."
            )
        kept = labels != IGNORED
        return logits[kept], labels[kept]

    def _rows_of_step(self, items: Tensor | int) -> Tensor:
        """Return the rows of a step on one rank, from the count that Trainer has summed or divided over devices."""
        total = torch.as_tensor(items).flatten()[0]
        if self.args.average_tokens_across_devices:
            return total / self.accelerator.num_processes
        return total * max(self.args.n_gpu, 1)

    def epoch_end(self) -> None:
        """Update the criterion at the end of an epoch; called by the trainer."""
        if not self.criterion.needs_validation:
            self.criterion.epoch_end()
            return
        found = collect(_Flat(cast(nn.Module, self.model)), self._validation())
        kept = found.labels != IGNORED
        self.criterion.epoch_end((found.logits[kept], found.labels[kept]))

    def _validation(self) -> Iterator[tuple[Any, Tensor]]:
        for inputs in self.get_eval_dataloader():
            given, labels = _parted(self._prepare_inputs(inputs))
            yield given, labels.flatten()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,  # noqa: FBT001 (the signature of Trainer)
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train as ``Trainer`` does, with the criterion restored from the checkpoint."""
        if self.criterion.needs_validation and (self.eval_dataset is None or isinstance(self.eval_dataset, dict)):
            came = "a dict of several" if self.eval_dataset is not None else "none"
            raise ValueError(f"eval_dataset must be the one set that {self.criterion!r} learns from; got {came}.")
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]
        if folder:
            self._load(Path(folder) / FILE)
        elif self.model_init is not None:
            self.criterion.load_state_dict(self._first)
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:  # noqa: FBT001, FBT002
        """Save the model, and the criterion in the same folder if it has state."""
        state = {name: value.cpu().contiguous() for name, value in self.criterion.state_dict().items()}
        if state and self.args.should_save:
            folder = Path(output_dir or str(self.args.output_dir))
            folder.mkdir(parents=True, exist_ok=True)
            save_file(state, folder / FILE)
        super().save_model(output_dir, _internal_call)

    def _load(self, path: Path) -> None:
        if not self.criterion.state_dict():
            return
        if not path.exists():
            raise FileNotFoundError(f"resume_from_checkpoint must hold {FILE}; {path.parent} was saved without.")
        try:
            self.criterion.load_state_dict(load_file(path))
        except RuntimeError as error:
            raise ValueError(f"{path} must hold the state of {self.criterion!r}; it is that of another.") from error


class _EpochEnd(TrainerCallback):
    """Calls ``epoch_end`` once per epoch: after its last step, or when a loader of unknown length is exhausted."""

    def __init__(self, trainer: CalibratedTrainer) -> None:
        self.trainer, self.ended = trainer, False

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.ended = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if float(state.epoch).is_integer():
            self._end()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not control.should_training_stop:
            self._end()

    def _end(self) -> None:
        if not self.ended:
            self.trainer.epoch_end()
            self.ended = True


class _Flat(nn.Module):
    """A wrapper that returns logits of shape (n, k), one row per token where there are tokens."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Tensor:
        return _logits(self.model(**inputs)).flatten(0, -2)


def _logits(outputs: Any) -> Tensor:
    found: Tensor | None = outputs.get("logits") if isinstance(outputs, Mapping) else outputs[0]
    if found is None:
        raise ValueError(f"model must return logits; got {', '.join(map(repr, outputs))}.")
    return found


def _parted(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
    if inputs.get("labels") is None:
        raise ValueError(f"a batch must have 'labels'; got {', '.join(map(repr, inputs)) or 'nothing'}.")
    return {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]
