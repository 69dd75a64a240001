"""Anchored trust predictors on real classifiers' logits: does any rank below max-softmax, and what does 1/2 give?

Each file (.npz with logits and labels) is halved at random, predictors are fitted on one half and judged on the other.

    python benchmarks/tables/trust_logits.py LOGITS/*_test.npz [--splits 3]
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from calibrant.metrics.ranking import failure_auroc, tnr, tpr
from calibrant.predictions.predictions import Predictions
from calibrant.registry import TRUST

NAMES = ("bce", "focal", "tcp", "steep_slope", "class_balanced", "correctness_ranking")


def halves(path, split):
    with np.load(path) as arrays:
        every = Predictions(logits=arrays["logits"], labels=arrays["labels"])
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(split))
    return every.take(order[: len(order) // 2]), every.take(order[len(order) // 2 :])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--splits", type=int, default=3)
    given = parser.parse_args()
    print("AUC of max-softmax; of each predictor the mean change of it and TPR / TNR at 1/2, all in percent\n")
    print("| classifier | MCP | " + " | ".join(NAMES) + " |\n|---|---|" + "---|" * len(NAMES))
    changes = {name: [] for name in NAMES}
    for path in given.files:
        found, base = {name: [] for name in NAMES}, []
        for split in range(given.splits):
            fit, judge = halves(path, split)
            own = 100 * failure_auroc(judge.confidence, judge.correct)
            base.append((own, 100 * tpr(judge.confidence, judge.correct), 100 * tnr(judge.confidence, judge.correct)))
            for name in NAMES:
                trust = TRUST[name].fit(fit.logits, fit.labels)
                c = trust.judge(judge).confidence
                rates = tpr(c, judge.correct), tnr(c, judge.correct, threshold=trust.distrust_below)
                found[name].append((100 * failure_auroc(c, judge.correct) - own, *(100 * rate for rate in rates)))
                changes[name].append(found[name][-1][0])
        cells = ["{:.2f}, {:.0f} / {:.0f}".format(*np.mean(base, 0))]
        cells += ["{:+.2f}, {:.0f} / {:.0f}".format(*np.mean(rows, 0)) for rows in found.values()]
        print(f"| {path.stem.removesuffix('_test')} | " + " | ".join(cells) + " |", flush=True)
    worst = " | ".join(f"{min(values):+.2f}" for values in changes.values())
    print(f"| *lowest change of {len(next(iter(changes.values())))}* | | {worst} |")


if __name__ == "__main__":
    main()
