"""Trust predictors on MNIST, CIFAR-10 and CIFAR-100: train classifiers, fit every predictor, print the tables.

    python benchmarks/tables/trust.py train --home DIR --data DIR cifar10 mnist
    python benchmarks/tables/trust.py judge --home DIR --data DIR cifar10 mnist [--seeds 1]
    python benchmarks/tables/trust.py table --home DIR cifar10 mnist

`train` and `judge` resume where they stopped; seeds can be judged in processes of their own, the first one first: it
finds the rates of Adam for the oracles, by AUROC on the validation rows. `train` follows the recipes steep_slope-*,
shortened (SHORTER). Anchored heads are fitted on the rows held out for validation (5 000; MNIST 6 000), the papers'
heads and oracles on the training rows. All are judged on the test rows, and those of CIFAR on five shifts of them;
`judge` keeps the confidences, and `table` prints the tables of results/trust.md from them.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from calibrant.evaluation.ood import outlier_records
from calibrant.metrics.ranking import aupr_error, aupr_success, failure_auroc, fpr_at_95_tpr, tnr, tpr
from calibrant.metrics.selective import aurc
from calibrant.metrics.separability import separability_kl
from calibrant.predictions.collect import collect
from calibrant.predictions.predictions import Predictions
from calibrant.records import plain
from calibrant.registry import TRUST
from calibrant.training.corruptions.corrupt import corrupt
from calibrant.training.datasets.dataset import load
from calibrant.training.feed import Feed, order
from calibrant.training.recipe import Recipe
from calibrant.training.run import Run
from calibrant.training.setup import parted
from calibrant.training.shifts.adversarial import fgsm, pgd
from calibrant.training.shifts.style import restyle
from calibrant.training.train import together
from calibrant.trust.steep_slope import alpha_sweep

SEEDS = (1, 2, 3)
NAMES = {"mnist": "steep_slope-mnist-convnet", "cifar10": "steep_slope-cifar10-vgg16"}
NAMES |= {"cifar100": "steep_slope-cifar100-vgg16"}
SHORTER = {"epochs": 100, "schedule": "cosine", "warmup": 0.02}
ALPHAS = {"mnist": (10.0, 6.0), "cifar10": (1.0, 1.0), "cifar100": (1.0, 3.0)}  # plus, minus; the last is our choice
RATES = (1e-7, 3e-7, 1e-6, 1e-5, 1e-4)
ORACLES = ("bce", "focal", "tcp", "steep_slope")
ANCHORED = ("bce", "focal", "tcp", "steep_slope", "class_balanced", "correctness_ranking")
EPOCHS = 2
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
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Batches:
    """Rows as a loader of (inputs, labels) on the device: in order, or in a new order and moved a little each time."""

    def __init__(self, feed, size, *, seed=None, pad=None):
        self.feed, self.size, self.seed, self.pad, self.epoch = feed, size, seed, pad, 0

    def __iter__(self):
        n = len(self.feed)
        rows, moves = torch.arange(n), None
        if self.seed is not None:
            self.epoch += 1
            rows, moves = order(n, n, seed=self.seed, epoch=self.epoch, pad=self.pad)
        for place in torch.arange(n).split(self.size):
            some = rows[place].to(DEVICE)
            moved = None if moves is None else moves[place].to(DEVICE)
            yield self.feed.ready(self.feed.fetch(some), moved), self.feed.labels[some]


def recipe(dataset, seed, epochs):
    changes = {"seed": seed, "loss": "cross_entropy"}
    if dataset != "mnist":
        changes |= SHORTER
    return Recipe.read(NAMES[dataset], changes | ({"epochs": epochs} if epochs else {}))


def folder(home, dataset, seed):
    return home / "runs" / f"{dataset}-{seed}"


def train(home, data, datasets, seeds, epochs):
    recipes = {folder(home, dataset, seed): recipe(dataset, seed, epochs) for dataset in datasets for seed in seeds}
    start = time.monotonic()

    def told(name):
        def tell(epoch):
            if epoch["epoch"] in (1, 2) or epoch["epoch"] % 10 == 0:
                known = {key: round(value, 4) for key, value in epoch.items()}
                print(name, f"{time.monotonic() - start:.0f} s", known, flush=True)

        return tell

    watched = {path: told(path.name) for path in recipes}
    for run in together(recipes, data=data, device=DEVICE, on_epoch=watched):
        error = 100 * (1 - float(run.test.correct.double().mean()))
        print(f"{run.folder.name}: test error {error:.2f} %, {time.monotonic() - start:.0f} s", flush=True)


class Subject:
    """A trained classifier with its rows on the device."""

    def __init__(self, home, dataset, seed, data):
        self.dataset, self.seed = dataset, seed
        self.run = Run.read(folder(home, dataset, seed))
        self.model = self.run.model().to(DEVICE)
        parts, _ = parted(self.run.recipe, data)
        known = {"mean": self.run.recipe.mean or data.mean, "std": self.run.recipe.std or data.std}
        self.known = known
        held = len(parts["validation"])
        order = torch.randperm(held, generator=torch.Generator().manual_seed(seed))
        parts["fitting"], parts["checking"] = (
            parts["validation"].take(rows) for rows in (order[: held * 4 // 5], order[held * 4 // 5 :])
        )
        self.feeds = {name: Feed(part, DEVICE, **known) for name, part in parts.items()}
        self.pad = 4 if self.run.recipe.augment == "crop_flip" else None

    def loader(self, part):
        """Return the rows of a part in order."""
        return Batches(self.feeds[part], 1000)

    def moving(self, part):
        """Return the rows of a part as in training."""
        return Batches(self.feeds[part], 128, seed=self.seed, pad=self.pad)

    def collected(self, part):
        """Return what the classifier says about a part."""
        return collect(self.model, self.loader(part), features="head").predictions()


def fitted(subject, rates):
    """Yield name and predictor for everything that is fitted; ``rates`` are those of the oracles, found or to find."""
    held, seen = subject.collected("validation"), subject.collected("train")
    plus, minus = ALPHAS[subject.dataset]
    slopes = {"alpha_plus": plus, "alpha_minus": minus}
    yield "mcp", TRUST["mcp"].fit(held.logits, held.labels)
    yield "mc_dropout", TRUST["mc_dropout"].fit(subject.model)
    yield "trust_score", TRUST["trust_score"].fit(seen.logits, seen.labels, seen.features)
    for name in ANCHORED:
        options = slopes if name == "steep_slope" else {}
        yield f"{name}, anchored", TRUST[name].fit(held.logits, held.labels, held.features, **options)
    if subject.dataset == "cifar10":  # with slopes as for ImageNet, where errors cost more
        yield "steep_slope (1, 3), anchored", TRUST["steep_slope"].fit(held.logits, held.labels, held.features)
    for name in ("bce", "tcp", "steep_slope"):
        options = slopes if name == "steep_slope" else {}
        try:
            with_gpu = seen.features.to(DEVICE)
            trust = TRUST[name].fit(seen.logits, seen.labels, with_gpu, head="mlp", anchor=False, **options)
            yield f"{name}, ConfidNet head, training rows", trust
        except ValueError as error:
            print(f"  {name} on training rows: {error}", flush=True)
    for name in ("bce", "steep_slope"):
        yield f"{name}, oracle, anchored", anchored_oracle(subject, name, slopes if name == "steep_slope" else {})
    for name in ORACLES:
        yield f"{name}, oracle, training rows", oracle(subject, name, slopes if name == "steep_slope" else {}, rates)


def anchored_oracle(subject, name, options):
    """Fine-tune on four fifths of the validation rows, and keep the epoch that ranks the last fifth best."""
    return TRUST["oracle"].fit(
        subject.model,
        subject.moving("fitting"),
        loss=name,
        options=options,
        validation=subject.loader("checking"),
        seed=subject.seed,
    )


def oracle(subject, name, options, rates):
    """Fine-tune a copy of the body on the training rows at the best rate; find that rate if it is not known."""
    found = {}
    for rate in RATES if name not in rates else (rates[name],):
        made = TRUST["oracle"].fit(
            subject.model,
            subject.moving("train"),
            loss=name,
            options=options,
            head="signed_distance" if name == "steep_slope" else "linear",
            anchor=False,
            epochs=EPOCHS,
            optimiser=lambda parameters, rate=rate: torch.optim.Adam(parameters, lr=rate),
            seed=subject.seed,
        )
        judged = made.judge(subject.loader("validation"))
        found[rate] = (failure_auroc(judged.confidence, judged.correct), made)
        print(f"  {name} oracle, rate {rate:g}: AUROC on validation {found[rate][0]:.4f}", flush=True)
    best = max(found, key=lambda rate: found[rate][0])
    if name not in rates:
        rates[f"{name}, tried"] = {f"{rate:g}": auroc for rate, (auroc, _) in found.items()}
    rates[name] = best
    return found[best][1]


def judged_by(trust, predictions, loader):
    if hasattr(trust, "classifier"):
        return trust.judge(loader)
    return trust.judge(predictions)


def written(path, judged):
    """Keep log odds as float32: confidences near 1 keep their ranks."""
    arrays = {name: p.confidence.logit(eps=1e-300).clamp(-700, 700).float().numpy() for name, p in judged.items()}
    np.savez_compressed(path, correct=next(iter(judged.values())).correct.numpy(), **arrays)


def judge(home, data_folder, datasets, seeds):
    (home / "judged").mkdir(parents=True, exist_ok=True)
    for dataset in datasets:
        data, rates_file = load(dataset, data_folder), home / "judged" / f"{dataset}-rates.json"
        rates = json.loads(rates_file.read_text()) if rates_file.is_file() else {}
        models = {seed: Run.read(folder(home, dataset, seed)).model().to(DEVICE) for seed in SEEDS}
        for seed in seeds:
            path = home / "judged" / f"{dataset}-{seed}-test.npz"
            if path.is_file():
                continue
            start, subject, judged, facts = time.monotonic(), Subject(home, dataset, seed, data), {}, {}
            test = subject.collected("test")
            shifts = shifted(subject, data) if dataset != "mnist" else {}
            under = {name: {} for name in shifts}
            for name, trust in fitted(subject, rates):
                judged[name] = judged_by(trust, test, subject.loader("test"))
                facts[name] = str(trust) if hasattr(trust, "fitted") else name
                for shift, (loader, predictions) in shifts.items():
                    under[shift][name] = judged_by(trust, predictions, loader)
            members = [models[seed], *(model for other, model in models.items() if other != seed)]
            judged["ensemble"] = TRUST["ensemble"].fit(members).judge(subject.loader("test"))
            for shift, found in under.items():
                written(home / "judged" / f"{dataset}-{seed}-{shift}.npz", found)
            swept = alpha_sweep(subject.collected("validation"), test)
            facts["sweep"] = plain(swept.columns)
            facts["outliers"] = outliers(subject, test, shifts, data_folder)
            (home / "judged" / f"{dataset}-{seed}.json").write_text(json.dumps(facts, indent=1))
            rates_file.write_text(json.dumps(rates))
            written(path, judged)
            print(f"{dataset} {seed}: {len(judged)} predictors, {time.monotonic() - start:.0f} s", flush=True)


def shifted(subject, data):
    """Return loaders over shifted test images, with what the classifier says about them."""
    images, labels = data.test.inputs, data.test.labels
    mean, std = subject.known["mean"], subject.known["std"]
    pixels = images.float() / 255
    made = {
        "defocus_blur": corrupt(images, "defocus_blur", 5).float() / 255,
        "gaussian_noise": corrupt(images, "gaussian_noise", 5).float() / 255,
        "restyled": restyle(images, strength=0.5).float() / 255,
    }
    for name, attack, size in (("fgsm", fgsm, 2 / 255), ("pgd", pgd, 1 / 255)):
        made[name] = attack(subject.model, pixels.to(DEVICE), labels.to(DEVICE), epsilon=size, mean=mean, std=std)
    found = {}
    for name, inputs in made.items():
        normal = (inputs.to(DEVICE) - torch.tensor(mean, device=DEVICE).view(-1, 1, 1)) / torch.tensor(
            std, device=DEVICE
        ).view(-1, 1, 1)
        loader = list(zip(normal.split(1000), labels.split(1000), strict=True))
        found[name] = (loader, collect(subject.model, loader, features="head").predictions())
    return found


def outliers(subject, test, shifts, data_folder):
    """Return OOD records of the other CIFAR's test images, of noisy ones, and of SVHN where its files are."""
    if subject.dataset == "mnist":
        return []
    outside = {"gaussian_noise": shifts["gaussian_noise"][1]}
    for name in ("cifar100" if subject.dataset == "cifar10" else "cifar10", "svhn"):
        try:
            feed = Feed(load(name, data_folder).test, DEVICE, **subject.known)
        except FileNotFoundError:
            continue
        logits = torch.cat([collect(subject.model, [batch]).logits for batch in Batches(feed, 1000)])
        outside[name] = Predictions(logits=logits)
    return [plain(vars(record)) for record in outlier_records(test, outside)]


def confidences(path):
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
        correct, sure = confidences(path)
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


def outlier_table(folder, dataset):
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


def tables(folder, datasets):
    """Print the tables of results/trust.md: means over seeds."""
    for dataset in datasets:
        test_table(folder, dataset)
        if shifts := sorted({path.stem.split("-", 2)[2] for path in folder.glob(f"{dataset}-*-*.npz")} - {"test"}):
            shift_table(folder, dataset, shifts)
            outlier_table(folder, dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("step", choices=("train", "judge", "table"))
    parser.add_argument("datasets", nargs="+", choices=tuple(NAMES))
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--epochs", type=int, default=0)
    given = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if given.step == "train":
        train(given.home, given.data, given.datasets, given.seeds, given.epochs)
    elif given.step == "judge":
        judge(given.home, given.data, given.datasets, given.seeds)
    else:
        tables(given.home / "judged", given.datasets)


if __name__ == "__main__":
    main()
