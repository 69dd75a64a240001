"""Every loss and penalty as a user would make it, and how contenders are compiled, captured and timed in turns.

`losses.py` and `training_step.py` share this. They need nothing but calibrant and torch.
"""

import ctypes
import json
import math
import multiprocessing
import os
import platform
import random
import re
import time
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
import torch._dynamo.config
import torch._inductor.config

from calibrant import Criterion, Predictions, __version__
from calibrant.registry import LOSSES, PENALTIES

REFERENCE, AGAIN = "F.cross_entropy", "F.cross_entropy again"
PAIRWISE = ("mmce", "kde_ece")  # they compare all pairs of rows
TRAINING_ROWS = 50_000
THREADS = 2


def names(only=""):
    """Return all contenders, or the reference and those named: cross-entropy first, the slowest last."""
    found = dict.fromkeys(["cross_entropy", "seca", *LOSSES, *sorted(PENALTIES, key=PAIRWISE.__contains__)])
    return [REFERENCE, AGAIN, *(name for name in found if not only or name in only.split(","))]


def made(name, k, device):
    """Return the function of a batch: a penalty with cross-entropy, a loss that learns after one validation."""
    if name in (REFERENCE, AGAIN):
        return torch.nn.CrossEntropyLoss()
    if name == "online_label_smoothing" and k > 10_000:
        raise Known(f"left out: its matrices of {k} x {k} take {4 * k * k / 1e9:.1f} GB each")
    options = {"online_label_smoothing": {"k": k}, "correctness_ranking": {"n": TRAINING_ROWS}}.get(name, {})
    criterion = (Criterion(penalty=name) if name in PENALTIES else Criterion(name, options)).to(device)
    if criterion.needs_validation:
        confidence = torch.rand(5000)
        criterion.epoch_end(Predictions(confidence=confidence, correct=torch.rand(5000) < confidence**1.3))
    return criterion


def targets(name, n, k, device):
    limits = (k, TRAINING_ROWS) if name == "correctness_ranking" else (k,)
    return tuple(torch.randint(limit, (n,), device=device) for limit in limits)


def compiled(function, backend, *, plain=False):
    """Return `criterion.compile()`, or with ``plain`` and for anything else `torch.compile`."""
    torch._inductor.config.autotune_local_cache = False  # a choice made while others compile would be kept
    # to dynamo every criterion is another version of the same code, and after eight it gives up
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 10_000
    if isinstance(function, Criterion) and not plain:
        function.compile(backend=backend, dynamic=False)
        return function
    return torch.compile(function, fullgraph=True, dynamic=False, backend=backend)


def compiled_once(name, n, k, device, half):
    """Compile where nothing is timed; what that makes stays on disk. Return why not."""
    torch._inductor.config.compile_threads = 1
    torch.set_num_threads(THREADS)  # code is found again only by a process that is set up alike
    try:
        logits = torch.randn(n, k, device=device, dtype=torch.bfloat16 if half else None, requires_grad=True)
        with torch.autocast(device, torch.bfloat16) if half else nullcontext():
            call = compiled(made(name, k, device), "inductor")
            value = call(logits * 1 if half else logits, *targets(name, n, k, device))
        torch.autograd.grad(value, logits)
    except Exception as error:
        return said(error)
    return ""


def warmed(keys, workers, seconds):
    """Compile in parallel processes, so that this one finds the code on disk; return what failed and why."""
    start, failed = time.monotonic(), {}
    order = sorted(keys, key=lambda key: key[0] not in PAIRWISE)  # the longest begin first
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # leaving it ends what still compiles
        waiting = {key: pool.apply_async(compiled_once, key) for key in order}
        for key, result in waiting.items():
            try:
                why = result.get(max(0.1, start + seconds - time.monotonic()))
            except multiprocessing.TimeoutError:  # others may still be compiled where they are timed
                why = f"does not compile within {seconds:.0f} s" if key[0] in PAIRWISE else ""
            failed |= {key: why} if why else {}
    print(f"{len(keys)} compiled, {len(failed)} failed, in {time.monotonic() - start:.0f} s", flush=True)
    return failed


