"""Every calibrator on every real classifier at hand: log loss, Brier score, calibration error, accuracy, time.

    python benchmarks/tables/posthoc.py --data DATA --out results --jobs 2

A task is one classifier and one seed, in a process with one thread; it leaves its records in ``build/posthoc``, so that
an interrupted run resumes, and ``--again METHOD`` computes only that method anew (temperature, with which all are
compared: everything). The table, results/posthoc.md, is made from these records (``--table`` does only that); the text
under "What we learn" is written by hand and kept. It needs the package and, for the one classifier with features (a
small network on text), scikit-learn. DATA holds ``logits/*.npz`` and ``text/20news_bydate.json.xz``.
"""

import argparse
import inspect
import json
import lzma
import os
import platform
import re
import time
import warnings
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata

import calibrant
from calibrant.calibrators.cross_fit import paired
from calibrant.metrics.evidence import measure
from calibrant.predictions.predictions import Predictions
from calibrant.records import Record, plain, versions
from calibrant.registry import CALIBRATORS

TEXT = "text/20news_bydate.json.xz"
NEWS = "20news_mlp"
MEASURES = {
    "nll": ("nll", {}),
    "brier": ("brier", {}),
    "ece": ("top_label_ece", {}),
    "ada_ece": ("top_label_ece", {"scheme": "mass"}),
    "cw_ece": ("classwise_ece", {}),
    "accuracy": ("accuracy", {}),
}
TIE = 1e-6  # differences of a mean loss below this are rounding
WITHIN = 0.005  # of the ECE of smart
COMMAND = "PYTHONPATH=src python benchmarks/tables/posthoc.py --data DATA --out results --jobs 16"
LEARNED = "## What we learn\n"
READING = """\
All methods with their defaults; numbers are means over the seeds. `*_test` logits are split at random, half to fit and
half to test, one split a seed. The three ResNet-32 (`ce`, `seca`, `adafocal`) have validation logits of their own: a
seed draws 4 000 of the 5 000, and the test is all 10 000 test rows, so only the rows of the fit vary. `mmlu_llama13b`:
logarithms of the answer probabilities, halves. `coco_detector` is already reduced to one confidence a detection: two
classes, wrong and right, and the logit of that confidence; accuracy is that of calling a detection right above 0.5.
`20news_mlp` is trained by the script (TF-IDF of the bodies of the earlier posts, 128 hidden units, ten epochs, one
seed) and its later posts are halved; it alone has features, so `procal` and `feature_clipping`, which need them, have a
dash elsewhere and no rank. `group` groups by logits, `group_features` by features. `meta_acc` and `meta_mis` make the
rows they set aside uniform: log loss and accuracy count them as guesses, and ECE finds them calibrated.

NLL in nats, Brier score summed over classes; ECE, AdaECE (15 bins of equal width, of equal mass) and cwECE in percent;
Δacc in points. The floor, in brackets, is the ECE that a calibrated model with these confidences would show on as many
rows. "As it was" counts fits that did not help on their own rows and therefore do nothing. Seconds are those of a fit
on one thread, all cores busy."""
SUMMARY = """\
Ranks are means over classifiers (1 is best; of equal methods, the mean of their ranks), also by family. "NLL less
temperature's" is the mean over classifiers, with the median in brackets and the number of classifiers on which it is
below 0 beside it; Δacc is the mean, with the worst in brackets; fit s is the median, with the longest in brackets."""
PROPER = """\
Changes against temperature, in thousandths (ECE: against smart, in points): mean ± standard error over seeds, paired.
"(rows)" is the standard error of the same change over the test rows of one split: seeds share rows, so the first does
not know how much other rows would differ. Not worse: the mean change is at most 0 (1e-6, for rounding); within 0.5: at
most 0.5 points more ECE than smart. "No, surely": beyond that by more than two standard errors over the seeds."""


# Classifiers


def logits_of(path):
    """Return the rows to fit on and to test on, or all rows where they are to be split."""
    held = np.load(path)
    if "val_logits" in held:
        return [
            Predictions(logits=held[f"{part}_logits"], labels=held[f"{part}_labels"].astype(np.int64))
            for part in ("val", "test")
        ]
    if "confidence" in held:  # two classes: the detection is wrong, or right
        odds = held["confidence"].astype(np.float64)
        return [Predictions(logits=np.log(odds / (1 - odds)), labels=held["correct"].astype(np.int64))]
    logits = np.log(held["probs"]) if "probs" in held else held["logits"]
    return [Predictions(logits=logits, labels=held["labels"], features=held.get("features"))]


