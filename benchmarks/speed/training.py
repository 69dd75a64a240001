"""How fast the training engine is on a GPU: one run in four ways, and many runs at once.

1. Milliseconds a step (augmentation, forward, loss, backward, SGD; batch 128, bfloat16, channels last) of ResNet-32,
   56, 110 and WRN-28-10: eager, compiled, as one CUDA graph, and as a graph of compiled code. Ways take turns; median
   of rounds, quartiles behind it. An epoch is the 351 steps of 45 000 rows.
2. Steps a second of several ResNet-32 together: graphs on streams of one process.
3. The same of whole runs: with the validation set of 5 000 rows, its numbers and a checkpoint after every epoch.

    python benchmarks/speed/training.py --out speed.json --together 1,4,8,16 --whole 1,4,8
    python benchmarks/speed/training.py --table speed.json

On a CPU everything is tiny and eager, and the numbers mean nothing: it shows that the script runs.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path

import torch

from calibrant import __version__
from calibrant.training.datasets.dataset import Dataset, Part
from calibrant.training.device import Placement
from calibrant.training.feed import order
from calibrant.training.loop import STRIDE, Training
from calibrant.training.recipe import Recipe
from calibrant.training.train import left_as_found, together

NETS = {"ResNet-32": "resnet32", "ResNet-56": "resnet56", "ResNet-110": "resnet110", "WRN-28-10": "wrn_28_10"}
WAYS = {"eager": (False, False), "compiled": (False, True), "graph": (True, False), "compiled graph": (True, True)}
CUDA = torch.cuda.is_available()
ROWS = 45_000 if CUDA else 600


def data(more=0):
    """Return random images, with some more to hold out."""
    rows = ROWS + more
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (rows + 100, 3, 32, 32), dtype=torch.uint8, generator=g)
    labels = torch.arange(rows + 100) % 10
    part = Part(images[:rows], labels[:rows])
    return Dataset("random", part, Part(images[rows:], labels[rows:]), tuple("0123456789"), (0.5,) * 3, (0.25,) * 3)


def training(net, way, source, seed=0):
    """Return a run that stands at its first step."""
    recipe = Recipe("random", NETS[net], 100, 0.01, weight_decay=5e-4, augment="crop_flip", validation=0, seed=seed)
    graph, compiled = WAYS[way] if CUDA else (False, False)
    place = Placement("cuda" if CUDA else "cpu")
    found = Training(recipe, source, Path(tempfile.mkdtemp()), place, graph=graph, compiled=compiled)
    begin(found)
    found.step()
    wait()
    return found


def begin(run):
    steps = run.step.steps
    rows, moves = order(len(run.feeds["train"]), steps * 128, seed=0, epoch=0, pad=4)
    run.step.begin(rows, moves, [0.001] * steps)


def wait():
    if CUDA:
        torch.cuda.synchronize()


def timed(run, steps):
    begin(run)
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        run.step()
    wait()
    return (time.perf_counter() - start) / steps


def one(net, source, rounds, until):
    """Return the seconds of a step in each way, in rounds."""
    runs = {}
    for way in WAYS if CUDA else ["eager"]:
        if time.monotonic() < until:
            start = time.monotonic()
            runs[way] = training(net, way, source)
            print(f"{net}, {way}: ready in {time.monotonic() - start:.0f} s", flush=True)
    seconds = {way: [] for way in runs}
    for _ in range(rounds):
        for way, run in runs.items():
            seconds[way].append(timed(run, run.step.steps if not CUDA else 20 if way in ("eager", "compiled") else 60))
    return seconds


def streams(net, way, count, source, rounds):
    """Return the steps a second of several runs of one process, which take turns as in `calibrant train`."""
    lanes = [torch.cuda.Stream() if CUDA else None for _ in range(count)]
    runs = []
    for seed, lane in enumerate(lanes):
        with torch.cuda.stream(lane):
            runs.append(training(net, way, source, seed))
    found = []
    for _ in range(rounds):
        for run in runs:
            begin(run)
        wait()
        start = time.perf_counter()
        for _ in range(10):
            for run, lane in zip(runs, lanes, strict=True):
                with torch.cuda.stream(lane):
                    for _ in range(STRIDE):
                        run.step()
        wait()
        found.append(10 * STRIDE * count / (time.perf_counter() - start))
    return found


def whole(count, source, epochs=4):
    """Return the steps a second of several whole runs, from the end of the first epoch to the last."""
    recipe = Recipe("random", NETS["ResNet-32"], epochs, 0.01, augment="crop_flip", validation=0.1, select="accuracy")
    home, ends = Path(tempfile.mkdtemp()), []
    runs = {home / str(seed): recipe.changed({"seed": seed}) for seed in range(count)}

    def told(epoch):
        ends.append(time.perf_counter())

    together(runs, data=source, compiled=CUDA, on_epoch=dict.fromkeys(runs, told))
    steps = (len(source.train) - round(0.1 * len(source.train))) // 128
    return [(epochs - 1) * count * steps / (ends[-1] - ends[count - 1])]


class Book:
    """Cells, on disk as soon as they exist."""

    def __init__(self, path):
        device = torch.cuda.get_device_name() if CUDA else platform.machine()
        versions = f"python {platform.python_version()}, torch {torch.__version__}, calibrant {__version__}"
        self.data = {"about": f"{device}, {time.strftime('%Y-%m-%d')}, {versions}", "cells": []}
        self.path = path

    def add(self, kind, name, size, values):
        """Keep the values of a cell."""
        self.data["cells"].append({"kind": kind, "name": name, "size": size, "values": values})
        print(kind, name, size, f"{statistics.median(values):.5g}", flush=True)
        if self.path:
            Path(self.path).write_text(json.dumps(self.data))


def table(data):
    cells = {(c["kind"], c["name"], c["size"]): c["values"] for c in data["cells"]}
    print(f"{data['about']}\n\n| milliseconds a step | {' | '.join(WAYS)} | seconds an epoch, compiled graph |")
    print(f"|---|{'---:|' * (len(WAYS) + 1)}")
    for net in NETS:
        found = [cells.get(("step", net, way)) for way in WAYS]
        if any(found):
            epoch = f"{351 * statistics.median(found[-1]):.2f}" if found[-1] else ""
            print(f"| {net} | {' | '.join(map(quartiles, found))} | {epoch} |")
    counts = sorted({c["size"] for c in data["cells"] if c["kind"] == "together"})
    print(f"\n| steps a second, ResNet-32 | {' | '.join(map(str, counts))} runs |\n|---|{'---:|' * len(counts)}")
    for name in dict.fromkeys(c["name"] for c in data["cells"] if c["kind"] == "together"):
        row = [cells.get(("together", name, count)) for count in counts]
        print(f"| {name} | {' | '.join(f'{statistics.median(v):.0f}' if v else '' for v in row)} |")


def quartiles(values):
    if not values:
        return ""
    low, middle, high = (1e3 * v for v in statistics.quantiles(values, n=4, method="inclusive"))
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--table")
    parser.add_argument("--only", default=",".join(NETS), help="networks, by commas; none: nothing")
    parser.add_argument("--together", default="", help="numbers of runs on streams, by commas")
    parser.add_argument("--whole", default="", help="numbers of whole runs, by commas")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=500, help="begin nothing after this long")
    options = parser.parse_args()
    if options.table:
        table(json.loads(Path(options.table).read_text()))
        return
    with left_as_found():
        until, book, source = time.monotonic() + options.seconds, Book(options.out), data()
        for net in [net for net in NETS if net in options.only.split(",")]:
            for way, values in one(net, source, options.rounds, until).items():
                book.add("step", net, way, values)
        counts = [int(c) for c in options.together.split(",") if c]
        for way in ("graph", "compiled graph"):
            for count in counts:
                if time.monotonic() < until:
                    book.add("together", f"streams, {way}", count, streams("ResNet-32", way, count, source, 5))
        for count in [int(c) for c in options.whole.split(",") if c]:
            if time.monotonic() < until:
                book.add("together", "whole runs, streams, compiled graph", count, whole(count, data(5000)))
    table(book.data)


if __name__ == "__main__":
    main()
