r"""A small relu network from indicators of a row to one number, with its gradient written out, and its training.

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

from calibrant.predictions.fit_data import standardised
from calibrant.predictions.types import Vector

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


class Network:
    """A relu network on fixed indicators: output and gradient as functions of one flat vector of weights.

    Every layer sees a last input that is always 1, so that its bias is a column of its matrix.
    """

    def __init__(self, x: Tensor, widths: tuple[int, ...], *, like: "Network | None" = None) -> None:
        self.fixed: State = standardised(x) if like is None else like.fixed
        known = ((x - self.fixed["mean"]) / self.fixed["std"]).clamp(self.fixed["low"], self.fixed["high"])
        self.inputs: Vector = np.vstack([known.T.numpy(), np.ones((1, len(x)))])
        sizes = (x.shape[1], *widths, 1)
        self.shapes = [(rows, columns + 1) for rows, columns in zip(sizes[1:], sizes[:-1], strict=True)]
        self.size = sum(rows * columns for rows, columns in self.shapes)
        self._hidden = [np.ones((rows + 1, len(x))) for rows, _ in self.shapes]
        self._back = [np.empty((rows, len(x))) for rows, _ in self.shapes]

    def start(self, bias: float, seed: int) -> Vector:
        """Draw weights and biases within 1 / sqrt(inputs of the layer); the last bias is given."""
        g = np.random.default_rng(seed)
        parts = []
        for rows, columns in self.shapes:
            drawn = g.uniform(-1, 1, rows * columns) / math.sqrt(columns - 1)
            weight, shift = drawn[:-rows].reshape(rows, columns - 1), drawn[-rows:, None]
            parts.append(np.hstack([weight, shift]).reshape(-1))
        parts[-1][-1] = bias
        return np.concatenate(parts)

    def layers(self, flat: Vector) -> list[Vector]:
        """Return views of the matrix of each layer, the bias its last column."""
        found, at = [], 0
        for rows, columns in self.shapes:
            found.append(flat[at : at + rows * columns].reshape(rows, columns))
            at += rows * columns
        return found

    def state(self, flat: Vector) -> State:
        """Return everything that `output` needs, as tensors."""
        named = dict(self.fixed)
        for layer, weight in enumerate(self.layers(flat), 1):
            named[f"w{layer}"] = torch.tensor(weight[:, :-1])
            named[f"b{layer}"] = torch.tensor(weight[:, -1])
        return named

    def __call__(self, flat: Vector) -> Vector:
        """Return the output for each row."""
        h, last = self.inputs, len(self.shapes) - 1
        for place, (weight, hidden) in enumerate(zip(self.layers(flat), self._hidden, strict=True)):
            np.matmul(weight, h, out=hidden[:-1])
            if place < last:
                np.maximum(hidden[:-1], 0, out=hidden[:-1])
            h = hidden
        return h[0]

    def gradient(self, flat: Vector, by_output: Vector) -> Vector:
        """Return the gradient in the weights, given that in the output of the last call."""
        total = np.empty_like(flat)
        back = by_output[None, :]
        layers, slopes = self.layers(flat), self.layers(total)
        for place in reversed(range(len(layers))):
            below = self._hidden[place - 1] if place else self.inputs
            np.matmul(back, below.T, out=slopes[place])
            if place == 0:
                break
            active = np.sign(below[:-1], out=self._back[place - 1])
            if place == len(layers) - 1 == 1:  # the one weight of a unit leaves the sum over rows: half the work
                np.multiply(layers[1].T[:-1], active @ (self.inputs * back).T, out=slopes[0])
                break
            back = np.multiply(active, layers[place].T[:-1] @ back, out=active)
        return total


@dataclass(frozen=True)
class Trained:
    """The weights that were kept, and their loss."""

    weights: Vector
    loss: float


def train(net: Network, begin: Vector, link: Link, loss: Loss, *, steps: int) -> Trained:
    """Take full-batch Adam steps and keep the weights of lowest loss, not the last ones."""
    best = Trained(begin, math.inf)
    for value, weights in adam(net, begin, link, loss, steps=steps):
        if value < best.loss:
            best = Trained(weights.copy(), value)
    return best


def adam(
    net: Network, begin: Vector, link: Link, loss: Loss, *, steps: int, rate: float = RATE
) -> Iterator[tuple[float, Vector]]:
    """Yield loss and weights before each full-batch Adam step and after the last; the array is reused."""
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
        at -= rate * (mean / (1 - 0.9**step)) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