def split(path, seed):
    """Return the rows to fit on and the rows to test on."""
    parts = logits_of(path)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(len(parts[0])))
    if len(parts) == 2:
        return parts[0].take(order[: len(order) * 4 // 5]), parts[1]
    return parts[0].take(order[: len(order) // 2]), parts[0].take(order[len(order) // 2 :])


def classifiers(data, cache):
    """Return where the logits of each classifier are; rows out of distribution belong to none."""
    found = {
        re.sub(r"_(val_test|test|probs|scores)$", "", path.stem): path
        for path in sorted((data / "logits").glob("*.npz"))
        if not path.stem.endswith("_ood")
    }
    return {**found, NEWS: cache / f"{NEWS}.npz"}


def train_on_text(data, path, hidden=128, epochs=10):
    """Train a network with one hidden layer on 20 Newsgroups and keep features and logits of the later posts."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    posts = json.loads(lzma.decompress((data / TEXT).read_bytes()))
    text = {part: [post.partition("\n\n")[2] for post in posts[part]["data"]] for part in ("train", "test")}
    words = TfidfVectorizer(sublinear_tf=True, min_df=3, max_df=0.5, max_features=30_000, stop_words="english")
    train, test = words.fit_transform(text["train"]), words.transform(text["test"])
    labels = torch.tensor(posts["train"]["target"])
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(train.shape[1], hidden, mode="sum")
    torch.nn.init.normal_(bag.weight, std=0.1)
    head = torch.nn.Linear(hidden, len(posts["target_names"]))
    optimiser = torch.optim.Adam([*bag.parameters(), *head.parameters()], lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(labels)).split(128):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(head(features_of(bag, train[rows.numpy()])), labels[rows]).backward()
            optimiser.step()
    with torch.no_grad():
        features = features_of(bag, test)
        kept = {"features": features, "logits": head(features), "weight": head.weight, "bias": head.bias}
    np.savez(
        path, labels=np.array(posts["test"]["target"]), **{name: value.detach().numpy() for name, value in kept.items()}
    )


def features_of(bag, words):
    starts = torch.from_numpy(words.indptr[:-1].astype(np.int64))
    index, weights = torch.from_numpy(words.indices.astype(np.int64)), torch.from_numpy(words.data).float()
    return bag(index, starts, per_sample_weights=weights).relu()


# One task


def fitted(name, rows, path, seed):
    """Fit a method with what it asks for: a seed, features, the last layer."""
    entry = CALIBRATORS.entry(name.removesuffix("_features"))
    known = inspect.signature(entry.method.fit).parameters
    options = {"seed": seed} if "seed" in known else {}
    if name.endswith("_features") or entry.facts.get("needs_features"):
        options["features"] = rows.features
    if "weight" in known:
        options |= {key: np.load(path)[key] for key in ("weight", "bias")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a fit warns of stands in its notes
        began = time.perf_counter()
        return entry.method.fit(rows.logits, rows.labels, **options), time.perf_counter() - began


def methods(path):
    """Return the methods that this classifier can be calibrated by; the reference of all comparisons first."""
    has_features = "features" in np.load(path)
    able = {e.name for e in CALIBRATORS.entries() if has_features or not e.facts.get("needs_features")}
    return ["temperature", *sorted(able - {"temperature"}), *["group_features"] * has_features]


def judged(record, after, reference, floor_of="ece"):
    """Yield the numbers of one method; changes are against temperature, plus or minus a standard error over rows."""
    for name, (metric, options) in MEASURES.items():
        value = measure(metric, after, options=options)
        floor = value - measure("ece_excess", after) if name == floor_of else None
        yield record(name, value, floor=floor, settings=options)
    for name, loss in (("nll_change", "nll"), ("brier_change", "brier")):
        change, error = paired(getattr(after, loss).numpy(), getattr(reference, loss).numpy())
        yield record(name, change, low=change - error, high=change + error)


def task(name, path, seed, cache, again):
    """Calibrate one split of one classifier by every method whose records are not there yet."""
    home = cache / f"{name}.{seed}.json"
    before = [Record(**r) for r in json.loads(home.read_text())["records"]] if home.exists() else []
    stale = {r.method for r in before} if "temperature" in again else set(again)
    records = [r for r in before if r.method not in stale and r.metric != "failed"]
    there = {r.method for r in records}
    todo = [method for method in methods(path) if method not in there]
    rows, test = split(path, seed)
    took, began, reference = {}, time.perf_counter(), None
    for method in dict.fromkeys(["temperature", *todo] if todo else []):
        told, took[method], after = trial(method, rows, test, path, seed, name, reference)
        reference = after if reference is None else reference
        records = [r for r in records if r.method != method] + told
    if todo:
        about = {"model": name, "fit_rows": len(rows), "rows": len(test), "k": test.k, "machine": machine()}
        part = home.with_suffix(".part")  # a run may be stopped while it writes
        part.write_text(json.dumps(plain(about | {"records": [asdict(r) for r in records]})))
        part.replace(home)
    slow = ", ".join(f"{m} {s:.1f}" for m, s in sorted(took.items(), key=lambda item: -item[1]) if s >= 0.5)
    failed = "".join(f"; {r.method} FAILED: {r.settings['reason']}" for r in records if r.metric == "failed")
    return f"{name} {seed}: {time.perf_counter() - began:.1f} s; slow: {slow or 'none'}{failed}"


def trial(method, rows, test, path, seed, name, reference):
    """Return the records of one method, the seconds of its fit, and what it made of the test rows."""
    record = partial(Record, n=len(test), model=name, seed=seed, method=method)
    try:
        calibrator, seconds = fitted(method, rows, path, seed)
        after, fit = calibrator.calibrate(test), calibrator.fitted
        told = [*judged(record, after, after if reference is None else reference), record("seconds", seconds)]
        return [*told, record("identity", float(fit.identity), settings={"notes": fit.notes})], seconds, after
    except Exception as error:  # whatever a method may raise, the others are still worth comparing
        return [record("failed", float("nan"), settings={"reason": f"{type(error).__name__}: {error}"})], 0.0, None


def machine():
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    what = f"{cpu[1] if cpu else platform.processor()}, {os.cpu_count()} cores, {time.strftime('%Y-%m-%d')}"
    ours = versions().replace("calibrant unknown", f"calibrant {calibrant.__version__}")  # it may run uninstalled
    return f"{what}; {ours}, scikit-learn {version('scikit-learn')}"


def run(data, cache, jobs, seeds, only, again):
    """Run the tasks, those of the classifier that must be trained first last."""
    cache.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"  # the processes that are started inherit it
    torch.set_num_threads(1)
    found = {name: path for name, path in classifiers(data, cache).items() if only in name}
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:

        def submit(names):
            return [pool.submit(task, name, found[name], seed, cache, again) for name in names for seed in range(seeds)]

        waiting = submit(name for name in found if name != NEWS)
        if NEWS in found:
            if not found[NEWS].exists():
                began = time.perf_counter()
                train_on_text(data, found[NEWS])
                print(f"{NEWS} trained in {time.perf_counter() - began:.0f} s", flush=True)
            waiting += submit([NEWS])
        for done in as_completed(waiting):
            print(done.exception() or done.result(), flush=True)


# The table


def gathered(cache):
    """Return what is known of each classifier, and values[classifier][method][metric], one for each seed."""
    about, values = {}, {}
    for home in sorted(cache.glob("*.json")):
        content = json.loads(home.read_text())
        about[content["model"]] = content
        for r in (Record(**r) for r in content["records"]):
            kept = values.setdefault(r.model, {}).setdefault(r.method, {})
            kept.setdefault(r.metric, []).append(r.settings["reason"] if r.metric == "failed" else r.value)
            if r.floor is not None:
                kept.setdefault("floor", []).append(r.floor)
            if r.metric in ("nll_change", "brier_change"):
                kept.setdefault(f"{r.metric}_error", []).append((r.high - r.low) / 2)
    return about, values


def table(columns, rows):
    """Return a markdown table; the first column is text, the others numbers."""
    head = [columns, ["---"] + ["--:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(map(str, row))} |" for row in [*head, *rows])


def means(values, model, metric):
    """Return the mean over seeds of each method that ran on a classifier."""
    return {method: float(np.mean(v[metric])) for method, v in values[model].items() if metric in v}


def points(values, model, method):
    """Return the change of accuracy, in points."""
    return 100 * (means(values, model, "accuracy")[method] - means(values, model, "accuracy")["identity"])


def ranks(values, methods, models, metric):
    """Return the mean rank of each method over classifiers; of equal methods, the mean of their ranks."""
    found = [rankdata(np.round([means(values, model, metric)[m] for m in methods], 6)) for model in models]
    return dict(zip(methods, np.mean(found, 0) if found else np.full(len(methods), np.nan), strict=True))


def summary(values):
    """Return the table over all classifiers, in the order of log loss, and the order by ECE."""
    everywhere = [m for m in CALIBRATORS if all("nll" in v.get(m, {}) for v in values.values())]
    families = {"CIFAR-10": "cifar10_", "CIFAR-100": "cifar100_", "others": ("20", "mm", "co")}
    families = {name: [m for m in values if m.startswith(start)] for name, start in families.items()}
    by_loss, by_ece = (ranks(values, everywhere, values, metric) for metric in ("nll", "ece"))
    parts = [ranks(values, everywhere, models, "nll") for models in families.values()]
    columns = ["method", "rank by NLL", *(f"{name} ({len(models)})" for name, models in families.items())]
    columns += ["rank by ECE", "NLL less temperature's", "< 0", "ECE % (floor)", "Δacc", "fit s", "as it was"]
    rows = []
    for method in sorted(everywhere, key=by_loss.get):
        change = np.array([means(values, model, "nll_change")[method] for model in values])
        ece, floor = (np.mean([means(values, model, name)[method] for model in values]) for name in ("ece", "floor"))
        seconds = np.concatenate([v[method]["seconds"] for v in values.values()])
        same = np.concatenate([v[method]["identity"] for v in values.values()])
        row = [method, f"{by_loss[method]:.1f}", *(f"{part[method]:.1f}" for part in parts), f"{by_ece[method]:.1f}"]
        row += [f"{change.mean():+.4f} ({np.median(change):+.4f})", f"{(change < -TIE).sum()}/{len(change)}"]
        moved = [points(values, model, method) for model in values]
        row += [f"{100 * ece:.2f} ({100 * floor:.2f})", f"{np.mean(moved):+.2f} ({min(moved):+.2f})"]
        rows.append([*row, f"{np.median(seconds):.2f} ({max(seconds):.1f})", f"{int(same.sum())}/{len(same)}"])
    order = ", ".join(f"{m} {by_ece[m]:.1f}" for m in sorted(everywhere, key=by_ece.get))
    rows += [[m, *["-"] * (len(columns) - 1)] for m in CALIBRATORS if m not in everywhere]
    return f"{table(columns, rows)}\n\nBy ECE (mean rank): {order}."


def of_one(values, model, about):
    """Return the table of one classifier, in the order of log loss."""
    columns = ["method", "NLL", "Brier", "ECE % (floor)", "AdaECE %", "cwECE %", "Δacc", "fit s", "as it was"]
    rows = []
    for method in sorted(means(values, model, "nll"), key=means(values, model, "nll").get):
        of = {metric: np.mean(v) for metric, v in values[model][method].items()}
        row = [method, f"{of['nll']:.4f}", f"{of['brier']:.4f}", f"{100 * of['ece']:.2f} ({100 * of['floor']:.2f})"]
        row += [f"{100 * of['ada_ece']:.2f}", f"{100 * of['cw_ece']:.3f}", f"{points(values, model, method):+.2f}"]
        rows.append([*row, f"{of['seconds']:.2f}", f"{of['identity'] * len(values[model][method]['nll']):.0f}"])
    rows += [[m, *["-"] * (len(columns) - 1)] for m in CALIBRATORS if m not in means(values, model, "nll")]
    failed = {m: v["failed"][0] for m, v in values[model].items() if "failed" in v}
    told = "".join(f"\n\n{method} failed: {reason}" for method, reason in failed.items())
    accuracy = means(values, model, "accuracy")["identity"]
    sizes = f"{about['fit_rows']} rows to fit, {about['rows']} to test"
    return f"### {model}: {sizes}, {about['k']} classes, accuracy {accuracy:.4f}\n\n{table(columns, rows)}{told}"


def proper(values):
    """Return smart and smart_proper beside temperature, and the counts that the claim is about."""
    columns = ["classifier", "NLL", "(rows)", "Brier", "(rows)", "ECE less smart's", "smart's NLL"]
    columns += ["NLL not worse", "Brier not worse", "within 0.5"]
    rows, verdicts = [], []
    for model, of in values.items():
        nll, brier = (np.array(of["smart_proper"][f"{loss}_change"]) for loss in ("nll", "brier"))
        ece = np.array(of["smart_proper"]["ece"]) - np.array(of["smart"]["ece"])
        kept = [nll.mean() <= TIE, brier.mean() <= TIE, ece.mean() <= WITHIN]
        sure = [surely(nll), surely(brier), surely(ece - WITHIN)]
        verdicts.append([*kept, *sure, (nll <= TIE).mean(), (brier <= TIE).mean()])
        errors = [f"{1000 * np.mean(of['smart_proper'][f'{loss}_change_error']):.2f}" for loss in ("nll", "brier")]
        row = [model, with_error(1000 * nll), errors[0], with_error(1000 * brier), errors[1], with_error(100 * ece)]
        words = ["yes" if fine else "**no**" + ", surely" * bad for fine, bad in zip(kept, sure, strict=True)]
        rows.append([*row, with_error(1000 * np.array(of["smart"]["nll_change"])), *words])
    counts, n = np.sum(verdicts, 0), len(values)
    told = (
        f"Of {n} classifiers, smart_proper is not worse than temperature on {counts[0]:.0f} by log loss and on "
        f"{counts[1]:.0f} by Brier score, and within 0.5 points of smart's ECE on {counts[2]:.0f}; it is surely not so "
        f"on {counts[3]:.0f}, {counts[4]:.0f} and {counts[5]:.0f}. Of single splits, {counts[6] / n:.0%} are not worse "
        f"by log loss and {counts[7] / n:.0%} by Brier score."
    )
    return f"{table(columns, rows)}\n\n{told}"


def surely(change):
    """Whether a change over the seeds is above 0 by more than two standard errors."""
    return len(change) > 1 and bool(change.mean() > max(TIE, 2 * change.std(ddof=1) / len(change) ** 0.5))


def with_error(change):
    error = change.std(ddof=1) / len(change) ** 0.5 if len(change) > 1 else float("nan")
    return f"{change.mean():+.2f} ± {error:.2f}"


def write(cache, out):
    """Make the markdown of the records; keep what was written by hand."""
    about, values = gathered(cache)
    home = out / "posthoc.md"
    text = home.read_text() if home.exists() else ""
    learned = text.partition(LEARNED)[2].partition("\n## ")[0].strip() or "(to be written)"
    splits = sum(len(v["temperature"]["nll"]) for v in values.values())
    machines = " and ".join(sorted({content["machine"] for content in about.values()}))
    parts = [
        "# Post-hoc calibration of real classifiers",
        f"Command: `{COMMAND}`. {machines}. {len(values)} classifiers, {splits} splits, {len(CALIBRATORS)} methods.",
        f"{LEARNED}\n{learned}",
        f"## How to read it\n\n{READING}",
        f"## All classifiers\n\n{SUMMARY}\n\n{summary(values)}",
        f"## smart_proper against temperature and smart\n\n{PROPER}\n\n{proper(values)}",
        "## Each classifier",
        *(of_one(values, model, about[model]) for model in values),
    ]
    out.mkdir(parents=True, exist_ok=True)
    home.write_text("\n\n".join(parts) + "\n")
    print(f"{home}: {len(values)} classifiers, {splits} splits")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a folder with logits/*.npz and text/; not needed for --table")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--cache", type=Path, default=Path("build/posthoc"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a classifier's name")
    parser.add_argument("--again", nargs="*", default=[], help="methods to compute anew")
    parser.add_argument("--table", action="store_true", help="only make the table, of the records that are there")
    given = parser.parse_args()
    if not given.table:
        if given.data is None:
            parser.error("--data must name a folder with logits/*.npz and text/.")
        run(given.data, given.cache, given.jobs, given.seeds, given.only, given.again)
    write(given.cache, given.out)


if __name__ == "__main__":
    main()
