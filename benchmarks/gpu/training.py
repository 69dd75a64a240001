"""On a GPU: a captured step learns what an eager one learns, alone, among others, compiled, and after a restart.

Prints the largest relative difference of the training loss over epochs, per objective, and fails above a hundredth:
bfloat16 has three digits, and training amplifies rounding.

    python benchmarks/gpu/training.py [LOSS ...]
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.recipe import Recipe
from calibrant.training.train import together, train

LOSSES = ("cross_entropy", "seca", "ada_focal", "online_label_smoothing", "correctness_ranking", "au", "mmce")
LIMIT = 1e-2


def data():
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 10
    means = torch.randint(60, 190, (10, 3, 4, 4), generator=g).repeat_interleave(8, 2).repeat_interleave(8, 3)
    images = (means[labels] + 40 * torch.randn(3000, 3, 32, 32, generator=g)).clamp(0, 255).byte()
    return Dataset(
        "blobs", Part(images[:2500], labels[:2500]), Part(images[2500:], labels[2500:]), tuple("0123456789"),
        (0.5,) * 3, (0.25,) * 3,
    )  # fmt: skip


def losses(run):
    return torch.tensor([epoch["loss"] for epoch in run.facts["history"]])


def main():
    source, failed, device = data(), [], "cuda" if torch.cuda.is_available() else "cpu"
    cuda = device == "cuda"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        recipes = {
            name: Recipe(
                "blobs", "resnet20", 3, 0.02, loss=name, augment="crop_flip", validation=500, select="accuracy",
                momentum=0.9, weight_decay=5e-4,
            )
            for name in sys.argv[1:] or LOSSES
        }  # fmt: skip
        among = together({home / f"{n}-among": r for n, r in recipes.items()}, data=source, device=device)
        for (name, recipe), other in zip(recipes.items(), among, strict=True):
            start = time.monotonic()
            eager = losses(train(recipe, home / f"{name}-eager", data=source, device=device, graph=False))
            ways = {"among others": losses(other)}
            ways["graph"] = losses(train(recipe, home / f"{name}-graph", data=source, device=device, graph=cuda))
            if name in ("cross_entropy", "ada_focal"):
                compiled = train(recipe, home / f"{name}-compiled", data=source, device=device, compiled=True)
                ways["compiled"] = losses(compiled)
            ways["restarted"] = losses(restarted(recipe, home / f"{name}-restarted", source, device))
            off = {way: float(((found - eager) / eager).abs().max()) for way, found in ways.items()}
            print(name, {way: f"{value:.1e}" for way, value in off.items()}, f"{time.monotonic() - start:.0f} s")
            failed += [f"{name}, {way}" for way, value in off.items() if not value <= LIMIT]
    sys.exit(f"too different: {failed}" if failed else 0)


def restarted(recipe, folder, source, device):
    """Return a run that was broken off after two epochs."""

    class Broken(Exception):
        pass

    def broken(epoch):
        if epoch["epoch"] == 2:
            raise Broken

    try:
        train(recipe, folder, data=source, device=device, on_epoch=broken)
    except Broken:
        return train(recipe, folder, data=source, device=device)
    raise RuntimeError("it should have been broken off")


if __name__ == "__main__":
    main()
