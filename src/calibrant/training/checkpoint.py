"""The state of a run -> one file, whole or not at all, and back. No pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as bytes_of
from torch import Tensor

from calibrant.io.atomic import write_whole

KEY = "calibrant"
VERSION = 1


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and what is known beside them; a process killed at any point leaves the old file or the new one."""
    write_whole(bytes_of(_on_host(tensors), {KEY: json.dumps({"version": VERSION, **facts})}), path)


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `write` wrote; anything else is refused in one sentence."""
    try:
        with safe_open(path, "pt") as file:
            facts = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  it is no mapping
    except (SafetensorError, KeyError, ValueError, RuntimeError):
        raise ValueError(f"{path} must be a checkpoint of calibrant; it is damaged, or something else.") from None
    if facts.get("version") != VERSION:
        raise ValueError(f"{path} must be of version {VERSION}; got {facts.get('version')!r}.")
    return tensors, facts


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU, fetched with one wait for each type, not for each of hundreds of tensors."""
    found: dict[str, Tensor] = {}
    for kind in {(value.dtype, value.device) for value in tensors.values()}:
        some = {name: value.detach() for name, value in tensors.items() if (value.dtype, value.device) == kind}
        flat = torch.cat([value.reshape(-1) for value in some.values()]).cpu()
        parts = flat.split([value.numel() for value in some.values()])
        found |= {name: part.view(value.shape).clone() for (name, value), part in zip(some.items(), parts, strict=True)}
    return {name: found[name] for name in tensors}
