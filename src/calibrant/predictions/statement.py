"""What Predictions understood, stated in one line, and warnings about inputs that look suspicious."""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from calibrant.records import count, percent

if TYPE_CHECKING:
    from calibrant.predictions.predictions import Predictions


def understood(p: "Predictions") -> str:
    """One line: rows, classes, kind, labels, accuracy, and what was translated or left out."""
    n = len(p)
    rows = f"{count(n)} row{'s' if n != 1 else ''}"
    parts = [rows if p.k is None else f"{rows} x {count(p.k)} classes", _kind(p)]
    if p.k is not None and p.rows.labels is not None:
        parts.append(_labels(p))
    parts += p.rows.said
    if p.weights is not None:
        parts.append(f"weights summing to {float(p.weights.sum()):.6g}")
    if p.groups is not None:
        groups = len(set(p.groups.tolist()))
        parts.append(f"{count(groups)} group{'s' if groups != 1 else ''}")
    if p.kind == "confidence" or p.rows.labels is not None:
        parts.append(f"accuracy {_accuracy(p):.3f}")
    return ", ".join(parts)


def _kind(p: "Predictions") -> str:
    if p.kind == "confidence":
        return "confidence and correctness"
    return p.kind.replace("_", "-") + (f" of class {p.classes[1]!r}" if p.rows.one_column and p.classes else "")


def _labels(p: "Predictions") -> str:
    k = p.k or 0
    absent = k - len(p.labels.unique())
    names = f"{p.classes[0]!r}-{p.classes[-1]!r}" if p.classes else f"0-{k - 1}"
    if not absent:
        return f"labels {names}"
    return f"labels {names} ({count(absent)} {'class' if absent == 1 else 'classes'} absent)"


def _accuracy(p: "Predictions") -> float:
    right = p.correct.double()
    return float(right.mean() if p.weights is None else (right * p.weights).sum() / p.weights.sum())


def notes(p: "Predictions") -> tuple[str, ...]:
    """Every suspicion that holds, a sentence each."""
    if p.kind != "confidence" and p.rows.labels is None:
        return ()
    suspicions = (_constant, _saturated, _softmax_twice, _training_data, _permuted, _duplicates)
    return tuple(note for note in (suspect(p) for suspect in suspicions) if note)


def _constant(p: "Predictions") -> str:
    if len(p) > 1 and bool((p.confidence == p.confidence[0]).all()):
        value = float(p.confidence[0])
        return (
            f"confidence takes one value ({value:.3g}); calibration cannot be measured beyond its mean, "
            "and no threshold can separate right from wrong."
        )
    return ""


def _saturated(p: "Predictions") -> str:
    exact = int(((p.confidence == 0) | (p.confidence == 1)).sum())
    half = p.rows.scores is not None and p.kind == "probs" and p.rows.scores.dtype in (torch.float16, torch.bfloat16)
    if half and exact:
        kind = str(p.rows.scores.dtype).removeprefix("torch.") if p.rows.scores is not None else ""
        return f"{kind} input: {percent(exact / len(p))} of confidences are exactly 1; pass logits, or cast first."
    if exact and p.kind != "logits":
        return f"{count(exact)} of {count(len(p))} confidences are exactly 0 or 1; pass logits to tell them apart."
    return ""


def _softmax_twice(p: "Predictions") -> str:
    if p.k is None:
        return ""
    limit, top = math.e / (math.e + p.k - 1), float(p.confidence.max())
    right = _accuracy(p)
    if top <= limit + 1e-6 and right > limit and len(p) >= 20:
        return (
            f"confidences never exceed {top:.2f} with {p.k} classes and accuracy is {right:.2f}; "
            "this is what softmax applied twice looks like."
        )
    return ""


def _training_data(p: "Predictions") -> str:
    if p.k is None:
        return ""
    right, nll = _accuracy(p), float(p.nll.mean())
    if right >= 0.998 and nll < 0.01 and len(p) >= 500:
        return f"accuracy here is {right:.4f} and NLL {nll:.4f}; this looks like the data the model was trained on."
    return ""


def _permuted(p: "Predictions") -> str:
    return p.rows.doubt


def _duplicates(p: "Predictions") -> str:
    if p.rows.scores is None or len(p) < 2:
        return ""
    f = p.facts
    keys = [c.numpy() for c in (p.labels, f.max_logit, f.energy, f.entropy)]
    order = np.lexsort(keys)
    alike = np.logical_and.reduce([k[order][1:] == k[order][:-1] for k in keys])
    alike &= (p.confidence.numpy() < 1)[order][1:]  # saturated rows are alike without being copies
    one, two = (torch.from_numpy(rows[alike].copy()).to(p.rows.scores.device) for rows in (order[1:], order[:-1]))
    repeated = int((p.rows.scores[one] == p.rows.scores[two]).all(1).sum())
    if 0 < repeated < 0.05 * len(p):  # more than that is how a forest or rounded scores look
        return (
            f"{count(repeated)} of {count(len(p))} rows repeat an earlier row exactly; "
            "a distributed sampler pads its last batch this way."
        )
    return ""
