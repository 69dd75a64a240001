"""One rank of a run: `torchrun --nproc-per-node 2 training_rank.py FOLDER`. Writes the history of each recipe."""

import sys
from pathlib import Path

from training_recipes import RECIPES

from calibrant.training.running import together

together({Path(sys.argv[1]) / name: recipe for name, recipe in RECIPES.items()}, device="cpu")
