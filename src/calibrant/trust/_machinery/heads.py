r"""Heads of trust predictors: the classifier's log odds and other columns of a row -> one number z, trusted above 0.

.. math:: z = e^{s} \cdot \text{log odds} + g(u) + b

where u are standardised columns, clamped to the range that the fit saw, and g is linear or a relu network without a
last bias. The first term is the anchor: g starts at 0, so an anchored head starts as max-softmax. Without an anchor it
is left out.
"""

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.predictions.fit_data import standardised

Kind = Literal["linear", "signed_distance", "mlp"]
Net = dict[str, Tensor]
WIDTHS = (400, 400, 400, 400)  # of ConfidNet
TINY = 1e-7  # added to the length of the weights


def started(columns: Tensor, kind: Kind, *, anchor: bool, seed: int) -> Net:
    """Return a head's initial weights and the standardisation of its columns, in their type and on their device."""
    d = columns.shape[1]
    like: dict[str, Any] = {"dtype": columns.dtype, "device": columns.device}
    net: Net = standardised(columns) if d else {}
    net["shift"] = torch.zeros((), **like)
    if anchor:
        net["log_scale"] = torch.zeros((), **like)
    if d:
        net |= _layers(d, WIDTHS if kind == "mlp" else (), like, anchor=anchor, seed=seed)
    return net


def _layers(d: int, widths: tuple[int, ...], like: Mapping[str, Any], *, anchor: bool, seed: int) -> Net:
    g = torch.Generator().manual_seed(seed)
    sizes, found = (d, *widths, 1), Net()
    for layer, (before, after) in enumerate(pairwise(sizes), 1):
        # small, since far from 0 the steep slope loss is flat; the last layer of an anchored head starts at 0
        scale = 0.01 / math.sqrt(d) if not widths else math.sqrt(2 / before)
        scale = 0.0 if anchor and after == 1 and layer == len(sizes) - 1 else scale
        found[f"w{layer}"] = (scale * torch.randn(after, before, generator=g)).to(**like)
        if layer < len(sizes) - 1:
            found[f"b{layer}"] = torch.zeros(after, **like)
    return found


def learnable(net: Mapping[str, Tensor], kind: Kind) -> Net:
    """Return the trainable tensors of a head; the anchor of a signed distance keeps the scale 1."""
    fixed = {"mean", "std", "low", "high"} | ({"log_scale"} if kind == "signed_distance" else set())
    return {name: value for name, value in net.items() if name not in fixed}


def prepared(columns: Tensor, net: Mapping[str, Tensor]) -> Tensor:
    """Return the columns standardised and clamped, as the head sees them."""
    if "mean" not in net:
        return columns[:, :0]
    at = {name: net[name].to(columns.dtype) for name in ("mean", "std", "low", "high")}
    return ((columns - at["mean"]) / at["std"]).clamp(at["low"], at["high"])


def z_of(odds: Tensor, u: Tensor, net: Mapping[str, Tensor], kind: Kind) -> Tensor:
    r"""Return z of each row, from its log odds and its prepared columns.

    A signed distance is divided by the length of the weights, :math:`z / (\lVert w \rVert + 10^{-7})`: the distance of
    the row from the plane where z = 0.
    """
    at = {name: value.to(u.dtype) for name, value in net.items()}
    z, layers = at["shift"].expand(len(odds)), sum(name.startswith("w") for name in at)
    if layers:
        h = u
        for layer in range(1, layers):
            h = F.relu(F.linear(h, at[f"w{layer}"], at[f"b{layer}"]))
        z = z + F.linear(h, at[f"w{layers}"]).squeeze(1)
    if "log_scale" in at:
        z = z + at["log_scale"].exp() * odds.to(u.dtype)
    return z / (_length(at) + TINY) if kind == "signed_distance" else z


def _length(at: Net) -> Tensor:
    square = at["w1"].square().sum() if "w1" in at else torch.zeros_like(at["shift"])
    if "log_scale" in at:
        square = square + (2 * at["log_scale"]).exp()
    return square.sqrt()
