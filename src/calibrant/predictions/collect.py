"""Run a model over a loader and collect logits, labels and features in order, on the CPU."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from calibrant.predictions import checks
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Features
from calibrant.records import count

LABELS = ("labels", "label")


@dataclass(frozen=True, eq=False)
class Collected:
    """A model's outputs on the rows of a loader: ``logits`` as float32, ``labels`` as they came, all on the CPU."""

    logits: Tensor
    labels: Tensor
    features: Features | None = None

    def __len__(self) -> int:
        return len(self.logits)

    def predictions(self, classes: Sequence[Any] | None = None) -> Predictions:
        """Return them as `Predictions`, which checks them; ``classes`` names the columns.

        ``classes=range(k)`` says that the columns are in order, however wrong the answers are: under an attack, say.
        """
        return Predictions(logits=self.logits, labels=self.labels, features=self.features, classes=classes)


def collect(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    features: str | None = None,
    device: str | torch.device | None = None,
    on_step: Callable[[str], None] | None = None,
) -> Collected:
    """Run a model over a loader in eval mode, without gradients, and collect its outputs with the labels.

    A batch is a pair ``(inputs, labels)``, or a dict with ``labels`` (or ``label``) and the model's inputs by name.
    Inputs are a tensor, a tuple of positional arguments or a dict of named ones. The model returns logits, or something
    that has them as ``.logits`` or ``["logits"]``.

    ``features`` names a layer, such as ``"fc"`` or ``"encoder.head"``, whose *input* is kept: that of the last linear
    layer is what calibrators and trust scores call features. ``device`` is where inputs are put, by default where the
    model's first parameter is; the model is not moved. ``on_step`` is told how many rows are done.

    The training mode of every layer, the model's hooks and torch's random state are left as found, also after an error.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Linear(4, 3))
        >>> loader = [(torch.randn(8, 4), torch.zeros(8, dtype=torch.long)) for _ in range(5)]
        >>> found = collect(model, loader, features="1")
        >>> found.logits.shape, found.features.shape, model.training
        (torch.Size([40, 3]), torch.Size([40, 4]), True)
    """
    here = torch.device(device) if device is not None else device_of(model)
    kept: list[tuple[Tensor, ...]] = []
    rows = 0
    with evaluating(model, here), _inputs_of(model, features) as seen, torch.no_grad():
        for inputs, labels in batches(loader, here):
            seen.clear()
            logits = answered(model, inputs, labels)
            kept.append((logits.detach().to("cpu", torch.float32, copy=True), labels))
            if features is not None:
                kept[-1] += (_layer_input(seen, features, len(kept[-1][0])),)
            rows += len(kept[-1][0])
            if on_step is not None:
                on_step(f"{count(rows)} rows")
    return Collected(*(_joined(parts) for parts in zip(*kept, strict=True)))


def batches(loader: Iterable[Any], device: torch.device) -> Iterator[tuple[Any, Tensor]]:
    """Give inputs, on the device, and labels, on the CPU, of each batch; a loader that gives none is refused."""
    empty = True
    for batch in loader:
        empty = False
        inputs, labels = _parted(batch)
        yield _moved(inputs, device), checks.tensor(labels, "labels").cpu().clone()
    if empty:
        raise ValueError("loader must give at least one batch; it gave none. Was it a generator that is used up?")


def called(model: nn.Module, inputs: Any) -> Any:
    """Return what a model makes of a tensor, a tuple of positional arguments or a dict of named ones."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, (tuple, list)) else model(inputs)


def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """Return the logits of a batch, of shape (n, k) or (n,), however the model wraps them."""
    logits = _logits(called(model, inputs))
    if logits.ndim not in (1, 2):
        raise ValueError(f"model must return logits of shape (n, k) or (n,); got {tuple(logits.shape)}.")
    return logits


def answered(model: nn.Module, inputs: Any, labels: Tensor) -> Tensor:
    """Return the logits of a batch, if there is a row for each label."""
    logits = logits_of(model, inputs)
    if labels.ndim == 0 or len(labels) != len(logits):
        shapes = f"logits {tuple(logits.shape)} and labels {tuple(labels.shape)}"
        raise ValueError(f"model must return a row for each label; got {shapes}.")
    return logits


def _logits(output: Any) -> Tensor:
    found = output["logits"] if isinstance(output, Mapping) and "logits" in output else output
    found = getattr(found, "logits", found)
    if not isinstance(found, Tensor):
        raise TypeError(
            f"model must return a tensor of logits, or something with .logits; got {type(output).__name__}. "
            "Wrap it in a module that returns the logits."
        )
    return found


def _parted(batch: Any) -> tuple[Any, Any]:
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch), None)
        if name is None:
            raise ValueError(
                f"a batch that is a dict must have 'labels'; got {', '.join(map(repr, batch)) or 'nothing'}."
            )
        return {key: value for key, value in batch.items() if key not in LABELS}, batch[name]
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        size = f" of {len(batch)}" if isinstance(batch, (tuple, list)) else ""
        raise ValueError(f"loader must give pairs (inputs, labels), or dicts; got a {type(batch).__name__}{size}.")
    return batch[0], batch[1]


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(_moved(item, device) for item in value)
    return value.to(device) if isinstance(value, Tensor) else value


def device_of(model: nn.Module) -> torch.device:
    """Say where a model's first parameter is."""
    first = next(chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if first is None else first.device


@contextmanager
def evaluating(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Switch to eval mode, and back layer by layer: some may have been in it already."""
    modes = [(layer, layer.training) for layer in model.modules()]
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # a loader draws its seed from torch's
        try:
            model.eval()
            yield
        finally:
            for layer, training in modes:
                layer.training = training


@contextmanager
def _inputs_of(model: nn.Module, layer: str | None) -> Iterator[list[Any]]:
    """Give a list that fills with the inputs of a layer."""
    seen: list[Any] = []
    if layer is None:
        yield seen
        return
    try:
        found = model.get_submodule(layer)
    except AttributeError:
        some = [name for name, _ in model.named_modules() if name]
        raise ValueError(
            f"features must name a layer of the model; got {layer!r}, and the last ones are {', '.join(some[-5:])}."
        ) from None
    hook = found.register_forward_pre_hook(
        lambda _, args, named: seen.append(_copied(next(chain(args, named.values()), None))), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


def _copied(value: Any) -> Any:
    """Return what the layer is given now; the model may write over it before the batch is done."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _layer_input(seen: list[Any], layer: str, n: int) -> Tensor:
    if len(seen) != 1 or not isinstance(seen[0], Tensor):
        raise ValueError(
            f"features={layer!r} must be a layer that takes one tensor once; it was called {len(seen)} times."
        )
    value: Tensor = seen[0].detach().to("cpu", torch.float32)
    flat = value.flatten(1) if value.ndim > 2 and value.shape[2:].numel() == 1 else value
    if flat.ndim != 2 or len(flat) != n:
        raise ValueError(f"features={layer!r} must take one row a sample, ({n}, d); got {tuple(value.shape)}.")
    return flat


def _joined(parts: tuple[Tensor, ...]) -> Tensor:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"batches must agree but for their number of rows; got rows of {sorted(map(tuple, shapes))}.")
    return torch.cat(parts)
