"""`Criterion.compile`: value and gradient of a criterion as one compiled function.

`torch.compile(criterion)` compiles a forward and a backward function with autograd between them, and on small batches
that hand-over costs more than the kernels. Here `torch.func.grad_and_value` of the criterion is compiled as one
function, and an autograd function passes the finished gradient on. `torch.compile` runs common-subexpression
elimination (CSE) only on graphs that it differentiates itself, so the pass is added: a loss and its penalty share one
softmax.

Measured ratios are in results/losses.md: 0.71 to 0.88 of the time of `torch.compile(criterion)` on a GPU (torch 2.11)
and 0.76 to 0.96 on a CPU (torch 2.13); without CSE 0.72 to 1.02 and 0.82 to 1.18. Inside a captured CUDA graph there is
no hand-over, and `torch.compile(criterion)` is the faster one.

Private names of torch, and what happens without them:

- ``torch._inductor``: `custom_graph_pass` and the option ``joint_custom_pre_pass`` run the CSE pass, and
  `list_mode_options` spells out a ``mode``, which torch does not take together with options. Without them: no CSE.
- ``torch._C._are_functorch_transforms_active`` (in `losses.functional`): without it the losses with a hand-written
  gradient raise torch's own error inside of `torch.func`.

Torch stops compiling after eight variants of one code object, so each compiled criterion gets a copy of its own.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad_and_value

from calibrant.losses.distributed import spread
from calibrant.losses.functional import check_batch, transformed
from calibrant.predictions.types import widened


def compiled_call(criterion: Any, options: Mapping[str, Any]) -> Callable[..., Tensor]:
    """Return the function that replaces a criterion's call; ``options`` are those of `torch.compile`.

    A loss that counts rows must not count while it is differentiated. An eval-mode twin on the same tensors, which
    counts nothing and has the same value, is differentiated instead; then the loss itself is called for its counts,
    and the compiler removes what that call computes besides.
    """
    loss = criterion.loss
    twin = object.__new__(type(loss)) if isinstance(loss, torch.nn.Module) else loss

    def both(logits: Tensor, labels: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
        differentiated = twin if criterion.counts else loss
        gradient, value = grad_and_value(lambda z: criterion.valued(differentiated, z, labels, *rows))(logits)
        if criterion.counts and loss.training:
            loss(logits, labels, *rows)
        return gradient, value

    both.__code__ = both.__code__.replace()  # the limit of eight variants counts by code object
    quick = torch.compile(both, **_with_cse(options))

    def call(logits: Any, labels: Any, rows: Tensor | None = None) -> Tensor:
        check_batch(logits, labels)
        wrong = len(logits) == 0 or (rows is None and criterion.needs_rows)  # eager raises the clearer error
        if wrong or criterion.loss is not loss or not _applies(criterion, logits):
            return criterion.forward(logits, labels, rows)
        if criterion.counts:
            vars(twin).update(vars(loss), training=False)
        return _WithGradient.apply(quick, logits, labels, rows)  # type: ignore[no-untyped-call]

    return call


def _with_cse(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `torch.compile` with the CSE pass, where inductor is the backend."""
    plain, mode = {"fullgraph": True, **options}, options.get("mode")
    if options.get("backend", "inductor") != "inductor" or (mode and options.get("options")):
        return plain  # torch refuses mode together with options, and says so
    try:
        from torch._inductor import custom_graph_pass, list_mode_options, list_options  # seconds: only when needed
    except ImportError:
        return plain
    if "joint_custom_pre_pass" not in list_options():
        return plain

    class Pass(custom_graph_pass.CustomGraphPass):
        def __call__(self, graph: torch.fx.Graph) -> None:
            eliminate_common_subexpressions(graph)

        def uuid(self) -> Any:  # the key of the compiled code on disk
            return custom_graph_pass.get_hash_for_files((__file__,))

    chosen = list_mode_options(mode) if mode else options.get("options") or {}
    rest = {name: value for name, value in plain.items() if name != "mode"}
    return {**rest, "options": {"joint_custom_pre_pass": Pass(), **chosen}}


def eliminate_common_subexpressions(graph: torch.fx.Graph) -> None:
    """Replace repeated operations by the first of them, in a functional graph."""
    seen: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        # constants are left alone: torch fuses a scatter onto zeros only if nothing else reads the zeros
        if node.op == "call_function" and node.all_input_nodes and not node.is_impure():
            same = node.args[0] if node.target is torch.ops.aten.alias.default else node
            first = seen.setdefault((node.target, repr(node.args), repr(node.kwargs)), same)
            if first is not node:
                node.replace_all_uses_with(first, lambda user: user.op != "output")
    graph.eliminate_dead_code()


def _applies(criterion: Any, logits: Tensor) -> bool:
    """Return whether the gradient of the logits, and nothing else, is wanted from this call."""
    if not (torch.is_grad_enabled() and logits.requires_grad) or transformed() or spread():
        return False
    return not any(p.requires_grad for p in criterion.parameters()) and not _hooked()


def _hooked() -> bool:
    """Return whether saved tensors are intercepted, by a checkpoint say, which `torch.func` does not support."""
    try:
        with torch.autograd.graph.disable_saved_tensors_hooks(""):  # raises where hooks are in place
            return False
    except RuntimeError:
        return True


class _WithGradient(torch.autograd.Function):
    """A value computed together with its gradient, which is kept in full precision for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, quick: Callable[..., tuple[Tensor, Tensor]], logits: Tensor, labels: Tensor, rows: Tensor | None
    ) -> Tensor:
        """Return the value and save the gradient."""
        given = logits if type(logits) is Tensor else logits.detach()  # a Parameter's shape is never made dynamic
        gradient, value = quick(widened(given), labels, *(() if rows is None else (rows,)))
        ctx.save_for_backward(gradient)
        ctx.dtype = logits.dtype
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor, None, None]:
        """Scale before casting: the loss scale of half precision may be large."""
        if torch.is_grad_enabled():
            raise RuntimeError("a compiled criterion can be differentiated once; for create_graph=True compile none.")
        return None, (grad * ctx.saved_tensors[0]).to(ctx.dtype), None, None
