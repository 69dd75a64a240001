"""A run over two processes of Lightning Fabric: `python fabric_rank.py FOLDER`."""

import sys
from pathlib import Path

from lightning.fabric import Fabric
from training_recipes import RECIPES

from calibrant.integrations.fabric import FabricPlacement
from calibrant.training.train import together

if __name__ == "__main__":
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    runs = {Path(sys.argv[1]) / name: recipe for name, recipe in RECIPES.items()}
    together(runs, device=FabricPlacement(fabric))
