"""Selective prediction: the error as the least confident rows are rejected; ties are averaged."""

from typing import Literal

import numpy as np
from scipy.special import digamma

from calibrant.metrics.blocks import Blocks, tied_blocks
from calibrant.metrics.inputs import metric
from calibrant.predictions import scalars
from calibrant.predictions.types import Confidence, Correct, PerSample, Vector, Weights


@metric(better="lower", range=(0.0, float("inf")), family="selective")
def aurc(
    confidence: Confidence,
    correct: Correct,
    *,
    losses: PerSample | None = None,
    convention: Literal["exact", "logarithm", "geifman", "confidnet"] = "exact",
    weights: Weights | None = None,
) -> float:
    r"""Area under the risk-coverage curve: the error averaged over every share of rows kept.

    .. math:: \frac1n \sum_{j=1}^n \frac1j \sum_{i=1}^j \ell_{(i)}

    with :math:`\ell_{(i)}` the loss of the i-th most confident row: its 0/1 error, or ``losses``. Inside a block of
    tied confidences every row has the block's mean loss, which is the average over all orders of the block.

    ``convention`` reproduces published variants: ``"logarithm"`` weights each loss by
    :math:`-\ln(1 - r/(n+1))` with r its rank from below, ``"geifman"`` the
    released code whose divisor is one too large, ``"confidnet"`` a trapezoid over distinct thresholds that stops short
    of full coverage. They assume
    distinct confidences and no weights.

    Mixes ranking with accuracy: a better classifier has a lower AURC at equal ranking. See `augrc`, `failure_auroc`.

    Reference: Geifman, Uziel & El-Yaniv, ICLR 2019; Zhou et al., ICLR 2025.

    Example:
        >>> aurc(torch.tensor([0.9, 0.8]), torch.tensor([True, False]))
        0.25
    """
    blocks = tied_blocks(confidence, correct, losses=losses, weights=weights)
    if convention == "exact":
        return _mean_selective_risk(blocks)
    if weights is not None:
        raise ValueError(f"weights must be left out with convention={convention!r}, which does not define them.")
    return _VARIANTS[convention](blocks)


def _mean_selective_risk(blocks: Blocks) -> float:
    count, loss = blocks.count, blocks.loss
    before, lost = np.cumsum(count) - count, np.cumsum(loss) - loss
    harmonic = 1 / (before + 1)
    wide = count != 1
    harmonic[wide] = digamma((before + count)[wide] + 1) - digamma(before[wide] + 1)
    inside = loss / count * (count - before * harmonic)
    return float((lost * harmonic + inside).sum() / count.sum())


def _rows(blocks: Blocks) -> Vector:
    return np.repeat(blocks.loss / blocks.count, blocks.count.astype(int))


def _logarithm(blocks: Blocks) -> float:
    loss = _rows(blocks)
    n = len(loss)
    rank = np.arange(n, 0, -1)  # of the most confident row: n
    return float((-np.log(1 - rank / (n + 1)) * loss).sum() / n)


def _geifman(blocks: Blocks) -> float:
    loss = _rows(blocks)
    n = len(loss)
    kept = np.cumsum(loss)[::-1]  # all rows first, then without the least confident, one by one
    risk = np.append(kept[0] / n, kept[1:] / np.arange(n, 1, -1))
    return float(risk.mean())


def _confidnet(blocks: Blocks) -> float:
    return float(np.trapezoid(blocks.risk[:-1], blocks.coverage[:-1]))  # strictly above a threshold: never all rows


_VARIANTS = {"logarithm": _logarithm, "geifman": _geifman, "confidnet": _confidnet}


