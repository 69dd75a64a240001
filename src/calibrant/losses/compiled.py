"""A criterion -> one compiled function for value and gradient, instead of one forth and another back."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.func import grad_and_value

from calibrant.losses.distributed import spread
from calibrant.losses.functional import check_shapes, taken_apart
from calibrant.predictions.types import widened


def fused(criterion: Any, options: Mapping[str, Any]) -> Callable[..., Tensor]:
    """Return what `Criterion.compile` puts in the place of a call; ``options`` are those of `torch.compile`.

    A loss that counts may not do so while it is differentiated. It is differentiated in eval mode, where nothing is
    counted and its value is the same, by another on the same tensors; then it is called again for what it counts, and
    whatever else that computes is left out by the compiler.
    """
    loss = criterion.loss
    resting = object.__new__(type(loss)) if isinstance(loss, torch.nn.Module) else loss

    def both(logits: Tensor, labels: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        one = resting if criterion.counts else loss
        gradient, value = grad_and_value(lambda z: criterion.valued(one, z, labels, *rows))(logits)
        if criterion.counts and loss.training:
            loss(logits, labels, *rows)
        return gradient, value

    both.__code__ = both.__code__.replace()  # torch gives up after eight versions of the same code
    quick = torch.compile(both, **_settings(options))

    def call(logits: Any, labels: Any, rows: Tensor | None = None) -> Tensor:
        check_shapes(logits, labels)
        wrong = len(logits) == 0 or (rows is None and criterion.needs_rows)  # said best where nothing is compiled
        if wrong or criterion.loss is not loss or _learns(criterion) or not _alone(logits):
            return criterion.forward(logits, labels, rows)
        if criterion.counts:
            vars(resting).update(vars(loss), training=False)
        return _Known.apply(quick, logits, labels, rows)  # type: ignore[no-untyped-call]

    return call


def _settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with one more step for torch's own backend: what stands twice is computed once.

    A loss and its penalty both begin with a softmax. Where `torch.compile` differentiates by itself it finds that out;
    what is already differentiated it takes as it stands.
    """
    if options.get("backend", "inductor") != "inductor" or (options.get("mode") and options.get("options")):
        return {"fullgraph": True, **options}  # mode and options together torch refuses, and says so best
    from torch._inductor import custom_graph_pass, list_mode_options  # takes seconds, so not before it is needed

    class Once(custom_graph_pass.CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            _once(graph)

        def uuid(self) -> Any:  # of what torch keeps on disk
            return custom_graph_pass.get_hash_for_files((__file__,))

    mode = options.get("mode")
    chosen = list_mode_options(mode) if mode and mode != "default" else options.get("options") or {}
    rest = {name: value for name, value in options.items() if name not in ("mode", "options")}
    return {"fullgraph": True, **rest, "options": {"joint_custom_pre_pass": Once(), **chosen}}


def _once(graph: torch.fx.Graph) -> None:
    """Let the second of two equal steps take the value of the first, in a graph whose steps change nothing."""
    seen: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        # constants are left alone: torch makes more of a scatter onto zeros that nobody else reads
        if node.all_input_nodes and isinstance(node.target, OpOverload) and _pure(node.target):
            same = node.args[0] if node.target is torch.ops.aten.alias.default else node
            first = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), same)
            if first is not node:
                node.replace_all_uses_with(first, lambda user: user.op != "output")
    graph.eliminate_dead_code()


def _pure(operation: OpOverload) -> bool:
    return not operation._schema.is_mutable and torch.Tag.nondeterministic_seeded not in operation.tags


def _learns(criterion: Any) -> bool:
    """Return whether a gradient has to reach a parameter; most have none, and to walk through modules takes time."""
    of_loss = isinstance(criterion.loss, torch.nn.Module) and (criterion.loss._parameters or criterion.loss._modules)
    return bool(of_loss or criterion.modules_of_penalties) and any(p.requires_grad for p in criterion.parameters())


def _alone(logits: Tensor) -> bool:
    """Return whether the gradient of these logits is wanted, and nothing else has a part in it."""
    # by a checkpoint, say: what torch.func differentiates can be watched by nobody
    watched = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None  # noqa: FBT003
    return torch.is_grad_enabled() and logits.requires_grad and not (watched or taken_apart() or spread())


class _Known(torch.autograd.Function):
    """A value found together with its gradient, which waits in full precision."""

    @staticmethod
    def forward(
        ctx: Any, quick: Callable[..., tuple[Tensor, Tensor]], logits: Tensor, labels: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Return the value, and keep the gradient for later."""
        given = logits if type(logits) is Tensor else logits.detach()  # of a parameter torch compiles every size
        gradient, value = quick(widened(given), labels, *(() if rows is None else (rows,)))
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        """Scale it before it is cast: a loss scaled for half precision may be large."""
        if torch.is_grad_enabled():
            raise RuntimeError("a compiled criterion can be differentiated once; for create_graph=True compile none.")
        return None, (grad * ctx.saved_tensors[0]).to(ctx.dtype), None, None
