"""Model, optimiser and criterion -> named tensors, and back."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


def gathered(model: nn.Module, optimiser: torch.optim.Optimizer, criterion: nn.Module) -> dict[str, Tensor]:
    """Return every tensor that the next step depends on, under its name; they are the tensors themselves."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    found |= {f"criterion.{name}": value for name, value in criterion.state_dict().items()}
    for place, weights in enumerate(_weights(optimiser)):
        kept = optimiser.state.get(weights, {})
        found |= {f"optimiser.{place}.{name}": value for name, value in kept.items() if isinstance(value, Tensor)}
    return found


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors of one part, by their names in it."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


@torch.no_grad()
def restored(
    tensors: Mapping[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer, criterion: nn.Module
) -> None:
    """Put the tensors back, into memory that exists already where it does: a captured graph reads that memory.

    What an optimiser has gathered and the tensors do not name did not exist then: it becomes 0.
    """
    model.load_state_dict(part(tensors, "model"))
    criterion.load_state_dict(part(tensors, "criterion"))
    saved = part(tensors, "optimiser")
    for place, weights in enumerate(_weights(optimiser)):
        own = optimiser.state[weights]
        for name, value in part(saved, str(place)).items():
            if isinstance(own.get(name), Tensor):
                own[name].copy_(value)
            elif value.shape == weights.shape:
                own[name] = torch.empty_like(weights).copy_(value)  # laid out as the weights: a fused step relies on it
            else:
                own[name] = value.to(weights.device, copy=True)
        for name, value in own.items():
            if isinstance(value, Tensor) and f"{place}.{name}" not in saved:
                value.zero_()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that later steps leave alone."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def _weights(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [weights for group in optimiser.param_groups for weights in group["params"]]