@metric(better="lower", range=(-1.0, 1.0), family="selective")
def e_aurc(
    confidence: Confidence,
    correct: Correct,
    *,
    oracle: Literal["asymptotic", "exact"] = "asymptotic",
    weights: Weights | None = None,
) -> float:
    r"""Excess AURC: what is lost against ranking every error last.

    .. math:: \mathrm{AURC} - \bigl(e + (1 - e)\ln(1 - e)\bigr), \qquad e = \text{error rate}

    The published oracle is the limit for many rows, so a perfect ranking of few rows scores a little above 0;
    ``oracle="exact"`` subtracts the AURC of the same rows ranked perfectly and is exactly 0 there.

    Reference: Geifman, Uziel & El-Yaniv, ICLR 2019.

    Example:
        >>> e_aurc(torch.tensor([0.9, 0.8]), torch.tensor([True, False]), oracle="exact")
        0.0
    """
    blocks = tied_blocks(confidence, correct, weights=weights)
    n, wrong = blocks.count.sum(), blocks.loss.sum()
    if oracle == "exact":
        parts = np.array([n - wrong, wrong])
        perfect = Blocks(np.array([1.0, 0.0])[parts > 0], parts[parts > 0], np.array([0.0, wrong])[parts > 0])
        return _mean_selective_risk(blocks) - _mean_selective_risk(perfect)
    e = wrong / n
    best = e + (1 - e) * np.log1p(-e) if e < 1 else 1.0
    return _mean_selective_risk(blocks) - float(best)


@metric(better="lower", range=(0.0, 0.5), family="selective")
def augrc(confidence: Confidence, correct: Correct, *, weights: Weights | None = None) -> float:
    r"""Area under the generalised risk-coverage curve: the share of all rows that are accepted and wrong.

    .. math:: \int_0^1 \frac{\#\{\text{accepted and wrong}\}}{n}\, d\,\text{coverage}
              = (1 - \mathrm{AUROC}_f)\,e(1 - e) + \tfrac12 e^2

    by the trapezoid rule over distinct thresholds from (0, 0), exact with ties; e is the error rate and the best
    possible value is :math:`e^2/2`. Unlike AURC it does not let the few most confident rows dominate.

    Reference: Traub et al., NeurIPS 2024 (arXiv 2407.01032).

    Example:
        >>> augrc(torch.tensor([0.9, 0.8]), torch.tensor([True, False]))
        0.125
    """
    blocks = tied_blocks(confidence, correct, weights=weights)
    wrong = np.concatenate([[0.0], np.cumsum(blocks.loss)]) / blocks.count.sum()
    return float(np.trapezoid(wrong, np.concatenate([[0.0], blocks.coverage])))


@metric(better="lower", range=(0.0, 1.0), family="selective")
def risk_at_coverage(
    confidence: Confidence, correct: Correct, *, coverage: float = 0.8, weights: Weights | None = None
) -> float:
    r"""Error among the most confident share of rows.

    .. math:: \frac1m \sum_{i=1}^m \ell_{(i)}, \qquad m = \lceil \text{coverage} \cdot n \rceil

    Where the cut falls inside a block of ties, the rows taken from it have the block's mean error.

    Reference: Geifman & El-Yaniv, NeurIPS 2017.

    Example:
        >>> risk_at_coverage(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, True, False, True]), coverage=0.5)
        0.0
    """
    if not 0 < coverage <= 1:
        raise ValueError(f"coverage must lie in (0, 1]; got {coverage}.")
    blocks = tied_blocks(confidence, correct, weights=weights)
    total = blocks.count.sum()
    kept = min(max(np.ceil(coverage * total - 1e-9), 1.0), total) if total >= 1 else total
    accepted, wrong = (np.concatenate([[0.0], np.cumsum(x)]) for x in (blocks.count, blocks.loss))
    return float(np.interp(kept, accepted, wrong) / kept)


@metric(better="higher", range=(0.0, 1.0), family="selective")
def coverage_at_risk(
    confidence: Confidence, correct: Correct, *, risk: float = 0.05, weights: Weights | None = None
) -> float:
    r"""Largest share of rows that can be accepted, by a threshold, at no more than the given error.

    .. math:: \max_t \Bigl\{ \tfrac{\#\{c_i \ge t\}}{n} : \text{error among } c_i \ge t \text{ is at most risk} \Bigr\}

    0 if there is no such threshold. Read off the same rows it is optimistic: a threshold that must keep its promise on
    new rows needs a bound that survives the search.

    Reference: Geifman & El-Yaniv, NeurIPS 2017.

    Example:
        >>> coverage_at_risk(torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([True, True, False, True]))
        0.5
    """
    risk = scalars.real(risk, "risk", least=0.0, most=1.0)
    blocks = tied_blocks(confidence, correct, weights=weights)
    allowed = blocks.coverage[blocks.risk <= risk + 1e-12]
    return float(allowed[-1]) if len(allowed) else 0.0
