"""Training placed by Lightning Fabric: its accelerators and strategies under the same loop."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from calibrant.training.device import Placement


class FabricPlacement(Placement):
    """Where Fabric says: ``train(recipe, folder, device=FabricPlacement(fabric))`` after ``fabric.launch()``.

    Fabric wraps the model and the optimiser, casts, and finds the gradients; the ranks share each batch as under
    torchrun. A step is not captured as a CUDA graph, because the wrappers stand in the way; nor is BatchNorm joined
    over ranks. Strategies must keep all weights on each rank, for rank 0 writes the checkpoint, and precisions must
    keep them in float32 ("32-true", "bf16-mixed", "16-mixed").

    Example:
        >>> import tempfile
        >>> from calibrant.training.recipe import Recipe
        >>> from calibrant.training.train import train
        >>> place = FabricPlacement(Fabric(accelerator="cpu", devices=1))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(train(Recipe("digits", "mlp", 1, 0.1), folder, device=place).history)
        1
    """

    captures = False

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.rank, self.world, self.device = fabric.global_rank, fabric.world_size, fabric.device

    def normalising(self, model: nn.Module) -> nn.Module:
        """Leave BatchNorm as it is."""
        return model

    def prepare(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return both as Fabric wraps them."""
        return self.fabric.setup(model, optimiser)

    def autocast(self) -> AbstractContextManager[Any]:
        """Compute in the precision of the Fabric."""
        return self.fabric.autocast()

    def backward(self, value: Tensor) -> None:
        """Find the gradient as the strategy does."""
        self.fabric.backward(value)

    def clip(self, model: nn.Module, optimiser: torch.optim.Optimizer, limit: float) -> None:
        """Cut the norm of the gradient, once Fabric has undone its scaling."""
        self.fabric.clip_gradients(model, optimiser, max_norm=limit)
