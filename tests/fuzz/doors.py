"""Predictions from anything: what is accepted has the facts of a plain float64 computation."""

import random
from pathlib import Path

import numpy as np
from hostile import JUNK, SIZES, WIDTHS, Given, close, dressed, labels, logits, numpy_of, probs

import calibrant as cb


def case(chance: random.Random, folder: Path) -> None:
    """Build Predictions, and compare every fact of every row."""
    n, k = chance.choice(SIZES), chance.choice(WIDTHS)
    kind = chance.choice(["logits", "probs", "log_probs", "confidence"])
    given = pairs(chance, n) if kind == "confidence" else scores(chance, kind, n, k)
    if chance.random() < 0.05:
        name = chance.choice([*given.arguments, "classes", "ignore_index", "weights", "groups", "features"])
        given.arguments[name], given.good = chance.choice(JUNK), False
    try:
        p = cb.Predictions(**given.arguments)
    except (ValueError, TypeError) as error:
        assert not given.good, f"good input refused: {error}"
        raise
    # a logarithm of 0 is -inf, and rows that are left out are not looked at
    lenient = kind == "log_probs" or given.arguments.get("ignore_index") is not None
    assert lenient or not given.hopeless, "bad input accepted"
    if given.good:
        check(p, kind, given.truth)
        part(p, chance)
    assert str(p)
    assert all(isinstance(note, str) for note in p.notes)
    assert p.fingerprint


def pairs(chance: random.Random, n: int) -> Given:
    """Confidences and correctness."""
    g, given = numpy_of(chance), Given()
    sure = g.random(n) if chance.random() < 0.7 else np.round(g.random(n), 1)
    right = g.random(n) < sure
    given.add(chance, "confidence", sure)
    given.add(chance, "correct", right if chance.random() < 0.5 else right.astype(np.int64), exact=True)
    extras(chance, given, n)
    return given


def scores(chance: random.Random, kind: str, n: int, k: int) -> Given:
    """Scores of classes, with labels."""
    given = Given()
    p = probs(chance, n, k)
    array = {"logits": lambda: logits(chance, n, k), "probs": lambda: p, "log_probs": lambda: logs(p)}[kind]()
    if k == 2 and chance.random() < 0.3:  # one column, of class 1
        array = array[:, 1] - (array[:, 0] if kind == "logits" else 0)
        array = array[:, None] if chance.random() < 0.5 else array
    given.add(chance, kind, array)
    full = given.truth.get(kind, array)
    wide = np.stack([np.zeros(n), full.reshape(n)], 1) if full.size == n and k == 2 else full
    given.good &= plausible(kind, wide)
    truth = labels(chance, np.nan_to_num(wide))
    ignored = chance.choice([None, None, -100, 255]) if n > 2 else None
    if ignored is not None:
        truth = np.where(numpy_of(chance).random(n) < 0.2, ignored, truth)
        given.arguments["ignore_index"] = ignored
        given.good &= bool((truth != ignored).any()) and plausible(kind, wide[truth != ignored])
    given.add(chance, "labels", truth, exact=True)
    # rows below chance are refused unless the order of the columns is said
    given.arguments["classes"] = range(k)
    if ignored is None:
        extras(chance, given, n)
    return given


def plausible(kind: str, scores: np.ndarray) -> bool:
    """Whether scores are finite and do not look like something else."""
    if not np.isfinite(scores).all() or (kind == "logits" and np.ptp(scores, axis=1).max(initial=0) > 1e300):
        return False
    looks_like = (scores >= 0).all() and (scores <= 1).all() and np.allclose(scores.sum(1), 1, atol=2e-3)
    if kind == "logits":
        return not (scores.shape[1] > 1 and looks_like)
    return True


def logs(p: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(p).clip(-1e4)


def extras(chance: random.Random, given: Given, n: int) -> None:
    """Groups, weights and features, sometimes."""
    g = numpy_of(chance)
    if chance.random() < 0.2:
        given.arguments["groups"] = [chance.choice("ab\x1bπ") for _ in range(n)]
    if chance.random() < 0.2:
        whole = g.integers(1, 4, n).astype(np.float64)
        given.add(chance, "weights", whole)
    if chance.random() < 0.1:
        given.arguments["features"], _ = dressed(chance, g.normal(size=(n, 3)))


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(np.clip(z - z.max(1, keepdims=True), -1e4, 0))
    return e / e.sum(1, keepdims=True)


def check(p: cb.Predictions, kind: str, truth: dict[str, np.ndarray]) -> None:
    """Compare the facts of good input with plain float64."""
    if kind == "confidence":
        assert np.allclose(p.confidence.numpy(), truth["confidence"], atol=1e-12), "confidence"
        assert np.array_equal(p.correct.numpy(), truth["correct"].astype(bool)), "correct"
        return
    given, y = truth[kind].reshape(len(truth["labels"]), -1), truth["labels"]
    if given.shape[1] == 1:
        one = given[:, 0]
        if kind == "logits":
            given = np.stack([np.zeros_like(one), one], 1)
        elif kind == "probs":
            given = np.stack([1 - one, one], 1)
        else:
            given = np.stack([logs(1 - np.exp(one)), one], 1)
    kept = (y >= 0) & (y < given.shape[1])
    given, y = given[kept], y[kept]
    assert len(p) == len(y), "number of rows"
    q = given if kind == "probs" else softmax(given)
    best = given.argmax(1)
    assert np.array_equal(p.predicted.numpy(), best), "predicted"
    assert np.array_equal(p.correct.numpy(), best == y), "correct"
    assert np.array_equal(p.labels.numpy(), y), "labels"
    rows = np.arange(len(y))
    top = given.max(1)
    if kind == "probs":
        nll = -np.log(np.clip(q[rows, y], 1e-12, 1))
    else:
        shifted = given - top[:, None]
        nll = np.log(np.exp(np.clip(shifted, -1e4, 0)).sum(1)) - shifted[rows, y]
    brier = ((q - np.eye(q.shape[1])[y]) ** 2).sum(1)
    size = np.maximum(1, np.abs(nll))
    assert np.allclose(p.confidence.numpy(), q.max(1), atol=3e-6), "confidence"
    assert np.allclose(p.nll.numpy() / size, nll / size, atol=3e-5), "nll"
    assert np.allclose(p.brier.numpy(), brier, atol=2e-5), "brier"
    w = np.ones(len(y)) if p.weights is None else p.weights.numpy()
    said = float(p.understood.rpartition("accuracy ")[2])
    assert close(said, float((w * (best == y)).sum() / w.sum()), 6e-4), f"said {p.understood}"


def part(p: cb.Predictions, chance: random.Random) -> None:
    """Some rows are the facts of those rows."""
    rows = [chance.randrange(len(p)) for _ in range(chance.choice([1, 3]))]
    some = p.take(dressed(chance, np.array(rows), exact=True)[0])
    assert np.array_equal(some.confidence.numpy(), p.confidence.numpy()[rows]), "rows taken"
