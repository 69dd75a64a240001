"""Claims about speed and memory, as ratios, on a CPU; `make bench` runs them in about ten minutes.

1. All facts of 200 000 x 1000 logits take at most 0.70 of the time of `torch.logsumexp` on the same array,
2. and less than 1.2 times the memory of the logits.
3. `classwise_ece` of 20 000 x 1000 probabilities is at least 30 times faster than torch-uncertainty's.
4. `top_label_ece` and `aurc` of 10^7 rows together are at least 2 times faster than torchmetrics' ECE and AUROC,
   relplot's smECE, and scikit-learn's calibration curve and AUROC.

Contenders take turns in one process and the best of five or more turns counts. The one pass runs on two threads and is
timed by the clock on the wall. The metrics run on one thread and are timed by the processor's clock: on a busy machine
a call of half a minute never meets a quiet moment while a call of a tenth of a second does, which would flatter us.
A line reads: what, ours, theirs, ratio, goal.
"""

import os
import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from math import inf
from pathlib import Path

import torch
from peers import classwise_calibration_error
from relplot.metrics import binnedECE, smECE
from sklearn.calibration import calibration_curve
from sklearn.metrics import roc_auc_score
from torchmetrics.functional.classification import binary_auroc, binary_calibration_error

from calibrant.metrics.binned import classwise_ece, top_label_ece
from calibrant.metrics.selective import aurc
from calibrant.predictions.facts import from_logits

SLACK = 1.5  # a shared machine is noisy: only a goal missed by more than this fails the run


def race(contenders, *, threads=1, rounds=5):
    """Return the fewest seconds of each contender and what it returned; they take turns."""
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    best, result = dict.fromkeys(contenders, inf), {}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = clock()
            result[name] = call()
            best[name] = min(best[name], clock() - start)
    return best, result


def line(what, ours, theirs, ratio, goal, *, met=True):
    verdict = "" if met else "MISSED "
    print(f"{what:<69}{ours:>10}{theirs:>10}{ratio:>9}  {goal:<14}{verdict}load {os.getloadavg()[0]:.1f}", flush=True)


def at_most(goal, what, ours, theirs):
    ratio = ours / theirs
    line(what, f"{ours:.3f} s", f"{theirs:.3f} s", f"{ratio:.2f}", f"at most {goal:.2f}", met=ratio <= goal)
    return ratio <= goal * SLACK


def at_least(goal, what, ours, theirs):
    ratio = theirs / ours
    line(what, f"{ours:.3f} s", f"{theirs:.3f} s", f"{ratio:.2f}", f"at least {goal}", met=ratio >= goal)
    return ratio >= goal / SLACK


def one_pass(n=200_000, k=1000):
    logits, labels = 3 * torch.randn(n, k), torch.randint(k, (n,))
    contenders = {"ours": lambda: from_logits(logits, labels), "theirs": lambda: torch.logsumexp(logits, 1)}
    best, _ = race(contenders, threads=2, rounds=15)
    return at_most(0.70, f"facts.from_logits / torch.logsumexp, {n} x {k}", best["ours"], best["theirs"])


def peak_memory(n=200_000, k=1000):
    command = [sys.executable, str(Path(__file__).with_name("peak_memory.py"))]
    ours, theirs = (
        float(subprocess.check_output([*command, contender, str(n), str(k)])) for contender in ("calibrant", "torch")
    )
    what = f"facts.from_logits / logits, peak memory, {n} x {k}"
    line(what, f"{ours:.2f}", f"{theirs:.2f}", f"{ours:.2f}", "under 1.20", met=ours < 1.2)
    return ours < 1.2


def classwise(n=20_000, k=1000):
    logits = 2.5 * torch.randn(n, k)
    labels = logits.softmax(1).multinomial(1).squeeze(1)
    probs = (1.5 * logits).softmax(1)  # overconfident
    metric = classwise_calibration_error()(num_classes=k)

    def theirs():
        metric.reset()
        metric.update(probs, labels)
        return metric.compute()

    best, value = race({"ours": lambda: classwise_ece(probs, labels), "theirs": theirs})
    assert abs(value["ours"] - float(value["theirs"])) < 1e-7, value  # of 7e-4
    return at_least(30, f"classwise_ece / torch-uncertainty's, {n} x {k}", best["ours"], best["theirs"])


def pairs(dtype, n=10_000_000):
    confidence = 1 - 0.9 * torch.rand(n, dtype=dtype).square()  # most rows near 1, as after training
    correct = torch.rand(n) < confidence**1.3
    target, c, y, y01 = correct.long(), confidence.numpy(), correct.numpy(), correct.double().numpy()

    def torchmetrics_ece():
        return binary_calibration_error(confidence, target, n_bins=15, validate_args=False)

    best, value = race(
        {
            "ours": lambda: (top_label_ece(confidence, correct), aurc(confidence, correct)),
            "ours, ECE": lambda: top_label_ece(confidence, correct),
            "torchmetrics": lambda: (torchmetrics_ece(), binary_auroc(confidence, target, validate_args=False)),
            "torchmetrics, ECE": torchmetrics_ece,
            "relplot": lambda: smECE(c, y01),
            "relplot, ECE": lambda: binnedECE(c, y01, 15),
            "scikit-learn": lambda: (calibration_curve(y, c, n_bins=15), roc_auc_score(y, c)),
        }
    )
    assert abs(value["ours, ECE"] - value["relplot, ECE"]) < 1e-6, value
    size = f"{n:.0e} {str(dtype).removeprefix('torch.')}"
    goals = {
        "torchmetrics": "torchmetrics ECE + AUROC",
        "relplot": "relplot smECE alone",
        "scikit-learn": "scikit-learn curve + AUROC",
    }
    met = [
        at_least(2, f"top_label_ece + aurc / {theirs}, {size}", best["ours"], best[name])
        for name, theirs in goals.items()
    ]
    for name in ("torchmetrics", "relplot"):
        ours, theirs = best["ours, ECE"], best[f"{name}, ECE"]
        what = f"top_label_ece alone / {name} binned ECE alone, {size}"
        line(what, f"{ours:.3f} s", f"{theirs:.3f} s", f"{theirs / ours:.2f}", "none")
    return all(met)


def describe(*peers):
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text()).group(1)
    print(f"{model}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}")
    packages = ("torch", "numpy", "scipy", "calibrant", *peers)
    print(", ".join([f"python {platform.python_version()}"] + [f"{name} {version(name)}" for name in packages]))


def main():
    torch.manual_seed(0)
    describe("torchmetrics", "torch-uncertainty", "relplot", "scikit-learn")
    line("what", "ours", "theirs", "ratio", "goal")
    met = [one_pass(), peak_memory(), classwise(), pairs(torch.float32), pairs(torch.float64)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
