"""One rank of a run: `torchrun --nproc-per-node 2 training_rank.py FOLDER`."""

import sys
from pathlib import Path

from training_recipes import RECIPES

from calibrant.training.train import together, train

if __name__ == "__main__":
    home = Path(sys.argv[1])
    done = together({home / name: recipe for name, recipe in RECIPES.items()}, device="cpu")
    assert all(len(run.test) == 600 for run in done)  # what rank 0 wrote can be read by every rank
    for seed in range(4):  # one call after another
        train(RECIPES["rows"].changed({"seed": seed, "epochs": 1}), home / f"again-{seed}", device="cpu")
