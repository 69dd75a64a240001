"""What each metric means, written slowly: loops over rows in float64, sharing nothing with the package.

An oracle takes the same views as its metric, as numpy arrays, and the same options. Weights are not here: a weight is a
repetition, and the tests write the repeated rows out.
"""

import itertools
import math

import numpy as np
import torch
from scipy.optimize import brentq, linprog
from scipy.special import expit
from scipy.stats import dirichlet, norm


def mean(values):
    values = list(values)
    return math.fsum(values) / len(values)


def blocks(confidence):
    """Rows of equal confidence, surest first."""
    return [[i for i, c in enumerate(confidence) if c == v] for v in sorted(set(confidence.tolist()), reverse=True)]


# Bins


def members_width(confidence, bins, convention):
    """Lists of rows, a bin each. An edge is the float nearest to b / bins, or what the other package computes."""
    edges = [b / bins for b in range(bins + 1)]
    if convention == "torchmetrics":
        edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64).tolist()
    if convention in ("guo2017", "netcal"):
        edges = np.linspace(0, 1, bins + 1).tolist()
    found = [[] for _ in range(bins + 1)]
    for i, c in enumerate(confidence):
        if convention in ("calibrant", "guo2017"):  # lo < c <= hi
            place = next((b for b in range(bins) if edges[b] < c <= edges[b + 1]), None)
            if place is None and convention == "calibrant":
                place = 0
        elif c == 1:
            place = bins if convention == "torchmetrics" else bins - 1
        else:  # lo <= c < hi
            place = next(b for b in range(bins) if edges[b] <= c < edges[b + 1])
        if place is not None:
            found[place].append(i)
    return found


