"""Device placement: a single device, or one rank of a distributed run under torchrun."""

import atexit
import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Placement:
    """One process: a GPU if there is one, else the CPU; under torchrun, the GPU of this rank.

    The ranks of a run share each batch, so that it is the same batch as in one process; gradients are averaged, and
    BatchNorm is synchronised on GPUs (torch cannot do so on CPUs, where each rank normalises its own part). A subclass
    can replace it; `calibrant.integrations.fabric` has one for Lightning Fabric.
    """

    captures = True  # on a single GPU a step can be captured as a CUDA graph

    def __init__(self, device: str | torch.device | None = None) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            self.device = torch.device(chosen)
        except RuntimeError:
            raise ValueError(f"device must be cpu or cuda; got {str(chosen)!r}.") from None
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise ValueError(f"device must be one that is there; got {str(chosen)!r}, and torch sees no GPU.")
            here = int(os.environ.get("LOCAL_RANK", 0)) if self.world > 1 else self.device.index or 0
            self.device = torch.device("cuda", here)

    def share(self, n: int) -> slice:
        """Return the slice of n rows that belongs to this rank; the last ranks may have fewer."""
        each = -(-n // self.world)
        return slice(min(n, self.rank * each), min(n, (self.rank + 1) * each))

    def prepare(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return model and optimiser for training, the model in DistributedDataParallel if there are several ranks."""
        if self.world == 1:
            return model, optimiser
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(model, device_ids=ids), optimiser

    def normalising(self, model: nn.Module) -> nn.Module:
        """Synchronise BatchNorm over ranks, where torch can."""
        together = self.world > 1 and self.device.type == "cuda"
        return nn.SyncBatchNorm.convert_sync_batchnorm(model) if together else model

    def autocast(self) -> AbstractContextManager[Any]:
        """Return bfloat16 autocast on a GPU, float32 elsewhere."""
        return torch.autocast("cuda", torch.bfloat16) if self.device.type == "cuda" else nullcontext()

    def backward(self, value: Tensor) -> None:
        """Run the backward pass."""
        value.backward()

    def clip(self, model: nn.Module, optimiser: torch.optim.Optimizer, limit: float) -> None:
        """Clip the gradient norm."""
        nn.utils.clip_grad_norm_(model.parameters(), limit)

    def wait(self) -> None:
        """Wait for the other ranks."""
        if self.world > 1:
            dist.barrier()


def join_ranks() -> None:
    """Join the process group if torchrun started this process; only once, because groups made in a row can hang."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1 or dist.is_initialized():
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    atexit.register(dist.destroy_process_group)
