"""Oracles of losses and penalties: numpy and plain Python, row by row, written from the formulas."""

import inspect
import math

import numpy as np
from scipy.special import gammaln

from calibrant.registry import LOSSES


def sizes(name, k, n):
    """Return the options that a loss cannot be made without: the number of classes, or of training rows."""
    parameters = inspect.signature(LOSSES[name]).parameters
    return {option: size for option, size in (("k", k), ("n", n)) if option in parameters}


def probabilities(z):
    e = np.exp(np.asarray(z, dtype=np.float64) - np.max(z, axis=1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def _true(z, y):
    return probabilities(z)[np.arange(len(y)), y]


def cross_entropy(z, y):
    return -np.log(_true(z, y))


def label_smoothing(z, y, alpha=0.05, convention="uniform"):
    p, k = probabilities(z), z.shape[1]
    out = []
    for row, label in zip(p, y, strict=True):
        if convention == "uniform":
            target = [(1 - alpha) * (j == label) + alpha / k for j in range(k)]
        else:
            target = [1 - alpha if j == label else alpha / (k - 1) for j in range(k)]
        out.append(-sum(t * math.log(q) for t, q in zip(target, row, strict=True)))
    return np.array(out)


def brier(z, y):
    p = probabilities(z)
    return np.array([sum((p[i, j] - (j == y[i])) ** 2 for j in range(p.shape[1])) for i in range(len(y))])


def focal(z, y, gamma=3.0, detach_weight=False):
    p = _true(z, y)
    return -((1 - p) ** gamma) * np.log(p)


def flsd(z, y, gamma=3.0):
    return np.array([-((1 - p) ** (5 if p < 0.2 else 3 if p < 0.5 else gamma)) * math.log(p) for p in _true(z, y)])


def inverse_focal(z, y, gamma=2.0):
    p = _true(z, y)
    return -((1 + p) ** gamma) * np.log(p)


def dual_focal(z, y, gamma=5.0, competitor="ranked_after"):
    out = []
    for row, label in zip(probabilities(z), y, strict=True):
        if competitor == "ranked_after":
            other = max([q for q in row if q < row[label]], default=0.0)
        else:
            other = max(q for j, q in enumerate(row) if j != label)
            if competitor == "only_if_right" and other > row[label]:
                other = 0.0
        out.append(-((1 - row[label] + other) ** gamma) * math.log(row[label]))
    return np.array(out)


def seca(z, y, detach_mean=True):
    p, out = probabilities(z), []
    for i in range(len(y)):
        mean = np.mean([p[j] for j in range(len(y)) if y[j] == y[i]], axis=0)
        out.append(-sum(((j == y[i]) + mean[j]) * math.log(p[i, j]) for j in range(p.shape[1])))
    return np.array(out)


def aurc(z, y, confidence="negative_entropy", weighting="em"):
    s, nll, n = score(z, confidence), cross_entropy(z, y), len(y)
    out = np.empty(n)
    for place, i in enumerate(np.argsort(s, kind="stable")):
        r = place + 1
        weight = {
            "em": sum(1 / j for j in range(n - r + 1, n + 1)),
            "ln": -math.log(1 - r / (n + 1)),
            "sele": r / n,
        }[weighting]
        out[i] = weight * nll[i]
    return out


def score(z, name):
    p = probabilities(z)
    if name == "msp":
        return p.max(1)
    if name == "margin":
        return np.sort(p, 1)[:, -1] - np.sort(p, 1)[:, -2]
    if name == "released":
        return probabilities(p).max(1)
    entropy = -(p * np.log(p)).sum(1)
    return {"negative_entropy": -entropy, "normalised_negative_entropy": 1 - entropy / math.log(p.shape[1])}[name]


def au(z, y, confidence="released", kappa=0.8, nu=None, bins=64, constant=False, weight_gradient=1.0):
    s, n = score(z, confidence), len(y)
    nu = usual(z.shape[1]) if nu is None else nu
    counts = np.histogram(s, bins=np.linspace(0, 1, bins + 1))[0]
    centres = [(m + 0.5) / bins for m in range(bins)]

    def share(x):
        total = sum(h / (1 + math.exp(min(-(x - c) / nu, 700))) for h, c in zip(counts, centres, strict=True)) / n
        return min(max(total, 1 / (n + 1)), n / (n + 1))

    threshold = float(np.quantile(s, kappa))
    top = share(threshold)
    weight = np.array([-math.log(1 - (top if x >= threshold else share(x))) for x in s])
    return weight * (1 / top if constant else 1) * cross_entropy(z, y)


def usual(k):
    """Half of the range of the largest softmax of k probabilities."""
    return (probabilities(np.eye(k)[:1]).max() - 1 / k) / 2


def ada_focal(z, y, inner, gammas):
    out = []
    for p in _true(z, y):
        gamma = gammas[sum(edge < p for edge in inner)]
        out.append(-((1 - p) ** gamma if gamma >= 0 else (1 + p) ** -gamma) * math.log(p))
    return np.array(out)


def cal_focal(z, y, inner, accuracy, gammas, rate, case):
    out = []
    for p in _true(z, y):
        b = sum(edge < p for edge in inner)
        gamma = math.exp(rate * (p - accuracy[b])) if case == 1 else gammas[b]
        out.append(-((1 - p) ** gamma) * math.log(p))
    return np.array(out)


def online_label_smoothing(z, y, soft, alpha=0.5):
    p = probabilities(z)
    return np.array(
        [-alpha * math.log(p[i, t]) - (1 - alpha) * (soft[t] * np.log(p[i])).sum() for i, t in enumerate(y)]
    )


def correctness_ranking(z, y, share, weight=1.0):
    p, n = probabilities(z).max(1), len(y)
    out = cross_entropy(z, y)
    for i in range(n):
        j = (i + 1) % n
        gap = share[i] - share[j]
        out[i] += weight * max(0.0, -np.sign(gap) * (p[i] - p[j]) + abs(gap))
    return out


# Penalties


def _top(z, y):
    p = probabilities(z)
    return p.max(1), (p.argmax(1) == y).astype(float)


def dca(z, y):
    r, a = _top(z, y)
    return abs(r.mean() - a.mean())


def mdca(z, y):
    p = probabilities(z)
    return np.mean([abs(p[:, j].mean() - np.mean(y == j)) for j in range(p.shape[1])])


def mmce(z, y, weighted=True, normalisation="paper"):
    r, a = _top(z, y)
    n, m = len(a), int(a.sum())
    if not weighted:
        total = sum(
            (a[i] - r[i]) * (a[j] - r[j]) * math.exp(-abs(r[i] - r[j]) / 0.4) for i in range(n) for j in range(n)
        )
        return math.sqrt(max(total, 0) / n**2 + 1e-10)
    if m in (0, n):
        return 0.0
    size = {1.0: m, 0.0: n - m}
    total = 0.0
    for i in range(n):
        for j in range(n):
            pairs = size[a[i]] * size[a[j]]
            pairs *= pairs + 1e-5 if normalisation == "released" else 1
            total += (a[i] - r[i]) * (a[j] - r[j]) * math.exp(-abs(r[i] - r[j]) / 0.4) / pairs
    return math.sqrt(max(total, 0) + 1e-10)


def _kernel(p, i, j, h):
    """Log density at row j of the Dirichlet around row i."""
    alpha = p[i] / h + 1
    return gammaln(alpha.sum()) - gammaln(alpha).sum() + ((alpha - 1) * np.log(p[j])).sum()


def kde_ece(z, y, bandwidth=None, p=1):
    q, power = probabilities(z), p
    n, k = q.shape
    if bandwidth is None:
        grid = [*np.logspace(-5, -1, 15), 0.2, 0.4, 0.6, 0.8, 1.0]

        def likely(h):
            logs = [[_kernel(q, i, j, h) for i in range(n) if i != j] for j in range(n)]
            return sum(np.logaddexp.reduce(row) for row in logs)

        bandwidth = max(grid, key=likely)
    total = 0.0
    for j in range(n):
        logs = {i: _kernel(q, i, j, bandwidth) for i in range(n) if i != j}
        most = max(logs.values())
        near = {i: math.exp(value - most) for i, value in logs.items()}
        for c in range(k):
            ratio = sum(w for i, w in near.items() if y[i] == c) / sum(near.values())
            total += abs(ratio - q[j, c]) ** power
    return total / n


def soft_ece(z, y, bins=15, temperature=0.01, p=2, label_binned=False):
    r, a = _top(z, y)
    low = 1 / z.shape[1] if label_binned else 0.0
    centres = [low + (1 - low) * (b + 0.5) / bins for b in range(bins)]
    u = np.array([[-((x - c) ** 2) / temperature for c in centres] for x in r])
    u = probabilities(u)
    value, mass = 0.0, u.sum(0)
    for b in range(bins):
        accuracy = (u[:, b] * a).sum() / max(mass[b], 1e-30)
        if label_binned:
            value += (u[:, b] * (accuracy - r) ** 2).sum() / len(r)
        else:
            gap = abs(accuracy - (u[:, b] * r).sum() / max(mass[b], 1e-30))
            value += max(mass[b], 1e-30) / len(r) * gap**p
    return value if label_binned or p == 1 else math.sqrt(value + 1e-12)


def _four(z, y, sure, amount):
    p = probabilities(z)
    entropy = -(p * np.log(p)).sum(1)
    _, a = _top(z, y)
    n = dict.fromkeys(("AC", "AU", "IC", "IU"), 0.0)
    for i in range(len(y)):
        kind = "A" if a[i] else "I"
        n[kind + "C"] += amount(i, a[i]) * sure[i] * (1 - math.tanh(entropy[i]))
        n[kind + "U"] += amount(i, a[i]) * (1 - sure[i]) * math.tanh(entropy[i])
    return math.log(1 + (n["AU"] + n["IC"]) / (n["AC"] + n["IU"] + 1e-10))


def avuc(z, y, threshold=None, detach_confidence=False):
    p = probabilities(z)
    entropy = -(p * np.log(p)).sum(1)
    r, a = _top(z, y)
    if threshold is None:
        threshold = np.mean([entropy[a == kind].mean() for kind in (1, 0) if (a == kind).any()])
    return _four(z, y, (entropy < threshold).astype(float), lambda i, right: r[i] if right else 1 - r[i])


def soft_avuc(z, y, threshold=0.5, temperature=1.0):
    p = probabilities(z)
    e = np.clip(-(p * np.log(p)).sum(1) / math.log(p.shape[1]), 1e-6, 1 - 1e-6)
    gate = 1 / (1 + ((1 - e) * threshold / (e * (1 - threshold))) ** (1 / temperature))
    return _four(z, y, 1 - gate, lambda i, right: 1.0)


def dece(z, y, bins=15, sharpness=100.0, width=0.01):
    p = probabilities(z)
    value = np.zeros(bins)
    for i in range(len(y)):
        rank = 0.5 + sum(1 / (1 + math.exp(-sharpness * (p[i, j] - p[i, y[i]]))) for j in range(p.shape[1]))
        r, a = p[i].max(), max(0.0, 2 - rank)
        logits, cut = [], 0.0
        for b in range(bins):
            cut += b / bins
            logits.append((r * (b + 1) - cut) / width)
        share = probabilities(np.array([logits]))[0] + 1e-6
        value += share / share.sum() * (a - r)
    return np.abs(value).sum() / len(y)


def confidence_penalty(z, y):
    p = probabilities(z)
    return (p * np.log(p)).sum() / len(y)
