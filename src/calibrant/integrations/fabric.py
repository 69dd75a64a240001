"""Run the training loop with the accelerators and strategies of Lightning Fabric."""

from contextlib import AbstractContextManager
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from calibrant.training.device import Placement


class FabricPlacement(Placement):
    """Placement by Fabric: ``train(recipe, folder, device=FabricPlacement(fabric))`` after ``fabric.launch()``.

    Fabric wraps the model and the optimiser, casts, and runs the backward pass; the ranks share each batch as under
    torchrun. Steps are not captured as CUDA graphs, which the wrappers prevent, and BatchNorm is not synchronised over
    ranks. Strategies must keep all weights on each rank, because rank 0 writes the checkpoint, and precisions must keep
    them in float32 ("32-true", "bf16-mixed", "16-mixed").

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
        """Return the model unchanged."""
        return model

    def prepare(self, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return model and optimiser, wrapped by Fabric."""
        return self.fabric.setup(model, optimiser)

    def autocast(self) -> AbstractContextManager[Any]:
        """Return Fabric's autocast."""
        return self.fabric.autocast()

    def backward(self, value: Tensor) -> None:
        """Run the backward pass of the strategy."""
        self.fabric.backward(value)

    def clip(self, model: nn.Module, optimiser: torch.optim.Optimizer, limit: float) -> None:
        """Clip the gradient norm, after Fabric has unscaled the gradients."""
        self.fabric.clip_gradients(model, optimiser, max_norm=limit)
