"""What losses and penalties cost beside `F.cross_entropy`: forward, and backward to the gradient of the logits.

A loss is timed as `Criterion(name)`, a penalty as cross-entropy plus it. Ratios are to `F.cross_entropy` in the same
mode, which stands in the table a second time: what that differs from 1 by is noise. Contenders take turns in one run;
the best round counts on a CPU, the median ratio within a round on a GPU. Logits are float32 and stay in the cache, as
after the layer that made them.

1. CPU, eager: losses of the label's probability take at most 1.25, from 1000 classes up. On a busy machine one thread
   (`--threads 1`), timed by the processor's clock, says more than two.
2. GPU, `criterion.compile()` against `torch.compile` of `F.cross_entropy`: at most 1.2 for all but kde_ece and mmce.
3. `--modes compiled,torch.compile`: `criterion.compile()` beside `torch.compile(criterion)`, on either device; no goal.
4. GPU, eager, and in a captured CUDA graph of the eager or the compiled call: no goal; where the table has a number the
   capture worked.

    python benchmarks/speed/losses.py --out losses_cpu.json
    python benchmarks/speed/losses.py --device cuda --workers 14 --out losses_gpu.json
    python benchmarks/speed/losses.py --table losses_cpu.json losses_gpu.json
"""

import argparse
import json
import statistics
import time
from functools import cache
from pathlib import Path

import contenders
import torch
import torch.nn.functional as F
from contenders import AGAIN, PAIRWISE, REFERENCE, Book, Known, captured, compiled, made, targets

OF_TRUE_CLASS = ("cross_entropy", "focal", "flsd", "inverse_focal", "cal_focal", "ada_focal")
SIZES = "128x10,128x100,1024x1000,64x32000"
MODES = {"cpu": "eager", "cuda": "compiled,compiled graph,eager,graph"}


def at_size(n, k, options, book, failed):
    """Time every contender in every mode."""
    logits = (3 * torch.randn(n, k, device=options.device)).requires_grad_()

    @cache  # one compilation for both modes that need it
    def call_of(name, way):
        if way == "compiled" and (name, n, k, options.device, False) in failed:
            raise Known(failed[name, n, k, options.device, False])
        function, rest = made(name, k, options.device), targets(name, n, k, options.device)
        if way in ("compiled", "torch.compile"):
            function = compiled(function, options.backend, plain=way == "torch.compile")
        elif name in (REFERENCE, AGAIN):
            function = F.cross_entropy
        return lambda: torch.autograd.grad(function(logits, *rest), logits)

    def maker(name, mode):
        def make():
            call = call_of(name, mode.removesuffix("graph").strip() or "eager")
            return captured(call) if "graph" in mode else call

        return make

    for mode in options.modes.split(","):
        start, at = time.monotonic(), {"mode": mode, "size": f"{n}x{k}"}
        makers = {name: maker(name, mode) for name in contenders.names(options.names)}
        book.measure(at, makers, options, turn=0.005)
        print(f"{mode}, {n} x {k}: {time.monotonic() - start:.0f} s", flush=True)
    torch._dynamo.reset()


def goal(device, mode, name, k):
    if (device, mode) == ("cpu", "eager"):
        return 1.25 if name in OF_TRUE_CLASS and k >= 1000 else None
    return 1.2 if (device, mode) == ("cuda", "compiled") and name not in (AGAIN, *PAIRWISE) else None


def table(data):
    """Print one table a mode: rows are contenders, columns sizes, cells ratios."""
    count = min if data["device"] == "cpu" else statistics.median
    print(f"\n{data['about']}; load {max((cell['load'] for cell in data['cells']), default=0):.1f} at most")
    for mode in dict.fromkeys(cell["mode"] for cell in data["cells"]):
        cells = [cell for cell in data["cells"] if cell["mode"] == mode]
        taken = {(cell["name"], cell["size"]): cell["seconds"] for cell in cells if cell["seconds"]}
        sizes = list(dict.fromkeys(cell["size"] for cell in cells))
        print(f"\n| {mode} | {' | '.join(sizes)} | goal |\n|---|{'---:|' * len(sizes)}---|")
        micro = [f"{1e6 * count(taken[REFERENCE, s]):.1f}" if (REFERENCE, s) in taken else "none" for s in sizes]
        print(f"| {REFERENCE}, microseconds | {' | '.join(micro)} | |")
        for name in [
            name for name in contenders.names() if name != REFERENCE and any(name == c["name"] for c in cells)
        ]:
            limits = [goal(data["device"], mode, name, int(size.split("x")[1])) for size in sizes]
            ratios = [ratio(taken, name, size, limit, count) for size, limit in zip(sizes, limits, strict=True)]
            most = max((limit for limit in limits if limit), default=None)
            print(f"| {name} | {' | '.join(ratios)} | {f'at most {most}' if most else ''} |")
        for why in dict.fromkeys(cell["error"] for cell in cells if cell["error"]):
            where = [f"{cell['name']} at {cell['size']}" for cell in cells if cell["error"] == why]
            print(f"\n- {why}: {', '.join(where)}")


def ratio(taken, name, size, limit, count):
    """Return the ratio of the best rounds on a CPU, and on a GPU the median ratio within a round."""
    ours, theirs = taken.get((name, size)), taken.get((REFERENCE, size))
    if not ours or not theirs:
        return "none"
    within = [a / b for a, b in zip(ours, theirs, strict=False)]
    found = statistics.median(within) if count is statistics.median else count(ours) / count(theirs)
    return f"{found:.2f}{' missed' if limit and found > limit else ''}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=SIZES, help="n x k, by commas")
    parser.add_argument("--modes", help="by commas; all that the device has")
    options = contenders.arguments(parser, rounds=21)
    if options.table:
        for path in options.table:
            table(json.loads(Path(path).read_text()))
        return
    options.modes = options.modes or MODES[options.device]
    book = Book(options.out, options.device)
    sizes = [tuple(map(int, size.split("x"))) for size in options.sizes.split(",")]
    keys = [(name, n, k, options.device, False) for name in contenders.names(options.names) for n, k in sizes]
    ahead = options.workers and "compiled" in options.modes
    failed = contenders.warmed(keys, options.workers, options.seconds / 3) if ahead else {}
    try:
        for n, k in sizes:
            at_size(n, k, options, book, failed)
    finally:
        table(book.data)


if __name__ == "__main__":
    main()
