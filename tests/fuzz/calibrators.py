"""Every calibrator and row-reading trust predictor on random rows: finite, row by row, saved and read to the bit."""

import inspect
import random
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np
import torch
from hostile import JUNK, Given, labels, logits, numpy_of

import calibrant as cb
from calibrant.registry import CALIBRATORS, TRUST

SLOW = {"dirichlet", "smart", "parameterised_temperature", "smart_proper", "group", "class_temperature"}


def case(chance: random.Random, folder: Path) -> None:
    """Fit, apply, save, load."""
    name = chance.choice(sorted(CALIBRATORS))
    if name in SLOW and chance.random() < 0.7:
        name = "temperature"
    registry = CALIBRATORS
    if chance.random() < 0.25:
        registry, name = TRUST, chance.choice(["mcp", "bce", "focal", "tcp", "class_balanced", "trust_score"])
    n, k = chance.choice([1, 2, 5, 20, 60, 150]), chance.choice([2, 2, 3, 5])
    given = Given()
    z = np.clip(logits(chance, n, k), -1e20, 1e20)
    given.add(chance, "logits", z, bad=0.03)
    given.add(chance, "labels", labels(chance, z), exact=True, bad=0.03)
    features = numpy_of(chance).normal(size=(n, 4))
    extra: dict[str, Any] = {}
    fit = registry[name].fit
    asked = inspect.signature(fit).parameters
    if "features" in asked:
        extra["features"] = features
    if "weight" in asked:
        extra |= {"weight": numpy_of(chance).normal(size=(k, 4)), "bias": np.zeros(k)}
    extra |= options(chance, asked)
    if chance.random() < 0.05:
        extra[chance.choice([*extra, "seed", "nonsense"])] = chance.choice(JUNK)
    made = fit(**given.arguments, **extra)
    assert not given.hopeless, f"{name}: bad input accepted"
    if not given.good:
        return
    rows = torch.from_numpy(np.clip(logits(chance, 30, k), -1e20, 1e20))
    beside = (torch.from_numpy(numpy_of(chance).normal(size=(30, 4))),) if made.needs_features else ()
    out = made(rows, *beside)
    assert bool(out.isfinite().all()), f"{name}: output is not finite"
    if registry is CALIBRATORS:
        assert out.shape == rows.shape, f"{name}: shape"
        same = torch.equal(out.argmax(1), rows.argmax(1))
        assert not made.keeps_argmax or same, f"{name}: the argmax changed"
    else:
        assert bool(((out >= 0) & (out <= 1)).all()), f"{name}: a confidence outside of [0, 1]"
    one = made(rows[3:4], *(part[3:4] for part in beside))
    assert torch.allclose(one[0], out[3], rtol=1e-6, atol=1e-6), f"{name}: a row by itself is answered differently"
    made.save(folder / "made.safetensors")
    again = cb.load(folder / "made.safetensors")
    assert torch.equal(again(rows, *beside), out), f"{name}: another answer after loading"
    assert repr(again) == repr(made)


def options(chance: random.Random, asked: Any) -> dict[str, Any]:
    """Some right options, by their annotations."""
    found: dict[str, Any] = {}
    for p in asked.values():
        if p.kind is not p.KEYWORD_ONLY or chance.random() < 0.8:
            continue
        if get_origin(p.annotation) is Literal:
            found[p.name] = chance.choice(get_args(p.annotation))
        elif p.annotation is bool:
            found[p.name] = chance.random() < 0.5
        elif p.name == "seed":
            found[p.name] = chance.randrange(1000)
    return found