@cache
def shared_pool():
    """One memory for all graphs: they never run at once, and each ViT would take its own gigabytes."""
    return torch.cuda.graph_pool_handle()


def captured(call):
    """Return the replay of a call; one that waits for the GPU is refused before it can spoil a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
        torch.cuda.set_sync_debug_mode("error")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side, pool=shared_pool()):
        call()
    # the tensors that the graph reads and writes must live as long as it does, so the call is kept
    return lambda _kept=call: graph.replay()


def timed(call, times):
    there = torch.cuda.is_available()
    wait = torch.cuda.synchronize if there else lambda: None
    clock = time.process_time if torch.get_num_threads() == 1 and not there else time.perf_counter
    wait()
    start = clock()
    for _ in range(times):
        call()
    wait()
    return (clock() - start) / times


def race(calls, rounds, *, turn, until):
    """Return the seconds of each contender in each round; they take turns of ``turn`` seconds in a new order."""
    times = {name: min(1000, math.ceil(turn / min(timed(call, 1) for _ in range(3)))) for name, call in calls.items()}
    seconds, order, shuffle = {name: [] for name in calls}, list(calls), random.Random(0).shuffle
    for number in range(rounds + 1):
        shuffle(order)
        for name in order:
            if number <= 3 or seconds[name][0] < 0.2:  # a slow one has three rounds
                seconds[name].append(timed(calls[name], times[name]))
        if number >= 3 and time.monotonic() > until:
            break
    return {name: taken[1:] for name, taken in seconds.items()}  # the first round is for clocks and caches


class Known(Exception):
    """A failure that is already in words."""


class Book:
    """Cells of a table, on disk as soon as they exist."""

    def __init__(self, path, device):
        cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())[1]
        name = torch.cuda.get_device_name() if device == "cuda" else f"{cpu}, threads: {torch.get_num_threads()}"
        versions = f"python {platform.python_version()}, torch {torch.__version__}, calibrant {__version__}"
        self.data = {"about": f"{name}, {time.strftime('%Y-%m-%d')}, {versions}", "device": device, "cells": []}
        self.path = Path(path) if path else None

    def add(self, at, name, *, seconds=(), error=""):
        """Keep the rounds of a contender, or why there are none."""
        facts = {"seconds": seconds, "error": error, "load": os.getloadavg()[0]}
        self.data["cells"].append({**at, "name": name, **facts})
        if error:
            print(*at.values(), name, error, flush=True)
        if self.path:
            part = self.path.with_suffix(".part")
            part.write_text(json.dumps(self.data))
            part.replace(self.path)

    def measure(self, at, makers, options, *, turn):
        """Make contenders ready, let them take turns, keep their times; one that fails is written down."""
        calls = {}
        for name, make in makers.items():
            try:
                if time.monotonic() > options.until:
                    raise Known("not tried: no time left")
                call = make()
                call()
                calls[name] = call
            except Exception as error:
                self.add(at, name, error=said(error))
        for name, seconds in race(calls, options.rounds, turn=turn, until=options.until).items():
            self.add(at, name, seconds=seconds)


def said(error):
    """Return the first lines of an error; the very first of torch.compile's names only its backend."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines) if isinstance(error, Known) else f"{type(error).__name__}: {' '.join(lines[:2])}"[:200]


def arguments(parser, rounds):
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", help="a JSON file")
    parser.add_argument("--table", nargs="+", help="JSON files to print")
    parser.add_argument("--names", default="", help="losses and penalties, by commas; all")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seconds", type=float, default=480, help="begin nothing after this long")
    parser.add_argument("--threads", type=int, default=THREADS, help="with 1 the processor's clock is read")
    parser.add_argument("--workers", type=int, default=0, help="processes that compile ahead")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    options = parser.parse_args()
    options.until = time.monotonic() + options.seconds
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    keep_memory()
    return options


def keep_memory():
    """Let the process keep what is freed: when glibc gives it back, the next to ask pays for new pages, by chance."""
    if allocator := getattr(ctypes.CDLL(None), "mallopt", None):
        allocator(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back
        allocator(-4, 0)  # M_MMAP_MAX: nothing is asked for apart
