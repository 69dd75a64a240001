"""What losses and penalties add to a whole training step on a GPU: forward, loss, backward, SGD with momentum.

1. ResNet-32 for CIFAR, batch 128, 10 and 100 classes, bfloat16 autocast, channels last: the step as one CUDA graph with
   the criterion inside (as it is, and compiled), and eager.
2. ViT-S/16, batch 128 at 224 x 224, 1000 classes, bfloat16 autocast, the same two graphs.

A cell is the median over rounds of a step's time over that of `F.cross_entropy` in the same round, less 1, with the
quartiles behind it; contenders take turns. `F.cross_entropy` stands there a second time: what it shows is noise. Goals:
in a graph SECA adds at most 2 %, each other at most 5 %; mmce and kde_ece compare all pairs of rows and have none, and
an eager step of a small network is as slow as the machine's processor happens to be.

    python benchmarks/speed/training_step.py --device cuda --workers 14 --out training_step.json
    python benchmarks/speed/training_step.py --table training_step.json

On a CPU everything is tiny and the numbers mean nothing: it shows that the script runs.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import contenders
import torch
import torch.nn.functional as F
from contenders import AGAIN, PAIRWISE, REFERENCE, Book, Known, captured, compiled, made, said, targets
from torch import nn

# network, mode, classes; what matters most comes first
SECTIONS = [
    ("ResNet-32", "graph", 10),
    ("ResNet-32", "graph", 100),
    ("ViT-S", "graph", 1000),
    ("ResNet-32", "compiled criterion in the graph", 10),
    ("ResNet-32", "compiled criterion in the graph", 100),
    ("ViT-S", "compiled criterion in the graph", 1000),
    ("ResNet-32", "eager", 10),
]


class Block(nn.Module):
    """Two convolutions and a shortcut without parameters: every second pixel, zeros for new channels."""

    def __init__(self, width, out, stride):
        super().__init__()
        self.first = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(out) for _ in range(2))
        self.stride, self.more = stride, out - width

    def forward(self, x):
        """Return the features of the next block."""
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        if self.more:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(x + y)


def resnet(k, blocks):
    """Return the CIFAR network of three stages (He et al., 2016); five blocks each make ResNet-32."""
    layers, width = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()], 16
    for out in (16, 32, 64):
        for place in range(blocks):
            layers.append(Block(width, out, 2 if place == 0 and out > 16 else 1))
            width = out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, k))


class Transformer(nn.Module):
    """A plain vision transformer, for where timm is missing."""

    def __init__(self, k, *, image=224, width=384, depth=12, heads=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.places = nn.Parameter(0.02 * torch.randn((image // 16) ** 2, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, k)

    def forward(self, images):
        """Return logits."""
        return self.head(self.encoder(self.patches(images).flatten(2).mT + self.places).mean(1))


def vit(k):
    try:
        import timm
    except ImportError:
        print("timm is missing: a plain transformer of the same size", flush=True)
        return Transformer(k)
    return timm.create_model("vit_small_patch16_224", num_classes=k)


def network(name, k, device):
    """Return a model and the side of its images; tiny ones on a CPU."""
    if name == "ResNet-32":
        return (resnet(k, 5), 32) if device == "cuda" else (resnet(k, 1), 8)
    return (vit(k), 224) if device == "cuda" else (Transformer(k, image=32, width=16, depth=1, heads=2), 32)


def in_section(name, mode, k, options, book, failed):
    """Time the step of one model with every criterion; they share the model, which moves by next to nothing."""
    device, n = options.device, options.batch
    model, side = network(name, k, device)
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, weight_decay=5e-4, fused=True)
    images = torch.randn(n, 3, side, side, device=device).to(memory_format=torch.channels_last)
    forward = model

    def maker(loss):
        def make():
            if "compiled" in mode and (loss, n, k, device, True) in failed:
                raise Known(failed[loss, n, k, device, True])
            criterion, rest = made(loss, k, device), targets(loss, n, k, device)
            criterion = compiled(criterion, options.backend) if "compiled" in mode else criterion

            def step():
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device, torch.bfloat16):
                    value = criterion(forward(images), *rest)
                value.backward()
                optimizer.step()

            return captured(step) if "graph" in mode else step

        return make

    start, at = time.monotonic(), {"mode": f"{name}, {mode}", "size": str(k)}
    try:  # if the model itself fails there is no point in 25 criteria
        with torch.autocast(device, torch.bfloat16):
            forward(images).sum().backward()
    except Exception as error:
        book.add(at, REFERENCE, error=f"the model fails: {said(error)}")
        return
    book.measure(at, {loss: maker(loss) for loss in contenders.names(options.names)}, options, turn=0.03)
    weights = "finite" if all(bool(p.isfinite().all()) for p in model.parameters()) else "not finite"
    print(f"{name}, {mode}, {k}: {time.monotonic() - start:.0f} s, weights {weights}", flush=True)
    torch._dynamo.reset()


def goal(name):
    return None if name in (AGAIN, *PAIRWISE) else 2 if name == "seca" else 5


def table(data):
    """Print a table: rows are contenders, columns models, cells percent over cross-entropy."""
    columns = list(dict.fromkeys((cell["mode"], cell["size"]) for cell in data["cells"]))
    rounds = {(cell["mode"], cell["size"], cell["name"]): cell["seconds"] for cell in data["cells"]}
    print(f"\n{data['about']}\n\n| percent | {' | '.join(f'{m}, {k}' for m, k in columns)} | goal |")
    print(f"|---|{'---:|' * len(columns)}---|")
    steps = [rounds.get((*column, REFERENCE)) for column in columns]
    milli = [f"{1e3 * statistics.median(taken):.3f}" if taken else "none" for taken in steps]
    print(f"| {REFERENCE}, milliseconds | {' | '.join(milli)} | |")
    for name in [name for name in contenders.names() if name != REFERENCE and any(name == key[2] for key in rounds)]:
        limits = [None if c[0].endswith("eager") else goal(name) for c in columns]
        cells = [over(rounds.get((*c, name)), steps[i], limits[i]) for i, c in enumerate(columns)]
        print(f"| {name} | {' | '.join(cells)} | {f'at most {goal(name)}' if goal(name) else ''} |")
    for why in dict.fromkeys(cell["error"] for cell in data["cells"] if cell["error"]):
        where = [f"{c['name']} ({c['mode']}, {c['size']})" for c in data["cells"] if c["error"] == why]
        print(f"\n- {why}: {', '.join(where)}")


def over(taken, reference, limit):
    if not taken or not reference:
        return "none"
    percent = [100 * (ours / theirs - 1) for ours, theirs in zip(taken, reference, strict=False)]
    low, middle, high = statistics.quantiles(percent, n=4, method="inclusive")
    verdict = " missed" if limit and middle > limit else ""
    return f"{middle:+.1f} ({low:+.1f} to {high:+.1f}){verdict}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sections whose name holds this")
    parser.add_argument("--batch", type=int, default=128)
    options = contenders.arguments(parser, rounds=15)
    if options.table:
        for path in options.table:
            table(json.loads(Path(path).read_text()))
        return
    torch.backends.cudnn.benchmark = True
    book, failed = Book(options.out, options.device), None
    sections = [s for s in SECTIONS if options.only in f"{s[0]}, {s[1]}, {s[2]}"]
    sections = [s for s in sections if options.device == "cuda" or "graph" not in s[1]]
    sizes = dict.fromkeys(k for _, mode, k in sections if "compiled" in mode)
    keys = [(loss, options.batch, k, options.device, True) for loss in contenders.names(options.names) for k in sizes]
    try:
        for section in sections:
            if "compiled" in section[1] and failed is None and options.workers:
                failed = contenders.warmed(keys, options.workers, options.seconds / 4)
            in_section(*section, options, book, failed or {})
    finally:
        table(book.data)


if __name__ == "__main__":
    main()
