"""Losses and penalties, called directly and by Criterion: equal to their slow oracles, with gradients without NaN."""

import inspect
import random
from pathlib import Path
from typing import Any

import loss_oracles
import numpy as np
import torch
from hostile import JUNK, labels, logits, spoiled

from calibrant.losses.criterion import Criterion
from calibrant.registry import LOSSES, PENALTIES

STATEFUL = {"ada_focal", "cal_focal", "online_label_smoothing", "correctness_ranking"}
OPTIONS: dict[str, dict[str, list[Any]]] = {
    "focal": {"gamma": [0.0, 0.5, 2.0, 5.0], "detach_weight": [True, False]},
    "flsd": {"gamma": [2.0, 3.0]},
    "inverse_focal": {"gamma": [0.0, 1.0, 3.0]},
    "dual_focal": {"gamma": [0.5, 5.0], "competitor": ["ranked_after", "competitor", "only_if_right"]},
    "label_smoothing": {"alpha": [0.0, 0.1, 0.5], "convention": ["uniform", "k_minus_1"]},
    "seca": {"detach_mean": [True, False]},
    "aurc": {"confidence": ["msp", "negative_entropy"], "weighting": ["em", "ln", "sele"]},
    "mmce": {"weighted": [True, False]},
    "soft_ece": {"bins": [5, 15], "temperature": [0.01, 0.1]},
    "kde_ece": {"bandwidth": [0.1, 0.5], "p": [1, 2]},
    "soft_avuc": {"threshold": [0.3, 0.5], "temperature": [0.5, 1.0]},
    "avuc": {"threshold": [0.3, 0.7]},
}


def case(chance: random.Random, folder: Path) -> None:
    """Compute a loss and its gradient on a random batch."""
    name = chance.choice([*sorted(LOSSES), *sorted(PENALTIES)])
    n, k = chance.choice([1, 2, 3, 8, 20]), chance.choice([2, 3, 10])
    z = np.clip(logits(chance, n, k), -1e30, 1e30)
    y, bad = labels(chance, z), chance.random()
    dtype = chance.choice([torch.float64, torch.float64, torch.float32, torch.float16])
    with np.errstate(over="ignore"):
        batch = torch.from_numpy(z).clamp(
            -6e4 if dtype == torch.float16 else -1e30, 6e4 if dtype == torch.float16 else 1e30
        )
    batch = batch.to(dtype)
    truth = torch.from_numpy(y).to(chance.choice([torch.int64, torch.int32]))
    if bad < 0.06:
        wrong, _ = spoiled(chance, y)
        truth = (
            torch.as_tensor(wrong)
            if isinstance(wrong, np.ndarray) and wrong.dtype.kind in "iub"
            else torch.tensor([-1] * n)
        )
    elif bad < 0.1:
        batch = torch.from_numpy(np.asarray(z)).reshape(-1)
    options = {o: chance.choice(v) for o, v in OPTIONS.get(name, {}).items() if chance.random() < 0.5}
    if chance.random() < 0.05:
        options[chance.choice([*options, "gamma", "bins"])] = chance.choice(JUNK)
    criterion = made(name, options, n, k)
    batch.requires_grad_()
    rows = (torch.arange(n),) if criterion.needs_rows else ()
    value = criterion(batch, truth, *rows)
    value.backward()
    small = float(batch.detach().abs().max()) <= 1e4
    assert not bool(value.isnan()), f"{name}: the value is NaN"
    assert not small or bool(batch.grad.isfinite().all()), f"{name}: the gradient is not finite"
    if dtype == torch.float64 and small and bad >= 0.1 and name not in STATEFUL:
        compare(name, options, batch.detach().numpy(), y, value.item())


def made(name: str, options: dict[str, Any], n: int, k: int) -> Criterion:
    if name in PENALTIES and name not in LOSSES:
        return Criterion("cross_entropy", penalty=name, weight=1.0, penalty_options=options)
    sizes = {"k": k, "n": n}
    needed = {o: sizes[o] for o in inspect.signature(LOSSES[name]).parameters if o in sizes}
    return Criterion(name, {**needed, **options})


def compare(name: str, options: dict[str, Any], z: np.ndarray, y: np.ndarray, value: float) -> None:
    """Compare with the oracle, where it can follow: it takes logarithms of probabilities."""
    widest = np.ptp(z, axis=1)
    if widest.max() > (25 if name == "kde_ece" else 500) or (name == "kde_ece" and len(y) < 2):
        return
    oracle = getattr(loss_oracles, name)
    with np.errstate(all="ignore"):
        expected = float(np.mean(oracle(z, y, **options)))
        if name in PENALTIES and name not in LOSSES:
            expected += float(np.mean(loss_oracles.cross_entropy(z, y)))
    ties = len(np.unique(z.max(1) - z.min(1))) < len(y) or any(len(np.unique(row)) < len(row) for row in z)
    ties |= bool(widest.min() < 1e-6)
    if not np.isfinite(expected) or (ties and name in ("aurc", "au", "dual_focal", "dece", "avuc")):
        return  # the order among ties is not specified
    assert abs(value - expected) <= 1e-5 * max(1.0, abs(expected)), f"{name}({options}) = {value}, oracle {expected}"
