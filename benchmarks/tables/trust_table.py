"""The tables of results/trust.md, from the confidences that benchmarks/trust.py left behind: means over seeds.

python benchmarks/trust_table.py DIR/judged DATASET ...
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from calibrant.metrics.ranking import aupr_error, aupr_success, failure_auroc, fpr_at_95_tpr, tnr, tpr
from calibrant.metrics.selective import aurc
from calibrant.metrics.separability import separability_kl

K = {"mnist": 10, "cifar10": 10, "cifar100": 100}
PAPER = {  # Luo et al., table 2: accuracy, FPR-95, AUPR-Error, AUPR-Success, AUC, TPR, TNR
    "mnist": {
        "MCP": "99.10 | 5.56 | 35.05 | 99.99 | 98.63 | 99.89 | 8.89",
        "MC dropout": "99.10 | 5.26 | 38.50 | 99.99 | 98.65 | - | -",
        "TrustScore": "99.10 | 10.00 | 35.88 | 99.98 | 98.20 | - | -",
        "TCP": "99.10 | 3.33 | 45.89 | 99.99 | 98.82 | 99.71 | 0.00",
        "steep slope": "99.10 | 2.22 | 40.86 | 99.99 | 98.83 | 100.00 | 0.00",
    },
    "cifar10": {
        "MCP": "92.19 | 47.50 | 45.36 | 99.19 | 91.53 | 99.64 | 6.66",
        "MC dropout": "92.19 | 49.02 | 46.40 | 99.27 | 92.08 | - | -",
        "TrustScore": "92.19 | 55.70 | 38.10 | 98.76 | 88.47 | - | -",
        "TCP": "92.19 | 44.94 | 49.94 | 99.24 | 92.12 | 99.77 | 0.00",
        "steep slope": "92.19 | 44.69 | 50.28 | 99.26 | 92.22 | 98.46 | 28.04",
    },
}
HEAD = (
    "predictor",
    "Acc",
    "FPR-95 (lower)",
    "AUPR-Error",
    "AUPR-Success",
    "AUC",
    "AUC less MCP",
    "TPR",
    "TNR",
    "AURC x 1000 (lower)",
    "KL",
    "AUPR-Error, wrong sign",
)


def judged(path):
    """Return the correctness of the rows, and the confidence of each predictor."""
    with np.load(path) as arrays:
        sure = {name: torch.tensor(arrays[name]).double().sigmoid() for name in arrays.files if name != "correct"}
        return torch.tensor(arrays["correct"]), sure


def numbers(confidence, correct, name, dataset):
    below = 1 / K[dataset] if name.startswith("tcp") else 0.5
    return [
        100 * float(correct.double().mean()),
        100 * fpr_at_95_tpr(confidence, correct),
        100 * aupr_error(confidence, correct),
        100 * aupr_success(confidence, correct),
        100 * failure_auroc(confidence, correct),
        0.0,
        100 * tpr(confidence, correct),
        100 * tnr(confidence, correct, threshold=below),
        1000 * aurc(confidence, correct),
        separability_kl(confidence, correct),
        100 * aupr_error(1 - confidence, correct),
    ]


def over_seeds(folder, dataset, where):
    """Return the numbers of each predictor, a row a seed; the difference of AUC is taken seed by seed."""
    found = {}
    for path in sorted(folder.glob(f"{dataset}-*-{where}.npz")):
        correct, sure = judged(path)
        base = 100 * failure_auroc(sure["mcp"], correct)
        for name, confidence in sure.items():
            row = numbers(confidence, correct, name, dataset)
            row[5] = row[4] - base
            found.setdefault(name, []).append(row)
    return {name: np.array(rows) for name, rows in found.items()}


def test_table(folder, dataset):
    """Print means over seeds, those of AUC with their standard deviation, and what the paper has."""
    found = over_seeds(folder, dataset, "test")
    print(f"\n### {dataset}, test rows, {len(found['mcp'])} seeds\n")
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for name, rows in found.items():
        mean, spread = rows.mean(0), rows.std(0, ddof=1) if len(rows) > 1 else np.full(rows.shape[1], np.nan)
        cells = [f"{value:.2f}" for value in mean]
        cells[4], cells[5] = f"{mean[4]:.2f} +- {spread[4]:.2f}", f"{mean[5]:+.2f} +- {spread[5]:.2f}"
        print(f"| {name} | " + " | ".join(cells) + " |")
    for name, row in PAPER.get(dataset, {}).items():
        acc, fpr, error, success, auc, right, wrong = row.split(" | ")
        print(f"| *paper: {name}* | {acc} | {fpr} | {error} | {success} | {auc} | | {right} | {wrong} | | | |")


def shift_table(folder, dataset, shifts):
    """Print AUC, TPR / TNR of each predictor under each shift."""
    found = {shift: over_seeds(folder, dataset, shift) for shift in shifts}
    heads = [f"{shift} (accuracy {rows['mcp'].mean(0)[0]:.1f})" for shift, rows in found.items()]
    print(f"\n### {dataset}, shifted\n\n| predictor | " + " | ".join(heads) + " |\n|---" + "|---" * len(heads) + "|")
    for name in next(iter(found.values())):
        means = [rows[name].mean(0) for rows in found.values()]
        print(f"| {name} | " + " | ".join(f"{m[4]:.1f}, {m[6]:.0f} / {m[7]:.0f}" for m in means) + " |")


def outliers(folder, dataset):
    """Print how well scores tell the other data set's test images."""
    print("\n| inside | outside | score | metric | percent | seeds |\n|---|---|---|---|---|---|")
    values = {}
    for path in sorted(folder.glob(f"{dataset}-?.json")):
        for record in json.loads(path.read_text())["outliers"]:
            if record["metric"] in ("ood_auroc", "fpr_at_95_tpr"):
                values.setdefault((record["method"], record["where"], record["metric"]), []).append(record["value"])
    for (method, where, metric), found in values.items():
        place = where.removeprefix("outside: ")
        print(f"| {dataset} | {place} | {method} | {metric} | {100 * np.mean(found):.2f} | {len(found)} |")


def main():
    folder = Path(sys.argv[1])
    for dataset in sys.argv[2:]:
        test_table(folder, dataset)
        if shifts := sorted({path.stem.split("-", 2)[2] for path in folder.glob(f"{dataset}-*-*.npz")} - {"test"}):
            shift_table(folder, dataset, shifts)
            outliers(folder, dataset)


if __name__ == "__main__":
    main()
