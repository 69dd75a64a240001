"""Checkpoints: the state of model, optimiser and criterion as named tensors, in a sealed safetensors file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_of
from torch import Tensor, nn

from calibrant.io.atomic import write_whole
from calibrant.io.entries import parsed
from calibrant.io.sealed import KEY, UNSEALED, check_seal, seal

VERSION = 2  # 1 had no digest


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata, sealed and atomically: a killed process leaves the old file or the new one."""
    record = json.dumps({"version": VERSION, "digest": UNSEALED, **facts})
    write_whole(seal(_on_host(tensors), record), path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote; anything else is a ValueError."""
    blob = path.read_bytes()
    try:
        header = parsed(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        facts = parsed(header["__metadata__"][KEY])
        tensors, version = tensors_of(blob), facts.get("version")
    except (SafetensorError, LookupError, TypeError, ValueError, AttributeError, RuntimeError):
        raise ValueError(f"{path} must be a checkpoint of calibrant; it is damaged, or something else.") from None
    if version not in (1, VERSION):
        raise ValueError(f"{path} must be of version 1 or {VERSION}; got {version!r:.100}.")
    if version == VERSION:
        check_seal(blob, facts.get("digest"), path)
    return tensors, facts


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU, with one device transfer per dtype instead of one per tensor."""
    found: dict[str, Tensor] = {}
    for kind in {(value.dtype, value.device) for value in tensors.values()}:
        some = {name: value.detach() for name, value in tensors.items() if (value.dtype, value.device) == kind}
        flat = torch.cat([value.reshape(-1) for value in some.values()]).cpu()
        parts = flat.split([value.numel() for value in some.values()])
        found |= {name: part.view(value.shape).clone() for (name, value), part in zip(some.items(), parts, strict=True)}
    return {name: found[name] for name in tensors}


def gathered(model: nn.Module, optimiser: torch.optim.Optimizer, criterion: nn.Module) -> dict[str, Tensor]:
    """Return every tensor that the next step depends on, by name and without copying."""
    found = {f"model.{name}": value for name, value in model.state_dict().items()}
    found |= {f"criterion.{name}": value for name, value in criterion.state_dict().items()}
    for place, weights in enumerate(_weights(optimiser)):
        kept = optimiser.state.get(weights, {})
        found |= {f"optimiser.{place}.{name}": value for name, value in kept.items() if isinstance(value, Tensor)}
    return found


def part(tensors: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """Return the tensors whose name starts with ``name.``, without that prefix."""
    return {key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")}


@torch.no_grad()
def restored(
    tensors: Mapping[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer, criterion: nn.Module
) -> None:
    """Restore the tensors, in place where they exist already, because a captured CUDA graph reads that memory.

    Optimiser state that is missing from ``tensors`` did not exist yet when they were saved: it is set to 0.
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
                own[name] = torch.empty_like(weights).copy_(
                    value
                )  # the memory format of the weights: a fused step relies on it
            else:
                own[name] = value.to(weights.device, copy=True)
        for name, value in own.items():
            if isinstance(value, Tensor) and f"{place}.{name}" not in saved:
                value.zero_()


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies, detached from training."""
    return {name: value.detach().clone() for name, value in tensors.items()}


def _weights(optimiser: torch.optim.Optimizer) -> list[Tensor]:
    return [weights for group in optimiser.param_groups for weights in group["params"]]
