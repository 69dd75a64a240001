"""Criterion: a loss and any penalties as one module for a training loop."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.losses.compiled import compiled_call
from calibrant.losses.distributed import joined, spread
from calibrant.losses.functional import check_batch, check_values
from calibrant.losses.presets import PRESETS
from calibrant.predictions import scalars
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Confidence, Correct
from calibrant.records import Curve
from calibrant.registry import LOSSES, PENALTIES, Registry, nearest

Method = str | Callable[..., Tensor]
Penalties = Method | Mapping[Method, float] | None
Validation = Predictions | tuple[Any, Any]


class Criterion(nn.Module):
    """A loss, reduced, plus weighted penalties: ``criterion(logits, labels)`` gives the number to differentiate.

    ``loss`` is a name of `calibrant.registry.LOSSES` with its ``options``, or anything that maps logits and labels to
    one value a row. ``penalty`` is a name of ``PENALTIES`` with its ``weight`` and ``penalty_options``, or a mapping of
    several to their weights. The mean over rows is taken; ``reduction="sum"`` multiplies loss and penalties by the
    number of rows.

    A loss with state (the powers of AdaFocal, the soft labels of OLS) keeps it in ``state_dict`` and updates it in
    ``epoch_end``, which may be called with any loss. In a distributed run a loss or penalty that depends on the whole
    batch is computed on the rows of all ranks, so that loss and gradient are those of one process with the joined batch
    (rank by rank with ``across_ranks=False``); a loss of single rows is averaged on each rank as usual. Keep it outside
    the model that DistributedDataParallel wraps, which would overwrite the counts of other ranks. ``debug=True`` checks
    every label and logit, which synchronises a GPU.

    Example:
        >>> criterion = Criterion("focal", {"gamma": 1.0}, penalty="mdca")
        >>> logits = torch.tensor([[2.0, 1.0, 0.1], [0.5, 2.5, 0.3]], requires_grad=True)
        >>> loss = criterion(logits, torch.tensor([0, 1]))
        >>> loss.backward()
        >>> criterion
        Criterion(focal(gamma=1.0) + 1 mdca, mean)
    """

    def __init__(
        self,
        loss: Method = "cross_entropy",
        options: Mapping[str, Any] | None = None,
        *,
        penalty: Penalties = None,
        weight: float = 1.0,
        penalty_options: Mapping[str, Any] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
        across_ranks: bool = True,
        debug: bool = False,
    ) -> None:
        super().__init__()
        if reduction not in ("mean", "sum"):
            raise ValueError(
                f"reduction must be mean or sum; got {reduction!r}. For a value a row call the loss itself."
            )
        several = isinstance(penalty, Mapping)
        if penalty_options and (penalty is None or several):
            raise ValueError("penalty_options must come with one penalty; for several, pass functools.partial objects.")
        if weight != 1 and (penalty is None or several):
            raise ValueError(f"weight must come with one penalty; got {weight}. For several, map each to its weight.")
        terms = dict(penalty) if isinstance(penalty, Mapping) else {} if penalty is None else {penalty: weight}
        terms = {term: scalars.real(times, "weight") for term, times in terms.items()}
        self.reduction, self.across_ranks, self.debug = reduction, across_ranks, debug
        self.loss = _build(LOSSES, loss, options or {})
        self.penalties = [(_build(PENALTIES, term, penalty_options or {}), times) for term, times in terms.items()]
        # a penalty that is a module moves and is saved with the rest
        self.modules_of_penalties = nn.ModuleList(term for term, _ in self.penalties if isinstance(term, nn.Module))
        self._facts = _facts_of(self.loss)
        if not across_ranks and hasattr(self.loss, "across_ranks"):
            self.loss.across_ranks = False
        said = [_description(loss, options or {})]
        said += [f"{times:g} {_description(term, penalty_options or {})}" for term, times in terms.items()]
        self._words = f"{' + '.join(said)}, {reduction}"

    @classmethod
    def preset(cls, name: str, *, k: int | None = None, reduction: Literal["mean", "sum"] = "mean") -> "Criterion":
        """Return the objective of a row of a paper's table, such as "seca-paper/mdca"; ``k`` where it is needed.

        AdaFocal's released code and that of its baselines sum losses and clip the gradient's norm at 2.

        Example:
            >>> Criterion.preset("seca-paper/mdca")
            Criterion(focal(gamma=1.0) + 1 mdca, mean)
        """
        if name not in PRESETS:
            near = nearest(name, PRESETS)
            hint = f"did you mean {near}?" if near else "see calibrant.losses.presets.PRESETS."
            raise ValueError(f"name must be a preset; got {name!r}; {hint}")
        row = PRESETS[name]
        options = dict(row.options)
        if "k" in inspect.signature(LOSSES[row.loss]).parameters:
            if k is None:
                raise ValueError(f"k must be the number of classes for the preset {name!r}; got nothing.")
            options["k"] = k
        return cls(
            row.loss,
            options,
            penalty=row.penalty,
            weight=row.weight,
            penalty_options=row.penalty_options,
            reduction=reduction,
        )

    def forward(self, logits: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the reduced loss plus penalties; ``rows`` are the indices of the rows, for a loss that needs them.

        Ranks are joined in train mode with gradients enabled; otherwise a rank may evaluate alone.
        """
        return self.valued(self.loss, logits, labels, rows)

    def valued(self, loss: Any, logits: Tensor, labels: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the same with another loss in place of the criterion's own."""
        check_batch(logits, labels)
        if self.debug:
            check_values(logits, labels)
        labels = labels.long()
        joint = bool(self._facts.get("joint"))
        together = self.across_ranks and self.training and torch.is_grad_enabled() and spread()
        together = together and (joint or bool(self.penalties))
        batch = everyone = (logits, labels)
        if together:
            everyone = (joined(logits), joined(labels))
        if len(everyone[0]) == 0:
            raise ValueError("logits must have at least one row; got an empty batch.")
        if joint:
            batch = everyone
        ranks = dist.get_world_size() if together else 1
        # each rank has its part of a loss of single rows, and the mean over ranks must be the mean over all rows
        value = loss(*batch, *self._rows(rows, together=together))
        value = value.mean() if joint or ranks == 1 else value.sum() * (ranks / len(everyone[0]))
        for penalty, times in self.penalties:
            value = value + times * penalty(*everyone)
        return value if self.reduction == "mean" else value * len(everyone[0]) / ranks

    def compile(self, **options: Any) -> None:
        """Compute value and gradient in one compiled function; ``options`` are those of `torch.compile`.

        ``torch.compile(criterion)`` compiles a forward and a backward function, and for small batches the hand-over
        between them costs more than the kernels. This pays on a GPU, for losses of many small operations; inside a
        captured CUDA graph `torch.compile` is faster. The first call compiles, and so does one with another number of
        rows. The value can be differentiated once, hooks are not called, and a loss of your own must compile with
        ``fullgraph=True`` and must not change its buffers in ``forward``. Calls without a gradient, in a distributed
        run, inside another compiled or checkpointed function, or with a loss that has trainable parameters, are not
        changed. ``au`` with the histogram of an epoch and ``correctness_ranking`` read a buffer that they update:
        `torch.compile` cannot take them as one graph, this can.

        Example:
            >>> criterion = Criterion("seca")
            >>> criterion.compile()  # compiles at the first call with a gradient
            >>> criterion(torch.tensor([[2.0, 1.0, 0.1], [0.5, 1.0, 0.2]]), torch.tensor([0, 0]))
            tensor(1.9032)
        """
        if self.debug:
            raise ValueError(
                "debug must be False for a criterion that is compiled: looking at values stops the device."
            )
        self._compiled_call_impl = compiled_call(self, options)

    def _rows(self, rows: Tensor | None, *, together: bool) -> tuple[Tensor, ...]:
        if not self.needs_rows:
            return ()
        if rows is None:
            raise ValueError("rows must be the places of the batch in the training set; this loss counts by them.")
        return (joined(rows) if together else rows,)

    @property
    def needs_validation(self) -> bool:
        """Whether ``epoch_end`` must be given a validation set."""
        return bool(self._facts.get("needs_validation"))

    @property
    def counts(self) -> bool:
        """Whether the loss, as it is set up, counts rows in its forward pass, in train mode."""
        counts = self._facts.get("counts", False)
        if isinstance(counts, Mapping):
            return all(getattr(self.loss, option) == value for option, value in counts.items())
        return bool(counts)

    @property
    def needs_rows(self) -> bool:
        """Whether the loss must be given the indices of the training rows."""
        return bool(self._facts.get("needs_rows"))

    def epoch_end(self, validation: Validation | None = None) -> None:
        """Update a loss with state after an epoch; other losses do nothing.

        ``validation`` is `Predictions` or a pair of logits and labels, made in eval mode. In a distributed run each
        rank may give its part or all of it.
        """
        if self.needs_validation:
            if validation is None:
                raise ValueError(
                    f"validation must be given: {type(self.loss).__name__} learns from it after each epoch."
                )
            confidence, correct = _confidence_and_correct(validation)
            device = next(self.loss.buffers()).device
            if self.across_ranks:
                confidence, correct = joined(confidence.to(device)), joined(correct.to(device))
            self.loss.epoch_end(confidence, correct)
        elif hasattr(self.loss, "epoch_end"):
            self.loss.epoch_end()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "Criterion":  # noqa: FBT001, FBT002
        """Follow the model's device, but stay in full precision: in bfloat16 a count stops at 256."""

        def kept(values: Tensor) -> Tensor:
            found = fn(values)
            return values.to(found.device) if found.dtype in (torch.float16, torch.bfloat16) else found

        super()._apply(kept, recurse)  # type: ignore[no-untyped-call]
        return self

    @property
    def history(self) -> Curve | None:
        """The history of the loss by epoch (AdaFocal: power and error of each bin), or None."""
        return getattr(self.loss, "history", None)

    def __repr__(self) -> str:
        return f"Criterion({self._words})"


def _confidence_and_correct(validation: Validation) -> tuple[Confidence, Correct]:
    """Return confidence and correctness of a validation set; a rank's part may be empty."""
    if isinstance(validation, tuple) and len(validation[0]) == 0:
        return torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.bool)
    found = (
        validation if isinstance(validation, Predictions) else Predictions(logits=validation[0], labels=validation[1])
    )
    return found.confidence, found.correct


