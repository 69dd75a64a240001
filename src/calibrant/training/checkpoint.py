"""The state of a run -> one file, whole or not at all, and back. No pickle."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as bytes_of
from torch import Tensor

from calibrant.writing import write_whole

KEY = "calibrant"
VERSION = 1


def write(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and what is known beside them; a process killed at any point leaves the old file or the new one."""
    held = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
    write_whole(bytes_of(held, {KEY: json.dumps({"version": VERSION, **facts})}), path)


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
