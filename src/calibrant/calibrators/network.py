r"""A small network from indicators of a row to one number, its gradient by hand, and how it is trained.

.. math:: h_0 = (x - \text{mean}) / \text{std}, \qquad h_l = \mathrm{relu}(W_l h_{l-1} + b_l), \qquad
          \text{out} = W_L h_{L-1} + b_L

Indicators are standardised with the mean and population standard deviation of the rows of the fit and clamped to their
range. A fit takes thousands of full-batch steps on a few hundred weights: in numpy, on memory that is allocated once, a
step costs a fraction of what it costs under autograd.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.nouns import Vector

State = dict[str, Tensor]
Link = Callable[[Vector], tuple[Vector, Vector]]  # output -> beta = 1/T and its derivative
Loss = Callable[[Vector], tuple[float, Vector]]  # beta -> value and its derivative
RATE = 5e-3  # of Adam


def output(x: Tensor, net: Mapping[str, Tensor]) -> Tensor:
    """Return the network's output for each row of (n, d) indicators."""
    at = {name: value.to(x.dtype) for name, value in net.items()}
    h, layers = ((x - at["mean"]) / at["std"]).clamp(at["low"], at["high"]), sum(name.startswith("w") for name in at)
    for layer in range(1, layers):
        h = F.relu(F.linear(h, at[f"w{layer}"], at[f"b{layer}"]))
    return F.linear(h, at[f"w{layers}"], at[f"b{layers}"]).squeeze(1)


def standardised(x: Tensor) -> State:
    """Return mean and population standard deviation of (n, d) indicators, and their standardised range.

    A constant indicator keeps its scale.
    """
    mean, std = x.mean(0), x.std(0, correction=0)
    std = torch.where(std > 1e-8, std, torch.ones_like(std))
    return {"mean": mean, "std": std, "low": ((x - mean) / std).amin(0), "high": ((x - mean) / std).amax(0)}


class Network:
    """A relu network on fixed indicators: output and gradient as functions of one flat vector of weights."""

    def __init__(self, x: Tensor, widths: tuple[int, ...], *, like: "Network | None" = None) -> None:
        self.fixed: State = standardised(x) if like is None else like.fixed
        known = ((x - self.fixed["mean"]) / self.fixed["std"]).clamp(self.fixed["low"], self.fixed["high"])
        self.inputs: Vector = known.T.contiguous().numpy()
        sizes = (x.shape[1], *widths, 1)
        self.shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
        self.size = sum(rows * (columns + 1) for rows, columns in self.shapes)
        self._hidden = [np.empty((rows, len(x))) for rows, _ in self.shapes]
        self._back = [np.empty((rows, len(x))) for rows, _ in self.shapes]
        self._sign = [np.empty((rows, len(x))) for rows, _ in self.shapes]

    def start(self, bias: float, seed: int) -> Vector:
        """Draw weights and biases within 1 / sqrt(inputs of the layer); the last bias is given."""
        g = np.random.default_rng(seed)
        parts = [g.uniform(-1, 1, rows * (columns + 1)) / math.sqrt(columns) for rows, columns in self.shapes]
        parts[-1][-1] = bias
        return np.concatenate(parts)

    def layers(self, flat: Vector) -> list[tuple[Vector, Vector]]:
        """Return views of the weights and biases of each layer."""
        found, at = [], 0
        for rows, columns in self.shapes:
            end = at + rows * columns
            found.append((flat[at:end].reshape(rows, columns), flat[end : end + rows]))
            at = end + rows
        return found

    def state(self, flat: Vector) -> State:
        """Return everything that `output` needs, as tensors."""
        named = dict(self.fixed)
        for layer, (weight, bias) in enumerate(self.layers(flat), 1):
            named[f"w{layer}"], named[f"b{layer}"] = torch.tensor(weight), torch.tensor(bias)
        return named

    def __call__(self, flat: Vector) -> Vector:
        """Return the output for each row."""
        h = self.inputs
        layers = self.layers(flat)
        for place, ((weight, bias), out) in enumerate(zip(layers, self._hidden, strict=True)):
            _product(weight, h, out)
            out += bias[:, None]
            h = out if place == len(layers) - 1 else np.maximum(out, 0, out=out)
        return h[0]

    def gradient(self, flat: Vector, by_output: Vector) -> Vector:
        """Return the gradient in the weights, given that in the output of the last call."""
        total = np.empty_like(flat)
        back = by_output[None, :]
        layers, slopes = self.layers(flat), self.layers(total)
        for place in reversed(range(len(layers))):
            below = self._hidden[place - 1] if place else self.inputs
            slopes[place][0][:] = back @ below.T
            slopes[place][1][:] = back.sum(1)
            if place:
                back = _product(layers[place][0].T, back, self._back[place - 1])
                np.multiply(back, np.sign(below, out=self._sign[place - 1]), out=back)
        return total


def _product(left: Vector, right: Vector, out: Vector) -> Vector:
    """Multiply matrices; an outer product goes faster as one multiplication."""
    return (np.multiply if len(right) == 1 else np.matmul)(left, right, out=out)


@dataclass(frozen=True)
class Trained:
    """The weights that were kept, and their loss."""

    weights: Vector
    loss: float


def train(net: Network, begin: Vector, link: Link, loss: Loss, *, steps: int, rate: float) -> Trained:
    """Take full-batch Adam steps that shrink to nothing, and keep the weights of lowest loss, not the last ones."""
    best = Trained(begin, math.inf)
    for value, weights in adam(net, begin, link, loss, steps=steps, rate=rate, settle=True):
        if value < best.loss:
            best = Trained(weights.copy(), value)
    return best


def adam(
    net: Network, begin: Vector, link: Link, loss: Loss, *, steps: int, rate: float = RATE, settle: bool = False
) -> Iterator[tuple[float, Vector]]:
    """Yield loss and weights before each full-batch Adam step and after the last; the array is written over later.

    ``settle`` lets the rate fall to 0 along a cosine.
    """
    at = begin.copy()
    mean, square = np.zeros_like(at), np.zeros_like(at)
    for step in range(1, steps + 2):
        beta, by_output = link(net(at))
        value, by_beta = loss(beta)
        yield value, at
        if step > steps:
            return
        slope = net.gradient(at, by_beta * by_output)
        mean += 0.1 * (slope - mean)
        square += 0.001 * (slope**2 - square)
        now = rate * (1 + math.cos(math.pi * step / steps)) / 2 if settle else rate
        at -= now * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
