"""Every registered calibrator, fitted on the same few rows: what the tests of saving and of export run over."""

import inspect
from functools import cache

import torch

from calibrant.registry import CALIBRATORS

N, K, D = 300, 4, 6


@cache
def rows():
    """An over-confident linear model: logits, labels, features, and the weight and bias of its last layer."""
    source = torch.Generator().manual_seed(0)
    features = torch.randn(N, D, generator=source).relu()
    weight, bias = 2 * torch.randn(K, D, generator=source), torch.randn(K, generator=source)
    logits = features @ weight.T + bias
    labels = torch.multinomial((logits / 3).softmax(1), 1, generator=source).squeeze(1)
    return {"logits": logits, "labels": labels, "features": features, "weight": weight, "bias": bias}


@cache
def fitted(name):
    """Fit a method by name, giving it whatever of the rows its ``fit`` asks for."""
    fit = CALIBRATORS[name].fit
    needs = CALIBRATORS.entry(name).facts.get("needs_features", False)
    asked = inspect.signature(fit).parameters
    known = {key: value for key, value in rows().items() if key in asked and (needs or key in ("logits", "labels"))}
    return fit(known.pop("logits"), known.pop("labels"), **known)


def probe(name, *, dtype=torch.float32, n=50):
    """What to call the calibrator with: fresh logits and, where it needs them, features."""
    source = torch.Generator().manual_seed(1)
    features = torch.randn(n, D, generator=source).relu()
    logits = (features @ rows()["weight"].T + rows()["bias"]).to(dtype)
    needs = CALIBRATORS.entry(name).facts.get("needs_features", False)
    return (logits, features.to(dtype)) if needs else (logits,)
