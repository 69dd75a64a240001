"""Class priors of unlabelled rows under label shift, by maximum likelihood (EM)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrant.calibrators._solvers.newton import least_log_loss
from calibrant.calibrators.prior import shares as checked
from calibrant.metrics.binomial import clopper_pearson
from calibrant.metrics.evidence import check_resampling
from calibrant.predictions import scalars
from calibrant.predictions.fit_data import FitData
from calibrant.predictions.predictions import Predictions
from calibrant.predictions.types import Vector, float64
from calibrant.records import count, percent

CLOSE = 1e-4  # EM ends when the log likelihood of all rows together is so near its maximum: 1 % of a standard error
ERROR = 0.01  # probability of refusing scores that are calibrated
OFF = 0.1  # a temperature 10 % off may turn a share of 0.90 into 0.88 or 0.92


@dataclass(frozen=True)
class Prior:
    """Estimated shares of the classes, each between ``low`` and ``high`` with probability ``level``.

    ``log_likelihood`` is the mean over rows at each step of EM, above that of ``train_prior``; it never falls.
    """

    prior: Vector
    low: Vector
    high: Vector
    level: float
    train_prior: Vector
    n: int
    log_likelihood: Vector
    converged: bool
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"class shares in {count(self.n)} unlabelled rows, with {percent(self.level)} intervals:"]
        for k in np.argsort(-np.abs(self.prior - self.train_prior), kind="stable")[:10]:
            found, low, high, was = (percent(v[k], 1) for v in (self.prior, self.low, self.high, self.train_prior))
            lines.append(f"  class {k}: {found} [{low}, {high}], was {was}")
        if len(self.prior) > 10:
            lines.append(f"  and {len(self.prior) - 10} more, less changed")
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def estimate_prior(
    logits: Any,
    train_prior: Any,
    *,
    held_out: Predictions | None = None,
    level: float = 0.9,
    resamples: int = 200,
    max_steps: int = 10_000,
    seed: int = 0,
) -> Prior:
    r"""Estimate the class shares of unlabelled rows from calibrated logits, by maximum likelihood.

    .. math:: \hat\pi = \arg\max_\pi \sum_i \log \sum_k p_{ik} \frac{\pi_k}{\pi^\text{train}_k}, \qquad
        \pi_k \leftarrow \frac1n \sum_i \frac{p_{ik}\, \pi_k / \pi^\text{train}_k}
        {\sum_j p_{ij}\, \pi_j / \pi^\text{train}_j}

    EM from the ``train_prior``, the class shares that the probabilities are calibrated to. The likelihood is concave,
    so its slope bounds what is still to gain; EM ends when that is 1e-4 for all rows together, or after
    ``max_steps``. The interval holds the middle of ``resamples`` estimates on redrawn rows, and at least what n rows
    with known labels would leave open (Clopper and Pearson's interval): it reflects the sampling noise of
    these rows, not the error of the model's probabilities.

    Over-confident scores give a wrong prior and no sign of it. With ``held_out`` (labelled rows that share the
    ``train_prior`` and that nothing was fitted on) the scores are judged first, and refused where the mean
    probability of a class leaves its observed share by more than chance explains (Bernstein's inequality, 1 % over
    all classes), where the observed shares are not the ``train_prior``, or where the logits need a temperature more
    than 10 % and three standard errors from 1. Refused too are rows whose scores cannot tell classes apart, so that
    the shares are not identifiable. Like `adjust_prior` it assumes label shift; other shifts break it undetected.

    Reference: Saerens, Latinne & Decaestecker, Neural Computation 2002; Alexandari, Kundaje & Shrikumar, ICML 2020
    (calibrate first).

    Example:
        >>> logits = 6 * torch.eye(2)[torch.arange(100) % 5 // 4]  # sure of class 0 in 80 rows, of class 1 in 20
        >>> found = estimate_prior(logits, [0.5, 0.5])
        >>> found.prior.round(2), bool(found.low[1] < 0.2 < found.high[1])
        (array([0.8, 0.2]), True)
    """
    check_resampling(level, resamples, seed)
    scalars.whole(max_steps, "max_steps", least=1)
    p = float64(Predictions(logits=logits).logits.double().softmax(1))
    n, k = p.shape
    train = checked(train_prior, "train_prior", k)
    notes: tuple[str, ...] = ("the scores were not judged; pass held_out=Predictions(logits=..., labels=...).",)
    if held_out is not None:
        _refuse_uncalibrated(held_out, train)
        notes = ()
    ratios = p / train
    _refuse_flat(ratios)
    shares, gained, converged = _em(ratios, np.ones((n, 1)), train[:, None], CLOSE, max_steps)
    if not converged:
        notes = (*notes, f"EM had not converged after {count(max_steps)} steps; the classes are hard to tell apart.")
    again = _redrawn(ratios, shares, resamples, max_steps, seed)
    low, high = np.quantile(again, [(1 - level) / 2, (1 + level) / 2], axis=1)
    found = shares[:, 0]
    least, most = clopper_pearson(found * n, np.full(k, float(n)), level)
    return Prior(found, np.minimum(low, least), np.maximum(high, most), level, train, n, gained, converged, notes)


def _em(ratios: Vector, counts: Vector, start: Vector, close: float, max_steps: int) -> tuple[Vector, Vector, bool]:
    """Run EM from ``start`` (k, b) for b sets of row ``counts`` (n, b) at once; also the mean log likelihood a step."""
    shares, total, gained = start, counts.sum(0), []
    for _ in range(max_steps):
        mixed = np.maximum(ratios @ shares, 1e-300)
        gained.append(float((counts[:, 0] * np.log(mixed[:, 0])).sum() / total[0]))
        slope = ratios.T @ (counts / mixed) / total
        if ((slope.max(0) - 1) * total).max() <= close:  # concave: what is left to gain is at most this
            return shares, np.array(gained), True
        shares = shares * slope
    return shares, np.array(gained), False


def _redrawn(ratios: Vector, shares: Vector, resamples: int, max_steps: int, seed: int) -> Vector:
    rng, n = np.random.default_rng(seed), len(ratios)
    at_once = max(1, 10_000_000 // n)
    parts = []
    for begun in range(0, resamples, at_once):
        size = min(at_once, resamples - begun)
        counts = rng.multinomial(n, np.full(n, 1 / n), size).T.astype(np.float64)
        start = np.repeat(0.99 * shares + 0.01 / len(shares), size, 1)  # a share of 0 would stay 0
        parts.append(_em(ratios, counts, start, 1e-3, max_steps)[0])
    return np.concatenate(parts, 1)


def _refuse_flat(ratios: Vector) -> None:
    n, k = ratios.shape
    basis = np.linalg.svd(np.ones((1, k)))[2][1:].T  # the directions in which shares can move: their sum stays 1
    known = np.linalg.eigvalsh(basis.T @ (ratios.T @ ratios) @ basis)[0]
    if known < 1:
        raise ValueError(
            f"logits must tell the classes apart; in these {count(n)} rows some classes are told apart so little that "
            "their shares could be anything. Merge those classes, or pass more rows."
        )


def _refuse_uncalibrated(held_out: Predictions, train: Vector) -> None:
    n, k = len(held_out), len(train)
    if held_out.k != k:
        raise ValueError(f"held_out must have {k} classes, as logits have; got {held_out.k}.")
    p, seen = float64(held_out.probs), np.bincount(held_out.labels.numpy(), minlength=k).astype(np.float64)
    scored = _beyond_chance(seen, p.sum(0), (p * (1 - p)).sum(0), "predicted")
    if scored:
        raise ValueError(
            f"the scores of held_out must be calibrated; {scored}. Calibrate them first, on rows of their own, or undo "
            "class weights by adjust_prior(..., from_weights=...)."
        )
    shared = _beyond_chance(seen, n * train, n * train * (1 - train), "expected")
    if shared:
        raise ValueError(f"held_out must share train_prior; {shared}. Pass the shares that the scores assume.")
    found = least_log_loss(FitData.read(held_out.logits, held_out.labels))
    error = 0.0 if found.bound and found.beta < 1 else found.spread  # at that bound the logits say nothing at all
    if abs(np.log(found.beta)) > max(np.log(1 + OFF), 3 * error):
        way = "over" if found.beta < 1 else "under"
        raise ValueError(
            f"the scores of held_out must be calibrated; they are {way}-confident (temperature {1 / found.beta:.3g}). "
            "Calibrate them first, on rows of their own."
        )


def _beyond_chance(seen: Vector, expected: Vector, variance: Vector, verb: str) -> str:
    """Name the class whose count leaves its expectation the most, if by more than Bernstein's inequality allows."""
    log = np.log(2 * len(seen) / ERROR)
    excess = np.abs(seen - expected) - (log / 3 + np.sqrt(log**2 / 9 + 2 * variance * log))
    k, n = int(excess.argmax()), float(seen.sum())
    if excess[k] <= 0:
        return ""
    shares = [percent(float(counts[k] / n), 1) for counts in (expected, seen)]
    return f"class {k} is {verb} in {shares[0]} of its {count(int(n))} rows and seen in {shares[1]}"