def _build(registry: Registry, method: Method, options: Mapping[str, Any]) -> Any:
    """Return a loss or penalty as a function or module of a batch, with its options."""
    if not isinstance(method, str):
        if options:
            raise ValueError(
                "options must come with the name of a method; bind those of a function by functools.partial."
            )
        if not callable(method):
            raise TypeError(f"a {registry.kind} must be a name or a function of logits and labels; got {method!r}.")
        return method
    if method in PENALTIES and method not in registry:
        raise ValueError(f"loss must be a loss; {method!r} is a penalty: Criterion(penalty={method!r}).")
    found = registry[method]
    parameters = {
        name: p for name, p in inspect.signature(found).parameters.items() if name not in ("logits", "labels")
    }
    for option in options:
        if option not in parameters:
            raise ValueError(f"options of {method!r} must be among {', '.join(parameters) or 'none'}; got {option!r}.")
    for name, parameter in parameters.items():
        if inspect.isclass(found) and parameter.default is parameter.empty and name not in options:
            raise ValueError(f"options of {method!r} must have {name!r}; got {dict(options)}.")
    options = {name: scalars.option(value, name, parameters[name].annotation) for name, value in options.items()}
    try:
        if inspect.isclass(found):
            return found(**options)
        bound = partial(found, **options) if options else found
        bound(torch.zeros(2, 3), torch.tensor([0, 1]))  # raises for a wrong value now, not in the first step
    except (TypeError, RuntimeError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split()).rstrip(".")[:200]
        raise ValueError(f"options of {method!r} must be numbers and words as in its signature; {reason}.") from None
    return bound


def _facts_of(method: Any) -> dict[str, Any]:
    """Return the registered facts of a loss, or of the registered class that it extends."""
    bare = getattr(method, "func", method)
    for entry in LOSSES.entries():
        if bare is entry.method or (inspect.isclass(entry.method) and isinstance(method, entry.method)):
            return dict(entry.facts)
    return {}


def _description(method: Method, options: Mapping[str, Any]) -> str:
    """Return the name of a method with its options."""
    name = method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)
    return f"{name}({', '.join(f'{k}={v!r}' for k, v in options.items())})" if options else name
