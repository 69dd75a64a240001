"""From training data to a page, in one read: a small network learns digits too well, and the audit says so."""

import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import calibrant as cb


def overtrained_logits(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Train a small network on few, noisy digits until it is sure of everything; return held-out logits and labels."""
    generator = torch.Generator().manual_seed(seed)
    data = load_digits()
    pixels = torch.from_numpy(data.images).flatten(1).float() / 16
    pixels = pixels + 0.35 * torch.randn(pixels.shape, generator=generator)
    labels = torch.from_numpy(data.target)
    order = torch.randperm(len(labels), generator=generator)
    train, held_out = order[:400], order[400:]
    torch.manual_seed(seed)
    network = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(300):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(network(pixels[train]), labels[train]).backward()
        optimiser.step()
    with torch.no_grad():
        return network(pixels[held_out]).numpy(), labels[held_out].numpy()


def main(folder: Path) -> None:
    """Write predictions and the page into a folder, and print the audit."""
    folder.mkdir(exist_ok=True)
    logits, labels = overtrained_logits()
    np.savez(folder / "predictions.npz", logits=logits, labels=labels)
    audit = cb.audit(cb.Predictions(logits=logits, labels=labels))
    audit.save(folder / "report.html")
    print(audit)
    print(f"written: {folder / 'predictions.npz'}, {folder / 'report.html'}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("demo"))