def members_mass(confidence, bins, convention):
    n, ordered = len(confidence), sorted(confidence.tolist())
    if convention == "calibrant":
        sizes = [n // bins + (1 if b < n % bins else 0) for b in range(bins)]
        ends = [sum(sizes[: b + 1]) for b in range(bins)]
        inner = sorted({(ordered[e - 1] + ordered[e]) / 2 for e in ends if 0 < e < n})
        edges = [-math.inf, *inner, math.inf]
        return [[i for i, c in enumerate(confidence) if lo < c <= hi] for lo, hi in itertools.pairwise(edges)]
    if convention == "torrvision":
        edges = []
        for b in range(bins + 1):
            x = b * n / bins  # position among the sorted values, the last of which is n - 1
            j = min(int(x), n - 1)
            step = ordered[min(j + 1, n - 1)] - ordered[j]
            edges.append(ordered[j] + (x - j) * step if x < n - 1 else ordered[-1])
        return [[i for i, c in enumerate(confidence) if lo < c <= hi] for lo, hi in itertools.pairwise(edges)]
    assert convention == "au"
    edges = [ordered[math.floor(b * (n - 1) / bins)] for b in range(bins + 1)]
    found = [[] for _ in range(bins)]
    for i, c in enumerate(confidence):
        place = max(b for b in range(bins + 1) if edges[b] <= c)  # lo <= c < hi, the last bin closed
        found[min(place, bins - 1)].append(i)
    return found


def members(confidence, bins, scheme, convention="calibrant"):
    return (members_width if scheme == "width" else members_mass)(confidence, bins, convention)


def bin_gap(confidence, correct, rows):
    return abs(mean(confidence[rows].tolist()) - mean(correct[rows].astype(float).tolist()))


def top_label_ece(confidence, correct, bins=15, scheme="width", convention="calibrant"):
    found = members(confidence, bins, scheme, convention)
    return sum(len(rows) / len(confidence) * bin_gap(confidence, correct, rows) for rows in found if rows)


def mce(confidence, correct, bins=15, scheme="width", convention="calibrant"):
    found = members(confidence, bins, scheme, convention)
    return max(bin_gap(confidence, correct, rows) for rows in found if rows)


def ece_excess(confidence, correct, bins=15, scheme="width"):
    noise = 0.0
    for rows in members(confidence, bins, scheme):
        noise += math.sqrt(2 / math.pi * sum(confidence[i] * (1 - confidence[i]) for i in rows))
    return top_label_ece(confidence, correct, bins, scheme) - noise / len(confidence)


def binary_ece(probs, labels, **options):
    return top_label_ece(probs[:, 1], labels == 1, **options)


def classwise_ece(probs, labels, bins=15, scheme="width"):
    return mean(top_label_ece(probs[:, k], labels == k, bins, scheme) for k in range(probs.shape[1]))


def ece_debiased(confidence, correct, bins=15, scheme="mass", norm="l1"):
    total = 0.0
    for rows in members(confidence, bins, scheme):
        if len(rows) < 2:
            continue
        share, rate = len(rows) / len(confidence), mean(correct[rows].astype(float))
        gap = mean(confidence[rows]) - rate
        if norm == "l1":
            spread = math.sqrt(rate * (1 - rate) / len(rows))
            total += share * (2 * abs(gap) - folded_normal_mean(gap, spread))
        else:
            total += share * (gap**2 - rate * (1 - rate) / (len(rows) - 1))
    return math.sqrt(max(total, 0.0)) if norm == "l2" else total


LEGENDRE = np.polynomial.legendre.leggauss(200)


def folded_normal_mean(middle, spread):
    """E|N(middle, spread)| as the integral of its tail: the probabilities of lying above t and below -t."""
    if spread == 0:
        return abs(middle)
    t, weight = LEGENDRE
    top = abs(middle) + 12 * spread
    t, weight = (t + 1) * top / 2, weight * top / 2
    return float((weight * (norm.sf((t - middle) / spread) + norm.cdf((-t - middle) / spread))).sum())


def ece_sweep(confidence, correct, scheme="mass"):
    n = len(confidence)
    order = sorted(range(n), key=lambda i: confidence[i])
    shared = correct.astype(float)
    for tied in blocks(confidence):
        shared[tied] = mean(correct[tied].astype(float))
    error = None
    for b in range(1, n + 1):
        found = [[] for _ in range(b)]
        for j, i in enumerate(order):
            place = j * b // n if scheme == "mass" else min(math.floor(confidence[i] * b), b - 1)
            found[place].append(i)
        found = [rows for rows in found if rows]
        rates = [mean(shared[rows]) for rows in found]
        if any(later < earlier - 1e-9 for earlier, later in itertools.pairwise(rates)):
            return error
        error = sum(len(rows) / n * bin_gap(confidence, shared, rows) for rows in found)
    return error


# Without bins


def smooth_ce(confidence, correct):
    """The linear programme itself: every pair of rows is held to the Lipschitz bound."""
    n = len(confidence)
    above, limit = [], []
    for i, j in itertools.permutations(range(n), 2):
        line = np.zeros(n)
        line[i], line[j] = 1, -1
        above.append(line)
        limit.append(abs(confidence[i] - confidence[j]))
    gain = (correct.astype(float) - confidence) / n
    found = linprog(-gain, A_ub=np.array(above) if n > 1 else None, b_ub=limit or None, bounds=(-1, 1), method="highs")
    return -found.fun


def sm_ece(confidence, correct, sigma=None):
    """Midpoint rule over 8 000 cells; the reflected Gaussian as a sum over mirror images."""
    t = (np.arange(8000) + 0.5) / 8000
    residual = confidence - correct.astype(float)
    images = range(-8, 9)

    def error(width):
        total = np.zeros_like(t)
        for c, r in zip(confidence, residual, strict=True):
            for m in images:
                for place in (2 * m + c, 2 * m - c):
                    if -10 * width < place < 1 + 10 * width:
                        total += r * np.exp(-0.5 * ((t - place) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        return np.abs(total / len(confidence)).mean()

    if sigma is not None:
        return error(sigma)
    return brentq(lambda width: error(width) - width, 2e-3, 1.0, xtol=1e-8)


def ece_kde(probs, labels, kind="canonical", power=1, bandwidth=0.02):
    n, k = probs.shape
    if kind == "canonical":
        return kernel_error(probs, [[float(labels[i] == j) for j in range(k)] for i in range(n)], power, bandwidth)
    if kind == "top_label":
        top = [max(range(k), key=lambda j: probs[i, j]) for i in range(n)]
        pairs = [([probs[i, top[i]] for i in range(n)], [float(top[i] == labels[i]) for i in range(n)])]
    else:
        pairs = [(probs[:, j], [float(labels[i] == j) for i in range(n)]) for j in range(k)]
    return sum(
        kernel_error(np.array([[c, 1 - c] for c in cs]), [[t] for t in truth], power, bandwidth) for cs, truth in pairs
    )


def kernel_error(p, truth, power, bandwidth):
    n = len(p)
    if n < 2:
        return math.nan
    total = 0.0
    for j in range(n):
        others = [i for i in range(n) if i != j]
        place = np.maximum(p[j], 1e-12)
        logs = [float(dirichlet.logpdf(place, p[i] / bandwidth + 1)) for i in others]
        kernel = [math.exp(x - max(logs)) for x in logs]
        for column in range(len(truth[j])):
            hits = sum(v * truth[i][column] for v, i in zip(kernel, others, strict=True))
            total += abs(hits / sum(kernel) - p[j, column]) ** power
    return total / n


def running_sums(confidence, correct):
    """Sum of confidence - correctness after each block of ties, least sure first, from 0."""
    sums = [0.0]
    for rows in reversed(blocks(confidence)):
        sums.append(sums[-1] + math.fsum(confidence[i] - float(correct[i]) for i in rows))
    return sums


def ks_error(confidence, correct):
    return max(abs(s) for s in running_sums(confidence, correct)) / len(confidence)


def kuiper_error(confidence, correct):
    sums = running_sums(confidence, correct)
    return max(abs(b - a) for a, b in itertools.combinations(sums, 2)) / len(confidence)


def in_deviations(total, confidence):
    variance = math.fsum(c * (1 - c) for c in confidence)
    if variance == 0:
        return 0.0 if total < 1e-9 else math.inf
    return total / math.sqrt(variance)


def ks_pvalue(confidence, correct):
    """By reflection: 4 sum_j (-1)^j P(N > (2j + 1) x)."""
    x = in_deviations(ks_error(confidence, correct) * len(confidence), confidence)
    if x < 0.05:
        return 1.0
    total, j = 0.0, 0
    while (2 * j + 1) * x < 40:
        total += 4 * (-1) ** j * norm.sf((2 * j + 1) * x)
        j += 1
    return total


def kuiper_pvalue(confidence, correct):
    """From the eigenfunctions of the heat equation on an interval, integrated over where the interval starts."""
    r = in_deviations(kuiper_error(confidence, correct) * len(confidence), confidence)
    if r < 0.05:
        return 1.0
    if r > 40:
        return 0.0
    below, k = [], 1
    while (exponent := (k * math.pi / r) ** 2 / 2) < 60:
        below.append((8 / (k * math.pi) ** 2 + 8 / r**2) * math.exp(-exponent))
        k += 2
    return 1 - math.fsum(below)


def spiegelhalter_z(confidence, correct):
    top = math.fsum((float(a) - c) * (1 - 2 * c) for c, a in zip(confidence, correct, strict=True))
    variance = math.fsum((1 - 2 * c) ** 2 * c * (1 - c) for c in confidence)
    return top / math.sqrt(variance) if variance > 0 else math.nan


def spiegelhalter_pvalue(confidence, correct):
    return float(math.erfc(abs(spiegelhalter_z(confidence, correct)) / math.sqrt(2)))


# Direction


def mean_confidence(confidence):
    return mean(confidence)


def signed_gap(confidence, correct):
    return mean(c - float(a) for c, a in zip(confidence, correct, strict=True))


def log_odds(confidence):
    return np.array([math.log(c) - math.log1p(-c) for c in np.clip(confidence, 1e-12, 1 - 1e-12)])


def has_no_slope(confidence, correct):
    """Constant, one-sided, or the right and the wrong rows meet in one value at most."""
    right, wrong = confidence[correct], confidence[~correct]
    if len(right) == 0 or len(wrong) == 0 or len(set(confidence.tolist())) == 1:
        return True
    return bool(wrong.max() <= right.min() or right.max() <= wrong.min())


def calibration_slope(confidence, correct):
    """Two nested roots of the score equations, each monotone because the likelihood is concave."""
    if has_no_slope(confidence, correct):
        return math.nan
    x, a = log_odds(confidence), correct.astype(float)

    def intercept(slope):
        return brentq(lambda alpha: math.fsum(a - expit(alpha + slope * x)), -1e4, 1e4, xtol=1e-13)

    def score(slope):
        return math.fsum(x * (a - expit(intercept(slope) + slope * x)))

    high = 1.0
    while score(high) > 0 or score(-high) < 0:
        high *= 2
    return brentq(score, -high, high, xtol=1e-12)


def calibration_intercept(confidence, correct):
    if correct.all() or not correct.any():
        return math.nan
    x, a = log_odds(confidence), correct.astype(float)
    return brentq(lambda alpha: math.fsum(a - expit(alpha + x)), -1e3, 1e3, xtol=1e-13)


# Proper scores


def accuracy(correct):
    return mean(float(a) for a in correct)


def top5_accuracy(logits, labels):
    hits = []
    for row, y in zip(logits.tolist(), labels, strict=True):
        best = sorted(range(len(row)), key=lambda k: (-row[k], k))[:5]
        hits.append(float(y in best))
    return mean(hits)


def nll(logits, labels):
    found = []
    for row, y in zip(logits.tolist(), labels, strict=True):
        top = max(row)
        found.append(top + math.log(math.fsum(math.exp(z - top) for z in row)) - row[y])
    return mean(found)


def brier(probs, labels, normalise="sum"):
    total = mean(
        math.fsum((p - float(k == y)) ** 2 for k, p in enumerate(row)) for row, y in zip(probs, labels, strict=True)
    )
    return {"sum": total, "mean_over_classes": total / probs.shape[1], "half": total / 2}[normalise]


def top_label_brier(confidence, correct):
    return mean((c - float(a)) ** 2 for c, a in zip(confidence, correct, strict=True))


def pool_adjacent_violators(confidence, correct):
    """The isotonic fit of each row: start from the blocks of ties and pool until nothing decreases."""
    pools = [[rows, mean(correct[rows].astype(float))] for rows in reversed(blocks(confidence))]
    i = 0
    while i < len(pools) - 1:
        if pools[i][1] > pools[i + 1][1]:
            rows = pools[i][0] + pools[i + 1][0]
            pools[i : i + 2] = [[rows, mean(correct[rows].astype(float))]]
            i = max(i - 1, 0)
        else:
            i += 1
    fitted = np.zeros(len(confidence))
    for rows, level in pools:
        fitted[rows] = level
    return fitted


def mean_score(forecast, correct, score):
    if score == "brier":
        return top_label_brier(forecast, correct)
    losses = []
    for c, a in zip(forecast, correct, strict=True):
        c = min(max(c, 1e-12), 1 - 1e-12)
        losses.append(-math.log(c) if a else -math.log1p(-c))
    return mean(losses)


def corp_miscalibration(confidence, correct, score="brier"):
    fitted = pool_adjacent_violators(confidence, correct)
    return mean_score(confidence, correct, score) - mean_score(fitted, correct, score)


def corp_discrimination(confidence, correct, score="brier"):
    return corp_uncertainty(confidence, correct, score) - mean_score(
        pool_adjacent_violators(confidence, correct), correct, score
    )


def corp_uncertainty(confidence, correct, score="brier"):
    return mean_score(np.full(len(correct), accuracy(correct)), correct, score)


# Ranking


def pairs_won(high, low):
    return (
        mean(1.0 if h > x else 0.5 if h == x else 0.0 for h in high for x in low) if len(high) * len(low) else math.nan
    )


def failure_auroc(confidence, correct):
    return pairs_won(confidence[correct], confidence[~correct])


def ood_auroc(confidence, ood_confidence):
    return pairs_won(confidence, ood_confidence)


def average_precision(score, positive):
    if positive.all() or not positive.any():
        return math.nan
    total, recall = 0.0, 0.0
    for threshold in sorted(set(score.tolist()), reverse=True):
        taken = [bool(p) for s, p in zip(score, positive, strict=True) if s >= threshold]
        total += (sum(taken) / positive.sum() - recall) * sum(taken) / len(taken)
        recall = sum(taken) / positive.sum()
    return total


def aupr_success(confidence, correct):
    return average_precision(confidence, correct)


def aupr_error(confidence, correct):
    return average_precision(-confidence, ~correct)


def fpr_at_95_tpr(confidence, correct):
    if correct.all() or not correct.any():
        return math.nan
    for threshold in sorted(set(confidence.tolist()), reverse=True):
        if 100 * (confidence[correct] >= threshold).sum() >= 95 * correct.sum():
            return (confidence[~correct] >= threshold).mean()
    raise AssertionError("the lowest threshold accepts every row")


def tpr(confidence, correct, threshold=0.5):
    return mean(float(c > threshold) for c in confidence[correct]) if correct.any() else math.nan


def tnr(confidence, correct, threshold=0.5):
    return mean(float(c < threshold) for c in confidence[~correct]) if not correct.all() else math.nan


def gaussian_fits(confidence, correct):
    fits = []
    for rows in (confidence[correct], confidence[~correct]):
        if len(rows) < 2:
            return None
        middle = mean(rows)
        fits.append((middle, math.fsum((c - middle) ** 2 for c in rows) / (len(rows) - 1)))
    return fits


def separability_kl(confidence, correct, released=False):
    fits = gaussian_fits(confidence, correct)
    if fits is None:
        return math.nan

    def divergence(one, two):
        (m1, v1), (m2, v2) = one, two
        spread = v2 if released else 2 * v2
        return math.log(math.sqrt(v2) / math.sqrt(v1)) + (v1 + (m1 - m2) ** 2) / spread - 0.5

    return (divergence(*fits) + divergence(*reversed(fits))) / 2


def separability_bhattacharyya(confidence, correct):
    """By its definition, -log of the integral of the root of both densities, on a fine grid."""
    fits = gaussian_fits(confidence, correct)
    if fits is None:
        return math.nan
    (m1, v1), (m2, v2) = fits
    s = max(math.sqrt(v1), math.sqrt(v2))
    x = np.linspace(min(m1, m2) - 20 * s, max(m1, m2) + 20 * s, 200_001)
    root = np.sqrt(norm.pdf(x, m1, math.sqrt(v1)) * norm.pdf(x, m2, math.sqrt(v2)))
    return -math.log(root.sum() * (x[1] - x[0]))


# Selective prediction


def ranked_losses(confidence, losses):
    """Losses from the surest row on, a tied row having the mean of its block: the average over orders of the block."""
    ranked = []
    for rows in blocks(confidence):
        ranked += [mean(losses[rows])] * len(rows)
    return ranked


def aurc(confidence, correct, losses=None, convention="exact"):
    losses = (~correct).astype(float) if losses is None else losses
    ranked = ranked_losses(confidence, losses)
    n = len(ranked)
    if convention == "exact":
        return mean(mean(ranked[:j]) for j in range(1, n + 1))
    if convention == "logarithm":
        return mean(-math.log(1 - (n - i) / (n + 1)) * loss for i, loss in enumerate(ranked))
    if convention == "geifman":  # the released loop: remove rows one by one, divide by one too many
        risks, left = [sum(ranked) / n], sum(ranked)
        for removed in range(n - 1):
            left -= ranked[n - 1 - removed]
            risks.append(left / (n - removed))
        return mean(risks)
    assert convention == "confidnet"
    points = []
    for threshold in sorted(set(confidence.tolist())):
        taken = [float(loss) for c, loss in zip(confidence, losses, strict=True) if c > threshold]
        if taken:
            points.append((len(taken) / n, mean(taken)))
    points.sort()
    return sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))


def e_aurc(confidence, correct, oracle="asymptotic"):
    if oracle == "exact":
        perfect = sorted((~correct).astype(float))
        return aurc(confidence, correct) - mean(mean(perfect[:j]) for j in range(1, len(perfect) + 1))
    e = 1 - accuracy(correct)
    return aurc(confidence, correct) - (e + (1 - e) * math.log(1 - e) if e < 1 else 1.0)


def augrc(confidence, correct):
    """The mean of 'accepted and wrong' over coverage, each tied block entering along a straight line."""
    n, area, wrong = len(confidence), 0.0, 0.0
    for rows in blocks(confidence):
        after = wrong + sum(not correct[i] for i in rows)
        area += len(rows) / n * (wrong + after) / 2 / n
        wrong = after
    return area


def risk_at_coverage(confidence, correct, coverage=0.8):
    kept = math.ceil(round(coverage * len(confidence), 9))
    return mean(ranked_losses(confidence, (~correct).astype(float))[:kept])


def coverage_at_risk(confidence, correct, risk=0.05):
    best = 0.0
    for threshold in confidence:
        taken = [float(not a) for c, a in zip(confidence, correct, strict=True) if c >= threshold]
        if sum(taken) <= risk * len(taken) + 1e-9:
            best = max(best, len(taken) / len(confidence))
    return best


# Training dynamics


def mean_entropy(probs):
    return mean(-math.fsum(p * math.log(p) for p in row if p > 0) for row in probs)


def class_kl(probs, labels, leave_out=True):
    found = []
    for i, y in enumerate(labels):
        peers = [j for j in range(len(labels)) if labels[j] == y and not (leave_out and j == i)]
        if peers:
            middle = [mean(probs[peers, k]) for k in range(probs.shape[1])]
            terms = (
                m * (math.log(m) - math.log(max(p, 1e-12))) for m, p in zip(middle, probs[i], strict=True) if m > 0
            )
            found.append(math.fsum(terms))
    return mean(found) if found else math.nan


def class_cosine(probs, labels):
    found = []
    for i, y in enumerate(labels):
        middle = probs[[j for j in range(len(labels)) if labels[j] == y]].mean(0)
        found.append(probs[i] @ middle / (np.linalg.norm(probs[i]) * np.linalg.norm(middle)))
    return mean(found)
